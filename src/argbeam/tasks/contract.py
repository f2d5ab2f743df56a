"""The contract of a task: from files to examples, and from outputs to text and a score."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from argbeam.data.batches import Example
from argbeam.data.readers.conll import Tree
from argbeam.data.vocabulary import Vocabulary
from argbeam.search.successors import Successors


@dataclass(frozen=True)
class Item:
    """One sentence of a task in words. `target` is empty where there is no gold sequence to train on.

    `surface` are the source's words as they were written, `reference` what the metric compares with.
    """

    source: tuple[str, ...]
    surface: tuple[str, ...]
    target: tuple[str, ...] = ()
    reference: str = ""
    tree: Tree | None = None


@dataclass(frozen=True)
class Read:
    """The items of a split, and how many sentences were left out for which reason."""

    items: list[Item]
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A split's score: `value` chooses epochs, tables show `parts`, and equal signatures make them comparable."""

    value: float
    parts: Mapping[str, float]
    signature: str


def read_all(task: "Task", split: str) -> Read:
    """The items of a split in memory."""
    left_out: Counter[str] = Counter()
    return Read(list(task.stream(split, left_out)), dict(left_out))


class Task(Protocol):
    """A task with its vocabularies."""

    @property
    def source(self) -> Vocabulary: ...

    @property
    def target(self) -> Vocabulary: ...

    @property
    def open_length(self) -> bool:
        """Whether outputs end in an end symbol; otherwise `limit` is their exact length."""

    @property
    def constraint(self) -> Successors:
        """Valid successors, in force whenever the task is decoded."""

    @property
    def unconstrained(self) -> Successors:
        """Any word: what BSO without constraints trains with."""

    @property
    def assets(self) -> Mapping[str, bytes]:
        """Files by name from which the task can be made again without its training data."""

    def read(self, split: str) -> Read:
        """The items of "train", "dev" or "test"."""

    def stream(self, split: str, left_out: "Counter[str]") -> Iterator[Item]:
        """The same one by one; a sentence that is left out is counted in `left_out` as it is passed over."""

    def item(self, line: str) -> Item:
        """An input to decode, from a line of text."""

    def example(self, item: Item, number: int) -> Example:
        """The item in numbers."""

    def training_view(self, example: Example, epoch: int) -> Example:
        """The example as training sees it in an epoch: of the same lengths, and the same whenever it is asked for."""

    def limit(self, example: Example) -> int:
        """The length of an output, or its bound where the length is open."""

    def text(self, item: Item, output: Sequence[int]) -> str:
        """An output as a line of text."""

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        """The task's own metric."""


@dataclass(frozen=True)
class Fitted:
    """A task fitted to its training data, and that data, read when it is asked for."""

    task: Task

    @cached_property
    def train(self) -> Read:
        return self.task.read("train")
