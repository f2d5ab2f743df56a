"""Kernels of attention and of the output vector, forward and backward (see `Steps`).

The rows of a sentence share its memory: a program of the attention kernels reads it once for all of them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from argbeam.models.recurrence.cell_kernel import carried_back, noise_arguments, tanh
from argbeam.models.recurrence.contract import Attended, CombineBack, Combined
from argbeam.runtime.device import power_of_two, products, shared_memory

# What a program can hold: rows of a sentence, and tokens of its memory; it reads this many units at a time.
_ROWS, _TOKENS, _UNITS = 64, 256, 64


def fits(rows: int, tokens: int, device: torch.device) -> bool:
    """Whether the attention kernels hold a sentence of this size on this device."""
    # Loads are staged: shared memory holds three blocks of the rows' units and of the tokens' at once.
    staged = 3 * 4 * _UNITS * (power_of_two(rows, 16) + power_of_two(tokens, 16))
    return rows <= _ROWS and tokens <= _TOKENS and staged <= shared_memory(device)


def attention(query_NH: Tensor, attended: Attended) -> tuple[Tensor, Tensor]:
    keys_BSH, memory_BSH, padding_BS = attended.keys_BSH, attended.memory_BSE, attended.padding_BS
    count, hidden = query_NH.shape
    sentences, tokens = padding_BS.shape
    rows = count // sentences
    assert all(x.is_contiguous() for x in (query_NH, keys_BSH, memory_BSH, padding_BS))
    context_NH, weight_NS = torch.empty_like(query_NH), query_NH.new_empty(count, tokens)
    _attention[(sentences,)](
        query_NH, keys_BSH, memory_BSH, padding_BS.view(torch.uint8), context_NH, weight_NS, rows, tokens,
        H=hidden, ROWS=power_of_two(rows, 16), TOKENS=power_of_two(tokens, 16), BLOCK_K=_UNITS, PRECISION=products(),
        num_warps=4,
    )  # fmt: skip
    return context_NH, weight_NS


@triton.jit
def _attention(
    query, keys, memory, padding, context_out, weight_out, rows, tokens,
    H: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    r, s = tl.arange(0, ROWS), tl.arange(0, TOKENS)
    n = b * rows + r
    match = tl.zeros((ROWS, TOKENS), tl.float32)
    for k0 in range(0, H, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        q = tl.load(query + n[:, None] * H + k[None, :], mask=(r < rows)[:, None] & (k < H)[None, :], other=0.0)
        at = keys + (b * tokens + s)[None, :] * H + k[:, None]
        match = tl.dot(
            q, tl.load(at, mask=(s < tokens)[None, :] & (k < H)[:, None], other=0.0), match, input_precision=PRECISION
        )
    absent = tl.load(padding + b * tokens + s, mask=s < tokens, other=1) != 0
    match = tl.where(absent[None, :], -float("inf"), match)
    weight = tl.exp(match - tl.max(match, 1)[:, None])
    weight = weight / tl.sum(weight, 1)[:, None]
    tl.store(weight_out + n[:, None] * tokens + s[None, :], weight, mask=(r < rows)[:, None] & (s < tokens)[None, :])
    for k0 in range(0, H, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        at = memory + (b * tokens + s)[:, None] * H + k[None, :]
        values = tl.load(at, mask=(s < tokens)[:, None] & (k < H)[None, :], other=0.0)
        context = tl.dot(weight, values, input_precision=PRECISION)
        tl.store(context_out + n[:, None] * H + k[None, :], context, mask=(r < rows)[:, None] & (k < H)[None, :])


def attention_backward(grad_NX: Tensor, attended: Attended, weight_NS: Tensor, match_out_NS: Tensor) -> Tensor:
    keys_BSH, memory_BSH = attended.keys_BSH, attended.memory_BSE
    count, hidden = grad_NX.shape[0], grad_NX.shape[1] // 2
    sentences, tokens = memory_BSH.shape[:2]
    assert all(x.is_contiguous() for x in (grad_NX, keys_BSH, memory_BSH, weight_NS, match_out_NS))
    query_NH = grad_NX.new_empty(count, hidden)
    rows = count // sentences
    _attention_backward[(sentences,)](
        grad_NX, keys_BSH, memory_BSH, weight_NS, match_out_NS, query_NH, rows, tokens,
        H=hidden, ROWS=power_of_two(rows, 16), TOKENS=power_of_two(tokens, 16), BLOCK_K=_UNITS, PRECISION=products(),
        num_warps=4,
    )  # fmt: skip
    return query_NH


@triton.jit
def _attention_backward(
    grad, keys, memory, weight, match_out, query_out, rows, tokens,
    H: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    r, s = tl.arange(0, ROWS), tl.arange(0, TOKENS)
    n = b * rows + r
    both = (r < rows)[:, None] & (s < tokens)[None, :]
    d_weight = tl.zeros((ROWS, TOKENS), tl.float32)
    for k0 in range(0, H, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        d_context = tl.load(
            grad + n[:, None] * (2 * H) + k[None, :], mask=(r < rows)[:, None] & (k < H)[None, :], other=0.0
        )
        at = memory + (b * tokens + s)[None, :] * H + k[:, None]
        values = tl.load(at, mask=(s < tokens)[None, :] & (k < H)[:, None], other=0.0)
        d_weight = tl.dot(d_context, values, d_weight, input_precision=PRECISION)
    share = tl.load(weight + n[:, None] * tokens + s[None, :], mask=both, other=0.0)
    d_match = share * (d_weight - tl.sum(share * d_weight, 1)[:, None])
    tl.store(match_out + n[:, None] * tokens + s[None, :], d_match, mask=both)
    for k0 in range(0, H, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        inside = (r < rows)[:, None] & (k < H)[None, :]
        d_query = tl.load(grad + n[:, None] * (2 * H) + H + k[None, :], mask=inside, other=0.0)
        at = keys + (b * tokens + s)[:, None] * H + k[None, :]
        values = tl.load(at, mask=(s < tokens)[:, None] & (k < H)[None, :], other=0.0)
        d_query = tl.dot(d_match, values, d_query, input_precision=PRECISION)
        tl.store(query_out + n[:, None] * H + k[None, :], d_query, mask=inside)


def combine(context_NH: Tensor, h_NH: Tensor, weight_HX: Tensor, noise_BH: Tensor | None) -> Combined:
    count, hidden = h_NH.shape
    plain_NH = torch.empty_like(h_NH)
    output_NH = plain_NH if noise_BH is None else torch.empty_like(h_NH)
    assert context_NH.is_contiguous() and h_NH.is_contiguous()
    rows, columns, depth = (16, 16, 64) if count <= 128 else (32, 32, 64)
    if count >= 2048 and shared_memory(h_NH.device) >= 2**17:  # a wide beam fills the device with larger blocks
        rows, columns, depth = 64, 64, 32
    _combine[(-(-count // rows), -(-hidden // columns))](
        context_NH, h_NH, weight_HX, weight_HX.stride(0), *noise_arguments(noise_BH, h_NH, count),
        plain_NH, output_NH, count,
        H=hidden, NOISE=noise_BH is not None, BLOCK_N=rows, BLOCK_M=columns, BLOCK_K=depth, PRECISION=products(),
        num_warps=4,
    )  # fmt: skip
    return Combined(plain_NH, output_NH)


@triton.jit
def _combine(
    context, h, w, w_m, noise, noise_b, noise_rows, plain_out, output_out, count,
    H: tl.constexpr, NOISE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = n < count
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(0, H, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        inside = row[:, None] & (k < H)[None, :]
        real = (k < H)[:, None] & (m < H)[None, :]
        at = w + m[None, :] * w_m + k[:, None]
        x = tl.load(context + n[:, None] * H + k[None, :], mask=inside, other=0.0)
        total = tl.dot(x, tl.load(at, mask=real, other=0.0), total, input_precision=PRECISION)
        x = tl.load(h + n[:, None] * H + k[None, :], mask=inside, other=0.0)
        total = tl.dot(x, tl.load(at + H, mask=real, other=0.0), total, input_precision=PRECISION)
    here = row[:, None] & (m < H)[None, :]
    value = tanh(total)
    tl.store(plain_out + n[:, None] * H + m[None, :], value, mask=here)
    if NOISE:
        value *= tl.load(noise + (n // noise_rows)[:, None] * noise_b + m[None, :], mask=here, other=0.0)
        tl.store(output_out + n[:, None] * H + m[None, :], value, mask=here)


def combine_backward(given: CombineBack) -> Tensor:
    grad_NH, carried_NH, merged_B, plain_NH, noise_BH, weight_HX, total_out_NH = given
    count, hidden = plain_NH.shape
    out_NX = plain_NH.new_empty(count, 2 * hidden)
    # Blocks of 32 rows take 104 KB of shared memory, more than some devices have.
    rows, columns = 32 if count > 256 and shared_memory(plain_NH.device) >= 2**17 else 16, 32
    if merged_B is None:
        # The kernel that looks for pairs is the faster one even where there are none: its loads are not staged.
        merged_B = torch.zeros(count, dtype=torch.bool, device=plain_NH.device)
    assert all(x.is_contiguous() for x in (grad_NH, merged_B, plain_NH, total_out_NH))
    _combine_backward[(-(-count // rows), -(-2 * hidden // columns))](
        grad_NH, carried_NH, carried_NH.stride(0), merged_B.view(torch.uint8), plain_NH,
        *noise_arguments(noise_BH, plain_NH, count), weight_HX, weight_HX.stride(0), total_out_NH, out_NX, count,
        H=hidden, NOISE=noise_BH is not None, BLOCK_N=rows, BLOCK_M=columns, BLOCK_K=64, PRECISION=products(),
        num_warps=4,
    )  # fmt: skip
    return out_NX


@triton.jit
def _combine_backward(
    grad, carried, carried_n, merged, plain, noise, noise_b, noise_rows, w, w_m, total_out, out, count,
    H: tl.constexpr, NOISE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = n < count
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(0, H, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        inside = row[:, None] & (k < H)[None, :]
        at = n[:, None] * H + k[None, :]
        d = tl.load(grad + at, mask=inside, other=0.0) + carried_back(
            carried, carried_n, merged, n, k, row, inside, True
        )
        if NOISE:
            d *= tl.load(noise + (n // noise_rows)[:, None] * noise_b + k[None, :], mask=inside, other=0.0)
        value = tl.load(plain + at, mask=inside, other=0.0)
        d *= 1.0 - value * value
        if tl.program_id(1) == 0:
            tl.store(total_out + at, d, mask=inside)
        weight = tl.load(w + k[:, None] * w_m + m[None, :], mask=(k < H)[:, None] & (m < 2 * H)[None, :], other=0.0)
        total = tl.dot(d, weight, total, input_precision=PRECISION)
    tl.store(out + n[:, None] * (2 * H) + m[None, :], total, mask=row[:, None] & (m < 2 * H)[None, :])
