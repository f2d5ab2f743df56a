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
    """Everything that training needs to go on, to be written down before the next event is asked for.

    `rule` and `stop` name how the weights at hand are searched: as the loss that trained them says.
    """

    position: "Position"
    tensors: dict[str, Tensor]
    rule: str
    stop: str


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
