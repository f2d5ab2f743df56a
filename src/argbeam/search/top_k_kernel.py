"""The maximum of every block of columns, and the log of its sum of exp: rows of scores are read once.

The best tokens of a row lie in the blocks with the highest maxima.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Blocks of one row that a program reads.
_SPAN = 16


def block_maxima(scores_BRC: Tensor, allowed_BRC: Tensor, *, width: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """The maximum of the allowed scores of each block of `width` columns, the last of which may be narrower.

    With `normalise`, also the log of the sum of exp of all its scores, allowed or not; without, the second is the first
    again. Sizes of 1 in `allowed_BRC` hold for all.
    """
    scores_BRC, allowed_BRC = by_column(scores_BRC), by_column(allowed_BRC)
    batch, lanes, columns = scores_BRC.shape
    blocks = -(-columns // width)
    maxima_BRN = scores_BRC.new_empty(batch, lanes, blocks)
    normaliser_BRN = torch.empty_like(maxima_BRN) if normalise else maxima_BRN
    mask_b, mask_r = (allowed_BRC.stride(i) if allowed_BRC.shape[i] > 1 else 0 for i in (0, 1))
    _block_maxima[(batch * lanes, -(-blocks // _SPAN))](
        scores_BRC, scores_BRC.stride(0), scores_BRC.stride(1), allowed_BRC.view(torch.uint8), mask_b, mask_r,
        maxima_BRN, normaliser_BRN, columns, blocks, LANES=lanes, WIDTH=width, SPAN=_SPAN, NORMALISE=normalise,
    )  # fmt: skip
    return maxima_BRN, normaliser_BRN


def by_column(x: Tensor) -> Tensor:
    """With neighbouring columns side by side in memory: a model or successors of one's own may have any layout."""
    return x if x.stride(-1) == 1 else x.contiguous()


@triton.jit
def _block_maxima(
    scores, scores_b, scores_r, allowed, allowed_b, allowed_r, maxima, normaliser, columns, blocks,
    LANES: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    b, r = (row // LANES).to(tl.int64), (row % LANES).to(tl.int64)
    block = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    column = block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    real = column < columns
    valid = tl.load(allowed + b * allowed_b + r * allowed_r + column, mask=real, other=0) != 0
    # Where scores are normalised, those of tokens that are not allowed count as well.
    read = real if NORMALISE else real & valid
    value = tl.load(scores + b * scores_b + r * scores_r + column, mask=read, other=-float("inf"))
    if NORMALISE:
        tl.store(normaliser + row * blocks + block, log_of_sum(value), mask=block < blocks)
        value = tl.where(valid, value, -float("inf"))
    # A score that is not a number must show: it is the largest, as for torch.
    broken = tl.max((value != value).to(tl.int32), 1) > 0
    tl.store(maxima + row * blocks + block, tl.where(broken, float("nan"), tl.max(value, 1)), mask=block < blocks)


@triton.jit
def log_of_sum(value):
    """The log of the sum of exp of each row; minus infinity of a row of nothing else."""
    most = tl.max(value, 1)
    nothing = most == -float("inf")
    most = tl.where(nothing, 0.0, most)
    total = tl.sum(tl.exp(value - most[:, None]), 1)
    return tl.where(nothing, -float("inf"), most + tl.log(tl.where(nothing, 1.0, total)))
