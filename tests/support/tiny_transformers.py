"""Small models of transformers from their configuration, and full forwards as the oracle of an adapted one."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import BOS, EOS, PAD
from argbeam.models.noise import Noise
from argbeam.models.state import State

VOCABULARY = 9
# Ids of vocabularies built from text, which the oracles of losses know.
IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SEQ2SEQ = {
    **IDS, "vocab_size": VOCABULARY, "decoder_start_token_id": BOS, "d_model": 8,
    "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 10, "decoder_ffn_dim": 10,
    "max_position_embeddings": 40, "init_std": 0.5, "forced_eos_token_id": None,
}  # fmt: skip
CAUSAL = {
    **IDS, "vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 40,
    "initializer_range": 0.5,
}  # fmt: skip
T5 = {
    **IDS, "vocab_size": VOCABULARY, "decoder_start_token_id": BOS, "d_model": 8, "d_kv": 4, "d_ff": 10,
    "num_layers": 2, "num_heads": 2, "initializer_factor": 1.0,
}  # fmt: skip
GPT2 = {**IDS, "vocab_size": VOCABULARY, "n_positions": 40, "n_embd": 8, "n_layer": 2, "n_head": 2}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", SEQ2SEQ),
    "marian": ("MarianMTModel", "MarianConfig", SEQ2SEQ | {"decoder_vocab_size": VOCABULARY, "scale_embedding": True}),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SEQ2SEQ),
    "m2m100": ("M2M100ForConditionalGeneration", "M2M100Config", SEQ2SEQ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2 | {"initializer_range": 0.5}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", CAUSAL),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", CAUSAL),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", CAUSAL),
}


def tiny(family: str, *, seed: int = 1, **other: Any) -> Any:
    """A model of the family in float64, all of its weights drawn, biases of scores too."""
    import transformers

    model_name, settings_name, settings = FAMILIES[family]
    torch.manual_seed(seed)
    model = getattr(transformers, model_name)(getattr(transformers, settings_name)(**settings | other)).double().eval()
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


class FullForward(nn.Module):
    """The scores of every prefix from a forward of the whole sentence by transformers' own attention."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        assert batch.source_BS.shape == (1, int(batch.source_length_B))
        return State({"source": batch.source_BS}, {"read": batch.source_BS[:, :0]})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        read_NT = torch.cat([state.hypothesis["read"], tokens_N[:, None]], 1)
        return State(state.sentence, {"read": read_NT}, state.time + 1)

    def output(self, state: State) -> Float[Tensor, "N V"]:
        source_1S, read_NT = state.sentence["source"], state.hypothesis["read"]
        if self.network.config.is_encoder_decoder:
            found = self.network(input_ids=source_1S, decoder_input_ids=read_NT)
        else:  # the first token stands for the source's last one
            found = self.network(input_ids=torch.cat([source_1S, read_NT[:, 1:]], 1))
        return found.logits[:, -1]

    def scores(self, output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        return output_GRH


Made = Callable[..., Any]
