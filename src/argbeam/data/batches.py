"""Examples as numbers, and batches of few, fixed shapes whose order is fixed by seed and epoch."""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from argbeam.data.vocabulary import PAD
from argbeam.runtime.group import ALONE, Group

# Sources of up to this many words are batched by number alone.
_LONG = 128
# More than any length.
_KEY = 1 << 32

Length = TypeVar("Length", int, np.ndarray[tuple[int, ...], np.dtype[Any]])


@dataclass(frozen=True)
class Example:
    """One sentence pair in vocabulary numbers; `sentence` is its number in its split, the key of its noise."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    sentence: int


_Numbers = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Lengths:
    """How many words the sources and targets of examples have."""

    source_N: _Numbers
    target_N: _Numbers


@dataclass(frozen=True)
class Batch:
    """Sentences padded to one shape. A padding row, to fill a batch up, has target length 0 and counts for nothing."""

    source_BS: Int[Tensor, "B S"]
    source_length_B: Int[Tensor, " B"]
    target_BT: Int[Tensor, "B T"]
    target_length_B: Int[Tensor, " B"]
    sentence_B: Int[Tensor, " B"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, S and T: all that fixes the shapes of a training step besides the loss."""
        return (*self.source_BS.shape, self.target_BT.shape[1])

    def to(self, device: torch.device) -> "Batch":
        return Batch(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})

    def pin(self) -> "Batch":
        """In page-locked memory, from which copies to a CUDA device do not wait."""
        return Batch(**{f.name: getattr(self, f.name).pin_memory() for f in fields(self)})

    def clone(self, device: torch.device) -> "Batch":
        """A copy in memory of its own on the device."""
        return Batch(**{f.name: getattr(self, f.name).to(device, copy=True) for f in fields(self)})

    def halves(self) -> "list[Batch]":
        """The two halves of its rows, padded alike."""
        middle = (len(self.sentence_B) + 1) // 2
        rows = (slice(middle), slice(middle, None))
        return [Batch(**{f.name: getattr(self, f.name)[half] for f in fields(self)}) for half in rows]

    def copy_from(self, other: "Batch") -> None:
        """Overwrite this batch's tensors: the inputs of a captured step are fixed places in memory."""
        for f in fields(self):
            getattr(self, f.name).copy_(getattr(other, f.name), non_blocking=True)


def make_batch(examples: Sequence[Example], *, source_length: int = 0, target_length: int = 0, size: int = 0) -> Batch:
    """Pad examples into one batch, at least as large as the lengths and the size given."""
    rows = max(size, len(examples))
    source_length = max([source_length, 1, *(len(e.source) for e in examples)])
    target_length = max([target_length, *(len(e.target) for e in examples)])
    fill = [()] * (rows - len(examples))
    return Batch(
        source_BS=_padded([*(e.source for e in examples), *fill], source_length),
        # An attention over no word at all has no value: padding rows have one PAD to look at.
        source_length_B=torch.tensor([*(len(e.source) for e in examples), *(1 for _ in fill)]),
        target_BT=_padded([*(e.target for e in examples), *fill], target_length),
        target_length_B=torch.tensor([*(len(e.target) for e in examples), *(0 for _ in fill)]),
        sentence_B=torch.tensor([*(e.sentence for e in examples), *(0 for _ in fill)]),
    )


