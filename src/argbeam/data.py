"""Examples as numbers, and batches of few, fixed shapes whose order is fixed by seed and epoch."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Int
from torch import Tensor

from argbeam.vocabulary import PAD

# Sources of up to this many words are batched by number alone.
_LONG = 128


@dataclass(frozen=True)
class Example:
    """One sentence pair in vocabulary numbers; `sentence` is its number in its split, the key of its noise."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    sentence: int


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

    def epoch(self, epoch: int, *, by_length: bool = False) -> list[list[int]]:
        """The batches of an epoch as lists of example numbers; `by_length` keeps the short ones first."""
        rng = random.Random(f"{self.seed}:{epoch}")
        order = list(range(len(self.examples)))
        rng.shuffle(order)
        order.sort(key=lambda i: self._rounded(self.examples[i])[::-1])
        batches = [order[i : i + self.size] for i in range(0, len(order), self.size)]
        if not by_length:
            rng.shuffle(batches)
        return batches

    def batch(self, numbers: Sequence[int], view: Callable[[Example], Example] = lambda example: example) -> Batch:
        """The batch of these examples, at their rounded shape; `view` may change words, but no length."""
        chosen = [view(self.examples[i]) for i in numbers]
        rounded = [self._rounded(e) for e in chosen]
        return make_batch(
            chosen,
            source_length=max(s for s, _ in rounded),
            target_length=max(t for _, t in rounded),
            size=self.size,
        )

    def shapes(self) -> set[tuple[int, int, int]]:
        """Every shape that occurs."""
        return {self.batch(numbers).shape for numbers in self.epoch(0)}

    def _rounded(self, example: Example) -> tuple[int, int]:
        return (
            _round_up(len(example.source), self.round_source),
            _round_up(len(example.target), self.round_target),
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


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _padded(rows: Iterable[Sequence[int]], length: int) -> Int[Tensor, "B L"]:
    return torch.tensor([[*row, *[PAD] * (length - len(row))] for row in rows], dtype=torch.int64)
