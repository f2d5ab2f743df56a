"""Kernels of a Transformer's step without gradient: products with all that stands around them, and attention.

A step has few rows, so its time is the number of launches. A product is one launch, with the norm before and the
bias, activation, the dropout and the residual after it. Attention to slots is another, with the writing of the new
ones, and attention to the source a third: torch's kernels are made for many queries, and a sentence has a beam of them.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from argbeam.runtime.device import power_of_two, products


def begin(
    tokens_N: Tensor, table_VH: Tensor, position_H: Tensor | None, mask_BH: Tensor | None,
    slots_PT: Tensor, rows_N: Tensor | None, *, used: int, lanes: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The vectors of tokens with their position and dropout, and the slots of each row's tokens with the new one's."""
    count, width, steps = len(tokens_N), table_VH.shape[1], slots_PT.shape[1]
    x_NH = torch.empty(count, width, dtype=table_VH.dtype, device=table_VH.device)
    slots_NT = torch.empty(count, steps + 1, dtype=torch.int64, device=table_VH.device)
    nothing = table_VH
    _begin[(count,)](
        tokens_N.contiguous(), table_VH, nothing if position_H is None else position_H,
        *_masked(mask_BH, nothing), slots_PT.contiguous(), tokens_N if rows_N is None else rows_N.contiguous(),
        x_NH, slots_NT, width**0.5, used, lanes, steps,
        H=width, POSITION=position_H is not None, MASK=mask_BH is not None, ROWS=rows_N is not None,
        BLOCK_H=power_of_two(width, 16), BLOCK_T=power_of_two(steps, 16),
    )  # fmt: skip
    return x_NH, slots_NT


