"""From a plan to the processes that are still needed: a pure function of the plan and of what is done."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from argbeam.reproduce.plan import Plan, PlannedRun

TO_MEND = 2
"""The exit code of a step that would fail again: what it was given is wrong."""


@dataclass(frozen=True)
class Step:
    """A process to run once the steps it `needs` are done. `alone`: nothing may run beside it.

    `run` names the run folder that it works on; empty where there is none.
    """

    name: str
    arguments: tuple[str, ...]
    run: str = ""
    needs: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class Folders:
    """Where things are under a reproduction's folder."""

    out: Path

    @property
    def runs(self) -> Path:
        return self.out / "runs"

    @property
    def timing(self) -> Path:
        return self.out / "timing.json"

    @property
    def plan(self) -> Path:
        return self.out / "plan.json"

    @property
    def data(self) -> Path:
        return self.out / "data"

    def recipe(self, run: str) -> Path:
        return self.out / "recipes" / f"{run}.toml"

    def log(self, step: str) -> Path:
        return self.out / "logs" / f"{step}.log"


def remaining_steps(
    plan: Plan,
    folders: Folders,
    *,
    trained: Collection[str],
    scored: Mapping[str, Collection[str]],
    timing: tuple[str, ...] = (),
) -> list[Step]:
    """The steps to do, dependencies first. `trained` are the runs whose models are there, `scored` has the keys of the
    scorings done, by run; `timing` is what the timing's process is given, empty where it is not wanted or done.

    A run that is scored is done, though its model be elsewhere; one that others start from is only there for those. One
    that is trained is also scored as it was before, perhaps for tables of another call: those scores are of another
    training.
    """
    missing = {r.name: [one.key for one in r.scorings if one.key not in scored.get(r.name, ())] for r in plan.runs}
    to_train = {run.name for run in plan.runs if missing[run.name] and run.name not in trained}
    to_train |= {run.start for run in plan.runs if run.name in to_train and run.start and run.start not in trained}
    steps: list[Step] = []
    for run in _longest_first(plan.runs):
        if run.name in to_train or missing[run.name]:
            needs = (run.start,) if run.start in to_train and run.name in to_train else ()
            again = [*(one.key for one in run.scorings), *scored.get(run.name, ())]
            scorings = dict.fromkeys(again) if run.name in to_train else missing[run.name]
            arguments = ("run", str(folders.recipe(run.name)), str(folders.runs / run.name), *scorings)
            steps.append(Step(run.name, arguments, run.name, needs))
    if timing:
        steps.append(Step("timing", ("time", *timing), alone=True))
    return steps


def _longest_first(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Seed by seed, and in each the run first after which most is left to do: so no long one is left to run by itself.

    A run that others start from has the longest of them to come, and so comes before them.
    """
    work = {run.name: run.work for run in runs}
    left = dict(work)
    for run in runs:
        if run.start:
            left[run.start] = max(left[run.start], work[run.start] + run.work)
    return sorted(runs, key=lambda run: (run.recipe.seed, -left[run.name]))
