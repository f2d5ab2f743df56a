"""Noise of training: dropout masks and uniform numbers as a function of (seed, update, sentence)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.runtime import device as devices


@dataclass(frozen=True)
class Noise:
    """Dropout masks, and uniform numbers to draw tokens by, from (seed, update, sentence) and nothing else.

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
        below, kept = int(rate * 2**32), 1.0 / (1.0 - rate)
        if dtype != torch.float64 and devices.kernels_usable(self.sentence_B, self.update):
            from argbeam.models.noise_kernel import dropout_mask

            key = (self.sentence_B, self.update, self._seed, site)
            return dropout_mask(*key, steps=steps, width=width, below=below, kept=kept, dtype=dtype)
        return (self._bits(site, steps=steps, width=width) >= below).to(dtype) * kept

    def uniform(self, site: int, *, steps: int, width: int) -> Float[Tensor, "B steps width"]:
        """Numbers from 0 up to, and without, 1, in float64; each use has a site of its own."""
        return self._bits(site, steps=steps, width=width).to(torch.float64) * 2.0**-32

    @property
    def _seed(self) -> int:
        return self.seed * 0x9E3779B9 & 0xFFFFFFFF

    def _bits(self, site: int, *, steps: int, width: int) -> Int[Tensor, "B steps width"]:
        """32 random bits each."""
        device = self.sentence_B.device
        # One hash for each number: in a plain sum, another sentence at another site would have the same key.
        key_B = _hash32(self.sentence_B + self._seed)
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
