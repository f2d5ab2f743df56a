"""Gold policies: what a training search does when it goes wrong, and which of its violations are trained on.

A search with restarts holds gold against the last place of the beam and goes on from gold after every violation. One
without restarts is the search of decoding; gold is held against the best wrong prefix of every step, and at most one
step of a sentence is trained on.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.rules import NEVER


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


def _at(step_B: Tensor, like_TB: Tensor) -> Tensor:
    """A mask of one step of each sentence."""
    return torch.arange(like_TB.shape[0], device=like_TB.device)[:, None] == step_B
