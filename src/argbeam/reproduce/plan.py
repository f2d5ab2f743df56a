"""The runs behind the tables, as pure functions: their recipes, what they share, their scorings and their order."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import Json

from argbeam.decoding.length_power import POWERS
from argbeam.errors import ConfigError
from argbeam.reproduce.corpora import Corpus
from argbeam.reproduce.experiments import Experiment, System
from argbeam.reproduce.paper import BEAMS
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import load_recipe, parse_recipe, shipped_recipes

PRETRAIN = "pretrain"
_ALL_STAGES = "*"
_OWN_KEYS = ("seed", "start")


@dataclass(frozen=True)
class Scoring:
    """A split to decode at some beams. Of `powers`, the best on dev is used; `stop` replaces the run's stop rule."""

    split: str
    beams: tuple[int, ...] = BEAMS
    powers: tuple[float, ...] = ()
    stop: str = ""

    @property
    def text(self) -> str:
        """The scoring as files and commands hold it."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return self.split + (" by length" if self.powers else "") + (f" stop {self.stop}" if self.stop else "")


@dataclass(frozen=True)
class PlannedRun:
    """A run of the shipped recipe `origin`; `start` is the run it starts from, `sentences` its training data's size."""

    name: str
    origin: str
    recipe: Recipe
    start: str
    scorings: tuple[Scoring, ...]
    sentences: int

    @property
    def work(self) -> int:
        """Training sentences over all epochs, an epoch with search counted three times; for estimates of time."""
        return sum(
            stage.epochs * self.sentences * (1 if stage.loss.kind == "cross_entropy" else 3)
            for stage in self.recipe.stages.values()
        )


@dataclass(frozen=True)
class PlannedRow:
    """A row of a table: its runs, one for each seed, and the scoring it shows."""

    label: str
    runs: tuple[str, ...]
    scoring: Json[Scoring]


@dataclass(frozen=True)
class PlannedTable:
    """A table of the report; gains are over the rows that `references` labels."""

    name: str
    title: str
    corpus: str
    split: str
    references: tuple[str, ...]
    rows: tuple[PlannedRow, ...]


@dataclass(frozen=True)
class RunPlan:
    """Runs, dependencies first, and the tables they are for."""

    runs: tuple[PlannedRun, ...]
    tables: tuple[PlannedTable, ...]


def make_plan(
    experiments: Sequence[Experiment],
    corpora: Mapping[str, Corpus],
    *,
    seeds: Sequence[int],
    folder: Path,
    sets: Sequence[str] = (),
) -> RunPlan:
    """Plan experiments whose corpora are there. `folder` is for the runs; `sets` overrides every recipe."""
    recipes = {one.recipe: load_recipe(shipped_recipes()[one.recipe]) for table in experiments for one in table.systems}
    _check_sets(sets, recipes.values())
    runs: dict[str, PlannedRun] = {}
    by_digest: dict[str, str] = {}  # of runs from random weights
    # Seed by seed: a stop leaves whole tables of the first seeds, not parts of tables with all of them.
    for seed in seeds:
        for table in experiments:
            corpus = corpora[table.corpus]
            for system in table.systems:
                recipe = _recipe(recipes[system.recipe], system, corpus, [*sets, f"seed={seed}"])
                for run in _split(system, recipe, corpus, folder, _scoring(table, system), by_digest):
                    if not run.start:
                        by_digest.setdefault(_digest(run.recipe), run.name)
                    there = runs.setdefault(run.name, run)
                    assert there.recipe == run.recipe, f"{run.name}: two recipes of one name"
                    runs[run.name] = replace(there, scorings=tuple(dict.fromkeys((*there.scorings, *run.scorings))))
    tables = []
    for table in experiments:
        name = corpora[table.corpus].name
        rows = (
            PlannedRow(one.label, tuple(_run_name(one, name, seed) for seed in seeds), _scoring(table, one))
            for one in table.systems
        )
        tables.append(PlannedTable(table.name, table.title, name, table.split, table.references, tuple(rows)))
    return RunPlan(tuple(runs.values()), tuple(tables))


def asked(name: str, only: Sequence[str]) -> bool:
    """Whether a run's name matches one of the patterns, as shells match files; without patterns every name does."""
    return not only or any(fnmatchcase(name, pattern) for pattern in only)


