"""How far a reproduction is, and how long the rest will take; on stderr."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from argbeam.files import read_records
from argbeam.reports.progress import duration, note
from argbeam.reproduce.plan import Plan, PlannedRun
from argbeam.reproduce.steps import Folders
from argbeam.runs import layout as run_folders

Show = Callable[[Sequence[str], int], None]
_LOOK_EVERY, _LINE_EVERY = 2.0, 30.0


def is_trained(run: str, folders: Folders) -> bool:
    """Whether the finished model of a planned run is there."""
    return run_folders.is_trained(folders.runs / run)


def work_done(plan: Plan, folders: Folders) -> float:
    """The part of the plan's work that is done, by the epochs that were recorded."""
    return sum(_share(run, folders) * run.work for run in plan.runs)


def seconds_left(*, elapsed: float, before: float, now: float, total: float) -> float | None:
    """What the rest takes at the speed so far, or None where there is none yet.

    10 of 100 done at the start and 40 after 60 s: 30 in 60 s, so 60 take 120 s.
    """
    return elapsed * (total - now) / (now - before) if now > before else None


@contextmanager
def watching(plan: Plan, folders: Folders) -> Iterator[Show]:
    """Shows progress: a bar where stderr is a terminal, a line every half minute where it is not."""
    total = sum(run.work for run in plan.runs)
    before, started, looked = work_done(plan, folders), time.monotonic(), -_LOOK_EVERY

    def figures(running: Sequence[str], waiting: int) -> str:
        now = work_done(plan, folders)
        left = seconds_left(elapsed=time.monotonic() - started, before=before, now=now, total=total)
        share = 100 * now / total if total else 100.0
        end = "" if left is None else f"; about {duration(left)} left"
        return f"{share:.0f} % of training done; {len(running)} running, {waiting} waiting{end}"

    if not sys.stderr.isatty():
        said = started

        def lines(running: Sequence[str], waiting: int) -> None:
            nonlocal said
            if time.monotonic() - said >= _LINE_EVERY:
                note(figures(running, waiting))
                said = time.monotonic()

        yield lines
        return
    from rich.console import Console
    from rich.status import Status

    with Status("", console=Console(stderr=True, markup=False, highlight=False)) as status:

        def line(running: Sequence[str], waiting: int) -> None:
            nonlocal looked
            if time.monotonic() - looked >= _LOOK_EVERY:
                status.update("\n  ".join([figures(running, waiting), *running]))
                looked = time.monotonic()

        yield line


def _share(run: PlannedRun, folders: Folders) -> float:
    if is_trained(run.name, folders):
        return 1.0
    path = folders.runs / run.name / "records.jsonl"
    records = read_records(path).records if path.exists() else []
    # A stage may end before its last epoch, and a run that is passed on has records and no model.
    last = [*run.recipe.stages][-1]
    if any(record["kind"] == "stage" and record["stage"] == last for record in records):
        return 1.0
    epochs = len([record for record in records if record["kind"] == "epoch"])
    return min(1.0, epochs / sum(stage.epochs for stage in run.recipe.stages.values()))
