"""Stop rules: when a search of open length ends, and what it returns. The rule is stored with the trained model."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.search.score_rules import NEVER, ScoreRule


class Stop(Protocol):
    """When a search of open length ends, and what it returns."""

    name: ClassVar[str]
    ended_gives_up_place: ClassVar[
        bool
    ]  # in training: an ended prefix leaves the beam; otherwise it is a word like any

    def priority(
        self, rule: ScoreRule, total_BK: Float[Tensor, "B K"], ended_BK: Bool[Tensor, "B K"], t: int
    ) -> Float[Tensor, "B K"]:
        """In which order the prefixes that ended at step t are returned; minus infinity for those that are not."""

    def bound(self, rule: ScoreRule, total_B: Float[Tensor, " B"], limit_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The highest priority that anything still on the beam can reach."""


@dataclass(frozen=True)
class StopTop:
    """The search ends when its top-ranked prefix has ended, and returns it; other ended prefixes are dropped."""

    name: ClassVar[str] = "top"
    ended_gives_up_place: ClassVar[bool] = True

    def priority(self, rule: ScoreRule, total_BK: Tensor, ended_BK: Tensor, t: int) -> Tensor:
        # Behind a top prefix that has ended, the next one is the top. Earlier steps come first.
        beam = total_BK.shape[1]
        order_K = -(t * beam + torch.arange(beam, device=total_BK.device)).to(total_BK.dtype)
        top_BK = ended_BK.long().cumprod(1).bool()
        return order_K.expand_as(total_BK).masked_fill(~top_BK, NEVER)

    def bound(self, rule: ScoreRule, total_B: Tensor, limit_B: Tensor) -> Tensor:
        # What ends later comes later: nothing on the beam can overtake what was returned.
        return total_B.masked_fill(total_B > NEVER, torch.finfo(total_B.dtype).min)


@dataclass(frozen=True)
class StopBest:
    """Ended prefixes are set aside, the rest go on, and the best of all wins: the authors' rule for BSO, and the usual
    one for log-probabilities, where the search ends as soon as nothing on the beam can win."""

    name: ClassVar[str] = "best"
    ended_gives_up_place: ClassVar[bool] = False

    def priority(self, rule: ScoreRule, total_BK: Tensor, ended_BK: Tensor, t: int) -> Tensor:
        return rule.finished(total_BK, t + 1).masked_fill(~ended_BK, NEVER)

    def bound(self, rule: ScoreRule, total_B: Tensor, limit_B: Tensor) -> Tensor:
        return rule.bound(total_B, limit_B)


STOPS: dict[str, Stop] = {stop.name: stop for stop in (StopTop(), StopBest())}


@dataclass(frozen=True)
class Finished:
    """The n finished prefixes of each sentence to be returned, in order: where they ended, their rank and priority."""

    priority_BN: Float[Tensor, "B N"]
    score_BN: Float[Tensor, "B N"]
    time_BN: Int[Tensor, "B N"]
    place_BN: Int[Tensor, "B N"]

    @staticmethod
    def empty(batch: int, n_best: int, *, like: Tensor) -> "Finished":
        never_BN = torch.full((batch, n_best), NEVER, dtype=like.dtype, device=like.device)
        zero_BN = torch.zeros((batch, n_best), dtype=torch.int64, device=like.device)
        return Finished(never_BN, never_BN, zero_BN, zero_BN)

    def add(self, priority_BK: Float[Tensor, "B K"], rank_BK: Float[Tensor, "B K"], t: int) -> "Finished":
        """With the prefixes that ended at step t, those of the highest priority kept."""
        n_best, beam = self.priority_BN.shape[1], priority_BK.shape[1]
        place_BK = torch.arange(beam, device=rank_BK.device).expand_as(rank_BK)
        rank_BK = rank_BK.masked_fill(priority_BK == NEVER, NEVER)
        priority_BX = torch.cat([self.priority_BN, priority_BK], 1)
        order_BN = priority_BX.argsort(dim=1, descending=True, stable=True)[:, :n_best]
        return Finished(
            priority_BX.gather(1, order_BN),
            torch.cat([self.score_BN, rank_BK], 1).gather(1, order_BN),
            torch.cat([self.time_BN, torch.full_like(place_BK, t)], 1).gather(1, order_BN),
            torch.cat([self.place_BN, place_BK], 1).gather(1, order_BN),
        )

    def over(
        self, stop: Stop, rule: ScoreRule, total_BK: Float[Tensor, "B K"], limit_B: Int[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Nothing on the beam is alive, or nothing alive can enter the n that are kept."""
        best_B = total_BK.amax(1)
        return (best_B == NEVER) | (self.priority_BN[:, -1] >= stop.bound(rule, best_B, limit_B))
