"""A model of transformers as argbeam's `Model`: steps with a cache, given tokens in one pass, scores of tokens.

encoder-decoder    the decoder reads its prompt (start symbol, language code) and then the output
causal             the source is the prompt: all but its last token is read by `encode`, the first step reads that one
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import SpecialTokens
from argbeam.models.attention.cache import seen_by_pairs
from argbeam.models.huggingface.attention import NAME, RowCache, register, see_all
from argbeam.models.huggingface.attention_weights import attention_weights
from argbeam.models.huggingface.dropout import (
    MEMORY_SITE,
    OUTPUT_SITE,
    SOURCE_SITE,
    JoinedMasks,
    MemoryMasks,
    PassMasks,
    dropping,
)
from argbeam.models.huggingface.prompts import PromptTokens, causal_mask, of_rows, within
from argbeam.models.huggingface.slots import OwnKeys
from argbeam.models.huggingface.supported import ENCODER_DECODERS, check_positions, output_layer, plain_model, positions
from argbeam.models.noise import Noise
from argbeam.models.state import State

WITHOUT_DROPOUT = "a network in training mode, and no Noise to draw its dropout by: it runs without dropout (eval())"


class HuggingFaceModel(nn.Module):
    """A model of transformers, or of peft, with what every step of a search and every loss needs.

    Its own weights are `network`'s, so that training it trains the network. `decoder_prompt` is what the decoder of an
    encoder-decoder reads before an output. Dropout of hidden units is drawn by the noise, at the network's own rates:
    search and replay see one network.
    """

    def __init__(self, network: nn.Module, *, specials: SpecialTokens, decoder_prompt: Sequence[int]) -> None:
        super().__init__()
        self.network = network
        self.specials, self.decoder_prompt = specials, tuple(decoder_prompt)
        base = plain_model(network)
        self.crosses = type(base).__name__ in ENCODER_DECODERS
        self.vocabulary = int(output_layer(base).weight.shape[0])
        self.dropout = 0.0  # not read: the network's configuration has its rates
        self.prompt_again = False  # whether passes with gradient read the prompt of a causal model once more

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        if self.network.training:
            # Dropout of transformers is drawn anew in every call: search and replay would see two networks.
            self.network.eval()
            if noise is None:
                warnings.warn(WITHOUT_DROPOUT, stacklevel=2)
        source_BS, length_B = batch.source_BS, batch.source_length_B
        base = plain_model(self.network)
        steps = batch.target_BT.shape[1] + len(self.decoder_prompt)
        if self.crosses:
            check_positions(base.config, max(source_BS.shape[1], steps - 1))
        position_S = torch.arange(source_BS.shape[1], device=source_BS.device)
        # Weights may be split over processes: nothing is made like them.
        output_BH = torch.zeros(len(source_BS), base.config.hidden_size, dtype=base.dtype, device=source_BS.device)
        masks = None if noise is None else PassMasks(noise, SOURCE_SITE, source_BS.shape[1])
        shared: dict[str, Any] = {
            "masks": None if noise is None else PassMasks(noise, OUTPUT_SITE, steps),
            "steps": steps,
        }
        if self.crosses:
            real_B11S = (position_S < length_B[:, None])[:, None, None]
            with dropping(masks):
                found = base.get_encoder()(input_ids=source_BS, attention_mask=real_B11S)
            shared |= {"memory": found.last_hidden_state, "real": real_B11S}
            if noise is not None:
                drawn = PassMasks(noise, MEMORY_SITE, source_BS.shape[1])
                shared["memory masks"] = MemoryMasks(found.last_hidden_state, drawn)
            shared["bias"] = torch.zeros_like(real_B11S, dtype=base.dtype).masked_fill(~real_B11S, -torch.inf)
            # Filled on the device: a copy from the host could not be captured.
            prompt_BP = torch.cat([source_BS.new_full((len(source_BS), 1), token) for token in self.decoder_prompt], 1)
            shared |= {"prompt": prompt_BP, "cross": None}
        else:
            last_B1 = length_B[:, None] - 1
            shared |= {"prompt": source_BS.gather(1, last_B1), "first": last_B1}
            tokens = PromptTokens(source_BS[:, :-1], position_S[:-1] < last_B1, masks, positions(base.config))
            with dropping(masks), torch.set_grad_enabled(torch.is_grad_enabled() and not self.prompt_again):
                shared |= {"prompts": tokens.keys(_stack(base)), "source": tokens}
        return State(shared, {"output": _precise(output_BH)})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        shared, tokens_NT, mask_11QA = state.sentence, tokens_N[:, None], None
        first = state.time == 0
        if first:
            tokens_NT = of_rows(shared["prompt"], len(tokens_N))
            mask_11QA = causal_mask(tokens_NT.shape[1], tokens_NT.device) if tokens_NT.shape[1] > 1 else None
            own = self._no_keys(shared)
        else:
            own = shared["own"].step(state.hypothesis["slots"], shared.get("prompts", ()))
        before = 0 if first else own.get_seq_length()
        with dropping(shared["masks"], before, shared.get("memory masks")):
            output_NTH, cross = self._read(shared, tokens_NT, own, before, mask_11QA)
        if first:
            layers = own.layers if not self.crosses else _keys_and_values(own)
            keys, slots_NT = OwnKeys.of(layers, sentences=len(shared["prompt"]), steps=shared["steps"])
        else:
            keys, slots_NT = own.after()
        shared = {**shared, "cross": cross, "own": keys}
        return State(shared, {"output": output_NTH[:, -1], "slots": slots_NT}, state.time + 1)

    def output(self, state: State) -> Float[Tensor, "N H"]:
        return state.hypothesis["output"]

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        base = plain_model(self.network)
        layer = output_layer(base)
        bias_1V = getattr(base, "final_logits_bias", None)
        # Scores decide who wins: they are computed in the precision of the weights whatever the rest is computed in,
        # and summed in single precision at least, as `generate` does.
        with torch.autocast(output_GRH.device.type, enabled=False):
            output_GRH = output_GRH.to(layer.weight.dtype)
            if getattr(base.config, "scale_decoder_outputs", False):
                output_GRH = output_GRH * base.config.d_model**-0.5
            if candidates_GC is None or type(layer) is not nn.Linear:
                scores_GRV: Tensor = layer(output_GRH)
                scores_GRV = scores_GRV if bias_1V is None else scores_GRV + bias_1V
                scores_GRV = _precise(scores_GRV)
                if candidates_GC is None:
                    return scores_GRV
                return scores_GRV.gather(2, candidates_GC[:, None].expand(-1, output_GRH.shape[1], -1))
            scores_GRC: Tensor = output_GRH @ F.embedding(candidates_GC, layer.weight).transpose(1, 2)
            for bias_V in (layer.bias, None if bias_1V is None else bias_1V[0]):
                scores_GRC = scores_GRC if bias_V is None else scores_GRC + bias_V[candidates_GC][:, None]
            return _precise(scores_GRC)

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"] | None:
        if state.time > 0:
            return None
        shared, rows = state.sentence, read_TN.shape[1]
        # The prompt takes the place of the first token.
        prompt_NP = of_rows(shared["prompt"], rows)
        tokens_NX, extra, again = torch.cat([prompt_NP, read_TN[1:].T], 1), prompt_NP.shape[1] - 1, 0
        own, masks = self._no_keys(shared), shared["masks"]
        if self.prompt_again and not self.crosses:
            source: PromptTokens = shared["source"]
            tokens_NX, own, again = source.before(tokens_NX), RowCache(), source.tokens_BP.shape[1]
            masks = None if masks is None or source.masks is None else JoinedMasks(source.masks, again, masks)
        extra += again
        if restarted_TB is None:
            mask = causal_mask(tokens_NX.shape[1], tokens_NX.device)
        else:
            mask = seen_by_pairs(F.pad(restarted_TB, (0, 0, extra, 0)))[:, None]
        if again:
            mask = source.hidden_in(mask, rows=rows, lanes=1 if restarted_TB is None else 2)
        with dropping(masks, 0, shared.get("memory masks")):
            output_NXH, _ = self._read(shared, tokens_NX, own, -again, mask)
        return output_NXH[:, extra:].transpose(0, 1)

    def attention(self, batch: Batch, read_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
        return attention_weights(plain_model(self.network), self.encode(batch, None).sentence, batch, read_BT)

    def initialise(self, *, bound: float | None, generator: torch.Generator) -> None:
        """Nothing is drawn: the weights are the network's."""

    def set_embeddings(self, *, source: Mapping[int, Tensor], target: Mapping[int, Tensor]) -> None:
        """None are given: the vectors are the network's."""

    def modules_by_rate(self) -> dict[str, list[nn.Parameter]]:
        base = plain_model(self.network)
        output = {id(weight) for weight in output_layer(base).parameters()}
        encoder = {id(weight) for weight in base.get_encoder().parameters()} - output if self.crosses else set()
        parts: dict[str, list[nn.Parameter]] = {"encoder": [], "decoder": [], "output": []}
        for weight in self.parameters():
            part = "output" if id(weight) in output else "encoder" if id(weight) in encoder else "decoder"
            parts[part].append(weight)
        return parts

    def _no_keys(self, shared: Mapping[str, Any]) -> Any:
        """The cache of a pass that begins with the decoder's first token."""
        return _cache_of(()) if self.crosses else RowCache(shared["prompts"])

    def _read(
        self,
        shared: Mapping[str, Any],
        tokens_NT: Int[Tensor, "N T"],
        own: Any,
        before: int,
        mask: Bool[Tensor, "G 1 Q A"] | None,
    ) -> tuple[Float[Tensor, "N T H"], Any]:
        """The decoder's last layer, and the keys and values of the source; those of the tokens go into `own`.

        Rows have read `before` tokens of the output; if it is negative, as many tokens of the prompt come first.
        """
        base = plain_model(self.network)
        mask = see_all(tokens_NT.device) if mask is None else mask
        if not self.crosses:
            place_T = torch.arange(before, before + tokens_NT.shape[1], device=tokens_NT.device)
            position_NT = of_rows(shared["first"], len(tokens_NT)) + place_T
            if before < 0:
                position_NT = torch.where(place_T < 0, place_T - before, position_NT)
            found = _stack(base)(
                input_ids=tokens_NT,
                attention_mask=mask,
                position_ids=within(positions(base.config), position_NT),
                past_key_values=own,
                use_cache=True,
            )
            return _precise(found.last_hidden_state), None
        from transformers import EncoderDecoderCache

        cross = _cache_of(shared["cross"] or ())
        found = base.get_decoder()(
            input_ids=tokens_NT,
            attention_mask=mask,
            encoder_hidden_states=shared["memory"],
            encoder_attention_mask=shared["bias"],
            past_key_values=EncoderDecoderCache(own, cross),
            use_cache=True,
        )
        return _precise(found.last_hidden_state), _keys_and_values(cross)


def use_attention(network: nn.Module) -> None:
    """Let every layer of the model call `attention`."""
    register()
    plain_model(network).set_attn_implementation(NAME)


def _stack(base: Any) -> Any:
    """The layers of a causal model without its output layer."""
    return base.base_model


def _precise(x: Tensor) -> Tensor:
    """In single precision at least: a beam has the precision of outputs and scores."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _cache_of(layers: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """A cache of transformers with these keys and values; it grows without a copy from the host."""
    from transformers import DynamicCache

    made, kind = DynamicCache(), _layer_class()
    made.layer_class_to_replicate = kind
    for key, value in layers:
        layer = kind()
        layer.keys, layer.values, layer.is_initialized = key, value, True
        made.layers.append(layer)
    return made


@cache
def _layer_class() -> Any:
    from transformers.cache_utils import DynamicLayer

    class GrowingLayer(DynamicLayer):
        """A layer whose empty start is made on the device, so that it can be captured."""

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            self.keys, self.values, self.is_initialized = key_states.new_empty(0), value_states.new_empty(0), True

    return GrowingLayer


def _keys_and_values(filled: Any) -> list[tuple[Tensor, Tensor]]:
    return [(layer.keys, layer.values) for layer in filled.layers]
