"""Dropout masks in one launch: the hash of `noise`, in 32-bit integers, where plain torch makes thirty passes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from argbeam.runtime.device import power_of_two


def dropout_mask(
    sentence_B: Tensor, update: Tensor, seed: int, site: int,
    *, steps: int, width: int, below: int, kept: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """`kept` where the 32 bits are at least `below`, 0 elsewhere; `seed` and `site` enter as in `Noise`."""
    out_BTH = torch.empty(len(sentence_B), steps, width, dtype=dtype, device=sentence_B.device)
    kept = torch.tensor(kept, dtype=dtype).item()  # rounded as torch does
    block = min(power_of_two(width, 16), 1024)
    _dropout_mask[(len(sentence_B) * steps, -(-width // block))](
        sentence_B.contiguous(), update, out_BTH, seed, site, below, kept, steps, width, BLOCK=block
    )
    return out_BTH


@triton.jit
def _dropout_mask(sentences, update, out, seed, site, below, kept, steps, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sentence = tl.load(sentences + row // steps).to(tl.uint32)
    key = _hash32(sentence + tl.cast(seed, tl.uint32))
    key = _hash32(_hash32(key ^ tl.load(update).to(tl.uint32)) + tl.cast(site, tl.uint32))
    step = _hash32((row % steps + 0x51ED270B).to(tl.uint32))
    bits = _hash32(_hash32(key ^ step) ^ _hash32((unit + 0x2545F491).to(tl.uint32)))
    mask = tl.where(bits >= tl.cast(below, tl.uint32), kept, 0.0)
    tl.store(out + row.to(tl.int64) * width + unit, mask.to(out.dtype.element_ty), mask=unit < width)


@triton.jit
def _hash32(x):
    x = ((x ^ (x >> 16)) * 0x7FEB352D).to(tl.uint32)
    x = ((x ^ (x >> 15)) * 0x846CA68B).to(tl.uint32)
    return x ^ (x >> 16)
