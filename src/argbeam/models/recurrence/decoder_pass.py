"""A decoder with attention over given words, its gradient written out.

Autograd would keep a graph of every operation of every step. Here a pass over T steps is one operation: its forward
keeps what its backward needs, its backward goes through the steps once, and every weight's gradient is one product over
all of them. Each step is made of three parts (cell, attention, output vector) that are kernels where kernels are usable
and plain torch elsewhere.

Letters: N rows, L of each of the B sentences; G = 4H gates in the order input, forget, cell, output; X = T * N.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from argbeam.models.recurrence.layer_pass import steps_for


@dataclass(frozen=True)
class Attended:
    """The memory of each sentence."""

    keys_BSH: Float[Tensor, "B S H"]
    memory_BSH: Float[Tensor, "B S H"]
    padding_BS: Bool[Tensor, "B S"]


@dataclass(frozen=True)
class Weights:
    """The decoder's weights, by layer: `fed` meets what a layer is fed, the output vector before or the layer below.
    The first bias is not used: it is in the words' share of the gates."""

    fed: Sequence[Float[Tensor, "G H"]]
    recurrent: Sequence[Float[Tensor, "G H"]]
    bias: Sequence[Float[Tensor, " G"]]
    combine_HX: Float[Tensor, "H X"]


@dataclass(frozen=True)
class Masks:
    """Dropout on what the upper layers are fed, and on the output vector; None where there is none."""

    layers: Sequence[Float[Tensor, "B T H"] | None]
    output_BTH: Float[Tensor, "B T H"] | None


@dataclass(frozen=True)
class Restarts:
    """Before which steps the second row of a pair takes the first one's state. At the first step there is nothing to
    take: the pair starts from the same state."""

    restart_TB: Bool[Tensor, "T B"]

    def rows(self) -> Int[Tensor, "T N"]:
        """The row that each row's state is taken from."""
        row_N = torch.arange(2 * self.restart_TB.shape[1], device=self.restart_TB.device)
        return row_N - self.restart_TB.repeat_interleave(2, dim=1) * (row_N % 2)


def decoder_pass(
    base_TNG: Float[Tensor, "T N G"],
    h: Sequence[Float[Tensor, "N H"]],
    c: Sequence[Float[Tensor, "N H"]],
    output_NH: Float[Tensor, "N H"],
    weights: Weights,
    attended: Attended,
    masks: Masks,
    restarts: Restarts | None,
) -> Float[Tensor, "T N H"]:
    """The output vector at every step, from the states before the first one."""
    rows_TN = None if restarts is None else restarts.rows().contiguous()
    merged_TB = None if restarts is None else restarts.restart_TB.contiguous()
    fixed = _Fixed(len(h), masks, attended.padding_BS, rows_TN, merged_TB)
    out_TNH: Tensor = _Pass.apply(  # type: ignore[no-untyped-call]
        fixed, base_TNG, output_NH, attended.keys_BSH, attended.memory_BSH, weights.combine_HX,
        *h, *c, *weights.fed, *weights.recurrent, *weights.bias,
    )  # fmt: skip
    return out_TNH


@dataclass(frozen=True)
class _Fixed:
    """What a pass reads and does not differentiate."""

    layers: int
    masks: Masks
    padding_BS: Tensor
    rows_TN: Tensor | None
    merged_TB: Tensor | None


