"""An LSTM language model: it reads no source, and orders words as their sequence is likely (Schmaltz et al. 2016)."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.data import Batch
from argbeam.models.lstm import draw_weights, set_rows
from argbeam.models.output_layer import word_scores
from argbeam.models.reader import LstmReader
from argbeam.state import Noise, State


class LstmLanguageModel(nn.Module):
    """Word vectors, LSTM layers from a state of zeros, and the output layer.

    What a sentence is about comes from the constraint alone: under `Permutation` the search orders the source's words.
    """

    def __init__(self, *, vocabulary: int, layers: int, hidden: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.decoder = LstmReader(vocabulary, layers, hidden, embedding)
        self.output_layer = nn.Linear(hidden, vocabulary)

    def initialise(self, *, bound: float, generator: torch.Generator) -> None:
        draw_weights(self, bound=bound, generator=generator)

    def set_embeddings(self, *, source: Mapping[int, Tensor], target: Mapping[int, Tensor]) -> None:
        set_rows(self.decoder.embedding, target)

    def modules_by_rate(self) -> dict[str, list[nn.Parameter]]:
        return {
            "encoder": [],
            "decoder": list(self.decoder.parameters()),
            "output": list(self.output_layer.parameters()),
        }

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        return self.decoder.start(batch, noise, dropout=self.dropout, shared={})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        return self.decoder.read(state, self.decoder.vectors(state, tokens_N))

    def output(self, state: State) -> Float[Tensor, "N H"]:
        return state.hypothesis["output"]

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        return word_scores(self.output_layer, output_GRH, candidates_GC)
