"""Minimum risk training (Shen et al. 2016): the expected risk of a few candidate outputs."""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.errors import ConfigError
from argbeam.losses.contract import Loss, LossOutput
from argbeam.losses.cross_entropy import per_sentence
from argbeam.losses.replay import token_logprobs
from argbeam.losses.risks import Risk, one_minus_sentence_bleu, risk_in
from argbeam.losses.sampling import Outputs, needed, sample, with_room
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.score_rules import NEVER, LogprobSum
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import StopBest
from argbeam.search.successors import Choices, Successors, check_end_symbol, check_gold_on_host


@dataclass(frozen=True)
class Start:
    """Sentences without outputs yet: states and choices of the empty prefixes, and the limit of each output."""

    batch: Batch
    state: State
    choices: Choices
    limit_B: Int[Tensor, " B"]
    open_length: bool

    @property
    def steps(self) -> int:
        """At least the maximum of `limit_B`, known without asking the device."""
        return self.batch.target_BT.shape[1]


class Candidates(Protocol):
    """Source of the candidates."""

    @property
    def beam(self) -> int:
        """Beam of its search; 0 without a search."""

    def __call__(self, model: Model, start: Start, noise: Noise | None) -> Outputs:
        """R outputs per sentence."""


@dataclass(frozen=True)
class Sampled:
    """`size` outputs drawn from the model."""

    size: int
    beam = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"Sampled({self.size}): must be at least 1")

    def __call__(self, model: Model, start: Start, noise: Noise | None) -> Outputs:
        return sample(
            model,
            start.state,
            start.choices,
            needed(noise, "mrt"),
            rows=self.size,
            length_B=start.limit_B,
            steps=start.steps,
            specials=start.batch.specials,
        )


@dataclass(frozen=True)
class Searched:
    """The `size` best outputs of a beam search with as many places."""

    size: int

    @property
    def beam(self) -> int:
        return self.size

    def __call__(self, model: Model, start: Start, noise: Noise | None) -> Outputs:
        found = beam_search(
            model,
            start.state,
            start.choices,
            beam_size=self.size,
            length_B=start.limit_B,
            steps=start.steps,
            rule=LogprobSum(),
            stop=StopBest() if start.open_length else None,
            n_best=self.size,
            end_early=False,
            specials=start.batch.specials,
        )
        return Outputs(found.tokens_BNT, found.length_BN)


@dataclass(frozen=True)
class Mrt(Loss):
    """Over the distinct candidates y of a sentence, the sum of Q(y) risk(y) with Q(y) = p(y)^alpha / sum p(y')^alpha.

    `alpha` is the sharpness of Q; with `include_gold` gold is a candidate. `successors` are those of the candidates;
    probabilities are normalised over the whole vocabulary, as they are in decoding. In tasks of open length an output
    may have `extra_length` tokens more than gold.
    """

    successors: Successors
    candidates: Candidates
    alpha: float = 0.005
    include_gold: bool = True
    risk: Risk = one_minus_sentence_bleu
    extra_length: int = 4
    open_length: bool = True

    def __post_init__(self) -> None:
        check_end_symbol(self.successors, open_length=self.open_length)

    @property
    def beam(self) -> int:
        return self.candidates.beam

    def at(self, epoch: int) -> "Mrt":
        return self

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        check_gold_on_host(self.successors, batch, open_length=self.open_length)
        batch, limit_B = with_room(batch, self.extra_length if self.open_length else 0)
        gold_BT, gold_length_B = batch.target_BT, batch.target_length_B
        state = model.encode(batch, noise)
        start = Start(batch, state, self.successors.start(batch), limit_B, self.open_length)
        outputs = self.candidates(model, start, noise)
        tokens_BRT, length_BR = outputs.tokens_BRT, outputs.length_BR
        if self.include_gold:
            tokens_BRT = torch.cat([gold_BT[:, None], tokens_BRT], 1)
            length_BR = torch.cat([gold_length_B[:, None], length_BR], 1)
        rows = tokens_BRT.shape[1]
        real_BRT = torch.arange(start.steps, device=length_BR.device) < length_BR[..., None]
        logprob_BRT = token_logprobs(model, state, tokens_BRT, batch.specials)
        logprob_BR = torch.where(real_BRT, logprob_BRT, 0.0).sum(2)
        risk_X = risk_in(self.risk, logprob_BR.dtype, batch.specials)(
            tokens_BRT.flatten(0, 1),
            length_BR.flatten(),
            gold_BT.repeat_interleave(rows, 0),
            gold_length_B.repeat_interleave(rows, 0),
        )
        counted_BR = _distinct(tokens_BRT, length_BR)
        q_BR = (self.alpha * logprob_BR).masked_fill(~counted_BR, NEVER).softmax(1)
        risk_B = (q_BR * risk_X.view_as(q_BR).to(q_BR.dtype)).sum(1)
        real_B = gold_length_B > 0
        total = torch.where(real_B, risk_B, 0.0).sum()
        candidates = (counted_BR & real_B[:, None]).sum().to(total.dtype)
        return per_sentence(total, gold_length_B, {"risk": total.detach(), "candidates": candidates})


def _distinct(tokens_BRT: Int[Tensor, "B R T"], length_BR: Int[Tensor, "B R"]) -> Bool[Tensor, "B R"]:
    """Rows that count: those with tokens, each sequence once. The first always does, so that something is counted."""
    same_BRR = (tokens_BRT[:, :, None] == tokens_BRT[:, None]).all(3)
    same_BRR = same_BRR & (length_BR[:, :, None] == length_BR[:, None])
    repeated_BR = same_BRR.tril(-1).any(2)
    first_R = torch.arange(tokens_BRT.shape[1], device=tokens_BRT.device) == 0
    return (~repeated_BR & (length_BR > 0)) | first_R
