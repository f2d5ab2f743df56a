"""Examples as token ids, and batches of few, fixed shapes in an order fixed by seed and epoch."""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from argbeam.data.vocabulary import STANDARD, SpecialTokens
from argbeam.errors import DataError
from argbeam.runtime.group import ALONE, Group

# The longest source, in tokens, for which an evaluation batch is full.
_LONG = 128
# More than any length.
_KEY = 1 << 32

IntArray = np.ndarray[tuple[int, ...], np.dtype[Any]]
Length = TypeVar("Length", int, IntArray)


@dataclass(frozen=True)
class Example:
    """Token ids of a sentence pair; `sentence` is its place in its split, the key of its noise."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    sentence: int


@dataclass(frozen=True)
class Lengths:
    """Token counts of the sources and targets of examples."""

    source_N: IntArray
    target_N: IntArray


@dataclass(frozen=True)
class Batch:
    """Examples padded to one shape. A padding row fills a batch up: its target length is 0, and no loss counts it."""

    source_BS: Int[Tensor, "B S"]
    source_length_B: Int[Tensor, " B"]
    target_BT: Int[Tensor, "B T"]
    target_length_B: Int[Tensor, " B"]
    sentence_B: Int[Tensor, " B"]
    specials: SpecialTokens = STANDARD

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, S and T. With the loss, they fix all shapes of a training step."""
        return (*self.source_BS.shape, self.target_BT.shape[1])

    def to(self, device: torch.device) -> "Batch":
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> "Batch":
        """A copy in page-locked memory: copies from there to a CUDA device are asynchronous."""
        return self._each(Tensor.pin_memory)

    def clone(self, device: torch.device) -> "Batch":
        """A copy in memory of its own on the device."""
        return self._each(lambda tensor: tensor.to(device, copy=True))

    def halves(self) -> "list[Batch]":
        """The first and the second half of the rows, with the same padding."""
        middle = (len(self.sentence_B) + 1) // 2
        return [self._each(lambda tensor: tensor[:middle]), self._each(lambda tensor: tensor[middle:])]

    def copy_from(self, other: "Batch") -> None:
        """Overwrite this batch's tensors: the inputs of a captured step are fixed places in memory."""
        for name in _TENSORS:
            getattr(self, name).copy_(getattr(other, name), non_blocking=True)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in _TENSORS}
        return replace(self, **changed)


_TENSORS = [f.name for f in fields(Batch) if f.name != "specials"]


def make_batch(
    examples: Sequence[Example],
    *,
    source_length: int = 0,
    target_length: int = 0,
    size: int = 0,
    specials: SpecialTokens = STANDARD,
) -> Batch:
    """Pad examples into one batch, at least as large as the lengths and the size given.

    Every source has a token: attention over none has no value. Without examples, `size` rows of padding. `specials` are
    those of the vocabulary of the token ids: losses and successors take them from the batch.
    """
    if not examples and size < 1:
        raise DataError("make_batch: no examples; a batch has one at least, or a size of rows of padding")
    for example in examples:
        if not example.source:
            raise DataError(f"sentence {example.sentence}: a source without tokens; a source has one at least")
    padding, pad = max(size - len(examples), 0), specials.pad
    sources, targets = [e.source for e in examples], [e.target for e in examples]
    return Batch(
        source_BS=_padded(sources, padding, max(source_length, 1), pad),
        # Attention over no token has no value: a padding row has one PAD to attend to.
        source_length_B=torch.tensor([*map(len, sources), *[1] * padding]),
        target_BT=_padded(targets, padding, target_length, pad),
        target_length_B=torch.tensor([*map(len, targets), *[0] * padding]),
        sentence_B=torch.tensor([*(e.sentence for e in examples), *[0] * padding]),
        specials=specials,
    )


