"""Recommendation: the next item of a sequence, named by its codes under the trie of all items.

Leave-one-out: the last item of a sequence is test's target, the one before it dev's. Of the others each is a target of
training, after the items before it. Items that share all codes are one: an output cannot tell them apart.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from argbeam.data.batches import Example
from argbeam.data.readers.interactions import Codes, ItemSequence
from argbeam.data.vocabulary import SPECIALS, Vocabulary
from argbeam.errors import DataError
from argbeam.metrics.outputs import Metric, RankedOutputs, Statistics, make_metric
from argbeam.search.constraints.trie import Trie
from argbeam.search.successors import Successors, Unconstrained
from argbeam.settings import Recipe, RecommendationTask
from argbeam.settings.data import GeneratedData
from argbeam.tasks.contract import Item, Score, read_all, score_of
from argbeam.tasks.sources import InteractionSource, read_item_codes, stream_sequences

_ITEMS_FILE = "items.tsv"
# Items at the end of a sequence that training does not see, and that come after the target of a split.
_HELD_OUT = {"train": 2, "dev": 1, "test": 0}


@dataclass(frozen=True)
class Recommendation:
    """One vocabulary of codes serves both sides. A source has the codes of the latest `history` items."""

    data: InteractionSource
    items: Mapping[str, Codes]
    history: int
    metrics: tuple[Metric, ...]
    open_length = False
    read = read_all

    @staticmethod
    def fit(recipe: Recipe) -> "Recommendation":
        assert isinstance(recipe.data, InteractionSource)
        return _task(recipe, read_item_codes(recipe.data))

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "Recommendation":
        lines = (line.split("\t") for line in assets[_ITEMS_FILE].decode().splitlines())
        return _task(recipe, {name: tuple(codes.split()) for name, codes in lines})

    @cached_property
    def source(self) -> Vocabulary:
        # Vocabularies are made of the items, not of the sequences: every item can be an output.
        return Vocabulary((*SPECIALS, *sorted({code for codes in self.items.values() for code in codes})))

    @property
    def target(self) -> Vocabulary:
        return self.source

    @cached_property
    def constraint(self) -> Successors:
        codes = (self.source.encode(codes) for codes in self.items.values())
        return Trie.of(codes, vocabulary=len(self.source), end_symbol=False)

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.source), end_symbol=False)

    @property
    def assets(self) -> dict[str, bytes]:
        return {_ITEMS_FILE: "".join(f"{name}\t{' '.join(codes)}\n" for name, codes in self.items.items()).encode()}

    @property
    def n_best(self) -> int:
        return max(metric.rank for metric in self.metrics)

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        # Generated users are all of training's; dev and test have the first of them.
        most = getattr(self.data, split) if isinstance(self.data, GeneratedData) and split != "train" else None
        return islice(self._items(split, stream_sequences(self.data, self.items), left_out), most)

    def item(self, line: str, gold: str = "") -> Item:
        names, target = line.split(), gold.strip()
        for name in [*names, target] if target else names:
            if name not in self.items:
                raise DataError(f"item {name!r} has no codes; one of the {len(self.items):,} items is expected")
        return self._item(names, target)

    def example(self, item: Item, number: int) -> Example:
        return Example(tuple(self.source.encode(item.source)), tuple(self.source.encode(item.target)), number)

    def training_view(self, example: Example, epoch: int) -> Example:
        return example

    def limit(self, example: Example) -> int:
        return len(next(iter(self.items.values())))

    def text(self, item: Item, output: Sequence[int]) -> str:
        """The item with these codes, the first of those that share them; the codes where there is none."""
        codes = tuple(self.source.decode(output))
        return self._first_with.get(codes) or " ".join(codes)

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        return self.score_lists(items, [[output] for output in outputs])

    def score_lists(self, items: Sequence[Item], lists: Sequence[Sequence[Sequence[int]]]) -> Score:
        return score_of(self.metrics, self.statistics(items, lists), f"items:{len(self._first_with)}")

    def statistics(self, items: Sequence[Item], lists: Sequence[Sequence[Sequence[int]]]) -> dict[str, Statistics]:
        outputs = [
            RankedOutputs([self.text(item, tokens) for tokens in found], item.reference)
            for item, found in zip(items, lists, strict=True)
        ]
        return {metric.name: metric.rows(outputs) for metric in self.metrics}

    def _items(self, split: str, sequences: Iterator[ItemSequence], left_out: Counter[str]) -> Iterator[Item]:
        for sequence in sequences:
            last = len(sequence.items) - 1 - _HELD_OUT[split]
            if last < 1:
                left_out["sequences too short"] += 1
            for place in range(1 if split == "train" else max(1, last), last + 1):
                yield self._item(sequence.items[:place], sequence.items[place], sequence.where)

    def _item(self, names: Sequence[str], target: str = "", where: str = "") -> Item:
        latest = tuple(names[-self.history :])
        source = tuple(code for name in latest for code in self.items[name])
        if not target:
            return Item(source, latest)
        codes = self.items[target]
        return Item(source, latest, codes, reference=self._first_with[codes], where=where)

    @cached_property
    def _first_with(self) -> Mapping[Codes, str]:
        found: dict[Codes, str] = {}
        for name, codes in self.items.items():
            found.setdefault(codes, name)
        return found


def _task(recipe: Recipe, items: Mapping[str, Codes]) -> Recommendation:
    assert isinstance(recipe.data, InteractionSource) and isinstance(recipe.task, RecommendationTask)
    metrics = tuple(make_metric(name) for name in recipe.task.metrics)
    return Recommendation(recipe.data, items, recipe.task.history, metrics)
