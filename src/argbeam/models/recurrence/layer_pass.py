"""An LSTM layer over given inputs, its gradient written out, as `recurrence` has it for a decoder.

Letters as there: N rows, here one for each of the B sentences; G = 4H gates in the order input, forget, cell, output.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from argbeam.models.recurrence import plain_steps
from argbeam.runtime import triton_guard as kernels

if kernels.INSTALLED:
    from argbeam.models.recurrence import kernel_steps


def lstm_layer(
    base_BSG: Float[Tensor, "B S G"], recurrent_GH: Float[Tensor, "G H"]
) -> tuple[Float[Tensor, "B S H"], Float[Tensor, "B S H"]]:
    """h and c at every step of a layer that starts from zeros; `base` holds the inputs' share of the gates."""
    h_BSH, c_BSH = _Layer.apply(base_BSG, recurrent_GH)  # type: ignore[no-untyped-call]
    return h_BSH, c_BSH


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, base_BSG: Tensor, recurrent_GH: Tensor) -> tuple[Tensor, Tensor]:
        batch, steps, hidden = base_BSG.shape[0], base_BSG.shape[1], recurrent_GH.shape[1]
        step = steps_for(base_BSG)
        h_NH = c_NH = base_BSG.new_zeros(batch, hidden)
        kept = []
        for t in range(steps):
            out = step.cell(base_NG=base_BSG[:, t], h_NH=h_NH, c_NH=c_NH, recurrent_GH=recurrent_GH)
            h_NH, c_NH = out.h_NH, out.c_NH
            kept.append((out.h_NH, out.c_NH, out.gates_NG))
        h_SBH, c_SBH, gates_SBG = (torch.stack(part) for part in zip(*kept, strict=True))
        ctx.save_for_backward(recurrent_GH, h_SBH, c_SBH, gates_SBG)
        return h_SBH.transpose(0, 1).contiguous(), c_SBH.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h_BSH: Tensor, grad_c_BSH: Tensor) -> tuple[Tensor, Tensor]:
        recurrent_GH, h_SBH, c_SBH, gates_SBG = ctx.saved_tensors
        step = steps_for(h_SBH)
        grad_h_SBH, grad_c_SBH = (g.transpose(0, 1).contiguous() for g in (grad_h_BSH, grad_c_BSH))
        nothing_BH = torch.zeros_like(h_SBH[0])
        carried_h = carried_c = nothing_BH
        grad_SBG = torch.empty_like(gates_SBG)
        for t in reversed(range(len(h_SBH))):
            grad = step.cell_backward(
                grad_h_NH=grad_h_SBH[t],
                grad_h_noise_BH=None,
                carried_h_NH=carried_h,
                carried_c_NH=carried_c,
                grad_c_NH=grad_c_SBH[t],
                merged_B=None,
                gates_NG=gates_SBG[t],
                c_NH=c_SBH[t],
                before_NH=c_SBH[t - 1] if t > 0 else nothing_BH,
                rows_N=None,
                weight_GX=recurrent_GH,
                gates_out_NG=grad_SBG[t],
            )
            carried_h, carried_c = grad.before_NX, grad.c_NH
        before_XH = h_SBH[:-1].flatten(0, 1)
        return grad_SBG.transpose(0, 1), grad_SBG[1:].flatten(0, 1).T @ before_XH


def steps_for(like: Tensor) -> Any:
    """The parts of a step, plain or as kernels, for tensors of this kind."""
    return kernel_steps if kernels.usable(like) else plain_steps