@dataclass(frozen=True)
class BatchPlan:
    """Batches of an epoch and their order: a pure function of the corpus, the seed and the epoch.

    Examples are sorted by rounded lengths, ties in an order that changes with the epoch, and cut into batches: of
    `size` examples or, with `tokens`, of as many as have at most so many tokens on either side, padding included. The
    rows of a batch are then a function of its lengths. Few shapes occur, each as often in every epoch. `accumulate`
    batches make an update.
    """

    examples: Sequence[Example]
    size: int
    round_source: int
    round_target: int
    seed: int
    tokens: int = 0
    accumulate: int = 1
    specials: SpecialTokens = STANDARD

    def epoch(self, epoch: int, *, by_length: bool = False) -> "EpochBatches":
        """The batches of an epoch as lists of indices into `examples`; `by_length` puts short examples first."""
        rng = random.Random(f"{self.seed}:{epoch}")
        shuffled, batches = array("q", range(len(self.examples))), array("q", range(len(self)))
        rng.shuffle(shuffled)
        shuffled_N = np.frombuffer(shuffled, dtype=np.int64)
        order_N = shuffled_N[np.argsort(self._keys_N[shuffled_N], kind="stable")]
        if not by_length:
            rng.shuffle(batches)
        return EpochBatches(order_N, np.frombuffer(batches, dtype=np.int64), self._starts, self.accumulate)

    def __len__(self) -> int:
        """The count of batches in an epoch."""
        return len(self._starts)

    @property
    def updates(self) -> int:
        """The count of updates in an epoch."""
        return -(-len(self) // self.accumulate)

    def batch(
        self, indices: Sequence[int], view: Callable[[Example], Example] = lambda example: example, group: Group = ALONE
    ) -> Batch:
        """This process's share of a batch, padded to the rounded shape of the whole batch.

        `view` may change token ids, but no length.
        """
        examples = [self.examples[i] for i in indices]
        source = round_up(max(len(e.source) for e in examples), self.round_source)
        target = round_up(max(len(e.target) for e in examples), self.round_target)
        return make_batch(
            [view(example) for example in group.share(examples)],
            source_length=source,
            target_length=target,
            size=group.share_of(self._rows(source, target)),
            specials=self.specials,
        )

    def shapes(self) -> set[tuple[int, int, int]]:
        """All shapes that occur."""
        keys_N = np.sort(self._keys_N)
        source = np.maximum.reduceat(keys_N % _KEY, self._starts).tolist()
        target = np.maximum.reduceat(keys_N // _KEY, self._starts).tolist()
        return {(self._rows(s, t), max(s, 1), t) for s, t in zip(source, target, strict=True)}

    def _rows(self, source: int, target: int) -> int:
        """Rows of a batch of these rounded lengths: no more than there are examples."""
        rows = max(1, self.tokens // max(source, target, 1)) if self.tokens else self.size
        return min(rows, len(self.examples))

    @cached_property
    def _starts(self) -> IntArray:
        """Places in the sorted examples at which batches start: the same in every epoch."""
        if not self.tokens:
            return np.arange(0, len(self.examples), self.size)
        keys_N = np.sort(self._keys_N)
        longest_N = np.maximum(np.maximum(keys_N % _KEY, keys_N // _KEY), 1)
        starts, start = [], 0
        while start < len(keys_N):
            starts.append(start)
            most = max(1, self.tokens // int(longest_N[start]))
            # One row more than fits with the longest so far ends the batch.
            so_far = np.maximum.accumulate(longest_N[start : start + most])
            start += max(1, int((so_far * np.arange(1, len(so_far) + 1) <= self.tokens).sum()))
        return np.array(starts)

    @cached_property
    def _keys_N(self) -> IntArray:
        """Sort keys of the examples: the rounded target length, then the rounded source length."""
        lengths = lengths_of(self.examples)
        source_N, target_N = lengths.source_N.astype(np.int64), lengths.target_N.astype(np.int64)
        keys_N: IntArray = round_up(target_N, self.round_target) * _KEY + round_up(source_N, self.round_source)
        return keys_N


@dataclass(frozen=True, eq=False)
class EpochBatches:
    """The batches of an epoch in order, each a list of example indices: three arrays for a corpus of any size."""

    order_N: IntArray
    batches: IntArray
    starts: IntArray
    accumulate: int = 1

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, place: int) -> list[int]:
        number = int(self.batches[place])
        end = int(self.starts[number + 1]) if number + 1 < len(self.starts) else len(self.order_N)
        indices: list[int] = self.order_N[int(self.starts[number]) : end].tolist()
        return indices

    def __iter__(self) -> Iterator[list[int]]:
        return (self[place] for place in range(len(self)))

    def of_update(self, update: int) -> list[list[int]]:
        """The batches of an update of this epoch: `accumulate`, or what is left for the last one."""
        first = update * self.accumulate
        return [self[place] for place in range(first, min(len(self), first + self.accumulate))]


def lengths_of(examples: Sequence[Example]) -> Lengths:
    """The lengths of examples; a store of examples has them ready."""
    known = getattr(examples, "lengths", None)
    if isinstance(known, Lengths):
        return known
    return Lengths(
        source_N=np.array([len(example.source) for example in examples], dtype=np.int64),
        target_N=np.array([len(example.target) for example in examples], dtype=np.int64),
    )


def in_order_of_length(examples: Sequence[Example], *, size: int) -> Iterator[list[int]]:
    """Batches of example indices for evaluation, longest sources first: a lack of memory shows at once.

    A batch has `size` examples, or fewer where sources are long: a constraint compares all tokens of a source, and its
    memory grows with the square of the length.
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


def _padded(rows: Iterable[tuple[int, ...]], padding: int, least: int, pad: int) -> Int[Tensor, "B L"]:
    """Rows and `padding` empty rows, padded to the longest, or to `least` tokens."""
    rows = [*rows, *[()] * padding]
    length_N = np.fromiter(map(len, rows), np.int64, len(rows))
    length = max(least, int(length_N.max()))
    padded_NL = np.full((len(rows), length), pad, np.int64)
    padded_NL[np.arange(length) < length_N[:, None]] = np.fromiter(chain.from_iterable(rows), np.int64)
    return torch.from_numpy(padded_NL)
