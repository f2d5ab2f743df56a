"""Gold policies: what a training search does when it goes wrong, and which of its violations are trained on.

A search with restarts holds gold against the last place of the beam and goes on from gold after every violation. One
without restarts is the search of decoding; gold is held against the best wrong prefix of every step, and at most one
step of a sentence is trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.vocabulary import EOS
from argbeam.search.result import Beams, Verdict, Violations, rival_words
from argbeam.search.score_rules import NEVER
from argbeam.search.stop_rules import Stop


class Policy(Protocol):
    """A gold policy. A violation: gold ranks less than `margin` above the rival."""

    restarts: ClassVar[bool]  # after a violation the beam is gold's prefix alone

    @property
    def margin(self) -> float: ...

    def trained(
        self, violation_TB: Bool[Tensor, "T B"], behind_TB: Float[Tensor, "T B"], stop_B: Int[Tensor, " B"]
    ) -> Bool[Tensor, "T B"]:
        """The violations that a loss is to see.

        `behind_TB` is the rival's rank minus gold's, `stop_B` the step at which the search has lost gold, or its last.
        """


@dataclass(frozen=True)
class Restart:
    """BSO, after LaSO (Wiseman & Rush 2016, section 4.2): every violation is trained on, and the search restarts."""

    margin: float = 1.0
    restarts: ClassVar[bool] = True

    def trained(self, violation_TB: Tensor, behind_TB: Tensor, stop_B: Tensor) -> Tensor:
        return violation_TB


@dataclass(frozen=True)
class EarlyUpdate:
    """The search is over where gold falls off the beam (Collins & Roark 2004), or at its last step."""

    margin: float = 1.0
    restarts: ClassVar[bool] = False

    def trained(self, violation_TB: Tensor, behind_TB: Tensor, stop_B: Tensor) -> Tensor:
        return violation_TB & _at(stop_B, violation_TB)


@dataclass(frozen=True)
class MaxViolation:
    """The search goes on without gold, and its worst violation is trained on (Huang et al. 2012)."""

    margin: float = 1.0
    restarts: ClassVar[bool] = False

    def trained(self, violation_TB: Tensor, behind_TB: Tensor, stop_B: Tensor) -> Tensor:
        worst_B = behind_TB.masked_fill(~violation_TB, NEVER).argmax(0)
        return violation_TB & _at(worst_B, violation_TB)


@dataclass(frozen=True)
class Gold:
    """The gold sequences of a training search, padded, and what happens when the search violates them."""

    tokens_BT: Int[Tensor, "B T"]
    length_B: Int[Tensor, " B"]
    policy: Policy


@dataclass(frozen=True)
class GoldStep:
    """What one step of a training search knows of gold: its word, the rank of its prefix before that word.

    `active_B`: the sentence has a word here. `best_wrong_B`: the rival is the best wrong prefix, not the K-th.
    """

    policy: Policy
    stop: Stop | None
    word_B: Tensor
    total_B: Tensor
    active_B: Tensor
    best_wrong_B: Tensor

    @property
    def ended_gives_up_place(self) -> bool:
        """Whether an ended prefix leaves the beam, as it does under `top`."""
        return self.stop is not None and self.stop.ended_gives_up_place


def violations_of(
    beams: Beams, verdicts: Sequence[Verdict], gold: Gold, *, beam_size: int, stop: Stop | None
) -> Violations:
    """The verdicts of all steps, those that the policy trains on, and their rivals' words."""
    gold_score_TB = torch.stack([v.gold_rank_B for v in verdicts])
    rival_score_TB = torch.stack([v.rival_rank_B for v in verdicts])
    rival_TB = torch.stack([v.rival_B for v in verdicts])
    rival_ended_TB = torch.stack([v.rival_ended_B for v in verdicts])
    is_gold_TBJ = torch.stack([v.is_gold_BJ for v in verdicts]) & (beams.scores_TBJ > NEVER)
    rival_is_gold_TB = is_gold_TBJ.gather(2, rival_TB[..., None])[..., 0]
    on_beam_TB = is_gold_TBJ[:, :, :beam_size].any(2)
    last_B = stop_B = (gold.length_B - 1).clamp(min=0)
    if not gold.policy.restarts:
        lost_TB = ~on_beam_TB
        if stop is not None and stop.ended_gives_up_place:
            before_last_TB = torch.arange(len(verdicts), device=last_B.device)[:, None] < last_B
            ended_TBJ = (beams.tokens_TBJ == EOS) & before_last_TB[..., None]
            rival_ended_TB = ended_TBJ.gather(2, rival_TB[..., None])[..., 0]
            lost_TB = lost_TB | ended_TBJ[:, :, 0]  # decoding would end here
        stop_B = torch.minimum((~lost_TB).long().cumprod(0).sum(0), last_B)
    violation_TB = torch.stack([v.violation_B for v in verdicts])
    violation_TB = gold.policy.trained(violation_TB, rival_score_TB - gold_score_TB, stop_B)
    return Violations(
        violation_BT=violation_TB.T,
        rival_BT=rival_words(beams, gold.tokens_BT, violation_TB, rival_TB),
        rival_is_gold_BT=(rival_is_gold_TB & violation_TB).T,
        rival_ended_BT=(rival_ended_TB & violation_TB).T,
        gold_score_BT=gold_score_TB.T,
        rival_score_BT=rival_score_TB.T,
        gold_on_beam_B=on_beam_TB.gather(0, last_B[None])[0],
        stop_B=stop_B,
    )


def _at(step_B: Tensor, like_TB: Tensor) -> Tensor:
    """A mask of one step of each sentence."""
    return torch.arange(like_TB.shape[0], device=like_TB.device)[:, None] == step_B
