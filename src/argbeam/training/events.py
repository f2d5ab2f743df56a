"""What training tells as it goes, and how far it has come."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Progress:
    """Where a stage stands, for a progress bar: `update` of `updates`. Not part of the records: it holds times."""

    stage: str
    epoch: int
    update: int
    updates: int
    loss: float
    violations: float
    words_per_second: float
    beam: int
    seconds_left: float


@dataclass(frozen=True)
class Record:
    """An event to be kept: one JSON line of the run."""

    values: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """The state of a run, to be saved before the next event is asked for.

    `rule` and `stop` name the score and stop rule of the loss that trained the weights. `stopped`: training ends here,
    unfinished, because a stop was requested.
    """

    position: "Position"
    tensors: dict[str, Tensor]
    rule: str
    stop: str
    stopped: bool = False


@dataclass(frozen=True)
class Notice:
    """Something a user should know and that is no error."""

    text: str


Event = Progress | Record | Saved | Notice


@dataclass
class Position:
    """How far a run has come. With the tensors of `Saved` this is its whole state: noise depends on the update only."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    update: int = 0
    records: int = 0
    best_value: float | None = None
    best_epoch: int = -1
    seconds: float = 0.0
    epoch_seconds: float = 0.0

    def copy(self) -> "Position":
        return Position(**vars(self))
