"""Noise of training: dropout masks and uniform numbers as a function of (seed, update, sentence)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.runtime import device as devices

_PART = 2**16  # numbers that are made at once: they stay in the cache of a CPU


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
        key_BT, unit_H = self._keys(site, steps=steps, width=width)
        mask_BTH = torch.empty(*key_BT.shape, width, dtype=dtype, device=unit_H.device)
        rows = max(1, _PART // width)
        parts = (torch.split(x, rows) for x in (key_BT.flatten(), mask_BTH.flatten(0, 1)))
        for key_N, mask_NH in zip(*parts, strict=True):
            # Unsigned numbers compare as signed ones do after both have lost 2**31.
            bits_NH = _hash32(key_N[:, None] ^ unit_H).bitwise_xor_(-(2**31))
            mask_NH.copy_(bits_NH >= below - 2**31).mul_(kept)
        return mask_BTH

    def uniform(self, site: int, *, steps: int, width: int) -> Float[Tensor, "B steps width"]:
        """Numbers from 0 up to, and without, 1, in float64; each use has a site of its own."""
        key_BT, unit_H = self._keys(site, steps=steps, width=width)
        bits_BTH = _hash32(key_BT[:, :, None] ^ unit_H)
        return (bits_BTH.long() & 0xFFFFFFFF).to(torch.float64) * 2.0**-32

    @property
    def _seed(self) -> int:
        return self.seed * 0x9E3779B9 & 0xFFFFFFFF

    def _keys(self, site: int, *, steps: int, width: int) -> tuple[Int[Tensor, "B steps"], Int[Tensor, " width"]]:
        """The hash of a key of a step, xor the key of a unit, is a number of 32 random bits."""
        device = self.sentence_B.device
        # One hash for each number: in a plain sum, another sentence at another site would have the same key.
        key_B = _hash32(self.sentence_B + self._seed)
        key_B = _hash32(_hash32(key_B ^ self.update) + site)
        # Time and unit are hashed apart, so that a longer padding leaves the masks of earlier steps as they are.
        step_T = _hash32(torch.arange(steps, device=device) + 0x51ED270B)
        unit_H = _hash32(torch.arange(width, device=device) + 0x2545F491)
        return _hash32(key_B[:, None] ^ step_T), unit_H


def _hash32(x: Tensor) -> Int[Tensor, "..."]:
    """A bijection on 32-bit integers with good avalanche: Wellons' "lowbias32".

    In int32, where products drop what 32 bits cannot hold, and in place: on a CPU that is much faster than int64.
    """
    x = x.to(torch.int32)
    x = (x ^ _shifted(x, 16)).mul_(0x7FEB352D)
    x = x.bitwise_xor_(_shifted(x, 15)).mul_(0x846CA68B - 2**32)
    return x.bitwise_xor_(_shifted(x, 16))


def _shifted(x: Tensor, by: int) -> Tensor:
    """Bits moved to the right, with zeros on the left where int32 has copies of its sign."""
    return (x >> by).bitwise_and_(2 ** (32 - by) - 1)
