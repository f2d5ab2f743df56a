"""The paper's model: LSTM encoder and decoder, global attention ("general") and input feeding (Luong et al. 2015)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.encoder_decoder import EncoderDecoder
from argbeam.models.noise import Noise
from argbeam.models.output_layer import CandidateScorer, WideLinear
from argbeam.models.recurrence.decoder_pass import Attended, Masks, Restarts, Weights, decoder_pass
from argbeam.models.recurrence.layer_pass import lstm_layer, steps_for
from argbeam.models.recurrence.lstm_step import (
    ENCODER_SITE,
    decoder_noise,
    in_autocast,
    lstm_gates,
    lstm_layers,
    with_noise,
)
from argbeam.models.recurrence.stepwise import StepAttention, StepEmbedding, StepLinear
from argbeam.models.state import Places, State
from argbeam.runtime import triton_guard as kernels


class LstmSeq2Seq(EncoderDecoder):
    """Unidirectional encoder; the decoder starts from its last states (Wiseman & Rush 2016, section 5)."""

    encoder: "Encoder"
    decoder: "Decoder"

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
        self.decoder = Decoder(target_vocabulary, layers, hidden, embedding, input_feeding)
        self.output_layer = WideLinear(hidden, target_vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        source_steps, target_steps = batch.source_BS.shape[1], batch.target_BT.shape[1]
        layers, hidden = self.encoder.layers, self.encoder.hidden
        dtype = self.output_layer.weight.dtype
        between: dict[str, Tensor] = {}
        if noise is not None and self.dropout > 0:
            for i in range(1, layers):
                site = ENCODER_SITE + i
                between[f"encoder_{i}"] = noise.mask(
                    site, steps=source_steps, width=hidden, rate=self.dropout, dtype=dtype
                )
        memory_BSH, last_h, last_c = self.encoder(batch.source_BS, batch.source_length_B, between)
        position_S = torch.arange(source_steps, device=batch.source_BS.device)
        padding_BS = position_S >= batch.source_length_B[:, None]
        return State(
            sentence={
                "layers": self.decoder.layers(memory_BSH, padding_BS[:, None]),
                **decoder_noise(noise, layers, hidden, rate=self.dropout, steps=target_steps, dtype=dtype),
            },
            hypothesis={
                **{f"h_{i}": h_BH for i, h_BH in enumerate(last_h)},
                **{f"c_{i}": c_BH for i, c_BH in enumerate(last_c)},
                "output": torch.zeros_like(last_h[0]),
            },
        )

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        return self.decoder(state, tokens_N)  # type: ignore[no-any-return]

    def step_from(
        self, state: State, rows_X: Int[Tensor, " X"], tokens_X: Int[Tensor, " X"], places: Places | None
    ) -> State:
        """`step(state.select(rows_X), tokens_X)`; without gradient, kernels read the rows where they are."""
        if places is None and _kernels_for(state):
            return self.decoder.kernel_step(state, tokens_X, rows_X)
        return self.decoder(state.select(rows_X), tokens_X, places)  # type: ignore[no-any-return]

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"] | None:
        """What `step` by `step` over these words gives as outputs, in one pass; None where there is no such pass.

        Where `restarted_TB` says so, the second row of a pair takes the first one's state before it reads.
        """
        return self.decoder.unroll(state, read_TN, restarted_TB)

    def scorer_of(self, candidates_GC: Int[Tensor, "G C"]) -> CandidateScorer:
        return CandidateScorer.of(self, self.output_layer, candidates_GC)


class Encoder(nn.Module):
    """LSTM layers over a padded batch of sources."""

    def __init__(self, vocabulary: int, layers: int, hidden: int, embedding: int) -> None:
        super().__init__()
        self.layers, self.hidden = layers, hidden
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.inputs = nn.ModuleList(nn.Linear(embedding if i == 0 else hidden, 4 * hidden) for i in range(layers))
        self.recurrent = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers))

    def forward(
        self, source_BS: Int[Tensor, "B S"], length_B: Int[Tensor, " B"], noise: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "B S H"], list[Float[Tensor, "B H"]], list[Float[Tensor, "B H"]]]:
        """The top layer's outputs, and every layer's h and c at each sentence's own last word."""
        x_BSH = self.embedding(source_BS)
        # What runs on past a sentence's end is never read: the states are taken at length - 1.
        last_B1H = (length_B - 1)[:, None, None].expand(-1, 1, self.hidden)
        last_h, last_c = [], []
        for i, (inputs, recurrent) in enumerate(zip(self.inputs, self.recurrent, strict=True)):
            if f"encoder_{i}" in noise:
                x_BSH = x_BSH * noise[f"encoder_{i}"]
            x_BSH, c_BSH = _layer(inputs(x_BSH), recurrent, dtype=x_BSH.dtype)
            last_h.append(x_BSH.gather(1, last_B1H)[:, 0])
            last_c.append(c_BSH.gather(1, last_B1H)[:, 0])
        return x_BSH, last_h, last_c


