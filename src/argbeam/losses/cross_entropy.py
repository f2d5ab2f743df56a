"""Token-level cross-entropy with the gold history: the paper's seq2seq baseline and the pre-training of BSO.

Also with the softmax over valid successors only (MSL), and with weights of tokens that tell how far each one is from
being pruned (BEAR).
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.contract import Loss, LossOutput
from argbeam.losses.replay import gold_outputs, in_parts
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.score_rules import NEVER, LogprobSum
from argbeam.search.successors import Successors, allowed_tokens, along_gold, check_gold_on_host
from argbeam.search.top_k import best_columns


@dataclass(frozen=True)
class PruningWeights:
    """BEAR's weights of tokens: 1 + weight * sigmoid((log p - log p_rank) / temperature).

    After Yang et al. 2026 (arXiv 2601.22925), and their code where it differs (github Tiny-Snow/BEAR-WWW-2026).
    p is the gold token's probability and p_rank that of the token at this rank, the last that a beam of as many places
    keeps; where there are fewer valid tokens, the last of them. Weights have no gradient. The loss is divided by their
    sum; tokens without an alternative do not count.
    """

    rank: int
    weight: float
    temperature: float

    def of(
        self, logprobs_XV: Float[Tensor, "X V"], gold_X: Float[Tensor, " X"], valid_XV: Bool[Tensor, "X V"] | None
    ) -> Float[Tensor, " X"]:
        last_X = best_columns(logprobs_XV[None], min(self.rank, logprobs_XV.shape[1]))[0][0, :, -1]
        if valid_XV is not None:
            worst_X = logprobs_XV.masked_fill(~valid_XV, torch.inf).amin(1)
            last_X = torch.maximum(last_X, worst_X)
        return (1 + self.weight * torch.sigmoid((gold_X - last_X) / self.temperature)).detach()


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Minus the sum of the gold tokens' log-probabilities, over the number of sentences.

    With `label_smoothing` e the target is 1 - e on gold and e spread evenly over the vocabulary (Szegedy et al. 2016).
    With `valid` probabilities are normalised over these successors of gold's prefix alone (MSL, Wang et al. 2025, arXiv
    2504.04178, without its temperature), and so they are in decoding. `pruning` weighs the tokens.
    """

    label_smoothing: float = 0.0
    valid: Successors | None = None
    pruning: PruningWeights | None = None
    beam = 0

    @property
    def rule(self) -> LogprobSum:
        return LogprobSum(valid_only=self.valid is not None)

    def at(self, epoch: int) -> "CrossEntropy":
        return self

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        output_BTH = gold_outputs(model, model.encode(batch, noise), batch.target_BT, batch.specials)
        if self.valid is None and self.pruning is None:
            return gold_loss(model, output_BTH, batch, smoothing=self.label_smoothing)
        return self._of_valid(model, output_BTH, batch)

    def _of_valid(self, model: Model, output_BTH: Float[Tensor, "B T H"], batch: Batch) -> LossOutput:
        gold_BT, length_B = batch.target_BT, batch.target_length_B
        smoothing, pruning = self.label_smoothing, self.pruning
        vocabulary = model.scores(output_BTH[:1, :1]).shape[2]
        valid = [] if self.valid is None else [valid_after_gold(self.valid, batch, vocabulary).flatten(0, 1)]

        def of_rows(output_XH: Tensor, token_X: Tensor, *valid_XV: Tensor) -> Tensor:
            """Of each row: loss, plain loss, weight."""
            scores_XV = model.scores(output_XH[None])[0]
            mask_XV = valid_XV[0] if valid_XV else None
            counted_XV = torch.ones_like(scores_XV, dtype=torch.bool) if mask_XV is None else mask_XV
            logprobs_XV = scores_XV.masked_fill(~counted_XV, NEVER).log_softmax(1)
            gold_X = logprobs_XV.gather(1, token_X[:, None])[:, 0]
            mean_X = torch.where(counted_XV, logprobs_XV, 0.0).sum(1) / counted_XV.sum(1)
            weight_X = torch.ones_like(gold_X) if pruning is None else pruning.of(logprobs_XV, gold_X, mask_XV)
            loss_X = -weight_X * ((1 - smoothing) * gold_X + smoothing * mean_X)
            # A token without an alternative has no loss, and counts for nothing in the sum of weights.
            return torch.stack([loss_X, -gold_X, weight_X * (counted_XV.sum(1) > 1)], 1)

        found_X3 = in_parts(of_rows, output_BTH.flatten(0, 1), gold_BT.flatten(), *valid)
        real_BT1 = (torch.arange(gold_BT.shape[1], device=gold_BT.device) < length_B[:, None])[..., None]
        total, plain, weights = torch.where(real_BT1, found_X3.view(*gold_BT.shape, 3), 0.0).sum((0, 1)).unbind()
        out = per_sentence(total, length_B, {"cross_entropy": plain.detach()})
        return out if pruning is None else replace(out, count=weights.detach().clamp(min=1))


def valid_after_gold(successors: Successors, batch: Batch, vocabulary: int) -> Bool[Tensor, "B T V"]:
    """The valid successors of gold's prefixes. Gold is checked on a CPU; elsewhere its tokens count as valid."""
    check_gold_on_host(successors, batch)
    masks = []
    for choices, token_B in along_gold(successors, batch):
        mask_BV = allowed_tokens(choices, vocabulary).expand(len(token_B), -1)
        masks.append(mask_BV.scatter(1, token_B[:, None], True))
    return torch.stack(masks, 1)


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
