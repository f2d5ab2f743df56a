"""Token-level cross-entropy with the gold history: the paper's seq2seq baseline and the pre-training of BSO."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.contract import Loss, LossOutput
from argbeam.losses.replay import score
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
        scores_BTV = score(model, model.encode(batch, noise), batch.target_BT)
        return gold_loss(scores_BTV, batch.target_BT, batch.target_length_B, smoothing=self.label_smoothing)


def gold_loss(
    scores_BTV: Float[Tensor, "B T V"],
    gold_BT: Int[Tensor, "B T"],
    length_B: Int[Tensor, " B"],
    *,
    smoothing: float = 0.0,
) -> LossOutput:
    """Minus the sum of the gold tokens' log-probabilities under these scores, over the number of sentences.

    With smoothing the sums have the plain `cross_entropy` beside the loss.
    """
    real_BT = torch.arange(gold_BT.shape[1], device=gold_BT.device) < length_B[:, None]
    if not smoothing:
        loss_BT = F.cross_entropy(scores_BTV.flatten(0, 1), gold_BT.flatten(), reduction="none").view_as(gold_BT)
        return per_sentence(torch.where(real_BT, loss_BT, 0.0).sum(), length_B, {})
    logprobs_BTV = scores_BTV.log_softmax(2)
    gold_logprob_BT = logprobs_BTV.gather(2, gold_BT[..., None])[..., 0]
    loss_BT = -(1 - smoothing) * gold_logprob_BT - smoothing * logprobs_BTV.mean(2)
    plain = -torch.where(real_BT, gold_logprob_BT.detach(), 0.0).sum()
    return per_sentence(torch.where(real_BT, loss_BT, 0.0).sum(), length_B, {"cross_entropy": plain})


def per_sentence(total: Float[Tensor, ""], length_B: Int[Tensor, " B"], sums: dict[str, Tensor]) -> LossOutput:
    """A sum divided by the number of sentences, with further sums; at least by 1, for a batch of padding alone."""
    sentences, tokens = (length_B > 0).sum().to(total.dtype), length_B.sum().to(total.dtype)
    return LossOutput(
        total, sentences.clamp(min=1), {"loss": total.detach(), "sentences": sentences, "words": tokens, **sums}
    )
