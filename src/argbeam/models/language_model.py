"""An LSTM language model: it reads no source, and orders words as their sequence is likely (Schmaltz et al. 2016)."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.lstm_decoder import LstmDecoder
from argbeam.models.network import EncoderDecoder
from argbeam.models.noise import Noise
from argbeam.models.state import State


class LstmLanguageModel(EncoderDecoder):
    """Word vectors, LSTM layers from a state of zeros, and the output layer.

    What a sentence is about comes from the constraint alone: under `Permutation` the search orders the source's words.
    """

    decoder: LstmDecoder

    def __init__(self, *, vocabulary: int, layers: int, hidden: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.encoder = None
        self.decoder = LstmDecoder(vocabulary, layers, hidden, embedding)
        self.output_layer = nn.Linear(hidden, vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        return self.decoder.start(batch, noise, dropout=self.dropout, shared={})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        return self.decoder.read(state, self.decoder.embedding(tokens_N)[None])[1]

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"]:
        return self.decoder.read(state, self.decoder.embedding(read_TN), restarted_TB)[0]
