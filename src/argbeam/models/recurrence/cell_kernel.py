"""Kernels of an LSTM cell with its products, forward and backward (see `Steps`).

The backward kernel ends at the gates: from there one product gives the gradient of what is fed and of h before. Rows
may read the state of other rows: a beam search moves hypotheses, and a replay restarts a rival from gold.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from argbeam.models.recurrence.contract import CellBack, CellGrad, CellIn, CellOut
from argbeam.runtime.device import products, shared_memory


def cell(given: CellIn) -> CellOut:
    base_NG, h_NH, c_NH, recurrent_GH, rows_N, input_GI, tokens, fed_NA, fed_noise_BA, fed_moves = given
    count = rows_N.shape[0] if rows_N is not None else h_NH.shape[0]
    hidden = recurrent_GH.shape[1]
    # Tokens are often a column of a table, which a kernel cannot read.
    read, table = (h_NH, h_NH) if tokens is None else (tokens.tokens_N.contiguous(), tokens.table_VE)
    assert all(x is None or x.is_contiguous() for x in (table, rows_N)) and base_NG.stride(-1) == 1
    out = CellOut(*(h_NH.new_empty(count, n * hidden) for n in (1, 1, 4)))
    tiles = _tiles(count, h_NH.device)
    nothing = h_NH
    fed: Any = nothing if fed_NA is None else fed_NA
    weight: Any = nothing if input_GI is None else input_GI
    vectors = 0 if tokens is None else table.shape[1]
    (_joint_cell if tiles.joint else _cell)[(-(-count // tiles.rows), -(-hidden // tiles.units))](
        base_NG, base_NG.stride(0) if base_NG.dim() == 2 and base_NG.shape[0] > 1 else 0,
        read, table, weight, weight.stride(0),
        fed, fed.stride(0), weight[:, vectors:], weight.stride(0), *noise_arguments(fed_noise_BA, nothing, count),
        nothing if rows_N is None else rows_N, h_NH, h_NH.stride(0), c_NH, c_NH.stride(0),
        recurrent_GH, recurrent_GH.stride(0), out.h_NH, out.c_NH, out.gates_NG, count,
        H=hidden, E=vectors, A=0 if fed_NA is None else fed_NA.shape[1],
        NOISE=fed_noise_BA is not None, MOVES=fed_moves, ROWS=rows_N is not None,
        BLOCK_N=tiles.rows, BLOCK_H=tiles.units, BLOCK_K=tiles.depth, PRECISION=products(),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


class Tiles(NamedTuple):
    """Rows, units and depth of a block, its warps, and how many blocks of products are under way at once.

    `joint`: the four gates are one product.
    """

    rows: int
    units: int
    depth: int
    warps: int
    stages: int = 3
    joint: bool = False


def _tiles(count: int, device: torch.device) -> Tiles:
    """Wide beams fill the device with blocks that load less."""
    if count >= 2048 and shared_memory(device) >= 5 << 15:  # what its stages take
        return Tiles(128, 32, 32, 8, stages=4, joint=True)
    return Tiles(16, 16, 64, 2) if count <= 128 else Tiles(32 if count <= 256 else 64, 16, 64, 4)


@triton.jit
def _cell(
    base, base_n, tokens, table, embedding_w, embedding_g, fed, fed_n, fed_w, fed_g, noise, noise_b, noise_rows,
    source, h, h_n, c, c_n, recurrent_w, recurrent_g, h_out, c_out, gates_out, count,
    H: tl.constexpr, E: tl.constexpr, A: tl.constexpr, NOISE: tl.constexpr, MOVES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    u = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    row = n < count
    here = row[:, None] & (u < H)[None, :]
    came = n.to(tl.int64)
    if ROWS:
        came = tl.load(source + n, mask=row, other=0)
    start = base + n[:, None] * base_n + u[None, :]
    i_gate = tl.load(start, mask=here, other=0.0)
    f_gate = tl.load(start + H, mask=here, other=0.0)
    g_gate = tl.load(start + 2 * H, mask=here, other=0.0)
    o_gate = tl.load(start + 3 * H, mask=here, other=0.0)
    if E > 0:
        token = tl.load(tokens + n, mask=row, other=0)
        for k0 in range(0, E, BLOCK_K):
            k = k0 + tl.arange(0, BLOCK_K)
            x = tl.load(table + token[:, None] * E + k[None, :], mask=row[:, None] & (k < E)[None, :], other=0.0)
            i_gate, f_gate, g_gate, o_gate = _products(
                x, embedding_w, embedding_g, k, u, i_gate, f_gate, g_gate, o_gate, E, H, PRECISION
            )
    if A > 0:
        for k0 in range(0, A, BLOCK_K):
            k = k0 + tl.arange(0, BLOCK_K)
            inside = row[:, None] & (k < A)[None, :]
            read = came if MOVES else n.to(tl.int64)
            x = tl.load(fed + read[:, None] * fed_n + k[None, :], mask=inside, other=0.0)
            if NOISE:
                x *= tl.load(noise + (n // noise_rows)[:, None] * noise_b + k[None, :], mask=inside, other=0.0)
            i_gate, f_gate, g_gate, o_gate = _products(
                x, fed_w, fed_g, k, u, i_gate, f_gate, g_gate, o_gate, A, H, PRECISION
            )
    for k0 in range(0, H, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x = tl.load(h + came[:, None] * h_n + k[None, :], mask=row[:, None] & (k < H)[None, :], other=0.0)
        i_gate, f_gate, g_gate, o_gate = _products(
            x, recurrent_w, recurrent_g, k, u, i_gate, f_gate, g_gate, o_gate, H, H, PRECISION
        )
    _finish(
        i_gate, f_gate, g_gate, o_gate, c + came[:, None] * c_n + u[None, :], h_out, c_out, gates_out, n, u, here, H
    )


@triton.jit
def _products(
    x, w, w_g, k, u, i_gate, f_gate, g_gate, o_gate, K: tl.constexpr, H: tl.constexpr, PRECISION: tl.constexpr
):
    """Add x times a block of each gate's weights."""
    inside = (k < K)[:, None] & (u < H)[None, :]
    at = w + u[None, :] * w_g + k[:, None]
    i_gate = tl.dot(x, tl.load(at, mask=inside, other=0.0), i_gate, input_precision=PRECISION)
    f_gate = tl.dot(x, tl.load(at + H * w_g, mask=inside, other=0.0), f_gate, input_precision=PRECISION)
    g_gate = tl.dot(x, tl.load(at + 2 * H * w_g, mask=inside, other=0.0), g_gate, input_precision=PRECISION)
    o_gate = tl.dot(x, tl.load(at + 3 * H * w_g, mask=inside, other=0.0), o_gate, input_precision=PRECISION)
    return i_gate, f_gate, g_gate, o_gate


