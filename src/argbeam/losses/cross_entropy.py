"""Token-level cross-entropy with the gold history: the paper's seq2seq baseline and the pre-training of BSO."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.contract import Loss, LossOutput
from argbeam.losses.replay import gold_outputs, in_parts
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.score_rules import LogprobSum
from argbeam.search.stop_rules import StopBest


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Minus the sum of the gold tokens' log-probabilities, over the number of sentences.

    With `label_smoothing` e the target is 1 - e on gold and e spread evenly over the vocabulary (Szegedy et al. 2016).
    """

    label_smoothing: float = 0.0
    beam, reset_optimizer, weights = 0, False, None
    rule, stop = LogprobSum(), StopBest()

    def at(self, epoch: int) -> "CrossEntropy":
        return self

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        output_BTH = gold_outputs(model, model.encode(batch, noise), batch.target_BT)
        return gold_loss(model, output_BTH, batch, smoothing=self.label_smoothing)


def gold_loss(model: Model, output_BTH: Float[Tensor, "B T H"], batch: Batch, *, smoothing: float = 0.0) -> LossOutput:
    """Minus the sum of the gold tokens' log-probabilities after these inputs of the output layer, over the number of
    sentences.

    With smoothing the sums have the plain `cross_entropy` beside the loss.
    """
    gold_BT, length_B = batch.target_BT, batch.target_length_B
    real_BT = torch.arange(gold_BT.shape[1], device=gold_BT.device) < length_B[:, None]

    def of_rows(output_XH: Tensor, token_X: Tensor) -> Tensor:
        """The loss of each row; with smoothing the plain one beside it."""
        scores_XV = model.scores(output_XH[None])[0]
        if not smoothing:
            return F.cross_entropy(scores_XV, token_X, reduction="none")
        logprobs_XV = scores_XV.log_softmax(1)
        gold_logprob_X = logprobs_XV.gather(1, token_X[:, None])[:, 0]
        return torch.stack([-(1 - smoothing) * gold_logprob_X - smoothing * logprobs_XV.mean(1), -gold_logprob_X], 1)

    found = in_parts(of_rows, output_BTH.flatten(0, 1), gold_BT.flatten())
    if not smoothing:
        return per_sentence(torch.where(real_BT, found.view_as(gold_BT), 0.0).sum(), length_B, {})
    loss_BT, plain_BT = found.view(*gold_BT.shape, 2).unbind(2)
    plain = torch.where(real_BT, plain_BT.detach(), 0.0).sum()
    return per_sentence(torch.where(real_BT, loss_BT, 0.0).sum(), length_B, {"cross_entropy": plain})


def per_sentence(total: Float[Tensor, ""], length_B: Int[Tensor, " B"], sums: dict[str, Tensor]) -> LossOutput:
    """A sum divided by the number of sentences, with further sums; at least by 1, for a batch of padding alone."""
    sentences, tokens = (length_B > 0).sum().to(total.dtype), length_B.sum().to(total.dtype)
    return LossOutput(
        total, sentences.clamp(min=1), {"loss": total.detach(), "sentences": sentences, "words": tokens, **sums}
    )
