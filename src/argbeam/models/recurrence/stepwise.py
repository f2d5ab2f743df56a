"""Layers that are applied at every step of a sequence, with the gradient of their weights computed once.

Plain autograd computes a weight's gradient at each step and adds it up: two small kernels per weight and step, and for
an embedding two passes over the whole table. Here each step only puts its share on a tape, and when backward has been
through all steps, one product over the tape gives the sum. Values and gradients are those of the plain layers, to the
rounding of a sum taken in another order.

Backward must go through to the weights: a gradient asked of the inputs alone leaves its shares on the tape. The tape
belongs to one pass: a layer is made anew by every `encode` and travels in the state, so that modules hold
parameters and nothing else.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from argbeam.models.recurrence.steps import linear

_Tape = list[tuple[Tensor, ...]]


@dataclass(frozen=True)
class StepLinear:
    """A linear layer: `layer(x_NI)` is `F.linear(x_NI, weight_OI, bias_O)`."""

    weight_OI: Float[Tensor, "O I"]
    bias_O: Float[Tensor, " O"] | None
    tape: _Tape

    @staticmethod
    def of(layer: nn.Module) -> "StepLinear":
        assert isinstance(layer, nn.Linear)
        tape: _Tape = []
        weight_OI, bias_O = _LinearSum.apply(layer.weight, layer.bias, tape)  # type: ignore[no-untyped-call]
        return StepLinear(weight_OI, bias_O, tape)

    def __call__(self, x_NI: Float[Tensor, "N I"]) -> Float[Tensor, "N O"]:
        if not torch.is_grad_enabled():
            return linear(x_NI, self.weight_OI, self.bias_O).contiguous()
        out_NO: Tensor = _LinearStep.apply(x_NI, self.weight_OI, self.bias_O, self.tape)  # type: ignore[no-untyped-call]
        return out_NO


@dataclass(frozen=True)
class StepEmbedding:
    """An embedding: `layer(tokens_N)` is `F.embedding(tokens_N, weight_VE)`."""

    weight_VE: Float[Tensor, "V E"]
    tape: _Tape

    @staticmethod
    def of(layer: nn.Embedding) -> "StepEmbedding":
        tape: _Tape = []
        return StepEmbedding(_EmbeddingSum.apply(layer.weight, tape), tape)  # type: ignore[no-untyped-call]

    def __call__(self, tokens_N: Int[Tensor, " N"]) -> Float[Tensor, "N E"]:
        if not torch.is_grad_enabled():
            return F.embedding(tokens_N, self.weight_VE)
        out_NE: Tensor = _EmbeddingStep.apply(tokens_N, self.weight_VE, self.tape)  # type: ignore[no-untyped-call]
        return out_NE


@dataclass(frozen=True)
class StepAttention:
    """Attention of R rows per sentence over its memory: softmax(query keys^T) memory, padding left out."""

    keys_BSH: Float[Tensor, "B S H"]
    memory_BSE: Float[Tensor, "B S E"]
    padding_B1S: Bool[Tensor, "B 1 S"]
    tape: _Tape

    @staticmethod
    def over(keys_BSH: Tensor, memory_BSE: Tensor, padding_B1S: Tensor) -> "StepAttention":
        tape: _Tape = []
        keys_BSH, memory_BSE = _AttentionSum.apply(keys_BSH, memory_BSE, tape)  # type: ignore[no-untyped-call]
        return StepAttention(keys_BSH, memory_BSE, padding_B1S, tape)

    def __call__(self, query_BRH: Float[Tensor, "B R H"]) -> Float[Tensor, "B R E"]:
        if not torch.is_grad_enabled():
            return _attended(query_BRH, self.keys_BSH, self.memory_BSE, self.padding_B1S)[0]
        out_BRE: Tensor = _AttentionStep.apply(query_BRH, self.keys_BSH, self.memory_BSE, self.padding_B1S, self.tape)  # type: ignore[no-untyped-call]
        return out_BRE


# Each `_...Sum` is the identity; autograd calls its backward when every step has been through its own, which is when
# the tape is full. What the steps send it is nothing: their shares are on the tape.


class _LinearSum(Function):
    @staticmethod
    def forward(ctx: Any, weight_OI: Tensor, bias_O: Tensor | None, tape: _Tape) -> tuple[Tensor, Tensor | None]:
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return weight_OI.view_as(weight_OI), None if bias_O is None else bias_O.view_as(bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if not ctx.tape:
            return None, None, None
        x_XI, grad_XO = (torch.cat(part) for part in zip(*ctx.tape, strict=True))
        ctx.tape.clear()
        bias = grad_XO.sum(0) if ctx.needs_input_grad[1] else None
        return grad_XO.T @ x_XI, bias, None


class _LinearStep(Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, tape: _Tape) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        ctx.tape = tape
        return F.linear(x_NI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, None, None, None]:
        x_NI, weight_OI = ctx.saved_tensors
        grad_NO = grad_NO.to(weight_OI.dtype)
        ctx.tape.append((x_NI.to(weight_OI.dtype), grad_NO))
        return grad_NO @ weight_OI if ctx.needs_input_grad[0] else None, None, None, None


class _EmbeddingSum(Function):
    @staticmethod
    def forward(ctx: Any, weight_VE: Tensor, tape: _Tape) -> Tensor:
        ctx.tape, ctx.size = tape, weight_VE.shape[0]
        ctx.set_materialize_grads(False)
        return weight_VE.view_as(weight_VE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, None]:
        if not ctx.tape:
            return None, None
        tokens_X, grad_XE = (torch.cat(part) for part in zip(*ctx.tape, strict=True))
        ctx.tape.clear()
        return torch.ops.aten.embedding_dense_backward(grad_XE, tokens_X, ctx.size, -1, False), None


class _EmbeddingStep(Function):
    @staticmethod
    def forward(ctx: Any, tokens_N: Tensor, weight_VE: Tensor, tape: _Tape) -> Tensor:
        ctx.save_for_backward(tokens_N)
        ctx.tape, ctx.dtype = tape, weight_VE.dtype
        return F.embedding(tokens_N, weight_VE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NE: Tensor) -> tuple[None, None, None]:
        ctx.tape.append((ctx.saved_tensors[0], grad_NE.to(ctx.dtype)))
        return None, None, None


class _AttentionSum(Function):
    @staticmethod
    def forward(ctx: Any, keys_BSH: Tensor, memory_BSH: Tensor, tape: _Tape) -> tuple[Tensor, Tensor]:
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return keys_BSH.view_as(keys_BSH), memory_BSH.view_as(memory_BSH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if not ctx.tape:
            return None, None, None
        query_BXH, match_grad_BXS, weight_BXS, out_grad_BXH = (
            torch.cat(part, 1) for part in zip(*ctx.tape, strict=True)
        )
        ctx.tape.clear()
        return match_grad_BXS.transpose(1, 2) @ query_BXH, weight_BXS.transpose(1, 2) @ out_grad_BXH, None


class _AttentionStep(Function):
    @staticmethod
    def forward(
        ctx: Any, query_BRH: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, padding_B1S: Tensor, tape: _Tape
    ) -> Tensor:
        out_BRH, weight_BRS = _attended(query_BRH, keys_BSH, memory_BSH, padding_B1S)
        ctx.save_for_backward(query_BRH, keys_BSH, memory_BSH, weight_BRS)
        ctx.tape = tape
        return out_BRH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BRH: Tensor) -> tuple[Tensor, None, None, None, None]:
        query_BRH, keys_BSH, memory_BSH, weight_BRS = ctx.saved_tensors
        dtype = memory_BSH.dtype  # under autocast the products, and the keys with them, are of another
        grad_BRH, query_BRH, keys_BSH = grad_BRH.to(dtype), query_BRH.to(dtype), keys_BSH.to(dtype)
        weight_BRS = weight_BRS.to(dtype)
        weight_grad_BRS = torch.bmm(grad_BRH, memory_BSH.transpose(1, 2))
        # Padding has weight 0, so its gradient is 0 as well.
        match_grad_BRS = torch.ops.aten._softmax_backward_data(weight_grad_BRS, weight_BRS, -1, dtype)
        ctx.tape.append((query_BRH, match_grad_BRS, weight_BRS, grad_BRH))
        return torch.bmm(match_grad_BRS, keys_BSH), None, None, None, None


def _attended(query_BRH: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, padding_B1S: Tensor) -> tuple[Tensor, Tensor]:
    """What is read, and the weights it is read by."""
    match_BRS = torch.bmm(query_BRH, keys_BSH.transpose(1, 2))
    weight_BRS = match_BRS.masked_fill_(padding_B1S, -torch.inf).softmax(-1)
    return torch.bmm(weight_BRS, memory_BSH.to(weight_BRS.dtype)), weight_BRS
