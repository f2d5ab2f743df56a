"""The training examples of a recipe: in memory, or in a store of the run folder that is built once."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argbeam import __version__
from argbeam.data.batches import Example
from argbeam.data.example_store import StoredExamples, write_store
from argbeam.errors import DataError
from argbeam.runs.layout import STORE
from argbeam.settings import IwsltData, Recipe
from argbeam.tasks import TASKS
from argbeam.tasks.contract import Task
from argbeam.tasks.sources import named_files, stream_pairs

Assets = Mapping[str, bytes]


@dataclass(frozen=True)
class TrainingData:
    """A task and its training examples; how many sentences were left out of them, for which reason."""

    task: Task
    examples: Sequence[Example]
    left_out: dict[str, int]


def read_examples(recipe: Recipe, assets: Assets | None) -> TrainingData:
    """All examples in memory. The task is made of its files, or fitted to the training data where there are none."""
    task = _task(recipe, assets)
    left_out: Counter[str] = Counter()
    return TrainingData(task, list(_examples(task, left_out)), dict(left_out))


def stored_examples(recipe: Recipe, stored: StoredExamples) -> TrainingData:
    """The examples of a store, with the task that made them."""
    task = TASKS[recipe.task.kind].load(recipe, stored.assets)
    return TrainingData(task, stored, dict(stored.header["left_out"]))


def open_store(recipe: Recipe, folder: Path, assets: Assets | None) -> StoredExamples | None:
    """The run's store, if it is whole and made of these files, these settings and this task."""
    try:
        stored = StoredExamples(folder / STORE)
        # A store that was made for a run started from another one has that one's vocabulary.
        same_task = stored.header["fitted"] if assets is None else stored.assets == dict(assets)
        return stored if same_task and stored.header["key"] == store_key(recipe) else None
    except (DataError, KeyError, ValueError):
        return None


def build_store(recipe: Recipe, folder: Path, assets: Assets | None) -> StoredExamples:
    """Read the training data twice, once for the vocabulary, and write its examples; memory does not grow with it."""
    task = _task(recipe, assets)
    left_out: Counter[str] = Counter()
    about = {"key": store_key(recipe), "fitted": assets is None, "left_out": left_out}
    try:
        write_store(folder / STORE, _examples(task, left_out), about=about, assets=task.assets)
    except OSError as error:
        raise DataError(f"{folder / STORE}: cannot be written: {error.strerror}") from None
    return StoredExamples(folder / STORE)


def store_key(recipe: Recipe) -> str:
    """A digest of all that the training examples follow from: the files' content, the settings, the version."""
    table: dict[str, Any] = recipe.model_dump()
    data = {key: value for key, value in table["data"].items() if key != "root" and not key.startswith(("dev", "test"))}
    files = [(key, _digest(path)) for key, path in named_files(recipe.data) if key.startswith("data.train")]
    if isinstance(recipe.data, IwsltData):  # its files have names of their own, and it is small
        pairs = [(pair.source, pair.target) for pair in stream_pairs(recipe.data, "train")]
        files = [("pairs", hashlib.sha256(json.dumps(pairs).encode()).hexdigest())]
    about = [__version__, table["task"], table["text"], table["seed"], data, files]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _task(recipe: Recipe, assets: Assets | None) -> Task:
    kind = TASKS[recipe.task.kind]
    return kind.fit(recipe) if assets is None else kind.load(recipe, assets)


def _examples(task: Task, left_out: Counter[str]) -> Iterator[Example]:
    return (task.example(item, number) for number, item in enumerate(task.stream("train", left_out)))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
