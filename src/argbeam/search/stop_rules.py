"""Stop rules: when a search of open length ends, and what it returns. The rule is stored with the trained model."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.search.result import TopSuccessors
from argbeam.search.score_rules import NEVER, ScoreRule


class Stop(Protocol):
    """When a search of open length ends, and what it returns."""

    name: ClassVar[str]
    # In training: an ended prefix leaves the beam. Otherwise the end symbol is a token like any other.
    ended_gives_up_place: ClassVar[bool]

    @property
    def cut_off(self) -> bool:
        """In decoding: prefixes at the length limit count as ended. Otherwise one is returned where none has ended."""

    def priority(
        self, rule: ScoreRule, score_BK: Float[Tensor, "B K"], ended_BK: Bool[Tensor, "B K"], t: int
    ) -> Float[Tensor, "B K"]:
        """Order in which the prefixes that ended at step t are returned, highest first; minus infinity: not at all."""

    def bound(self, rule: ScoreRule, score_B: Float[Tensor, " B"], limit_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Highest priority that anything still on the beam can reach."""

    def refills(self, rule: ScoreRule, beam_size: int) -> bool:
        """In decoding: the next best prefixes take the places of ended ones. Otherwise the beam shrinks."""


@dataclass(frozen=True)
class StopTop:
    """The search ends when the best prefix on the beam has ended, and returns it; other ended prefixes are dropped."""

    cut_off: ClassVar[bool] = False
    name: ClassVar[str] = "top"
    ended_gives_up_place: ClassVar[bool] = True

    def priority(self, rule: ScoreRule, score_BK: Tensor, ended_BK: Tensor, t: int) -> Tensor:
        # Behind a top prefix that has ended, the next one is the top. Earlier steps come first.
        beam = score_BK.shape[1]
        order_K = -(t * beam + torch.arange(beam, device=score_BK.device)).to(score_BK.dtype)
        top_BK = ended_BK.long().cumprod(1).bool()
        return order_K.expand_as(score_BK).masked_fill(~top_BK, NEVER)

    def bound(self, rule: ScoreRule, score_B: Tensor, limit_B: Tensor) -> Tensor:
        # What ends later comes later: nothing on the beam can overtake a finished prefix.
        return score_B.masked_fill(score_B > NEVER, torch.finfo(score_B.dtype).min)

    def refills(self, rule: ScoreRule, beam_size: int) -> bool:
        return False


@dataclass(frozen=True)
class StopBest:
    """Ended prefixes are set aside, the others continue, and the best of all wins.

    The rule of BSO's authors, whose beam shrinks. It is the usual one for log-probabilities too: there the beam is
    refilled, as in fairseq and in `generate` of transformers, and the search ends as soon as nothing on the beam can
    win. A beam of 1 is the greedy search and ends with its output. With `cut_off` the n best are those of
    `generate(early_stopping="never")`.
    """

    cut_off: bool = False
    name: ClassVar[str] = "best"
    ended_gives_up_place: ClassVar[bool] = False

    def priority(self, rule: ScoreRule, score_BK: Tensor, ended_BK: Tensor, t: int) -> Tensor:
        return rule.finished_scores(score_BK, t + 1).masked_fill(~ended_BK, NEVER)

    def bound(self, rule: ScoreRule, score_B: Tensor, limit_B: Tensor) -> Tensor:
        return rule.bound(score_B, limit_B)

    def refills(self, rule: ScoreRule, beam_size: int) -> bool:
        # Only log-probabilities bound what a beam can reach: with other scores a full beam would run to the limit.
        return rule.normalised and beam_size > 1


STOPS: dict[str, Stop] = {stop.name: stop for stop in (StopTop(), StopBest())}


@dataclass(frozen=True)
class Finished:
    """The n finished prefixes of each sentence to be returned, in order: priority, score, and where they ended."""

    priority_BN: Float[Tensor, "B N"]
    score_BN: Float[Tensor, "B N"]
    time_BN: Int[Tensor, "B N"]
    place_BN: Int[Tensor, "B N"]

    @staticmethod
    def empty(batch: int, n_best: int, *, like: Tensor) -> "Finished":
        never_BN = torch.full((batch, n_best), NEVER, dtype=like.dtype, device=like.device)
        zero_BN = torch.zeros((batch, n_best), dtype=torch.int64, device=like.device)
        return Finished(never_BN, never_BN, zero_BN, zero_BN)

    def add(self, priority_BK: Float[Tensor, "B K"], score_BK: Float[Tensor, "B K"], t: int) -> "Finished":
        """With the prefixes that ended at step t: the n of the highest priority."""
        n_best, beam = self.priority_BN.shape[1], priority_BK.shape[1]
        place_BK = torch.arange(beam, device=score_BK.device).expand_as(score_BK)
        score_BK = score_BK.masked_fill(priority_BK == NEVER, NEVER)
        priority_BX = torch.cat([self.priority_BN, priority_BK], 1)
        order_BN = priority_BX.argsort(dim=1, descending=True, stable=True)[:, :n_best]
        return Finished(
            priority_BX.gather(1, order_BN),
            torch.cat([self.score_BN, score_BK], 1).gather(1, order_BN),
            torch.cat([self.time_BN, torch.full_like(place_BK, t)], 1).gather(1, order_BN),
            torch.cat([self.place_BN, place_BK], 1).gather(1, order_BN),
        )

    def over(
        self, stop: Stop, rule: ScoreRule, score_BK: Float[Tensor, "B K"], limit_B: Int[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Nothing on the beam is alive, or nothing alive can become one of the n."""
        best_B = score_BK.amax(1)
        return (best_B == NEVER) | (self.priority_BN[:, -1] >= stop.bound(rule, best_B, limit_B))


@dataclass(frozen=True)
class Endings:
    """Decoding so far: sentences that are over, those of them without any valid successor, and finished prefixes.

    `steps_B` counts the tokens of the prefixes on the beam.
    """

    over_B: Bool[Tensor, " B"]
    dead_B: Bool[Tensor, " B"]
    steps_B: Int[Tensor, " B"]
    finished: Finished | None  # None at fixed length, and with gold


def ended_last(
    best: TopSuccessors, ended_BJ: Bool[Tensor, "B J"], beam_size: int
) -> tuple[TopSuccessors, Bool[Tensor, "B J"]]:
    """The successors that have not ended, best first, then those that have; only ended ones stay behind place K.

    Worked example, K = 2, tokens [a, EOS, b, EOS]: [a, b, EOS, -], as the second EOS is not among the two best.
    """
    order_BJ = ended_BJ.long().argsort(dim=1, stable=True)
    ended_BJ = ended_BJ.gather(1, order_BJ)
    place_J = torch.arange(ended_BJ.shape[1], device=order_BJ.device)
    stays_BJ = torch.where(ended_BJ, order_BJ, place_J) < beam_size
    score_BJ = best.scores_BJ.gather(1, order_BJ).masked_fill(~stays_BJ, NEVER)
    return TopSuccessors(best.parents_BJ.gather(1, order_BJ), best.tokens_BJ.gather(1, order_BJ), score_BJ), ended_BJ