def runs_left(
    plan: RunPlan, *, trained: Collection[str], scored: Mapping[str, Collection[Scoring]], only: Sequence[str] = ()
) -> dict[str, tuple[Scoring, ...]]:
    """The runs to train or to score, in the order to start them, with their scorings.

    Of `only`, patterns of names: the runs that match one of them, and those that they start from.

    A scored run is done even where its model is elsewhere; a run that others start from is needed for those alone. A
    run that is trained again is also scored again in every way it was before: the old scores are of another training.
    """
    missing = {
        run.name: [one for one in run.scorings if asked(run.name, only) and one not in scored.get(run.name, ())]
        for run in plan.runs
    }
    to_train = {run.name for run in plan.runs if missing[run.name] and run.name not in trained}
    to_train |= {run.start for run in plan.runs if run.name in to_train and run.start and run.start not in trained}
    left: dict[str, tuple[Scoring, ...]] = {}
    for run in _longest_first(plan.runs):
        if run.name in to_train:
            left[run.name] = tuple(dict.fromkeys((*run.scorings, *scored.get(run.name, ()))))
        elif missing[run.name]:
            left[run.name] = tuple(missing[run.name])
    return left


def _longest_first(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Seed by seed, and in each the run with the most work first; the longest run that starts from it counts too."""
    work = {run.name: run.work for run in runs}
    left = dict(work)
    for run in runs:
        if run.start:
            left[run.start] = max(left[run.start], work[run.start] + run.work)
    return sorted(runs, key=lambda run: (run.recipe.seed, -left[run.name]))


def _check_sets(sets: Sequence[str], recipes: Collection[Recipe]) -> None:
    for override in sets:
        if override.partition("=")[0].strip() in _OWN_KEYS:
            raise ConfigError(f"--set {override}: reproduce sets that itself; --seeds says how many seeds there are")
        if recipes and not any(_for_stages([override], recipe) for recipe in recipes):
            raise ConfigError(f"--set {override}: no recipe of these tables has that stage")


def _scoring(table: Experiment, system: System) -> Scoring:
    return Scoring(table.split, table.beams, powers=POWERS if system.by_length else (), stop=system.stop)


def _run_name(system: System, corpus: str, seed: int) -> str:
    variant = f"-{system.variant}" if system.variant else ""
    return f"{system.recipe.replace('/', '-')}{variant}.{corpus}.s{seed}"


def _recipe(shipped: Recipe, system: System, corpus: Corpus, sets: Sequence[str]) -> Recipe:
    """The system's recipe on the corpus, with the overrides `sets`."""
    # A corpus's overrides are for many recipes: those without a key in this recipe are skipped.
    over = [one for one in _for_stages(corpus.sets, shipped) if _has_key(shipped.model_dump(), one)]
    over += _for_stages([*system.sets, *sets], shipped)
    return parse_recipe(shipped.model_dump(), over, where=str(shipped_recipes()[system.recipe]))


def _for_stages(sets: Sequence[str], recipe: Recipe) -> list[str]:
    """Overrides with `stages.NAME` for the stages of the recipe: `stages.*.epochs=1` becomes one for each."""
    found = []
    for one in sets:
        key, _, value = one.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if parts[0] != "stages" or len(parts) < 3:
            found.append(one)
            continue
        stages = [stage for stage in recipe.stages if parts[1] in (stage, _ALL_STAGES)]
        found += [f"{'.'.join(['stages', stage, *parts[2:]])}={value}" for stage in stages]
    return found


def _has_key(table: Any, override: str) -> bool:
    for part in override.partition("=")[0].split("."):
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def _split(
    system: System, recipe: Recipe, corpus: Corpus, folder: Path, scoring: Scoring, by_digest: Mapping[str, str]
) -> list[PlannedRun]:
    """The runs of a system: pre-training by itself where the recipe has more than one stage, then the rest.

    Of `by_digest`, the runs planned before, one may be that pre-training.
    """
    name = _run_name(system, corpus.name, recipe.seed)
    (first, stage), *rest = recipe.stages.items()
    if not rest:
        return [PlannedRun(name, system.recipe, recipe, "", (scoring,), corpus.sentences)]
    before = recipe.model_copy(update={"name": PRETRAIN, "stages": {first: stage}})
    there = by_digest.get(_digest(before))
    start = there or f"{recipe.task.kind}-{PRETRAIN}.{corpus.name}.s{recipe.seed}.{_digest(before)}"
    after = recipe.model_copy(update={"stages": dict(rest), "start": str(folder / start)})
    return [
        *([] if there else [PlannedRun(start, system.recipe, before, "", (), corpus.sentences)]),
        PlannedRun(name, system.recipe, after, start, (scoring,), corpus.sentences),
    ]


def _digest(recipe: Recipe) -> str:
    """A digest of the settings that a trained model depends on; names and the place of its files are not among them."""
    table = recipe.model_dump(
        exclude={"name": True, "runtime": True, "data": {"root": True}, "decode": {"batch": True}}
    )
    table["stages"] = list(table["stages"].values())
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:6]
