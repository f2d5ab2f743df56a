"""An Adagrad update of one tensor in one pass: weights, sums of squares and averages are read and written once."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def adagrad(
    weight: Tensor,
    gradient: Tensor,
    total: Tensor,
    average: Tensor | None,
    scale: Tensor,
    rate: float,
    epsilon: float,
    decay: float,
) -> None:
    """Update in place; all tensors are contiguous. `scale` is a scalar on the device; 0 leaves weights and sums as they
    are, whatever the gradient."""
    size = weight.numel()
    _adagrad[(-(-size // _BLOCK),)](
        weight, gradient, total, weight if average is None else average, scale, rate, epsilon, 1.0 - decay, size,
        AVERAGE=average is not None, BLOCK=_BLOCK,
    )  # fmt: skip


@triton.jit
def _adagrad(
    weight, gradient, total, average, scale, rate, epsilon, share, size, AVERAGE: tl.constexpr, BLOCK: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    factor = tl.load(scale)
    # Infinity times zero is not zero: a step that is not finite is zeroed entry by entry.
    g = tl.where(factor > 0.0, tl.load(gradient + i, mask=inside, other=0.0) * factor, 0.0)
    s = tl.load(total + i, mask=inside, other=0.0) + g * g
    w = tl.load(weight + i, mask=inside, other=0.0) - rate * g / (tl.sqrt(s) + epsilon)
    tl.store(total + i, s, mask=inside)
    tl.store(weight + i, w, mask=inside)
    if AVERAGE:
        a = tl.load(average + i, mask=inside, other=0.0)
        tl.store(average + i, a + share * (w - a), mask=inside)
