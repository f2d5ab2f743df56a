"""A layer or a decoder over given tokens, with its gradient written out.

Autograd would keep a graph of every operation of every step. Here a pass over T steps is one operation: its forward
saves what its backward needs, its backward visits each step once, and every weight's gradient is one product over all
steps. The parts of a step are those of `Steps`: Triton kernels where they can run, plain torch elsewhere.

Recurrences are computed in full precision under autocast. Letters as in `steps`; T steps, X = T * N.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from argbeam.models.recurrence.contract import Attended, CellBack, CellIn, CombineBack, Steps
from argbeam.models.recurrence.steps import DecoderState, Masks, PlainSteps, Weights, decoder_step
from argbeam.runtime import device as devices

if devices.TRITON_INSTALLED:
    from argbeam.models.recurrence.kernel_steps import KernelSteps


def steps_for(like: Tensor) -> Steps:
    """The version of the parts for tensors of this kind."""
    return KernelSteps() if devices.kernels_usable(like) else PlainSteps()


@dataclass(frozen=True)
class Restarts:
    """Steps before which the second row of a pair takes the first row's state: the row that each row reads, and the
    pairs that are merged so. The first step has none: a pair starts from the same state."""

    rows_TN: Int[Tensor, "T N"]
    merged_TB: Bool[Tensor, "T B"]

    @staticmethod
    def of(restarted_TB: Bool[Tensor, "T B"] | None) -> "Restarts | None":
        if restarted_TB is None:
            return None
        row_N = torch.arange(2 * restarted_TB.shape[1], device=restarted_TB.device)
        rows_TN = row_N - restarted_TB.repeat_interleave(2, dim=1) * (row_N % 2)
        return Restarts(rows_TN.contiguous(), restarted_TB.contiguous())


def lstm_layer(
    base_TNG: Float[Tensor, "T N G"],
    recurrent_GH: Float[Tensor, "G H"],
    h_NH: Float[Tensor, "N H"] | None = None,
    c_NH: Float[Tensor, "N H"] | None = None,
    restarts: Restarts | None = None,
) -> tuple[Float[Tensor, "T N H"], Float[Tensor, "T N H"]]:
    """h and c of a layer at every step, from these states or zeros; `base_TNG` is the inputs' share of the gates."""
    with torch.autocast(base_TNG.device.type, enabled=False):
        base_TNG = base_TNG.to(recurrent_GH.dtype)
        h_TNH, c_TNH = _Layer.apply(base_TNG, recurrent_GH, h_NH, c_NH, restarts)  # type: ignore[no-untyped-call]
    return h_TNH, c_TNH


class _Layer(Function):
    @staticmethod
    def forward(
        ctx: Any,
        base_TNG: Tensor,
        recurrent_GH: Tensor,
        h0: Tensor | None,
        c0: Tensor | None,
        restarts: Restarts | None,
    ) -> tuple[Tensor, Tensor]:
        steps = steps_for(base_TNG)
        zero_NH = base_TNG.new_zeros(base_TNG.shape[1], recurrent_GH.shape[1])
        h_NH, c_NH = zero_NH if h0 is None else h0, zero_NH if c0 is None else c0
        kept = []
        for t in range(len(base_TNG)):
            rows_N = None if restarts is None or t == 0 else restarts.rows_TN[t]
            kept.append(steps.cell(CellIn(base_TNG[t], h_NH, c_NH, recurrent_GH, rows_N)))
            h_NH, c_NH, _ = kept[-1]
        h_TNH, c_TNH, gates_TNG = _stacked(kept)
        ctx.restarts = restarts
        ctx.save_for_backward(recurrent_GH, h0, c0, h_TNH, c_TNH, gates_TNG)
        return h_TNH, c_TNH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h_TNH: Tensor, grad_c_TNH: Tensor) -> tuple[Tensor | None, ...]:
        restarts: Restarts | None = ctx.restarts
        recurrent_GH, h0, c0, h_TNH, c_TNH, gates_TNG = ctx.saved_tensors
        steps = steps_for(h_TNH)
        grad_h_TNH, grad_c_TNH = grad_h_TNH.contiguous(), grad_c_TNH.contiguous()
        carried_h = carried_c = zero_NH = torch.zeros_like(h_TNH[0])
        grad_TNG = torch.empty_like(gates_TNG)
        for t in reversed(range(len(h_TNH))):
            given = CellBack(
                grad_h_NH=grad_h_TNH[t],
                carried_h_NH=carried_h,
                carried_c_NH=carried_c,
                grad_c_NH=grad_c_TNH[t],
                merged_B=None if restarts is None or t + 1 == len(h_TNH) else restarts.merged_TB[t + 1],
                gates_NG=gates_TNG[t],
                c_NH=c_TNH[t],
                before_NH=c_TNH[t - 1] if t > 0 else zero_NH if c0 is None else c0,
                rows_N=None if restarts is None or t == 0 else restarts.rows_TN[t],
                weight_GX=recurrent_GH,
                gates_out_NG=grad_TNG[t],
            )
            grad = steps.cell_backward(given)
            carried_h, carried_c = grad.before_NX, grad.c_NH
        if h0 is None:
            return grad_TNG, grad_TNG[1:].flatten(0, 1).T @ h_TNH[:-1].flatten(0, 1), None, None, None
        return grad_TNG, grad_TNG.flatten(0, 1).T @ _read(h0, h_TNH, restarts), carried_h, carried_c, None


