"""Losses of prefixes against random valid sequences (APAO, Yu et al. 2026, arXiv 2603.02730; github yuyq18/APAO)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import SpecialTokens
from argbeam.losses.contract import Loss, LossOutput
from argbeam.losses.cross_entropy import per_sentence
from argbeam.losses.replay import token_logprobs
from argbeam.losses.sampling import needed, random_walks
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.runtime import device as devices
from argbeam.search.score_rules import NEVER
from argbeam.search.successors import Successors, check_gold_on_host, check_width


@dataclass(frozen=True)
class Apao(Loss):
    """Cross-entropy + `weight` * n * the sum of w_t L_t over the lengths t of gold's prefixes; n is the tokens of gold.

    L_t is minus the log of gold's share, by p(prefix)^(1 / temperature), among gold's prefix and the distinct prefixes
    of `negatives` random valid sequences, divided by t. Without negatives it is minus the mean log-probability of the
    prefix's tokens. The prefix with the end symbol has no loss: it is the whole sequence. w_t is L_t exp(`eta` L_t),
    divided by its sum over t, without gradient. The authors average L_t over a batch before they weigh it; here each
    sentence has weights of its own, so that a batch can be taken in parts. The n restores their balance: they divide
    cross-entropy by the tokens.
    """

    successors: Successors
    negatives: int = 100
    weight: float = 0.1
    temperature: float = 1.0
    eta: float = 0.0
    beam = 0

    def at(self, epoch: int) -> "Apao":
        return self

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        check_gold_on_host(self.successors, batch)
        gold_BT, length_B = batch.target_BT, batch.target_length_B
        tokens_BRT, length_BR = gold_BT[:, None], length_B[:, None]
        state, choices = model.encode(batch, noise), self.successors.start(batch)
        if devices.host_may_look(gold_BT) and choices.candidates_BC is None:
            with torch.no_grad():
                first = model.step(state, torch.full_like(length_B, batch.specials.bos))
                check_width(model.scores(model.output(first)[:, None]).shape[2], choices.allowed().shape[1])
        if self.negatives:
            walks = random_walks(
                choices,
                needed(noise, "apao"),
                rows=self.negatives,
                length_B=length_B,
                steps=gold_BT.shape[1],
                specials=batch.specials,
            )
            tokens_BRT = torch.cat([tokens_BRT, walks.tokens_BRT], 1)
            length_BR = torch.cat([length_BR, walks.length_BR], 1)
        real_BRT = torch.arange(gold_BT.shape[1], device=length_B.device) < length_BR[..., None]
        real_BRT = real_BRT & real_BRT[:, :1]
        logprob_BRT = token_logprobs(model, state, tokens_BRT, batch.specials)
        logprob_BRT = torch.where(real_BRT, logprob_BRT, 0.0)
        gold = -logprob_BRT[:, 0].sum()
        prefix = (length_B * self._prefix_losses(tokens_BRT, logprob_BRT, real_BRT, batch.specials)).sum()
        sums = {"cross_entropy": gold.detach(), "sequence_loss": prefix.detach()}
        return per_sentence(gold + self.weight * prefix, length_B, sums)

    def _prefix_losses(
        self,
        tokens_BRT: Int[Tensor, "B R T"],
        logprob_BRT: Float[Tensor, "B R T"],
        real_BRT: Bool[Tensor, "B R T"],
        specials: SpecialTokens,
    ) -> Float[Tensor, " B"]:
        """The weighted sum over the lengths of prefixes; the first row is gold's."""
        count_T = torch.arange(1, tokens_BRT.shape[2] + 1, device=tokens_BRT.device)
        score_BRT = logprob_BRT.cumsum(2) / self.temperature
        loss_BT = -score_BRT[:, 0]
        if self.negatives:
            counted_BRT = distinct_prefixes(tokens_BRT, real_BRT)
            loss_BT = score_BRT.masked_fill(~counted_BRT, NEVER).logsumexp(1) - score_BRT[:, 0]
        counted_BT = real_BRT[:, 0] & ~specials.ended(tokens_BRT[:, 0])
        loss_BT = torch.where(counted_BT, loss_BT / count_T, 0.0)
        weight_BT = loss_BT.detach() * torch.exp(self.eta * loss_BT.detach())
        tiny = torch.finfo(weight_BT.dtype).tiny
        return (weight_BT / weight_BT.sum(1, keepdim=True).clamp(min=tiny) * loss_BT).sum(1)


def distinct_prefixes(tokens_BRT: Int[Tensor, "B R T"], real_BRT: Bool[Tensor, "B R T"]) -> Bool[Tensor, "B R T"]:
    """Whether the prefix of each row up to each column has not ended before, and no earlier row has the same one.

    Worked example: of [a b], [a c], [a b] the first row counts at both columns, the second at its second, the third at
    none.
    """
    same_BRRT = (tokens_BRT[:, :, None] == tokens_BRT[:, None]).long().cumprod(3).bool()
    earlier_RR = torch.ones(same_BRRT.shape[1:3], dtype=torch.bool, device=tokens_BRT.device).tril(-1)
    repeated_BRT = (same_BRRT & earlier_RR[..., None]).any(2)
    first_R1 = (torch.arange(tokens_BRT.shape[1], device=tokens_BRT.device) == 0)[:, None]
    return (~repeated_BRT & real_BRT) | first_R1
