"""The events of training."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from argbeam.training.state import Position


@dataclass(frozen=True)
class Progress:
    """How far a stage is, for a progress bar: `update` of `updates`. Not part of the records: it holds times.

    `seconds_left` is an estimate for the whole run; None: there is none yet.
    """

    stage: str
    epoch: int
    epochs: int
    update: int
    updates: int
    loss: float
    violations: float
    words_per_second: float
    beam: int
    seconds_left: float | None


@dataclass(frozen=True)
class Doing:
    """What is being done from here on, for a progress bar."""

    text: str


@dataclass(frozen=True)
class Record:
    """One JSON line of the run's records."""

    values: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """The state of a run, to be saved before the next event is asked for.

    `rule` and `stop` name the score and stop rule of the loss that trained the weights; `stage` is its stage, empty for
    that of another run. `stopped`: training ends here, unfinished, because a stop was requested.
    """

    position: Position
    tensors: dict[str, Tensor]
    rule: str
    stop: str
    stage: str
    stopped: bool = False


@dataclass(frozen=True)
class Notice:
    """A message to the user that is no error."""

    text: str


Event = Progress | Doing | Record | Saved | Notice