def masked(x_TNH: Float[Tensor, "T N H"], noise_BTH: Tensor | None) -> Float[Tensor, "T N H"]:
    """One mask for all rows of a sentence at a step. Masks may be there for more steps."""
    if noise_BTH is None:
        return x_TNH
    noise_TB1H = noise_BTH[:, : len(x_TNH)].transpose(0, 1)[:, :, None]
    return (x_TNH.view(len(x_TNH), len(noise_BTH), -1, x_TNH.shape[2]) * noise_TB1H).flatten(1, 2)


def decoder_pass(
    base_TNG: Float[Tensor, "T N G"],
    before: DecoderState,
    weights: Weights,
    attended: Attended,
    masks: Masks,
    restarts: Restarts | None,
) -> tuple[Float[Tensor, "T N H"], DecoderState]:
    """The output vector at every step, and the state after the last; `base_TNG` is the tokens' share of the gates."""
    layers = len(weights.recurrent)
    with torch.autocast(base_TNG.device.type, enabled=False):
        out_TNH, *after = _Pass.apply(  # type: ignore[no-untyped-call]
            _Fixed(layers, masks, attended.padding_BS, restarts), base_TNG.to(weights.combine_HX.dtype),
            before.output_NH, attended.keys_BSH, attended.memory_BSE, weights.combine_HX,
            *before.h, *before.c, *weights.inputs, *weights.recurrent, *weights.bias,
        )  # fmt: skip
    return out_TNH, DecoderState(after[:layers], after[layers:], out_TNH[-1])