@triton.jit
def _joint_cell(
    base, base_n, tokens, table, embedding_w, embedding_g, fed, fed_n, fed_w, fed_g, noise, noise_b, noise_rows,
    source, h, h_n, c, c_n, recurrent_w, recurrent_g, h_out, c_out, gates_out, count,
    H: tl.constexpr, E: tl.constexpr, A: tl.constexpr, NOISE: tl.constexpr, MOVES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Places past the last row or unit read the first one; nothing of theirs is stored.
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = n < count
    inside = tl.where(row, n, 0)
    came = inside.to(tl.int64)
    if ROWS:
        came = tl.load(source + inside)
    # The four gates of a unit lie together.
    column = tl.arange(0, 4 * BLOCK_H)
    unit = tl.program_id(1) * BLOCK_H + column // 4
    g = (column % 4) * H + tl.where(unit < H, unit, 0)
    total = tl.zeros((BLOCK_N, 4 * BLOCK_H), tl.float32)
    if E > 0:
        x_at, w_at = table + tl.load(tokens + inside) * E, embedding_w + g * embedding_g
        total = _joint_product(total, x_at, w_at, x_at, E, False, BLOCK_K, PRECISION)
    if A > 0:
        x_at, w_at = fed + (came if MOVES else inside.to(tl.int64)) * fed_n, fed_w + g * fed_g
        noise_at = noise + (inside // noise_rows) * noise_b
        total = _joint_product(total, x_at, w_at, noise_at, A, NOISE, BLOCK_K, PRECISION)
    x_at, w_at = h + came * h_n, recurrent_w + g * recurrent_g
    total = _joint_product(total, x_at, w_at, x_at, H, False, BLOCK_K, PRECISION)
    i_and_g, f_and_o = tl.split(tl.reshape(total, (BLOCK_N, BLOCK_H, 2, 2)))
    i_gate, g_gate = tl.split(i_and_g)
    f_gate, o_gate = tl.split(f_and_o)

    u = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    here = row[:, None] & (u < H)[None, :]
    at = base + n[:, None] * base_n + u[None, :]
    i_gate += tl.load(at, mask=here, other=0.0)
    f_gate += tl.load(at + H, mask=here, other=0.0)
    g_gate += tl.load(at + 2 * H, mask=here, other=0.0)
    o_gate += tl.load(at + 3 * H, mask=here, other=0.0)
    _finish(
        i_gate, f_gate, g_gate, o_gate, c + came[:, None] * c_n + u[None, :], h_out, c_out, gates_out, n, u, here, H
    )


@triton.jit
def _joint_product(
    total, x_at, w_at, noise_at, K: tl.constexpr, NOISE: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr
):
    """Add the rows at `x_at` times the columns at `w_at`, K deep."""
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if K % BLOCK_K == 0:
            x, w = tl.load(x_at[:, None] + k[None, :]), tl.load(w_at[:, None] + k[None, :])
        else:
            x = tl.load(x_at[:, None] + k[None, :], mask=(k < K)[None, :], other=0.0)
            w = tl.load(w_at[:, None] + k[None, :], mask=(k < K)[None, :], other=0.0)
        if NOISE:
            x *= tl.load(noise_at[:, None] + k[None, :], mask=(k < K)[None, :], other=0.0)
        total = tl.dot(x, tl.trans(w), total, input_precision=PRECISION)
    return total


@triton.jit
def _finish(i_gate, f_gate, g_gate, o_gate, before_at, h_out, c_out, gates_out, n, u, here, H: tl.constexpr):
    """The new state from the gates before their functions and the cell at `before_at`; both are stored."""
    i_gate, f_gate, o_gate = tl.sigmoid(i_gate), tl.sigmoid(f_gate), tl.sigmoid(o_gate)
    g_gate = tanh(g_gate)
    before = tl.load(before_at, mask=here, other=0.0)
    after = f_gate * before + i_gate * g_gate
    at = n[:, None] * H + u[None, :]
    tl.store(c_out + at, after, mask=here)
    tl.store(h_out + at, o_gate * tanh(after), mask=here)
    at = n[:, None] * (4 * H) + u[None, :]
    tl.store(gates_out + at, i_gate, mask=here)
    tl.store(gates_out + at + H, f_gate, mask=here)
    tl.store(gates_out + at + 2 * H, g_gate, mask=here)
    tl.store(gates_out + at + 3 * H, o_gate, mask=here)


@triton.jit
def tanh(x):
    # From the sigmoid, and exact at the ends: exp overflows on one side only, where the quotient is 0.
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


def cell_backward(given: CellBack) -> CellGrad:
    grad_h_NH, carried_h_NH, carried_c_NH, gates_NG, c_NH, before_NH, weight_GX, gates_out_NG, *rest = given
    rows_N, merged_B, grad_h_noise_BH, grad_c_NH = rest
    # The product is torch's own: fused, every block of its columns would do the gates again.
    count, hidden = c_NH.shape
    assert all(x is None or x.is_contiguous() for x in (grad_c_NH, merged_B, gates_NG, c_NH, rows_N, gates_out_NG))
    grad_c = torch.empty_like(c_NH)
    nothing = c_NH
    _gates_backward[(-(-count // 4), -(-hidden // 128))](
        grad_h_NH, grad_h_NH.stride(0), *noise_arguments(grad_h_noise_BH, nothing, count),
        carried_h_NH, carried_h_NH.stride(0), carried_c_NH, carried_c_NH.stride(0),
        nothing if grad_c_NH is None else grad_c_NH, nothing if merged_B is None else merged_B.view(torch.uint8),
        gates_NG, c_NH, before_NH, before_NH.stride(0), nothing if rows_N is None else rows_N,
        gates_out_NG, grad_c, count,
        H=hidden, NOISE=grad_h_noise_BH is not None, GRAD_C=grad_c_NH is not None, MERGE=merged_B is not None,
        ROWS=rows_N is not None, BLOCK_N=4, BLOCK_H=128, num_warps=4,
    )  # fmt: skip
    return CellGrad(grad_c, gates_out_NG @ weight_GX)


@triton.jit
def _gates_backward(
    grad_h, grad_h_n, noise, noise_b, noise_rows, carried_h, carried_h_n, carried_c, carried_c_n, grad_c, merged,
    gates, c, before, before_n, source, gates_out, c_out, count,
    H: tl.constexpr, NOISE: tl.constexpr, GRAD_C: tl.constexpr, MERGE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    u = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    row = n < count
    inside = row[:, None] & (u < H)[None, :]
    came = n.to(tl.int64)
    if ROWS:
        came = tl.load(source + n, mask=row, other=0)
    at = n[:, None] * H + u[None, :]
    d_h = tl.load(grad_h + n[:, None] * grad_h_n + u[None, :], mask=inside, other=0.0)
    if NOISE:
        d_h *= tl.load(noise + (n // noise_rows)[:, None] * noise_b + u[None, :], mask=inside, other=0.0)
    d_h += carried_back(carried_h, carried_h_n, merged, n, u, row, inside, MERGE)
    d_c = carried_back(carried_c, carried_c_n, merged, n, u, row, inside, MERGE)
    if GRAD_C:
        d_c += tl.load(grad_c + at, mask=inside, other=0.0)
    gate = gates + n[:, None] * (4 * H) + u[None, :]
    i_gate = tl.load(gate, mask=inside, other=0.0)
    f_gate = tl.load(gate + H, mask=inside, other=0.0)
    g_gate = tl.load(gate + 2 * H, mask=inside, other=0.0)
    o_gate = tl.load(gate + 3 * H, mask=inside, other=0.0)
    bent = tanh(tl.load(c + at, mask=inside, other=0.0))
    was = tl.load(before + came[:, None] * before_n + u[None, :], mask=inside, other=0.0)
    d_c += d_h * o_gate * (1.0 - bent * bent)
    gate = gates_out + n[:, None] * (4 * H) + u[None, :]
    tl.store(gate, d_c * g_gate * i_gate * (1.0 - i_gate), mask=inside)
    tl.store(gate + H, d_c * was * f_gate * (1.0 - f_gate), mask=inside)
    tl.store(gate + 2 * H, d_c * i_gate * (1.0 - g_gate * g_gate), mask=inside)
    tl.store(gate + 3 * H, d_h * bent * o_gate * (1.0 - o_gate), mask=inside)
    tl.store(c_out + at, d_c * f_gate, mask=inside)


def noise_arguments(noise_BH: Tensor | None, like_NH: Tensor, count: int) -> tuple[Tensor, int, int]:
    """Noise as a kernel takes it: the tensor, its stride, and the rows of a sentence; without noise any tensor."""
    if noise_BH is None:
        return like_NH, like_NH.stride(0), count
    return noise_BH, noise_BH.stride(0), count // noise_BH.shape[0]


@triton.jit
def carried_back(values, values_n, merged, n, k, row, inside, MERGE: tl.constexpr):
    """What the step after sent back to each row; of a merged pair all of it belongs to the first row."""
    own = tl.load(values + n[:, None] * values_n + k[None, :], mask=inside, other=0.0)
    if MERGE:
        first = (n % 2 == 0)[:, None]
        met = (tl.load(merged + n // 2, mask=row, other=0) != 0)[:, None]
        other = tl.load(values + (n + 1)[:, None] * values_n + k[None, :], mask=inside & first & met, other=0.0)
        own = tl.where(first, own + other, tl.where(met, 0.0, own))
    return own
