"""What the networks that recipes build share: all that follows from their parts, whatever these do."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.models.output_layer import word_scores
from argbeam.models.state import State


class ReadsWords(Protocol):
    """A part of a network that words enter by their vectors."""

    embedding: nn.Embedding

    def parameters(self) -> Iterator[nn.Parameter]: ...


class EncoderDecoder(nn.Module):
    """An encoder (None: the source is not read), a decoder and an output layer, made by the classes of networks.

    Those also say how the parts work together: `encode` and `step`, which puts what the output layer reads into the
    state as `output`.
    """

    encoder: ReadsWords | None
    decoder: ReadsWords
    output_layer: nn.Linear

    def initialise(self, *, bound: float, generator: torch.Generator) -> None:
        """Draw every weight uniformly from [-bound, bound], in the order of the parameters."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))

    def set_embeddings(self, *, source: Mapping[int, Tensor], target: Mapping[int, Tensor]) -> None:
        if self.encoder is not None:
            _set_rows(self.encoder.embedding, source)
        _set_rows(self.decoder.embedding, target)

    def modules_by_rate(self) -> dict[str, list[nn.Parameter]]:
        return {
            "encoder": [] if self.encoder is None else list(self.encoder.parameters()),
            "decoder": list(self.decoder.parameters()),
            "output": list(self.output_layer.parameters()),
        }

    def output(self, state: State) -> Float[Tensor, "N H"]:
        return state.hypothesis["output"]

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        return word_scores(self.output_layer, output_GRH, candidates_GC)


def _set_rows(table: nn.Embedding, rows: Mapping[int, Tensor]) -> None:
    """Overwrite the rows listed."""
    with torch.no_grad():
        for row, vector in rows.items():
            table.weight[row].copy_(vector)
