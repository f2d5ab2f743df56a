"""Training for the command: shown to the user, stopped by signals, written to TensorBoard where the recipe says so."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argbeam.files import read_records
from argbeam.reports.progress import Show, note, training_display
from argbeam.runs.layout import CURVES, RECORDS
from argbeam.runs.train import train
from argbeam.runtime.group import ALONE, Group
from argbeam.runtime.signals import stop_signals
from argbeam.settings import Recipe
from argbeam.training.events import Event, Record, Saved

_STOPPING = "argbeam: stopping after this update; a second signal stops at once"


@dataclass
class TrainingOutcome:
    """The records of all stages, and the signal that stopped training (0: it is finished).

    `saved` is False where the signal came before the first update: there was nothing to save.
    """

    stages: list[dict[str, Any]] = field(default_factory=list)
    signal: int = 0
    saved: bool = True


def train_run(recipe: Recipe, folder: Path, *, title: str = "", group: Group = ALONE) -> TrainingOutcome:
    """Train or resume; SIGINT, SIGTERM and SIGHUP stop training after the current update and save it.

    Before the first update, while files are read, they stop it at once. Of several processes only the first one shows
    progress and returns records.
    """
    outcome, updating = TrainingOutcome(), False

    def receive() -> None:
        if not updating:
            raise KeyboardInterrupt
        note(_STOPPING)

    def stop_asked() -> bool:
        nonlocal updating
        updating = True
        return bool(received)

    with (
        stop_signals(receive, only_first=True) as received,
        training_display(recipe, title=title) if group.leads else nullcontext(_unseen) as show,
        _tensorboard(recipe, folder) if group.leads else nullcontext(_unseen) as curves,
    ):
        try:
            for event in train(recipe, folder, stop_asked=stop_asked, group=group):
                show(event)
                curves(event)
                if isinstance(event, Saved) and event.stopped:
                    # Another process may have received the signal.
                    outcome.signal = received[0] if received else signal.SIGTERM
        except KeyboardInterrupt:
            if updating or group.size > 1:  # the other processes notice that this one ends
                raise
            return TrainingOutcome(signal=received[0], saved=False)
    if group.leads:
        outcome.stages = [r for r in read_records(folder / RECORDS) if r.get("kind") == "stage"]
    return outcome


def _unseen(event: Event) -> None:
    """Show nothing."""


@contextmanager
def _tensorboard(recipe: Recipe, folder: Path) -> Iterator[Show]:
    """Write the numbers of every epoch's record to RUN/tensorboard, if the recipe asks for it."""
    if not recipe.runtime.tensorboard:
        yield _unseen
        return
    from torch.utils.tensorboard import SummaryWriter

    writer: SummaryWriter | None = None

    def write(event: object) -> None:
        nonlocal writer
        if isinstance(event, Record) and event.values["kind"] == "epoch":
            writer = writer or SummaryWriter(str(folder / CURVES))  # a folder is made when it is needed
            figures = {k: v for k, v in event.values.items() if k not in ("epoch", "update")}
            figures |= {f"dev_{name}": value for name, value in event.values["dev"].items()}
            for name, value in figures.items():
                if type(value) in (int, float):
                    writer.add_scalar(name, value, event.values["update"])

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
