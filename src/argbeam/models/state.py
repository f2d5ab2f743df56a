"""State of a model while a sentence is decoded.

A state has a per-sentence part, shared by all rows of a sentence and never selected, and a per-hypothesis part of
batch-first tensors. Rows are sentence-major: with B = 2 sentences and R = 3 rows each, N = 6 and row 4 is the second
row of the second sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class State:
    """A model's state: `hypothesis` holds tensors (N, ...), `time` counts the tokens read.

    `sentence` holds what all rows of a sentence share, mostly tensors (B, ...); the search never looks into it.
    """

    sentence: Mapping[str, Any]
    hypothesis: Mapping[str, Tensor]
    time: int = 0

    def select(self, rows_N: Int[Tensor, " N"]) -> "State":
        """The rows listed, in that order, as often as listed; the per-sentence part stays as it is."""
        chosen = {name: tensor.index_select(0, rows_N) for name, tensor in self.hypothesis.items()}
        return State(self.sentence, chosen, self.time)

    def repeated(self, times: int) -> "State":
        """Every row so many times, one after the other.

        The gradients of a row's copies are added up in a fixed order. After `select` they are not, on CUDA, and with
        more than two copies a run would not give the same numbers twice.
        """
        rows = {name: tensor.repeat_interleave(times, 0) for name, tensor in self.hypothesis.items()}
        return State(self.sentence, rows, self.time)


@dataclass(frozen=True)
class Places:
    """Where some rows of a state lie among `lanes` rows a sentence: row 1 of sentence 2 is at 2 * lanes + 1."""

    place_X: Int[Tensor, " X"]
    lanes: int
