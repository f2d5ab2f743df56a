"""From a plan to the processes that are still needed: a pure function of the plan and of what is done."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from argbeam.reproduce.plan import Plan


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
    """The steps to do, dependencies first. `scored` has the keys of the scorings done, by run; `timing` is what the
    timing's process is given, empty where it is not wanted or done."""
    steps: list[Step] = []
    for run in plan.runs:
        missing = [one.key for one in run.scorings if one.key not in scored.get(run.name, ())]
        if run.name not in trained or missing:
            needs = (run.start,) if run.start and run.start not in trained else ()
            arguments = ("run", str(folders.recipe(run.name)), str(folders.runs / run.name), *missing)
            steps.append(Step(run.name, arguments, run.name, needs))
    if timing:
        steps.append(Step("timing", ("time", *timing), alone=True))
    return steps
