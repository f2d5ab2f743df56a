"""MIXER (Ranzato et al. 2016): cross-entropy for the first tokens of a sentence, REINFORCE for the rest."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.losses.contract import Loss, LossOutput, LossWeights
from argbeam.losses.cross_entropy import CrossEntropy, per_sentence
from argbeam.losses.replay import gold_outputs
from argbeam.losses.risks import Risk, one_minus_sentence_bleu, risk_in
from argbeam.losses.sampling import drawn_tokens, needed, until_end, with_room, write
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.score_rules import NEVER
from argbeam.search.successors import Successors


class Baseline(nn.Module):
    """Expected reward, by a linear regression on the input of the output layer (section 3.2.1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight_H = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, output_BTH: Float[Tensor, "B T H"]) -> Float[Tensor, "B T"]:
        # A sum of products and no product of matrices, so that it stays in full precision.
        return (output_BTH * self.weight_H).sum(-1) + self.bias


@dataclass(frozen=True)
class Mixer(Loss):
    """The last delta tokens of a sentence are the model's own, drawn from it, and may turn out more or fewer.

    The tokens before them are trained by cross-entropy. An own token has the loss -(reward - baseline) * log p(token):
    the reward is 1 - `risk` of the whole output, the baseline the reward expected before the token. delta is 0 for
    `cross_entropy_epochs`, then grows by `words_per_border` at once and again every `epochs_per_border` epochs.
    `successors` are the same for all steps (`Unconstrained`).
    """

    successors: Successors
    baseline: Baseline
    cross_entropy_epochs: int = 0
    epochs_per_border: int = 2
    words_per_border: int = 3
    risk: Risk = one_minus_sentence_bleu
    extra_length: int = 4
    baseline_rate: float = 0.01
    baseline_weight: float = 0.01

    @property
    def weights(self) -> LossWeights:
        return LossWeights(self.baseline, self.baseline_rate)

    def at(self, epoch: int) -> "MixerStep":
        # Algorithm 1, T - s.
        borders = 1 + (epoch - self.cross_entropy_epochs) // self.epochs_per_border
        return MixerStep(self, 0 if epoch < self.cross_entropy_epochs else borders * self.words_per_border)


@dataclass(frozen=True)
class MixerStep:
    """MIXER with the border of one epoch: the last `delta` tokens are the model's own."""

    mixer: Mixer
    delta: int
    beam = 0

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        mixer = self.mixer
        if self.delta == 0:
            return CrossEntropy()(model, batch, noise)
        noise = needed(noise, "mixer")
        batch, limit_B = with_room(batch, mixer.extra_length)
        gold_BT, length_B = batch.target_BT, batch.target_length_B
        position_T = torch.arange(gold_BT.shape[1], device=gold_BT.device)
        own_BT = position_T >= (length_B - self.delta)[:, None]
        allowed_1V = mixer.successors.start(batch).allowed()
        pick = drawn_tokens(allowed_1V, noise, steps=gold_BT.shape[1])
        state = model.encode(batch, noise)
        written_BT = write(model, state, gold_BT, own_BT, pick, batch.specials)
        tokens_BT, real_BT = until_end(written_BT, limit_B, batch.specials)
        output_BTH = gold_outputs(model, state, written_BT, batch.specials)
        # Own tokens were drawn among those allowed, gold tokens are trained against the whole vocabulary.
        barred_BTV = own_BT[..., None] & ~allowed_1V
        scores_BTV = model.scores(output_BTH).masked_fill(barred_BTV, NEVER)
        loss_X = F.cross_entropy(scores_BTV.flatten(0, 1), written_BT.flatten(), reduction="none")
        risk = risk_in(mixer.risk, loss_X.dtype, batch.specials)
        reward_B = (1 - risk(tokens_BT, real_BT.sum(1), gold_BT, length_B)).to(loss_X.dtype)
        # No gradient of the baseline's error reaches the model.
        error_BT = reward_B[:, None] - mixer.baseline(output_BTH.detach())
        weight_BT = torch.where(own_BT, error_BT.detach(), 1.0)
        total = torch.where(real_BT, weight_BT * loss_X.view_as(gold_BT), 0.0).sum()
        error = torch.where(real_BT & own_BT, error_BT.square(), 0.0).sum()
        sums = {
            "loss": total.detach(),
            "own_words": (real_BT & own_BT).sum().to(total.dtype),
            "reward": torch.where(length_B > 0, reward_B, 0.0).sum(),
            "baseline_error": error.detach(),
        }
        return per_sentence(total + mixer.baseline_weight * error, length_B, sums)