def _layer(base_BSG: Tensor, recurrent: nn.Module, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """h and c of an LSTM layer at every step, from zeros; `base_BSG` is the inputs' share of the gates."""
    assert isinstance(recurrent, nn.Linear)
    if not in_autocast(base_BSG):
        return lstm_layer(base_BSG, recurrent.weight)
    gates, step = base_BSG.unbind(1), StepLinear.of(recurrent)
    h_BH = c_BH = torch.zeros_like(gates[0][:, : recurrent.in_features], dtype=dtype)
    h_steps, c_steps = [], []
    for gates_BG in gates:
        h_BH, c_BH = lstm_gates(gates_BG, step(h_BH), c_BH)
        h_steps.append(h_BH)
        c_steps.append(c_BH)
    return torch.stack(h_steps, 1), torch.stack(c_steps, 1)


class Decoder(nn.Module):
    """One word: LSTM layers, attention over the memory, and the output vector that is fed back at the next word."""

    def __init__(self, vocabulary: int, layers: int, hidden: int, embedding: int, input_feeding: bool) -> None:
        super().__init__()
        self.input_feeding = input_feeding
        self.embedding = nn.Embedding(vocabulary, embedding)
        first = embedding + hidden * input_feeding
        self.inputs = nn.ModuleList(nn.Linear(first if i == 0 else hidden, 4 * hidden) for i in range(layers))
        self.recurrent = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers))
        self.attention = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)

    def layers(self, memory_BSH: Float[Tensor, "B S H"], padding_B1S: Bool[Tensor, "B 1 S"]) -> "DecoderLayers":
        """The layers of one pass over a batch, for the state to carry."""
        keys_BSH = self.attention(memory_BSH)
        return DecoderLayers(
            Attended(keys_BSH, memory_BSH, padding_B1S[:, 0]),
            StepEmbedding.of(self.embedding),
            tuple(StepLinear.of(layer) for layer in self.inputs),
            tuple(StepLinear.of(layer) for layer in self.recurrent),
            StepAttention.over(keys_BSH, memory_BSH, padding_B1S),
            StepLinear.of(self.combine),
        )

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None
    ) -> Float[Tensor, "T N H"] | None:
        own, shared = state.hypothesis, state.sentence
        if not self.input_feeding or in_autocast(own["output"]) or state.time > 0:
            return None
        words = self.embedding.embedding_dim
        first, *upper = self.inputs
        base_TNG = F.linear(self.embedding(read_TN), first.weight[:, :words], first.bias)  # type: ignore[index, arg-type]
        numbers = range(len(self.inputs))
        return decoder_pass(
            base_TNG,
            [own[f"h_{i}"] for i in numbers],
            [own[f"c_{i}"] for i in numbers],
            own["output"],
            Weights(
                [first.weight[:, words:], *(layer.weight for layer in upper)],  # type: ignore[index, list-item]
                [layer.weight for layer in self.recurrent],  # type: ignore[misc]
                [layer.bias for layer in self.inputs],  # type: ignore[misc]
                self.combine.weight,
            ),
            shared["layers"].attended,
            Masks([shared.get(f"noise_decoder_{i}") for i in numbers], shared.get("noise_output")),
            None if restarted_TB is None else Restarts(restarted_TB),
        )

    def kernel_step(self, state: State, tokens_N: Int[Tensor, " N"], rows_N: Int[Tensor, " N"] | None) -> State:
        """One step without gradient; the state before is read through `rows_N`."""
        shared, own = state.sentence, state.hypothesis
        attended: Attended = shared["layers"].attended
        words = self.embedding.embedding_dim
        new: dict[str, Tensor] = {}
        steps = steps_for(own["output"])
        for i, (inputs, recurrent) in enumerate(zip(self.inputs, self.recurrent, strict=True)):
            weight: Tensor = inputs.weight  # type: ignore[assignment]
            fed = {"fed_NA": own["output"], "fed_GA": weight[:, words:]} if self.input_feeding else {}
            if i == 0:
                table: Tensor = self.embedding.weight
                # Words are often a column of a table, which a kernel cannot read.
                fed |= {"tokens_N": tokens_N.contiguous(), "table_VE": table, "embedding_GE": weight[:, :words]}
            else:
                noise_BTH = shared.get(f"noise_decoder_{i}")
                fed = {"fed_NA": new[f"h_{i - 1}"], "fed_GA": weight}
                fed |= {} if noise_BTH is None else {"fed_noise_BA": noise_BTH[:, state.time]}
            out = steps.cell(
                base_NG=inputs.bias,
                h_NH=own[f"h_{i}"],
                c_NH=own[f"c_{i}"],
                recurrent_GH=recurrent.weight,
                fed_moves=i == 0,
                rows_N=rows_N,
                **fed,
            )
            new |= {f"h_{i}": out.h_NH, f"c_{i}": out.c_NH}
        context_NH, _ = steps.attention(out.h_NH, attended.keys_BSH, attended.memory_BSH, attended.padding_BS)
        noise_BTH = shared.get("noise_output")
        noise_BH = None if noise_BTH is None else noise_BTH[:, state.time]
        new["output"] = steps.combine(context_NH, out.h_NH, self.combine.weight, noise_BH).output_NH
        return State(shared, new, state.time + 1)

    def forward(self, state: State, tokens_N: Int[Tensor, " N"], places: Places | None = None) -> State:
        """The state after one more word. With `places` the rows are those alone, of each sentence some."""
        if places is None and _kernels_for(state):
            return self.kernel_step(state, tokens_N, None)
        shared, own = state.sentence, state.hypothesis
        layers: DecoderLayers = shared["layers"]
        x_NH = layers.embedding(tokens_N)
        if self.input_feeding:
            x_NH = torch.cat([x_NH, own["output"]], 1)
        x_NH, new = lstm_layers(layers.inputs, layers.recurrent, x_NH, state, places)
        # The rows of a sentence share its memory: (B, R, H) against (B, S, H), nothing is copied per hypothesis.
        sentences = layers.attention.keys_BSH.shape[0]
        if places is None:
            context_NH = layers.attention(x_NH.view(sentences, -1, x_NH.shape[1])).flatten(0, 1)
        else:
            context_NH = places.gathered(layers.attention(places.spread(x_NH, sentences)))
        output_NH = torch.tanh(layers.combine(torch.cat([context_NH.to(x_NH.dtype), x_NH], 1)))
        new["output"] = with_noise(output_NH.to(x_NH.dtype), shared.get("noise_output"), state.time, places)
        return State(shared, new, state.time + 1)


@dataclass(frozen=True)
class DecoderLayers:
    """The decoder's layers during one pass: they collect what the steps contribute to each weight's gradient."""

    attended: Attended
    embedding: StepEmbedding
    inputs: tuple[StepLinear, ...]
    recurrent: tuple[StepLinear, ...]
    attention: StepAttention
    combine: StepLinear


def _kernels_for(state: State) -> bool:
    """Whether the next step can be made of kernels: they have no gradient."""
    output_NH = state.hypothesis["output"]
    return not torch.is_grad_enabled() and kernels.usable(output_NH) and not in_autocast(output_NH)
