"""The training examples of a recipe: in memory, or in a store in the run folder that is written once."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argbeam import __version__
from argbeam.data.batches import Example
from argbeam.data.example_store import StoredExamples, write_store
from argbeam.data.readers.text import COMPRESSIONS, count_lines_with_tab, unpacked
from argbeam.errors import DataError, counted
from argbeam.files import check_there, reading, writing
from argbeam.runs.layout import STORE
from argbeam.settings import InteractionData, IwsltData, Recipe
from argbeam.settings.data import TextData
from argbeam.tasks import TASKS
from argbeam.tasks.constraints import SHIPPED, constraint_file, constraint_of
from argbeam.tasks.contract import Task
from argbeam.tasks.sources import named_files, stream_pairs
from argbeam.training.events import Doing

Assets = Mapping[str, bytes]
_SAY_EVERY = 10_000  # sentences between two signs of life


@dataclass(frozen=True)
class TrainingData:
    """A task and its training examples, with the count of sentences left out for each reason."""

    task: Task
    examples: Sequence[Example]
    left_out: dict[str, int]

    @property
    def reasons(self) -> str:
        """The sentences left out: `3 too long, 1 too short`."""
        return ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.left_out.items()))


def check_files(recipe: Recipe) -> None:
    """Every file that the recipe names, test files too, must exist before hours of training start."""
    named = named_files(recipe.data)
    named += [('model.vectors (none: "")', vectors_path(recipe))] if recipe.model.vectors else []
    named += _constraint_files(recipe)
    for key, path in named:
        others = (Path(f"{unpacked(path)}{ending}") for ending in COMPRESSIONS)
        hint = next((f", but {other.name} is there" for other in others if os.path.exists(other)), "")  # noqa: PTH110
        check_there(path, f"{key} names it{hint}" if hint or not key.startswith("data.") else named_by(key))


def named_by(key: str) -> str:
    """The end of an error about a data file that is not where the recipe has it."""
    return f"{key} names it; --data DIR says where the data is now"


def lines_with_tab(recipe: Recipe) -> Iterator[str]:
    """A line for the user about each split of plain text that has tabs: it may be a table of pairs."""
    for split in ("train", "dev") if isinstance(recipe.data, TextData) else ():
        files = [path for key, path in named_files(recipe.data) if key == f"data.{split}"]
        if found := sum(map(count_lines_with_tab, files)):
            yield f"data.{split}: {counted(found, 'line')} with a tab: all columns are read as one sentence"


def vectors_path(recipe: Recipe) -> Path:
    """The file of word vectors that the recipe names."""
    return _root(recipe) / recipe.model.vectors


def fit_task(recipe: Recipe) -> Task:
    """The task fitted to the recipe's training data."""
    return TASKS[recipe.task.kind].fit(recipe)


def read_examples(recipe: Recipe, assets: Assets | None) -> Generator[Doing, None, TrainingData]:
    """All examples in memory. The task is loaded from its assets, or fitted where there are none."""
    yield Doing("reading the training data")
    task = _task(recipe, assets)
    left_out: Counter[str] = Counter()
    found: list[Example] = []
    for example in _examples(task, left_out):
        found.append(example)
        if len(found) % _SAY_EVERY == 0:
            yield Doing(f"reading the training data: {len(found):,} sentences")
    return TrainingData(task, found, dict(left_out))


def stored_examples(recipe: Recipe, stored: StoredExamples) -> TrainingData:
    """The examples of a store, with the task that made them."""
    return TrainingData(_task(recipe, stored.assets), stored, dict(stored.header["left_out"]))


def open_store(recipe: Recipe, folder: Path, assets: Assets | None) -> StoredExamples | None:
    """The run's store, if it is whole and made from these files, these settings and this task."""
    try:
        stored = StoredExamples(folder / STORE)
        # A store of a run that started from another run has that run's vocabulary.
        same_task = stored.header["fitted"] if assets is None else stored.assets == dict(assets)
        return stored if same_task and stored.header["key"] == store_key(recipe) else None
    except (DataError, KeyError, ValueError):
        return None


