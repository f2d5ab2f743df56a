"""A task of a handful of tokens, for tests of decoding."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from argbeam.data.batches import Example
from argbeam.data.vocabulary import SPECIALS, Vocabulary
from argbeam.search.successors import Successors, Unconstrained
from argbeam.tasks.contract import Item, Score, SplitItems

VOCABULARY = Vocabulary((*SPECIALS, "a", "b", "c"))


@dataclass(frozen=True)
class ToyTask:
    """Tokens in and out; a sentence's number, on which the toy model's scores depend, is its reference."""

    constraint: Successors
    open_length: bool
    source: Vocabulary = VOCABULARY
    target: Vocabulary = VOCABULARY

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.target), end_symbol=self.open_length)

    @property
    def assets(self) -> dict[str, bytes]:
        return {}

    def read(self, split: str) -> SplitItems:
        return SplitItems([])

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        return iter(())

    def item(self, line: str, gold: str = "") -> Item:
        words = tuple(line.split())
        return Item(source=words, surface=words, target=tuple(gold.split()))

    def example(self, item: Item, number: int) -> Example:
        source, target = self.source.encode(item.source), self.target.encode(item.target)
        return Example(tuple(source), tuple(target), int(item.reference))

    def training_view(self, example: Example, epoch: int) -> Example:
        return example

    def limit(self, example: Example) -> int:
        return len(example.source)

    def text(self, item: Item, output: Sequence[int]) -> str:
        return " ".join(self.target.decode(output))

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        """The count of output tokens."""
        count = float(sum(map(len, outputs)))
        return Score(count, {"tokens": count}, "tokens")


def items_of(sources: Sequence[Sequence[int]]) -> list[Item]:
    words = [tuple(VOCABULARY.decode(source)) for source in sources]
    return [Item(source=w, surface=w, reference=str(10 * i + 3)) for i, w in enumerate(words)]


def number_of(item: Item) -> int:
    return int(item.reference)
