"""What changes while a sentence is decoded, and the noise drawn for it.

A state has a per-sentence part, shared by all rows of a sentence and never selected, and a per-hypothesis part of
batch-first tensors. Rows are sentence-major: with B = 2 sentences and R = 3 rows each, N = 6 and row 4 is the second
row of the second sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class State:
    """A model's state: `hypothesis` holds tensors (N, ...), `time` counts the words read.

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

    @property
    def sentence_X(self) -> Int[Tensor, " X"]:
        return self.place_X // self.lanes

    def spread(self, x_XH: Float[Tensor, "X H"], sentences: int) -> Float[Tensor, "B R H"]:
        """The rows at their places, zeros at all others."""
        grid_NH = x_XH.new_zeros(sentences * self.lanes, x_XH.shape[1])
        return grid_NH.index_copy_(0, self.place_X, x_XH).view(sentences, self.lanes, -1)

    def gathered(self, x_BRH: Float[Tensor, "B R H"]) -> Float[Tensor, "X H"]:
        """What lies at these places."""
        return x_BRH.flatten(0, 1).index_select(0, self.place_X)


@dataclass(frozen=True)
class Noise:
    """Dropout masks, and the numbers that words are drawn by, from (seed, update, sentence) and nothing else.

    A sentence gets the same noise whatever its batch neighbours, the padding, the number of processes or the device,
    and the search sees the same network as the replay that is trained. The generator is a counter put through a 32-bit
    integer hash, so that it needs no state and can be captured in a CUDA graph with `update` as an input.
    """

    seed: int
    update: Int[Tensor, ""]
    sentence_B: Int[Tensor, " B"]

    def mask(
        self, site: int, *, steps: int, width: int, rate: float, dtype: torch.dtype
    ) -> Float[Tensor, "B steps width"]:
        """Inverted dropout masks (0 or 1 / (1 - rate)) for one place in the network, one per time step."""
        keep_BTH = self._bits(site, steps=steps, width=width) >= int(rate * 2**32)
        return keep_BTH.to(dtype) * (1.0 / (1.0 - rate))

    def uniform(self, site: int, *, steps: int, width: int) -> Float[Tensor, "B steps width"]:
        """Numbers from 0 up to, and without, 1, in float64; each use has a site of its own."""
        return self._bits(site, steps=steps, width=width).to(torch.float64) * 2.0**-32

    def _bits(self, site: int, *, steps: int, width: int) -> Int[Tensor, "B steps width"]:
        """32 random bits each."""
        device = self.sentence_B.device
        # One hash for each number: in a plain sum, another sentence at another site would have the same key.
        key_B = _hash32(self.sentence_B + (self.seed * 0x9E3779B9 & 0xFFFFFFFF))
        key_B = _hash32(_hash32(key_B ^ self.update) + site)
        # Time and unit are hashed apart, so that a longer padding leaves the masks of earlier steps as they are.
        step_T = _hash32(torch.arange(steps, device=device) + 0x51ED270B)
        unit_H = _hash32(torch.arange(width, device=device) + 0x2545F491)
        return _hash32(_hash32(key_B[:, None] ^ step_T)[:, :, None] ^ unit_H)


def _hash32(x: Tensor) -> Tensor:
    """A bijection on 32-bit integers with good avalanche (constants of Wellons' "lowbias32"), held in int64."""
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)
