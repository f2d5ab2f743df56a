"""A decoder that starts from zeros: it reads the words of an output, each with a context or without."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.noise import Noise
from argbeam.models.recurrence.lstm_step import decoder_noise, lstm_layers, with_noise
from argbeam.models.recurrence.stepwise import StepEmbedding, StepLinear
from argbeam.models.state import State


class LstmReader(nn.Module):
    """Word vectors and LSTM layers; the top layer's h is what the output layer reads.

    `context` is the size of what each word comes with.
    """

    def __init__(self, vocabulary: int, layers: int, hidden: int, embedding: int, *, context: int = 0) -> None:
        super().__init__()
        self.layers, self.hidden = layers, hidden
        self.embedding = nn.Embedding(vocabulary, embedding)
        first = embedding + context
        self.inputs = nn.ModuleList(nn.Linear(first if i == 0 else hidden, 4 * hidden) for i in range(layers))
        self.recurrent = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers))

    def start(self, batch: Batch, noise: Noise | None, *, dropout: float, shared: Mapping[str, Any]) -> State:
        """The state before the first word, with what else the rows of a sentence share."""
        weight_VE, steps = self.embedding.weight, batch.target_BT.shape[1]
        zero_BH = weight_VE.new_zeros(batch.source_BS.shape[0], self.hidden)
        masks = decoder_noise(noise, self.layers, self.hidden, rate=dropout, steps=steps, dtype=weight_VE.dtype)
        layers = ReaderLayers(
            StepEmbedding.of(self.embedding),
            tuple(StepLinear.of(layer) for layer in self.inputs),
            tuple(StepLinear.of(layer) for layer in self.recurrent),
        )
        cells = {f"{name}_{i}": zero_BH for name in ("h", "c") for i in range(self.layers)}
        return State({"layers": layers, **shared, **masks}, {**cells, "output": zero_BH})

    def vectors(self, state: State, tokens_N: Int[Tensor, " N"]) -> Float[Tensor, "N E"]:
        """The words' vectors."""
        layers: ReaderLayers = state.sentence["layers"]
        return layers.embedding(tokens_N)

    def read(self, state: State, word_NI: Float[Tensor, "N I"]) -> State:
        """The state after a word, given as its vector and its context side by side."""
        layers: ReaderLayers = state.sentence["layers"]
        h_NH, new = lstm_layers(layers.inputs, layers.recurrent, word_NI, state)
        new["output"] = with_noise(h_NH, state.sentence.get("noise_output"), state.time)
        return State(state.sentence, new, state.time + 1)


@dataclass(frozen=True)
class ReaderLayers:
    """The layers during one pass: they collect what the steps contribute to each weight's gradient."""

    embedding: StepEmbedding
    inputs: tuple[StepLinear, ...]
    recurrent: tuple[StepLinear, ...]
