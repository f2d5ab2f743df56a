"""Tokens left to a permutation, after rows have moved and each has used one more."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from argbeam.runtime.device import power_of_two

_ROWS = 8


def tokens_left(left_NC: Tensor, candidates_BC: Tensor, rows_N: Tensor, tokens_N: Tensor) -> Tensor:
    """`left_NC[rows_N]`, one less where the candidate is the row's token."""
    count, columns = rows_N.shape[0], candidates_BC.shape[1]
    assert all(x.is_contiguous() for x in (left_NC, candidates_BC, rows_N, tokens_N))
    out_NC = torch.empty(count, columns, dtype=left_NC.dtype, device=left_NC.device)
    _tokens_left[(-(-count // _ROWS),)](
        left_NC, candidates_BC, rows_N, tokens_N, out_NC, count, columns, count // candidates_BC.shape[0],
        ROWS=_ROWS, COLUMNS=power_of_two(columns, 16),
    )  # fmt: skip
    return out_NC


@triton.jit
def _tokens_left(left, candidates, rows, tokens, out, count, columns, lanes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    row = n < count
    inside = row[:, None] & (c < columns)[None, :]
    came = tl.load(rows + n, mask=row, other=0)
    token = tl.load(tokens + n, mask=row, other=-1)
    before = tl.load(left + came[:, None] * columns + c[None, :], mask=inside, other=0)
    candidate = tl.load(candidates + (n // lanes)[:, None] * columns + c[None, :], mask=inside, other=-1)
    used = (candidate == token[:, None]).to(before.dtype)
    tl.store(out + n[:, None] * columns + c[None, :], before - used, mask=inside)
