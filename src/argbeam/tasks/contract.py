"""The contract of a task: from files to examples, and from outputs to text and a score."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from argbeam.data.batches import Example
from argbeam.data.readers.conll import Tree
from argbeam.data.vocabulary import Vocabulary
from argbeam.metrics.outputs import Metric, Statistics, signature_of
from argbeam.search.successors import Successors


@dataclass(frozen=True)
class Item:
    """One sentence of a task. `target` is empty where there is no gold sequence to train on.

    `source` and `target` hold symbols of the vocabularies, `surface` the words of the source as written, `reference`
    the text that the metric compares with, `where` the file and line of the target.
    """

    source: tuple[str, ...]
    surface: tuple[str, ...]
    target: tuple[str, ...] = ()
    reference: str = ""
    tree: Tree | None = None
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class SplitItems:
    """The items of a split, and counts of the sentences left out, by reason."""

    items: list[Item]
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """Score of a split: `value` chooses epochs, tables show `parts`, equal signatures make scores comparable."""

    value: float
    parts: Mapping[str, float]
    signature: str


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
        """Valid successors, always in force in decoding."""

    @property
    def unconstrained(self) -> Successors:
        """All tokens as successors, for training without the constraint."""

    @property
    def assets(self) -> Mapping[str, bytes]:
        """Files by name: all that `load` needs to make the task again without its training data."""

    def read(self, split: str) -> SplitItems:
        """The items of "train", "dev" or "test"."""

    def stream(self, split: str, left_out: "Counter[str]") -> Iterator[Item]:
        """The same one by one; sentences left out are counted in `left_out`."""

    def item(self, line: str, gold: str = "") -> Item:
        """An input to decode, from a line of text; `gold` is its right output, in the form of `text`."""

    def example(self, item: Item, number: int) -> Example:
        """The item as token ids; `number` is its place in its split."""

    def training_view(self, example: Example, epoch: int) -> Example:
        """The example as training sees it in an epoch, a function of both: of the same lengths."""

    def limit(self, example: Example) -> int:
        """The length of an output, or its bound where the length is open."""

    def text(self, item: Item, output: Sequence[int]) -> str:
        """An output (token ids) as a line of text."""

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        """The task's own metric."""


@runtime_checkable
class ScoresLists(Protocol):
    """Optional: a task whose metrics read the list of the best outputs of an item."""

    @property
    def n_best(self) -> int:
        """Outputs of an item that the metrics read."""

    def statistics(self, items: Sequence[Item], lists: Sequence[Sequence[Sequence[int]]]) -> Mapping[str, Statistics]:
        """Statistics of every item by metric, for tests of significance; none: the metric is BLEU of the text."""

    def score_lists(self, items: Sequence[Item], lists: Sequence[Sequence[Sequence[int]]]) -> Score:
        """The task's own metrics; each item has its outputs, best first."""


def score_of(metrics: Sequence[Metric], statistics: Mapping[str, Statistics], about: str) -> Score:
    """The score of a split by its statistics; the first metric chooses epochs."""
    sums = {metric.name: statistics[metric.name].sum(0) for metric in metrics}
    parts = {metric.name: metric.score(sums[metric.name]) for metric in metrics}
    return Score(metrics[0].value(sums[metrics[0].name]), parts, signature_of(metrics, about))


def read_all(task: Task, split: str) -> SplitItems:
    """The items of a split in memory: every task's `read`."""
    left_out: Counter[str] = Counter()
    return SplitItems(list(task.stream(split, left_out)), dict(left_out))