def build_store(recipe: Recipe, folder: Path, assets: Assets | None) -> None:
    """Read the training data twice, once for the vocabulary, and write its examples; memory does not grow with it."""
    task = _task(recipe, assets)
    left_out: Counter[str] = Counter()
    about = {"key": store_key(recipe), "fitted": assets is None, "left_out": left_out}
    with writing(folder / STORE, "runtime.store = true needs room for the training examples", DataError):
        write_store(folder / STORE, _examples(task, left_out), about=about, assets=task.assets)


def store_key(recipe: Recipe) -> str:
    """A digest of everything that determines the training examples: the files' content, the settings, the version."""
    table: dict[str, Any] = recipe.model_dump()
    data = {key: value for key, value in table["data"].items() if key != "root" and not key.startswith(("dev", "test"))}
    files = [(name.partition(" ")[0], digest) for name, digest in data_digests(recipe, ("train",)).items()]
    about = [__version__, table["task"], table["text"], table["seed"], data, files]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def data_digests(recipe: Recipe, splits: Sequence[str] = ("train", "dev")) -> dict[str, str]:
    """SHA-256 of each file of the splits, by key and name: `data.train train.txt`. A generated corpus has none.

    Only of plain files: what can be read once belongs to the reader.
    """
    if isinstance(recipe.data, IwsltData):  # its files have names of their own, and it is small
        pairs = {split: [(p.source, p.target) for p in stream_pairs(recipe.data, split)] for split in splits}
        return {f"data.{split} .": hashlib.sha256(json.dumps(p).encode()).hexdigest() for split, p in pairs.items()}
    # Sequences of items are cut into splits by the task: every split is made of every file.
    keys = ("data.",) if isinstance(recipe.data, InteractionData) else tuple(f"data.{split}" for split in splits)
    root = _root(recipe)
    files = [(key, path) for key, path in named_files(recipe.data) if key.startswith(keys) and path.is_file()]
    own = not getattr(constraint_of(recipe), "file", "").startswith(SHIPPED)
    files += [(key, path) for key, path in _constraint_files(recipe) if path.is_file() and own]
    names = [path.relative_to(root) if path.is_relative_to(root) else path for _, path in files]
    return {f"{key} {name}": _digest(path) for (key, path), name in zip(files, names, strict=True)}


def dev_in_training(digests: Mapping[str, str]) -> list[str]:
    """The dev files that are training files too, by their digests: `data.dev train.txt`."""
    trained = {(_side(name), digest) for name, digest in digests.items() if name.startswith("data.train")}
    dev = ((name, digest) for name, digest in digests.items() if name.startswith("data.dev"))
    return [name for name, digest in dev if (_side(name), digest) in trained]


def _side(name: str) -> str:
    """The side of a name of `data_digests`: `source` of `data.dev_source dev.de`; empty: both."""
    return name.partition(" ")[0].partition("_")[2]


def check_unchanged(recipe: Recipe, folder: Path, *, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise a DataError if a file is not the one that the run in the folder was started with."""
    for name, digest in known.items():
        if found.get(name) != digest:
            key, _, file = name.partition(" ")
            raise DataError(
                f"{_root(recipe) / file}: not the file that {folder} has trained with as {key} (another SHA-256); "
                "put that one back (--data DIR if it was moved), or choose another --out"
            )


def check_as_far_as_there(recipe: Recipe, folder: Path, *, known: Mapping[str, str]) -> None:
    """As `check_unchanged`, of a finished run: files that are gone are needed no more."""
    try:
        found = data_digests(recipe) if known else {}
    except DataError:  # those of IWSLT are gone
        found = {}
    there = {name: digest for name, digest in known.items() if name in found}
    check_unchanged(recipe, folder, known=there, found=found)


def _constraint_files(recipe: Recipe) -> list[tuple[str, Path]]:
    path = constraint_file(recipe)
    return [] if path is None else [("task.constraint.file", path)]


def _root(recipe: Recipe) -> Path:
    return Path(getattr(recipe.data, "root", "."))


def _task(recipe: Recipe, assets: Assets | None) -> Task:
    return fit_task(recipe) if assets is None else TASKS[recipe.task.kind].load(recipe, assets)


def _examples(task: Task, left_out: Counter[str]) -> Iterator[Example]:
    return (task.example(item, number) for number, item in enumerate(task.stream("train", left_out)))


def _digest(path: Path) -> str:
    with reading(path, "a file of training data is expected"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