@triton.jit(do_not_specialize=["used", "lanes", "steps"])
def _begin(
    tokens, table, position, mask, mask_b, slots, rows, x_out, slots_out, factor, used, lanes, steps,
    H: tl.constexpr, POSITION: tl.constexpr, MASK: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK_H)
    there = h < H
    x = tl.load(table + tl.load(tokens + n) * H + h, mask=there, other=0.0) * factor
    if POSITION:
        x += tl.load(position + h, mask=there, other=0.0)
    if MASK:
        x *= tl.load(mask + (n // lanes) * mask_b + h, mask=there, other=0.0).to(tl.float32)
    tl.store(x_out + n * H + h, x, mask=there)
    came = n
    if ROWS:
        came = tl.load(rows + n)
    t = tl.arange(0, BLOCK_T)
    before = tl.load(slots + came * steps + t, mask=t < steps, other=0)
    tl.store(slots_out + n * (steps + 1) + t, before, mask=t < steps)
    tl.store(slots_out + n * (steps + 1) + steps, used + n % lanes)


def product(
    x_NI: Tensor, layer: nn.Linear, *, norm: nn.LayerNorm | None = None, relu: bool = False,
    mask_BO: Tensor | None = None, residual_NO: Tensor | None = None, lanes: int, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """residual + mask * relu(norm(x) W' + bias), each part where it is given; `dtype` is that of the product."""
    (count, width), outputs = x_NI.shape, layer.out_features
    assert x_NI.stride(1) == 1 and layer.weight.is_contiguous()
    kind = dtype if residual_NO is None else residual_NO.dtype
    out_NO = torch.empty(count, outputs, dtype=kind, device=x_NI.device)
    rows = 16 if count <= 128 else 32 if count <= 1024 else 64
    columns = 64 if -(-count // rows) * outputs >= 64 * 128 else 32
    nothing: Any = x_NI
    norms = (nothing, nothing, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    residual: Any = nothing if residual_NO is None else residual_NO
    low = dtype == torch.bfloat16 and x_NI.is_cuda  # Triton's interpreter multiplies bf16 as if it were integers
    _product[(-(-count // rows), -(-outputs // columns))](
        x_NI, x_NI.stride(0), layer.weight, layer.bias, *norms, *_masked(mask_BO, nothing), residual,
        residual.stride(0), out_NO, count, lanes,
        IN=width, OUT=outputs, NORM=norm is not None, RELU=relu, MASK=mask_BO is not None,
        RESIDUAL=residual_NO is not None, LOW=low, BLOCK_N=rows, BLOCK_O=columns, BLOCK_I=64,
        PRECISION=products(), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out_NO


@triton.jit(do_not_specialize=["count", "lanes"])
def _product(
    x, x_n, weight, bias, norm_w, norm_b, eps, mask, mask_b, residual, residual_n, out, count, lanes,
    IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr, RELU: tl.constexpr, MASK: tl.constexpr,
    RESIDUAL: tl.constexpr, LOW: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    row = n < count
    mean = tl.zeros((BLOCK_N,), tl.float32)
    scale = tl.zeros((BLOCK_N,), tl.float32)
    if NORM:
        for start in range(0, IN, BLOCK_I):
            i = start + tl.arange(0, BLOCK_I)
            part = tl.load(x + n[:, None] * x_n + i[None, :], mask=row[:, None] & (i < IN)[None, :], other=0.0)
            mean += tl.sum(part.to(tl.float32), 1)
        mean = mean / IN
        for start in range(0, IN, BLOCK_I):
            i = start + tl.arange(0, BLOCK_I)
            inside = row[:, None] & (i < IN)[None, :]
            part = tl.load(x + n[:, None] * x_n + i[None, :], mask=inside, other=0.0).to(tl.float32)
            part = tl.where(inside, part - mean[:, None], 0.0)
            scale += tl.sum(part * part, 1)
        scale = 1.0 / tl.sqrt(scale / IN + eps)
    total = tl.zeros((BLOCK_N, BLOCK_O), tl.float32)
    for start in range(0, IN, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        part = tl.load(x + n[:, None] * x_n + i[None, :], mask=row[:, None] & (i < IN)[None, :], other=0.0)
        if NORM:
            # Beyond the width both weights of the norm are zero.
            gain = tl.load(norm_w + i, mask=i < IN, other=0.0)
            shift = tl.load(norm_b + i, mask=i < IN, other=0.0)
            part = (part.to(tl.float32) - mean[:, None]) * scale[:, None] * gain[None, :] + shift[None, :]
        w = tl.load(weight + o[None, :] * IN + i[:, None], mask=(i < IN)[:, None] & (o < OUT)[None, :], other=0.0)
        if LOW:
            total = tl.dot(part.to(tl.bfloat16), w.to(tl.bfloat16), total)
        else:
            total = tl.dot(part.to(tl.float32), w, total, input_precision=PRECISION)
    here = row[:, None] & (o < OUT)[None, :]
    total += tl.load(bias + o, mask=o < OUT, other=0.0)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    if MASK:
        total *= tl.load(mask + (n // lanes)[:, None] * mask_b + o[None, :], mask=here, other=0.0).to(tl.float32)
    if RESIDUAL:
        total += tl.load(residual + n[:, None] * residual_n + o[None, :], mask=here, other=0.0)
    tl.store(out + n[:, None] * OUT + o[None, :], total.to(out.dtype.element_ty), mask=here)


def attend_to_slots(
    qkv_NY: Tensor, memory_BAX: Tensor, slots_NT: Tensor, prompt_BS: Tensor, turn_D: Tensor | None = None,
    *, used: int, heads: int,
) -> Tensor:  # fmt: skip
    """Write the new keys and values into the memory, from slot `used` on, and attend to each row's own slots.

    The last of `slots_NT` is the new one. Prompt tokens lie in the first slots, where `prompt_BS` is true. `turn_D`
    turns the new queries and keys: a rotary position's sines, then cosines.
    """
    (count, width), (batch, prompt) = qkv_NY.shape, prompt_BS.shape
    hidden = width // 3
    assert qkv_NY.is_contiguous() and slots_NT.is_contiguous() and memory_BAX.stride(2) == 1
    assert turn_D is None or (turn_D.is_contiguous() and len(turn_D) == hidden // heads)
    out_NH = torch.empty(count, hidden, dtype=qkv_NY.dtype, device=qkv_NY.device)
    _attend_to_slots[(count, heads)](
        qkv_NY, memory_BAX, memory_BAX.stride(0), memory_BAX.stride(1), slots_NT, prompt_BS.contiguous(),
        qkv_NY if turn_D is None else turn_D, out_NH,
        used, count // batch, slots_NT.shape[1], prompt, (hidden // heads) ** -0.5,
        H=hidden, D=hidden // heads, PROMPT=prompt > 0, TURN=turn_D is not None,
        BLOCK_D=power_of_two(hidden // heads, 16), BLOCK_T=16,
        num_warps=1,
    )  # fmt: skip
    return out_NH


@triton.jit(do_not_specialize=["used", "lanes", "steps", "prompts"])
def _attend_to_slots(
    qkv, memory, memory_b, memory_a, slots, prompt, turn, out, used, lanes, steps, prompts, factor,
    H: tl.constexpr, D: tl.constexpr, PROMPT: tl.constexpr, TURN: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    there = d < D
    own = qkv + n * 3 * H + tl.program_id(1) * D + d
    query = tl.load(own, mask=there, other=0.0).to(tl.float32)
    key = tl.load(own + H, mask=there, other=0.0).to(tl.float32)
    value = tl.load(own + 2 * H, mask=there, other=0.0)
    if TURN:
        # Each entry of the left half is turned with that of the right half at its distance, and the other way round.
        left = d < D // 2
        apart = tl.where(left, D // 2, -(D // 2))
        pair = tl.where(left, d, d - D // 2)
        sine = tl.load(turn + pair, mask=there, other=0.0).to(tl.float32)
        sine = tl.where(left, -sine, sine)
        cosine = tl.load(turn + D // 2 + pair, mask=there, other=0.0).to(tl.float32)
        query = query * cosine + tl.load(own + apart, mask=there, other=0.0).to(tl.float32) * sine
        key = key * cosine + tl.load(own + H + apart, mask=there, other=0.0).to(tl.float32) * sine
    query *= factor
    place = memory + (n // lanes) * memory_b + tl.program_id(1) * D + d
    key = key.to(memory.dtype.element_ty)  # as it is read again
    tl.store(place + (used + n % lanes) * memory_a, key, mask=there)
    tl.store(place + (used + n % lanes) * memory_a + H, value, mask=there)
    # Softmax block by block, from the own token on, which is never masked.
    top = tl.sum(query * key.to(tl.float32), 0)
    total = tl.full([], 1.0, tl.float32)
    found = value.to(tl.float32)
    for start in range(0, steps - 1, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        seen = t < steps - 1
        slot = tl.load(slots + n * steps + t, mask=seen, other=0)
        top, total, found = _more(query, place, slot * memory_a, seen, there, top, total, found, H)
    if PROMPT:
        for start in range(0, prompts, BLOCK_T):
            t = start + tl.arange(0, BLOCK_T)
            seen = tl.load(prompt + (n // lanes) * prompts + t, mask=t < prompts, other=0).to(tl.int1)
            top, total, found = _more(query, place, t.to(tl.int64) * memory_a, seen, there, top, total, found, H)
    tl.store(out + n * H + tl.program_id(1) * D + d, (found / total).to(out.dtype.element_ty), mask=there)


@triton.jit
def _more(query, place, offset, seen, there, top, total, found, H: tl.constexpr):
    """The running softmax with a block of slots."""
    inside = seen[:, None] & there[None, :]
    at = place[None, :] + offset[:, None]
    keys = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    match = tl.where(seen, tl.sum(query[None, :] * keys, 1), float("-inf"))
    best = tl.maximum(top, tl.max(match, 0))
    kept = tl.exp(top - best)
    weight = tl.exp(match - best)
    values = tl.load(at + H, mask=inside, other=0.0).to(tl.float32)
    return best, total * kept + tl.sum(weight, 0), found * kept + tl.sum(weight[:, None] * values, 0)


def attend_to_source(query_NH: Tensor, memory_BSX: Tensor, bias_B1S: Tensor, *, heads: int) -> Tensor:
    """Attention of each sentence's rows to its memory, keys and values side by side; the bias leaves padding out."""
    (count, hidden), (batch, source, _) = query_NH.shape, memory_BSX.shape
    lanes, size = count // batch, hidden // heads
    assert query_NH.is_contiguous() and memory_BSX.stride(2) == 1 and bias_B1S.stride(2) == 1
    out_NH = torch.empty_like(query_NH)
    precision = "tf32x3" if products() == "tf32" else products()  # as exact as torch's; the time is that of loading
    _attend_to_source[(batch, heads, -(-lanes // 16))](
        query_NH, memory_BSX, memory_BSX.stride(0), memory_BSX.stride(1), bias_B1S, bias_B1S.stride(0), out_NH,
        lanes, source, size**-0.5,
        H=hidden, D=size, BLOCK_R=16, BLOCK_D=power_of_two(size, 16), BLOCK_S=min(power_of_two(source, 16), 64),
        PRECISION=precision, num_warps=2,
    )  # fmt: skip
    return out_NH


@triton.jit(do_not_specialize=["lanes", "source"])
def _attend_to_source(
    query, memory, memory_b, memory_s, bias, bias_b, out, lanes, source, factor,
    H: tl.constexpr, D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    r = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    mine = (r < lanes)[:, None] & (d < D)[None, :]
    at = (b * lanes + r)[:, None] * H + tl.program_id(1) * D + d[None, :]
    queries = tl.load(query + at, mask=mine, other=0.0).to(tl.float32) * factor
    place = memory + b * memory_b + tl.program_id(1) * D
    # Softmax block by block. The lowest number stands for none: differences of infinities would not be numbers.
    top = tl.full((BLOCK_R,), -3.0e38, tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    found = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    for start in range(0, source, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        there = s < source
        inside = there[:, None] & (d < D)[None, :]
        keys = tl.load(place + s[None, :] * memory_s + d[:, None], mask=there[None, :] & (d < D)[:, None], other=0.0)
        added = tl.load(bias + b * bias_b + s, mask=there, other=float("-inf")).to(tl.float32)
        match = tl.dot(queries, keys.to(tl.float32), input_precision=PRECISION) + added[None, :]
        best = tl.maximum(top, tl.max(match, 1))
        kept = tl.exp(top - best)
        weight = tl.exp(match - best[:, None])
        values = tl.load(place + H + s[:, None] * memory_s + d[None, :], mask=inside, other=0.0).to(tl.float32)
        found = tl.dot(weight, values, found * kept[:, None], input_precision=PRECISION)
        total = total * kept + tl.sum(weight, 1)
        top = best
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=mine)


def _masked(mask_BH: Tensor | None, nothing: Tensor) -> tuple[Tensor, int]:
    """A mask with a row per sentence, and the distance of its rows."""
    if mask_BH is None:
        return nothing, 0
    assert mask_BH.stride(1) == 1
    return mask_BH, mask_BH.stride(0)
