"""An LSTM language model: it reads no source, and orders words as their sequence is likely (Schmaltz et al. 2016)."""

from jaxtyping import Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.encoder_decoder import EncoderDecoder
from argbeam.models.lstm_decoder import LstmReader
from argbeam.models.noise import Noise
from argbeam.models.state import State


class LstmLanguageModel(EncoderDecoder):
    """Word vectors, LSTM layers from a state of zeros, and the output layer.

    What a sentence is about comes from the constraint alone: under `Permutation` the search orders the source's words.
    """

    decoder: LstmReader

    def __init__(self, *, vocabulary: int, layers: int, hidden: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.encoder = None
        self.decoder = LstmReader(vocabulary, layers, hidden, embedding)
        self.output_layer = nn.Linear(hidden, vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        return self.decoder.start(batch, noise, dropout=self.dropout, shared={})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        return self.decoder.read(state, self.decoder.vectors(state, tokens_N))
