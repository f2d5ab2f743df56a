"""The output layer: scores of all words, or of the words listed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.models.contract import Scorer
from argbeam.models.recurrence.steps import linear


def word_scores(
    layer: nn.Linear, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None
) -> Float[Tensor, "G R C"]:
    """The output layer's scores of all words, or of the words listed for each group of rows."""
    weight_VH, bias_V = layer.weight, layer.bias
    # Scores decide who wins: they are computed in full precision whatever the rest is computed in.
    with torch.autocast(output_GRH.device.type, enabled=False):
        output_GRH = output_GRH.to(weight_VH.dtype)
        if candidates_GC is None:
            if isinstance(layer, WideLinear) and not torch.is_grad_enabled():
                return layer.all_words(output_GRH)
            return F.linear(output_GRH, weight_VH, bias_V)
        weight_GCH, bias_GC = listed_rows(layer, candidates_GC)
        if output_GRH.shape[1] == candidates_GC.shape[1] == 1:
            return (output_GRH * weight_GCH).sum(2, keepdim=True) + bias_GC[:, None]
        return torch.baddbmm(bias_GC[:, None], output_GRH, weight_GCH.transpose(1, 2))


def listed_rows(
    layer: nn.Linear, candidates_GC: Int[Tensor, "G C"]
) -> tuple[Float[Tensor, "G C H"], Float[Tensor, "G C"]]:
    """The rows of the layer that belong to the words listed: only they are read, and only they get a gradient."""
    bias_GC = F.embedding(candidates_GC, layer.bias[:, None])[..., 0]
    return F.embedding(candidates_GC, layer.weight), bias_GC


class WideLinear(nn.Linear):
    """A linear layer whose parameters are followed in memory by zeros, up to a round number of outputs.

    A product with an output width that is no multiple of 8 takes a GPU about twice the time of one that is. The zeros
    are no parameters: they are never trained nor stored, and their outputs are cut off.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self._pad()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "WideLinear":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._pad()  # moved to a device or to another precision, a tensor leaves behind what followed it
        return self

    def all_words(self, x: Float[Tensor, "*N I"]) -> Float[Tensor, "*N O"]:
        """The layer's outputs, without gradient."""
        wide = [self._followed(p) for p in (self.weight, self.bias)]
        return linear(x.flatten(0, -2), wide[0], wide[1])[:, : self.out_features].view(*x.shape[:-1], -1)

    def _pad(self) -> None:
        for parameter in (self.weight, self.bias):
            if len(self._followed(parameter)) == self._round():
                continue  # whoever holds on to this memory (a captured step, another process) keeps it
            padded = parameter.data.new_zeros(self._round(), *parameter.shape[1:])
            padded[: self.out_features] = parameter.data
            parameter.data = padded[: self.out_features]

    def _followed(self, parameter: Tensor) -> Tensor:
        """The parameter with the zeros behind it; alone where it has lost them (in a copy, say)."""
        size = (self._round(), *parameter.shape[1:])
        needed = parameter.storage_offset() + math.prod(size)
        if parameter.untyped_storage().nbytes() < needed * parameter.element_size():
            return parameter
        return parameter.as_strided(size, parameter.stride())

    def _round(self) -> int:
        return -(-self.out_features // 8) * 8


@dataclass(frozen=True)
class CandidateScorer:
    """Scorer with the output layer's rows of one list of candidates, looked up once for all steps of a search."""

    model: Scorer
    candidates_GC: Int[Tensor, "G C"]
    weight_GHC: Float[Tensor, "G H C"]
    bias_G1C: Float[Tensor, "G 1 C"]

    @staticmethod
    def of(model: Scorer, layer: nn.Linear, candidates_GC: Int[Tensor, "G C"]) -> "CandidateScorer":
        weight_GCH, bias_GC = listed_rows(layer, candidates_GC)
        return CandidateScorer(model, candidates_GC, weight_GCH.transpose(1, 2), bias_GC[:, None])

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        if candidates_GC is not self.candidates_GC:
            return self.model.scores(output_GRH, candidates_GC)
        with torch.autocast(output_GRH.device.type, enabled=False):
            return torch.baddbmm(self.bias_G1C, output_GRH.to(self.bias_G1C.dtype), self.weight_GHC)
