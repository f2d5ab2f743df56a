"""XENT's model: a convolutional encoder with dot-product attention, and an LSTM decoder.

This is the encoder of Rush et al. 2015 as Chopra et al. 2016 and Ranzato et al. 2016 (MIXER) have it, with a_j the sum
of source word j's vector x_j and its position's vector:

    z_j = W [a_{j-2}; ...; a_{j+2}]          what is attended to: a window of words, zeros beyond the sentence's ends
    alpha_j ~ exp(h_{t-1} . z_j)             by the decoder's state before the word is read
    c_t = sum of alpha_j x_j                 the context: word vectors, without positions
    h_t = LSTM([y_{t-1}; c_t], h_{t-1})      from a state of zeros; the output layer reads h_t
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.lstm_decoder import LstmDecoder
from argbeam.models.network import EncoderDecoder
from argbeam.models.noise import Noise
from argbeam.models.recurrence.contract import Attended
from argbeam.models.recurrence.steps import PlainSteps
from argbeam.models.state import State


class ConvSeq2Seq(EncoderDecoder):
    """Convolutional encoder, attention without weights of its own, LSTM decoder without input feeding."""

    encoder: "ConvEncoder"
    decoder: LstmDecoder

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        layers: int,
        hidden: int,
        embedding: int,
        dropout: float,
        window: int = 5,
        positions: int = 60,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.encoder = ConvEncoder(source_vocabulary, hidden, embedding, window, positions)
        self.decoder = LstmDecoder(target_vocabulary, layers, hidden, embedding, context=embedding)
        self.output_layer = nn.Linear(hidden, target_vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        attended = self.encoder(batch.source_BS, batch.source_length_B)
        return self.decoder.start(batch, noise, dropout=self.dropout, shared={"attended": attended})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        attended: Attended = state.sentence["attended"]
        h_NH = state.hypothesis[f"h_{self.decoder.layers - 1}"]
        context_NE, _ = PlainSteps.attention(h_NH, attended)
        x_NI = torch.cat([self.decoder.embedding(tokens_N), context_NE.to(h_NH.dtype)], 1)
        return self.decoder.read(state, x_NI[None])[1]

    def attention(self, batch: Batch, read_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
        state, found = self.encode(batch, None), []
        for read_B in read_BT.unbind(1):
            h_BH = state.hypothesis[f"h_{self.decoder.layers - 1}"]
            found.append(PlainSteps.attention(h_BH, state.sentence["attended"])[1])
            state = self.step(state, read_B)
        return torch.stack(found, 1)


class ConvEncoder(nn.Module):
    """A window of words around each source position, as one product."""

    def __init__(self, vocabulary: int, hidden: int, embedding: int, window: int, positions: int) -> None:
        super().__init__()
        assert window % 2 == 1, "a window has a middle"
        self.window = window
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.position = nn.Embedding(positions, embedding)
        # No bias: it would add the same to every position, which a softmax over positions does not see.
        self.convolution = nn.Linear(window * embedding, hidden, bias=False)

    def forward(self, source_BS: Int[Tensor, "B S"], length_B: Int[Tensor, " B"]) -> Attended:
        """The source as the decoder attends to it."""
        steps, side = source_BS.shape[1], self.window // 2
        position_S = torch.arange(steps, device=source_BS.device)
        padding_BS = position_S >= length_B[:, None]
        word_BSE = self.embedding(source_BS)
        located_BSE = word_BSE + self.position(position_S.clamp(max=self.position.num_embeddings - 1))
        # Beyond its end a sentence is as empty as before its beginning, whatever it is padded with.
        located_BSE = located_BSE.masked_fill(padding_BS[..., None], 0.0)
        wide_BXE = F.pad(located_BSE, (0, 0, side, side))
        window_BSI = torch.cat([wide_BXE[:, shift : shift + steps] for shift in range(self.window)], 2)
        return Attended(self.convolution(window_BSI), word_BSE, padding_BS)
