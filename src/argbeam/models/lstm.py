"""The paper's model: LSTM encoder and decoder with attention and input feeding (Luong et al. 2015).

m_j, h_0 = LSTM(x_1 ... x_S)             one state per source token; the decoder starts from the last ones
h_t = LSTM([y_{t-1}; o_{t-1}], h_{t-1})  o is fed back with the next token (input feeding), o_0 is zero
alpha_j ~ exp(h_t' W m_j)                "general" attention; W m_j is computed once
a_t = sum of alpha_j m_j
o_t = tanh(W_c [a_t; h_t])               the output layer reads o_t
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.network import EncoderDecoder, LstmLayers
from argbeam.models.noise import Noise
from argbeam.models.recurrence.contract import Attended, TokenVectors
from argbeam.models.recurrence.passes import Restarts, decoder_pass, lstm_layer, steps_for
from argbeam.models.recurrence.steps import (
    DECODER_SITE,
    ENCODER_SITE,
    OUTPUT_SITE,
    DecoderState,
    Masks,
    Weights,
    decoder_step,
)
from argbeam.models.state import Places, State


class LstmSeq2Seq(EncoderDecoder):
    """Unidirectional encoder; the decoder starts from its last states (Wiseman & Rush 2016, section 5)."""

    encoder: "Encoder"
    decoder: "AttentionDecoder"

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        layers: int,
        hidden: int,
        embedding: int,
        dropout: float,
        input_feeding: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.encoder = Encoder(source_vocabulary, layers, hidden, embedding)
        self.decoder = AttentionDecoder(target_vocabulary, layers, hidden, embedding, input_feeding)
        self.output_layer = nn.Linear(hidden, target_vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        source_steps, target_steps = batch.source_BS.shape[1], batch.target_BT.shape[1]
        between, dtype = range(1, self.encoder.layers), self.output_layer.weight.dtype
        draw = partial(Masks.of, noise, width=self.encoder.hidden, rate=self.dropout, dtype=dtype)
        noise_S = draw(*(ENCODER_SITE + i for i in between), steps=source_steps).masks
        memory_BSH, last_h, last_c = self.encoder(batch.source_BS, batch.source_length_B, noise_S)
        position_S = torch.arange(source_steps, device=batch.source_BS.device)
        keys_BSH = self.decoder.attention(memory_BSH).to(memory_BSH.dtype)
        padding_BS = position_S >= batch.source_length_B[:, None]
        return State(
            sentence={
                "attended": Attended(keys_BSH, memory_BSH, padding_BS),
                "masks": draw(*(DECODER_SITE + i for i in between), OUTPUT_SITE, steps=target_steps),
            },
            hypothesis=_rows_of(DecoderState(last_h, last_c, torch.zeros_like(last_h[0]))),
        )

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        if torch.is_grad_enabled():
            _, after = self.decoder.read(state, tokens_N[None], None)
            return State(state.sentence, _rows_of(after), state.time + 1)
        return self.decoder.step(state, tokens_N, None, None)

    def step_from(
        self, state: State, rows_X: Int[Tensor, " X"], tokens_X: Int[Tensor, " X"], places: Places | None
    ) -> State:
        return self.decoder.step(state, tokens_X, rows_X, places)

    def attention(self, batch: Batch, read_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
        state, found = self.encode(batch, None), []
        for read_B in read_BT.unbind(1):
            state = self.step(state, read_B)
            top_BH = state.hypothesis[f"h_{self.decoder.layers - 1}"]
            found.append(steps_for(top_BH).attention(top_BH, state.sentence["attended"])[1])
        return torch.stack(found, 1)

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"]:
        return self.decoder.read(state, read_TN, restarted_TB)[0]


class Encoder(LstmLayers):
    """LSTM layers over a padded batch of sources."""

    def forward(
        self, source_BS: Int[Tensor, "B S"], length_B: Int[Tensor, " B"], noise: Sequence[Float[Tensor, "B S H"] | None]
    ) -> tuple[Float[Tensor, "B S H"], list[Float[Tensor, "B H"]], list[Float[Tensor, "B H"]]]:
        """The top layer's h, and every layer's h and c at each sentence's own last token; `noise` is on the input of
        each layer."""
        x_BSH = self.embedding(source_BS)
        # What runs on past a sentence's end is never read: the states are taken at length - 1.
        last_B1H = (length_B - 1)[:, None, None].expand(-1, 1, self.hidden)
        last_h, last_c = [], []
        for inputs, recurrent, noise_BSH in zip(self.inputs, self.recurrent, noise, strict=True):
            base_BSG = inputs(x_BSH if noise_BSH is None else x_BSH * noise_BSH)
            h_SBH, c_SBH = lstm_layer(base_BSG.transpose(0, 1), recurrent.weight)  # type: ignore[arg-type]
            x_BSH = h_SBH.transpose(0, 1).contiguous()
            last_h.append(x_BSH.gather(1, last_B1H)[:, 0])
            last_c.append(c_SBH.transpose(0, 1).gather(1, last_B1H)[:, 0])
        return x_BSH, last_h, last_c


class AttentionDecoder(LstmLayers):
    """LSTM layers, attention over the memory, and the output vector, which is fed back with the next token."""

    def __init__(self, vocabulary: int, layers: int, hidden: int, embedding: int, input_feeding: bool) -> None:
        super().__init__(vocabulary, layers, hidden, embedding, context=hidden * input_feeding)
        self.input_feeding = input_feeding
        self.attention = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)

    def read(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None
    ) -> tuple[Float[Tensor, "T N H"], DecoderState]:
        """The output vector after each token, and the last state: one pass, with gradient."""
        first: Tensor = self.inputs[0].weight  # type: ignore[assignment]
        vector = self.embedding.embedding_dim
        base_TNG = F.linear(self.embedding(read_TN), first[:, :vector], self.inputs[0].bias)  # type: ignore[arg-type]
        weights, before = self._weights(first[:, vector:]), self._state(state)
        masks: Masks = state.sentence["masks"]
        attended = state.sentence["attended"]
        return decoder_pass(base_TNG, before, weights, attended, masks.since(state.time), Restarts.of(restarted_TB))

    def step(
        self, state: State, tokens_N: Int[Tensor, " N"], rows_N: Int[Tensor, " N"] | None, places: Places | None
    ) -> State:
        """The state after one more token, without gradient; the state before is read through `rows_N`."""
        weights, shared = self._weights(self.inputs[0].weight), state.sentence  # type: ignore[arg-type]
        with torch.autocast(tokens_N.device.type, enabled=False):
            out = decoder_step(
                steps_for(state.hypothesis["output"]),
                weights,
                shared["attended"],
                self._state(state),
                base_NG=weights.bias[0],
                noise=shared["masks"].at(state.time, places),
                tokens=TokenVectors(tokens_N, self.embedding.weight),
                rows_N=rows_N,
                places=places,
            )
        h, c, _ = zip(*out.cells, strict=True)
        return State(shared, _rows_of(DecoderState(h, c, out.combined.output_NH)), state.time + 1)

    def _weights(self, first_GI: Tensor) -> Weights:
        return Weights(
            [first_GI, *(layer.weight for layer in self.inputs[1:])],  # type: ignore[list-item]
            [layer.weight for layer in self.recurrent],  # type: ignore[misc]
            [layer.bias for layer in self.inputs],  # type: ignore[misc]
            self.combine.weight,
        )

    def _state(self, state: State) -> DecoderState:
        rows, layers = state.hypothesis, range(self.layers)
        return DecoderState([rows[f"h_{i}"] for i in layers], [rows[f"c_{i}"] for i in layers], rows["output"])


def _rows_of(state: DecoderState) -> dict[str, Tensor]:
    """The per-hypothesis part of a model's state."""
    return {
        **{f"h_{i}": h_NH for i, h_NH in enumerate(state.h)},
        **{f"c_{i}": c_NH for i, c_NH in enumerate(state.c)},
        "output": state.output_NH,
    }