class _Pass(Function):
    @staticmethod
    def forward(
        ctx: Any,
        fixed: _Fixed,
        base_TNG: Tensor,
        output_NH: Tensor,
        keys_BSH: Tensor,
        memory_BSH: Tensor,
        combine_HX: Tensor,
        *parts: Tensor,
    ) -> Tensor:
        h0, c0, fed_w, recurrent_w, bias = _by_layer(parts, fixed.layers)
        step = steps_for(base_TNG)
        h, c, feed_NH = list(h0), list(c0), output_NH
        kept: list[tuple[Tensor, ...]] = []
        for t in range(len(base_TNG)):
            rows_N = None if fixed.rows_TN is None or t == 0 else fixed.rows_TN[t]
            record: list[Tensor] = []
            fed_NH, noise_BH = feed_NH, None
            for i in range(fixed.layers):
                out = step.cell(
                    base_NG=base_TNG[t] if i == 0 else bias[i],
                    h_NH=h[i],
                    c_NH=c[i],
                    recurrent_GH=recurrent_w[i],
                    fed_NA=fed_NH,
                    fed_GA=fed_w[i],
                    fed_noise_BA=noise_BH,
                    fed_moves=i == 0,
                    rows_N=rows_N,
                )
                h[i], c[i] = fed_NH, _ = out.h_NH, out.c_NH
                record += [out.h_NH, out.c_NH, out.gates_NG]
                noise_BH = _at(fixed.masks.layers[i + 1], t) if i + 1 < fixed.layers else None
            context_NH, weight_NS = step.attention(fed_NH, keys_BSH, memory_BSH, fixed.padding_BS)
            combined = step.combine(context_NH, fed_NH, combine_HX, _at(fixed.masks.output_BTH, t))
            feed_NH = combined.output_NH
            kept.append((*record, context_NH, weight_NS, combined.plain_NH, combined.output_NH))
        stacks = [torch.stack(part) for part in zip(*kept, strict=True)]
        ctx.fixed = fixed
        ctx.save_for_backward(output_NH, keys_BSH, memory_BSH, combine_HX, *parts, *stacks)
        return stacks[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TNH: Tensor) -> tuple[Tensor | None, ...]:
        fixed: _Fixed = ctx.fixed
        layers = fixed.layers
        output_NH, keys_BSH, memory_BSH, combine_HX, *rest = ctx.saved_tensors
        parts, stacks = rest[: 5 * layers], rest[5 * layers :]
        h0, c0, fed_w, recurrent_w, _ = _by_layer(parts, layers)
        h_TNH, c_TNH, gates_TNG = stacks[0 : 3 * layers : 3], stacks[1 : 3 * layers : 3], stacks[2 : 3 * layers : 3]
        context_TNH, weight_TNS, plain_TNH, output_TNH = stacks[3 * layers :]
        step = steps_for(grad_TNH)
        grad_TNH = grad_TNH.contiguous()
        nothing_NH = torch.zeros_like(output_NH)
        carried_h, carried_c, carried_feed = [nothing_NH] * layers, [nothing_NH] * layers, nothing_NH
        grad_gates = [torch.empty_like(g) for g in gates_TNG]
        grad_total_TNH, grad_match_TNS = torch.empty_like(plain_TNH), torch.empty_like(weight_TNS)
        grad_both: list[Tensor] = []
        weight_GX = [torch.cat(pair, 1) for pair in zip(fed_w, recurrent_w, strict=True)]
        for t in reversed(range(len(grad_TNH))):
            last = t + 1 == len(grad_TNH)
            merged_B = None if fixed.merged_TB is None or last else fixed.merged_TB[t + 1]
            rows_N = None if fixed.rows_TN is None or t == 0 else fixed.rows_TN[t]
            both_NX = step.combine_backward(
                grad_TNH[t],
                carried_feed,
                merged_B,
                plain_TNH[t],
                _at(fixed.masks.output_BTH, t),
                combine_HX,
                grad_total_TNH[t],
            )
            grad_both.append(both_NX)
            grad_h_NH = step.attention_backward(both_NX, keys_BSH, memory_BSH, weight_TNS[t], grad_match_TNS[t])
            noise_BH = None
            for i in reversed(range(layers)):
                grad = step.cell_backward(
                    grad_h_NH=grad_h_NH,
                    grad_h_noise_BH=noise_BH,
                    carried_h_NH=carried_h[i],
                    carried_c_NH=carried_c[i],
                    grad_c_NH=None,
                    merged_B=merged_B,
                    gates_NG=gates_TNG[i][t],
                    c_NH=c_TNH[i][t],
                    before_NH=c_TNH[i][t - 1] if t > 0 else c0[i],
                    rows_N=rows_N,
                    weight_GX=weight_GX[i],
                    gates_out_NG=grad_gates[i][t],
                )
                carried_c[i] = grad.c_NH
                grad_h_NH, carried_h[i] = grad.before_NX.split([fed_w[i].shape[1], recurrent_w[i].shape[1]], 1)
                noise_BH = _at(fixed.masks.layers[i], t) if i > 0 else None
            carried_feed = grad_h_NH
        context_grad_TNH = torch.stack(grad_both[::-1])[..., : output_NH.shape[1]]

        def shifted(first_NH: Tensor, then_TNH: Tensor) -> Tensor:
            """What each step read of the step before it, through its rows."""
            read_TNH = torch.cat([first_NH[None], then_TNH[:-1]])
            if fixed.rows_TN is None:
                return read_TNH.flatten(0, 1)
            count = first_NH.shape[0]
            start_T1 = torch.arange(len(read_TNH), device=first_NH.device)[:, None] * count
            return read_TNH.flatten(0, 1).index_select(0, (start_T1 + fixed.rows_TN).flatten())

        fed_grads, recurrent_grads, bias_grads = [], [], []
        for i in range(layers):
            gates_GX = grad_gates[i].flatten(0, 1).T
            fed_XH = shifted(output_NH, output_TNH) if i == 0 else _masked(h_TNH[i - 1], fixed.masks.layers[i])
            fed_grads.append(gates_GX @ fed_XH)
            recurrent_grads.append(gates_GX @ shifted(h0[i], h_TNH[i]))
            bias_grads.append(None if i == 0 else gates_GX.sum(1))
        total_HX = grad_total_TNH.flatten(0, 1).T
        combine_grad = torch.cat([total_HX @ x.flatten(0, 1) for x in (context_TNH, h_TNH[-1])], 1)
        sentences = keys_BSH.shape[0]
        match_BXS, weight_BXS, query_BXH, out_BXH = (
            _by_sentence(x, sentences) for x in (grad_match_TNS, weight_TNS, h_TNH[-1], context_grad_TNH)
        )
        keys_grad, memory_grad = match_BXS.transpose(1, 2) @ query_BXH, weight_BXS.transpose(1, 2) @ out_BXH
        return (
            None, grad_gates[0], carried_feed, keys_grad, memory_grad, combine_grad,
            *carried_h, *carried_c, *fed_grads, *recurrent_grads, *bias_grads,
        )  # fmt: skip


def _by_layer(parts: Sequence[Tensor], layers: int) -> list[Sequence[Tensor]]:
    return [parts[i * layers : (i + 1) * layers] for i in range(5)]


def _at(noise_BTH: Tensor | None, t: int) -> Tensor | None:
    return None if noise_BTH is None else noise_BTH[:, t]


def _masked(h_TNH: Tensor, noise_BTH: Tensor | None) -> Tensor:
    if noise_BTH is None:
        return h_TNH.flatten(0, 1)
    steps, batch, hidden = h_TNH.shape[0], noise_BTH.shape[0], h_TNH.shape[2]
    noise_TB1H = noise_BTH[:, :steps].transpose(0, 1)[:, :, None]
    return (h_TNH.view(steps, batch, -1, hidden) * noise_TB1H).view(-1, hidden)


def _by_sentence(x_TNW: Tensor, sentences: int) -> Tensor:
    """(T, B * L, W) as (B, T * L, W)."""
    steps, _, width = x_TNW.shape
    return x_TNW.reshape(steps, sentences, -1, width).transpose(0, 1).reshape(sentences, -1, width)
