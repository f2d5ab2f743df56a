"""Training, as a generator of events."""

from argbeam.trainer.events import Event, Notice, Position, Progress, Record, Saved
from argbeam.trainer.loop import Trainer

__all__ = ["Event", "Notice", "Position", "Progress", "Record", "Saved", "Trainer"]
