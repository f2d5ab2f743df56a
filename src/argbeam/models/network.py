"""What the networks of recipes share: an output layer, and all that follows from an encoder and a decoder."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.models.contract import Scorer
from argbeam.models.recurrence.steps import linear
from argbeam.models.state import State


class ReadsTokens(Protocol):
    """A part of a network that tokens enter by their vectors."""

    embedding: nn.Embedding

    def parameters(self) -> Iterator[nn.Parameter]: ...


class EncoderDecoder(nn.Module):
    """An encoder (None: the source is not read), a decoder and an output layer.

    Classes of networks make these parts and define `encode` and `step`. `step` puts the input of the output layer into
    the state as `output`.
    """

    encoder: ReadsTokens | None
    decoder: ReadsTokens
    output_layer: nn.Linear

    def initialise(self, *, bound: float | None, generator: torch.Generator) -> None:
        if bound is None:
            _draw_usual(self, generator)
            return
        for parameter in self.parameters():
            _draw_uniform(parameter, bound, generator)

    def set_embeddings(self, *, source: Mapping[int, Tensor], target: Mapping[int, Tensor]) -> None:
        with torch.no_grad():
            for part, vectors in ((self.encoder, source), (self.decoder, target)):
                if part is not None:
                    for row, vector in vectors.items():
                        part.embedding.weight[row].copy_(vector)

    def modules_by_rate(self) -> dict[str, list[nn.Parameter]]:
        output = list(self.output_layer.parameters())
        tied = {id(parameter) for parameter in output}
        return {
            "encoder": [] if self.encoder is None else list(self.encoder.parameters()),
            "decoder": [parameter for parameter in self.decoder.parameters() if id(parameter) not in tied],
            "output": output,
        }

    def output(self, state: State) -> Float[Tensor, "N H"]:
        return state.hypothesis["output"]

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        weight_VH, bias_V = self.output_layer.weight, self.output_layer.bias
        if candidates_GC is None and not torch.is_grad_enabled():
            return VocabularyScorer.of(self, self.output_layer).scores(output_GRH)
        # Scores decide who wins: they are computed in full precision whatever the rest is computed in.
        with torch.autocast(output_GRH.device.type, enabled=False):
            output_GRH = output_GRH.to(weight_VH.dtype)
            if candidates_GC is None:
                return F.linear(output_GRH, weight_VH, bias_V)
            one_each = output_GRH.shape[1] == candidates_GC.shape[1] == 1
            if one_each and _product_is_cheaper(len(output_GRH), len(weight_VH), on_gpu=output_GRH.is_cuda):
                return F.linear(output_GRH, weight_VH, bias_V).gather(2, candidates_GC[:, None])
            weight_GCH, bias_GC = _rows_listed(self.output_layer, candidates_GC)
            if one_each:
                return (output_GRH * weight_GCH).sum(2, keepdim=True) + bias_GC[:, None]
            return torch.baddbmm(bias_GC[:, None], output_GRH, weight_GCH.transpose(1, 2))

    def scorer_of(self, candidates_GC: Int[Tensor, "G C"] | None) -> Scorer:
        if candidates_GC is None:
            return VocabularyScorer.of(self, self.output_layer)
        weight_GCH, bias_GC = _rows_listed(self.output_layer, candidates_GC)
        return CandidateScorer(self, candidates_GC, weight_GCH.transpose(1, 2), bias_GC[:, None])


@dataclass(frozen=True)
class VocabularyScorer:
    """Scorer of the whole vocabulary without gradient. The weights may have rows of zeros behind those of tokens."""

    network: Scorer
    vocabulary: int
    weight_WH: Float[Tensor, "W H"]
    bias_W: Float[Tensor, " W"]

    @staticmethod
    def of(network: Scorer, layer: nn.Linear) -> "VocabularyScorer":
        """A GPU takes twice the time for a product whose width is no multiple of 8: there the weights are padded."""
        more = -layer.out_features % 8 if layer.weight.is_cuda else 0
        weight_WH = F.pad(layer.weight, (0, 0, 0, more)) if more else layer.weight
        bias_W = F.pad(layer.bias, (0, more)) if more else layer.bias
        return VocabularyScorer(network, layer.out_features, weight_WH, bias_W)

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        if candidates_GC is not None:
            return self.network.scores(output_GRH, candidates_GC)
        with torch.autocast(output_GRH.device.type, enabled=False):
            output_NH = output_GRH.to(self.weight_WH.dtype).flatten(0, 1)
            scores_NV = linear(output_NH, self.weight_WH, self.bias_W)[:, : self.vocabulary]
        return scores_NV.view(*output_GRH.shape[:2], -1)


@dataclass(frozen=True)
class CandidateScorer:
    """Scorer with the output layer's rows of one list of candidates, looked up once for all steps of a search."""

    network: Scorer
    candidates_GC: Int[Tensor, "G C"]
    weight_GHC: Float[Tensor, "G H C"]
    bias_G1C: Float[Tensor, "G 1 C"]

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        if candidates_GC is not self.candidates_GC:
            return self.network.scores(output_GRH, candidates_GC)
        with torch.autocast(output_GRH.device.type, enabled=False):
            return torch.baddbmm(self.bias_G1C, output_GRH.to(self.bias_G1C.dtype), self.weight_GHC)


# Scores of a product that takes the place of looked-up weights, 64 MiB.
_MOST_SCORES = 1 << 24


def _product_is_cheaper(rows: int, vocabulary: int, *, on_gpu: bool) -> bool:
    """One token of each row, at least as many as the vocabulary, with gradient on a GPU: adding up the gradients of
    looked-up weights in a fixed order takes longer than products over a small vocabulary."""
    return on_gpu and torch.is_grad_enabled() and vocabulary <= rows <= _MOST_SCORES // vocabulary


def _rows_listed(
    layer: nn.Linear, candidates_GC: Int[Tensor, "G C"]
) -> tuple[Float[Tensor, "G C H"], Float[Tensor, "G C"]]:
    """The layer's rows of these candidates: only they are read, and only they get a gradient."""
    return F.embedding(candidates_GC, layer.weight), F.embedding(candidates_GC, layer.bias[:, None])[..., 0]


def _draw_uniform(weight: Tensor, bound: float, generator: torch.Generator) -> None:
    """Drawn on the CPU: the same on every device."""
    with torch.no_grad():
        weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def _draw_usual(network: EncoderDecoder, generator: torch.Generator) -> None:
    """Products uniform (Glorot & Bengio 2010), vectors and the output layer normal with a variance of one over their
    width, biases 0, norms the identity."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            _draw_uniform(module.weight, math.sqrt(6 / (module.in_features + module.out_features)), generator)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
    tables = [part.embedding.weight for part in (network.encoder, network.decoder) if part is not None]
    with torch.no_grad():
        for table_VH in (*tables, network.output_layer.weight):
            deviation = table_VH.shape[1] ** -0.5
            table_VH.copy_(torch.empty(table_VH.shape).normal_(0.0, deviation, generator=generator))


class LstmLayers(nn.Module):
    """The weights of token vectors and LSTM layers. `context` is the width of what the first layer reads besides."""

    def __init__(self, vocabulary: int, layers: int, hidden: int, embedding: int, *, context: int = 0) -> None:
        super().__init__()
        self.layers, self.hidden = layers, hidden
        self.embedding = nn.Embedding(vocabulary, embedding)
        first = embedding + context
        self.inputs = nn.ModuleList(nn.Linear(first if i == 0 else hidden, 4 * hidden) for i in range(layers))
        self.recurrent = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers))