@dataclass(frozen=True)
class _Fixed:
    """What a pass reads and does not differentiate."""

    layers: int
    masks: Masks
    padding_BS: Tensor
    restarts: Restarts | None


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
    ) -> tuple[Tensor, ...]:
        h0, c0, fed_w, recurrent_w, bias = _by_layer(parts, fixed.layers)
        weights = Weights(fed_w, recurrent_w, bias, combine_HX)
        attended = Attended(keys_BSH, memory_BSH, fixed.padding_BS)
        steps, restarts = steps_for(base_TNG), fixed.restarts
        state = DecoderState(h0, c0, output_NH)
        kept: list[tuple[Tensor, ...]] = []
        for t in range(len(base_TNG)):
            rows_N = None if restarts is None or t == 0 else restarts.rows_TN[t]
            noise = fixed.masks.at(t)
            out = decoder_step(steps, weights, attended, state, base_NG=base_TNG[t], noise=noise, rows_N=rows_N)
            state = DecoderState([cell.h_NH for cell in out.cells], [cell.c_NH for cell in out.cells], out.combined[1])
            kept.append((*(x for cell in out.cells for x in cell), out.context_NH, out.weight_NS, *out.combined))
        stacks = _stacked(kept)
        ctx.fixed = fixed
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output_NH, keys_BSH, memory_BSH, combine_HX, *parts, *stacks)
        return stacks[-1], *state.h, *state.c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TNH: Tensor | None, *grad_after: Tensor | None) -> tuple[Tensor | None, ...]:
        fixed: _Fixed = ctx.fixed
        layers, restarts = fixed.layers, fixed.restarts
        output_NH, keys_BSH, memory_BSH, combine_HX, *rest = ctx.saved_tensors
        parts, stacks = rest[: 5 * layers], rest[5 * layers :]
        h0, c0, fed_w, recurrent_w, _ = _by_layer(parts, layers)
        h_TNH, c_TNH, gates_TNG = stacks[0 : 3 * layers : 3], stacks[1 : 3 * layers : 3], stacks[2 : 3 * layers : 3]
        context_TNH, weight_TNS, plain_TNH, output_TNH = stacks[3 * layers :]
        steps, attended = steps_for(output_NH), Attended(keys_BSH, memory_BSH, fixed.padding_BS)
        grad_TNH = torch.zeros_like(output_TNH) if grad_TNH is None else grad_TNH.contiguous()
        zero_NH = torch.zeros_like(output_NH)
        carried = [zero_NH if grad_NH is None else grad_NH.contiguous() for grad_NH in grad_after]
        carried_h, carried_c, carried_feed = carried[:layers], carried[layers:], zero_NH
        grad_gates = [torch.empty_like(g) for g in gates_TNG]
        grad_total_TNH, grad_match_TNS = torch.empty_like(plain_TNH), torch.empty_like(weight_TNS)
        grad_both: list[Tensor] = []
        weight_GX = [torch.cat(pair, 1) for pair in zip(fed_w, recurrent_w, strict=True)]
        for t in reversed(range(len(grad_TNH))):
            merged_B = None if restarts is None or t + 1 == len(grad_TNH) else restarts.merged_TB[t + 1]
            noise = fixed.masks.at(t)
            fed_back = (grad_TNH[t], carried_feed, merged_B)
            both_NX = steps.combine_backward(
                CombineBack(*fed_back, plain_TNH[t], noise[-1], combine_HX, grad_total_TNH[t])
            )
            grad_both.append(both_NX)
            grad_h_NH = steps.attention_backward(both_NX, attended, weight_TNS[t], grad_match_TNS[t])
            for i in reversed(range(layers)):
                given = CellBack(
                    grad_h_NH=grad_h_NH,
                    grad_h_noise_BH=noise[i + 1] if i + 1 < layers else None,
                    carried_h_NH=carried_h[i],
                    carried_c_NH=carried_c[i],
                    merged_B=merged_B,
                    gates_NG=gates_TNG[i][t],
                    c_NH=c_TNH[i][t],
                    before_NH=c_TNH[i][t - 1] if t > 0 else c0[i],
                    rows_N=None if restarts is None or t == 0 else restarts.rows_TN[t],
                    weight_GX=weight_GX[i],
                    gates_out_NG=grad_gates[i][t],
                )
                grad = steps.cell_backward(given)
                carried_c[i] = grad.c_NH
                width = fed_w[i].shape[1]
                grad_h_NH, carried_h[i] = grad.before_NX[:, :width], grad.before_NX[:, width:]
            carried_feed = grad_h_NH if fed_w[0].shape[1] else zero_NH
        gates_GX = [grad_TNG.flatten(0, 1).T for grad_TNG in grad_gates]
        fed = [_read(output_NH, output_TNH, restarts)[:, : fed_w[0].shape[1]]]
        fed += [masked(h_TNH[i], fixed.masks.masks[i + 1]).flatten(0, 1) for i in range(layers - 1)]
        fed_grads = [grad_GX @ fed_XH for grad_GX, fed_XH in zip(gates_GX, fed, strict=True)]
        recurrent_grads = [gates_GX[i] @ _read(h0[i], h_TNH[i], restarts) for i in range(layers)]
        bias_grads = [None, *(grad_GX.sum(1) for grad_GX in gates_GX[1:])]
        total_HX = grad_total_TNH.flatten(0, 1).T
        combine_grad = torch.cat([total_HX @ x.flatten(0, 1) for x in (context_TNH, h_TNH[-1])], 1)
        context_grad_TNH = torch.stack(grad_both[::-1])[..., : output_NH.shape[1]]
        keys_grad = _memory_gradient(grad_match_TNS, h_TNH[-1], keys_BSH)
        memory_grad = _memory_gradient(weight_TNS, context_grad_TNH, memory_BSH)
        return (
            None, grad_gates[0], carried_feed, keys_grad, memory_grad, combine_grad,
            *carried_h, *carried_c, *fed_grads, *recurrent_grads, *bias_grads,
        )  # fmt: skip


def _stacked(kept: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The tensors of all steps, by step."""
    if len(kept) == 1:
        return [x_NH[None] for x_NH in kept[0]]
    return [torch.stack(part) for part in zip(*kept, strict=True)]


def _by_layer(parts: Sequence[Tensor], layers: int) -> list[Sequence[Tensor]]:
    return [parts[i * layers : (i + 1) * layers] for i in range(5)]


def _read(first_NH: Tensor, then_TNH: Tensor, restarts: Restarts | None) -> Tensor:
    """What each step read of the step before it, through its rows, as (T * N, H)."""
    read_TNH = torch.cat([first_NH[None], then_TNH[:-1]])
    if restarts is None:
        return read_TNH.flatten(0, 1)
    start_T1 = torch.arange(len(read_TNH), device=first_NH.device)[:, None] * first_NH.shape[0]
    return read_TNH.flatten(0, 1).index_select(0, (start_T1 + restarts.rows_TN).flatten())


def _memory_gradient(weight_TNS: Tensor, x_TNH: Tensor, memory_BSH: Tensor) -> Tensor:
    """The sum over all steps and rows of a sentence of weight' x."""
    steps, sentences = len(x_TNH), len(memory_BSH)
    weight_BXS, x_BXH = (
        part.reshape(steps, sentences, -1, part.shape[2]).transpose(0, 1).reshape(sentences, -1, part.shape[2])
        for part in (weight_TNS, x_TNH)
    )
    return weight_BXS.transpose(1, 2) @ x_BXH