@dataclass(frozen=True)
class BatchPlan:
    """Which examples go together, in which order: a pure function of the corpus, the seed and the epoch.

    Examples are sorted by their rounded lengths, ties in an order that changes with the epoch, and cut into batches of
    `size`. The multiset of shapes is the same in every epoch, few shapes occur, and one batch at most is not full.
    """

    examples: Sequence[Example]
    size: int
    round_source: int
    round_target: int
    seed: int

    def epoch(self, epoch: int, *, by_length: bool = False) -> "EpochBatches":
        """The batches of an epoch as lists of example numbers; `by_length` keeps the short ones first."""
        rng = random.Random(f"{self.seed}:{epoch}")
        shuffled, batches = array("q", range(len(self.examples))), array("q", range(len(self)))
        rng.shuffle(shuffled)
        shuffled_N = np.frombuffer(shuffled, dtype=np.int64)
        order_N = shuffled_N[np.argsort(self._keys_N[shuffled_N], kind="stable")]
        if not by_length:
            rng.shuffle(batches)
        return EpochBatches(order_N, np.frombuffer(batches, dtype=np.int64), self.size)

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return -(-len(self.examples) // self.size)

    def batch(
        self,
        numbers: Sequence[int],
        view: Callable[[Example], Example] = lambda example: example,
        group: Group = ALONE,
    ) -> Batch:
        """This process's share of the batch of these examples, padded to the rounded shape of all of them.

        `view` may change words, but no length.
        """
        rounded = [self._rounded(self.examples[i]) for i in numbers]
        return make_batch(
            [view(self.examples[i]) for i in group.share(numbers)],
            source_length=max(s for s, _ in rounded),
            target_length=max(t for _, t in rounded),
            size=group.share_of(self.size),
        )

    def shapes(self) -> set[tuple[int, int, int]]:
        """Every shape that occurs."""
        keys_N, starts = np.sort(self._keys_N), np.arange(len(self)) * self.size
        source = np.maximum.reduceat(keys_N % _KEY, starts).tolist()
        target = np.maximum.reduceat(keys_N // _KEY, starts).tolist()
        return {(self.size, max(s, 1), t) for s, t in zip(source, target, strict=True)}

    @cached_property
    def _keys_N(self) -> _Numbers:
        """What examples are sorted by: the rounded length of the target, then that of the source."""
        lengths = lengths_of(self.examples)
        source_N, target_N = lengths.source_N.astype(np.int64), lengths.target_N.astype(np.int64)
        keys_N: _Numbers = round_up(target_N, self.round_target) * _KEY + round_up(source_N, self.round_source)
        return keys_N

    def _rounded(self, example: Example) -> tuple[int, int]:
        return (
            round_up(len(example.source), self.round_source),
            round_up(len(example.target), self.round_target),
        )


@dataclass(frozen=True, eq=False)
class EpochBatches:
    """The batches of an epoch in their order, each a list of example numbers: two arrays for a corpus of any size."""

    order_N: _Numbers
    batches: _Numbers
    size: int

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, place: int) -> list[int]:
        start = int(self.batches[place]) * self.size
        numbers: list[int] = self.order_N[start : start + self.size].tolist()
        return numbers

    def __iter__(self) -> Iterator[list[int]]:
        return (self[place] for place in range(len(self)))


def lengths_of(examples: Sequence[Example]) -> Lengths:
    """The lengths of examples; those that are not in memory know their own."""
    known = getattr(examples, "lengths", None)
    if isinstance(known, Lengths):
        return known
    return Lengths(
        source_N=np.array([len(example.source) for example in examples], dtype=np.int64),
        target_N=np.array([len(example.target) for example in examples], dtype=np.int64),
    )


def in_order_of_length(examples: Sequence[Example], *, size: int) -> Iterator[list[int]]:
    """Batches of example numbers for evaluation, longest sources first: the memory needed shows at once.

    A batch has `size` sentences, or fewer where they are long: a constraint compares all words of a source, so that
    memory grows with the square of its length.
    """
    order = sorted(range(len(examples)), key=lambda i: -len(examples[i].source))
    start = 0
    while start < len(order):
        longest = len(examples[order[start]].source)
        end = start + max(1, min(size, size * _LONG**2 // max(1, longest) ** 2))
        yield order[start:end]
        start = end


def round_up(length: Length, multiple: int) -> Length:
    """The smallest multiple that is not less."""
    return -(-length // multiple) * multiple


def _padded(rows: Iterable[Sequence[int]], length: int) -> Int[Tensor, "B L"]:
    return torch.tensor([[*row, *[PAD] * (length - len(row))] for row in rows], dtype=torch.int64)
