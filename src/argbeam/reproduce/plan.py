"""The runs behind tables, as a pure function: which recipes, in which order, what they share, how they are scored."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from argbeam.decoding.length_power import POWERS
from argbeam.errors import ConfigError
from argbeam.reproduce.corpora import Corpus
from argbeam.reproduce.experiments import Experiment, Row
from argbeam.reproduce.paper import BEAMS
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import load_recipe, parse_recipe

PRETRAIN = "pretrain"
_ALL_STAGES = "*"
_OWN = ("seed", "start")


@dataclass(frozen=True)
class Scoring:
    """A split to decode at some beams. `powers` are tried on dev, and the best one there is used; `stop` is searched
    with instead of the run's own rule."""

    split: str
    beams: tuple[int, ...] = BEAMS
    powers: tuple[float, ...] = ()
    stop: str = ""

    @property
    def key(self) -> str:
        """What finds the results of this scoring again."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class PlannedRun:
    """A run: its name is that of its folder. `start` names the run that it starts from, which comes before it."""

    name: str
    origin: str
    recipe: Recipe
    start: str
    scorings: tuple[Scoring, ...]
    sentences: int

    @property
    def work(self) -> int:
        """Sentences to train on, those of a search counted for the time they take; to estimate what is left."""
        return sum(
            stage.epochs * self.sentences * (1 if stage.loss.kind == "cross_entropy" else 3)
            for stage in self.recipe.stages.values()
        )


@dataclass(frozen=True)
class PlannedRow:
    """A row of a table: its runs, one for each seed, and which of their scorings it shows."""

    label: str
    runs: tuple[str, ...]
    scoring: str


@dataclass(frozen=True)
class PlannedTable:
    name: str
    title: str
    corpus: str
    split: str
    references: tuple[str, ...]
    rows: tuple[PlannedRow, ...]


@dataclass(frozen=True)
class Plan:
    """Runs in an order in which they can be made, the tables they are for, and rows that have no recipe."""

    runs: tuple[PlannedRun, ...]
    tables: tuple[PlannedTable, ...]
    left_out: tuple[str, ...]


def make_plan(
    experiments: Sequence[Experiment],
    corpora: Mapping[str, Corpus],
    *,
    seeds: Sequence[int],
    recipes: Mapping[str, Path],
    folder: Path,
    sets: Sequence[str] = (),
) -> Plan:
    """Plan experiments whose corpora are there. `folder` is where the runs go, `sets` goes over every recipe."""
    runs: dict[str, PlannedRun] = {}
    used: set[str] = set()
    rows: dict[tuple[str, str], list[str]] = {}
    # Seed by seed: a stop leaves whole tables of the first seeds, not parts of tables with all of them.
    for seed in seeds:
        for experiment in experiments:
            for row in experiment.rows:
                if row.recipe not in recipes:
                    continue
                corpus = corpora[experiment.corpus]
                recipe, applied = _recipe(row, recipes[row.recipe], corpus, seed, sets)
                used |= applied
                added = _split(row, recipe, corpus, seed, folder, (_scoring(row, experiment.split),))
                for run in added:
                    runs[run.name] = _merged(runs.get(run.name), run)
                rows.setdefault((experiment.name, row.label), []).append(added[-1].name)
    own = [one for one in sets if one.partition("=")[0].strip() in _OWN]
    if own:
        raise ConfigError(f"--set {own[0]}: reproduce sets that itself; --seeds says how many seeds there are")
    unused = [one for one in sets if one not in used]
    if unused and runs:
        raise ConfigError(f"--set {unused[0]}: no recipe of these tables has that stage")
    tables = tuple(
        PlannedTable(
            experiment.name,
            experiment.title,
            corpora[experiment.corpus].name,
            experiment.split,
            experiment.references,
            tuple(
                PlannedRow(row.label, tuple(rows[experiment.name, row.label]), _scoring(row, experiment.split).key)
                for row in experiment.rows
                if row.recipe in recipes
            ),
        )
        for experiment in experiments
    )
    absent = dict.fromkeys(row.recipe for one in experiments for row in one.rows if row.recipe not in recipes)
    return Plan(tuple(runs.values()), tables, tuple(absent))


def _scoring(row: Row, split: str) -> Scoring:
    return Scoring(split, powers=POWERS if row.by_length else (), stop=row.stop)


def _recipe(row: Row, path: Path, corpus: Corpus, seed: int, sets: Sequence[str]) -> tuple[Recipe, set[str]]:
    """The row's recipe on the corpus, and those of `sets` that apply to it."""
    plain = load_recipe(path)
    # A corpus's overrides are for many recipes: what a recipe has no key for does not concern it.
    over = [one for one in _for_stages(corpus.sets, plain) if _has_key(plain.model_dump(), one)]
    over += row.sets
    applied: set[str] = set()
    for one in sets:
        found = _for_stages([one], plain)
        over += found
        applied |= {one} if found else set()
    return parse_recipe(plain.model_dump(), [*over, f"seed={seed}"], where=str(path)), applied


def _for_stages(sets: Sequence[str], recipe: Recipe) -> list[str]:
    """Overrides of stages for the stages that there are: `stages.*.epochs=1` is one for each."""
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
    row: Row, recipe: Recipe, corpus: Corpus, seed: int, folder: Path, scorings: tuple[Scoring, ...]
) -> list[PlannedRun]:
    """A row's runs: pre-training by itself where the recipe has more than one stage, then the rest."""
    system = row.recipe.replace("/", "-") + (f"-{row.variant}" if row.variant else "")
    name = f"{system}.{corpus.name}.s{seed}"
    first, *rest = recipe.stages
    if not rest:
        return [PlannedRun(name, row.recipe, recipe, "", scorings, corpus.sentences)]
    before = recipe.model_copy(update={"name": PRETRAIN, "stages": {first: recipe.stages[first]}})
    start = f"{recipe.task.kind}-{PRETRAIN}.{corpus.name}.s{seed}.{_digest(before)}"
    after = recipe.model_copy(
        update={"stages": {stage: recipe.stages[stage] for stage in rest}, "start": str(folder / start)}
    )
    return [
        PlannedRun(start, row.recipe, before, "", (), corpus.sentences),
        PlannedRun(name, row.recipe, after, start, scorings, corpus.sentences),
    ]


def _digest(recipe: Recipe) -> str:
    """What tells models apart that runs start from: all that is learnt from, wherever the files lie."""
    table = recipe.model_dump(exclude={"runtime": True, "data": {"root": True}, "decode": {"batch": True}})
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:6]


def _merged(there: PlannedRun | None, run: PlannedRun) -> PlannedRun:
    if there is None:
        return run
    assert there.recipe == run.recipe, f"{run.name}: two recipes of one name"
    scorings = tuple(dict.fromkeys((*there.scorings, *run.scorings)))
    return PlannedRun(run.name, there.origin, run.recipe, run.start, scorings, run.sentences)
