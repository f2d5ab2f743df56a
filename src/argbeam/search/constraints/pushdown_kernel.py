"""A step of a deterministic grammar on a GPU, in one kernel: the new stacks, and the ways to an end from them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from argbeam.runtime.device import power_of_two
from argbeam.search.constraints.automaton import DEAD, END, NOTHING
from argbeam.search.successors import NO_END

_DEAD, _END, _NOTHING, _NO_END = (tl.constexpr(value) for value in (DEAD, END, NOTHING, NO_END))
# Entries of the widest tile: depth times classes, both rounded up.
_MOST = 1 << 14


def fits(depth: int, classes: int) -> bool:
    """Whether the kernel can take stacks and classes of these sizes."""
    return power_of_two(depth, 2) * power_of_two(classes, 2) <= _MOST


def push(
    stack_ND: Tensor,
    rows_N: Tensor,
    tokens_N: Tensor,
    class_V: Tensor,
    size_QC: Tensor,
    pushed_QCM: Tensor,
    ends_Q: Tensor,
    state_QR: Tensor,
    token_QRC: Tensor,
) -> tuple[Tensor, Tensor]:
    """`stack_ND[rows_N]` after one more token each, and the fewest tokens to an end by the class of the next one."""
    count, depth = rows_N.shape[0], stack_ND.shape[1]
    _, rooms, classes = token_QRC.shape
    # Gold's tokens are a column of the batch, and so not contiguous.
    rows_N, tokens_N = rows_N.contiguous(), tokens_N.contiguous()
    tensors = (stack_ND, rows_N, tokens_N, class_V, size_QC, pushed_QCM, ends_Q, state_QR, token_QRC)
    assert all(x.is_contiguous() for x in tensors)
    new_ND = torch.empty(count, depth, dtype=stack_ND.dtype, device=stack_ND.device)
    to_end_NC = torch.empty(count, classes, dtype=torch.int16, device=stack_ND.device)
    _push[(count,)](
        *tensors, new_ND, to_end_NC, depth, classes, pushed_QCM.shape[2], rooms,
        D=power_of_two(depth, 2), C=power_of_two(classes, 2),
    )  # fmt: skip
    return new_ND, to_end_NC


@triton.jit
def _push(
    stack, rows, tokens, class_of, size, pushed, ends, of_state, of_token, out, to_end, depth, classes, longest, rooms,
    D: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    d = tl.arange(0, D)
    c = tl.arange(0, C)
    inside = d < depth
    # The first state from the top that takes the token, if all above it may end.
    old_row = stack + tl.load(rows + n) * depth
    kind = tl.load(class_of + tl.load(tokens + n))
    old = tl.load(old_row + d, mask=inside, other=_NOTHING)
    sizes = tl.load(size + old * classes + kind).to(tl.int32)
    stays = (tl.load(ends + old) == 0).to(tl.int32)
    taken = (tl.cumsum(stays, 0) == stays) & (sizes > 0) & inside
    place = tl.min(tl.where(taken, d, D), 0)
    here = d == place
    grown = tl.sum(tl.where(here, sizes, 0), 0)
    state = tl.sum(tl.where(here, old, 0), 0)
    states = tl.sum((old != _NOTHING).to(tl.int32), 0)
    valid = (place < D) & (grown <= depth + 1 + place - states)
    # What is pushed, then what lay below that state.
    is_new = d < grown
    below = place + 1 + d - grown
    top = tl.load(pushed + (state * classes + kind) * longest + d, mask=is_new & inside, other=_NOTHING)
    rest = tl.load(old_row + below, mask=(below < depth) & (d >= grown) & inside, other=_NOTHING)
    new = tl.where(valid, tl.where(is_new, top, rest), tl.where(d == 0, _DEAD, _NOTHING))
    tl.store(out + n * depth + d, new, mask=inside)
    # The tokens until the state ends that takes the next one, then those of the states below it, and the end symbol.
    new = tl.where(inside, new, _NOTHING)
    stays = (tl.load(ends + new) == 0).to(tl.int32)
    reached = (tl.cumsum(stays, 0) == stays) & inside
    room = tl.minimum(depth + 1 + d - tl.sum((new != _NOTHING).to(tl.int32), 0), rooms)
    entry = new * rooms + room - 1
    ways = tl.load(of_state + entry, mask=inside, other=0).to(tl.int32)
    then = tl.sum(ways, 0) - tl.cumsum(ways, 0) + 1
    cells = reached[:, None] & (c < classes)[None, :]
    steps = tl.load(of_token + entry[:, None] * classes + c[None, :], mask=cells, other=_NO_END).to(tl.int32)
    fewest = tl.minimum(tl.min(tl.where(cells, steps + then[:, None], _NO_END), 0), _NO_END)
    fewest = tl.where(c == _END, tl.where(tl.sum(stays, 0) == 0, 1, _NO_END), fewest)
    tl.store(to_end + n * classes + c, fewest.to(tl.int16), mask=c < classes)
