"""Models that can be adapted; every other one is refused by name."""

from typing import Any

from torch import nn

from argbeam.errors import ConfigError, DataError

ENCODER_DECODERS = (
    *("T5ForConditionalGeneration", "MT5ForConditionalGeneration", "BartForConditionalGeneration"),
    *("MBartForConditionalGeneration", "MarianMTModel", "PegasusForConditionalGeneration"),
    "M2M100ForConditionalGeneration",
)
CAUSAL = ("GPT2LMHeadModel", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# Kinds of models with a vector for each of so many positions.
WITH_POSITIONS = ("bart", "mbart", "marian", "pegasus", "gpt2")
# Rotary positions whose frequencies depend on the length of what is read: a step and a pass over all tokens differ.
VARYING_ROTATIONS = ("dynamic", "longrope")


def plain_model(network: Any) -> Any:
    """The model of transformers within a model of peft, or the model itself."""
    # `add_adapter` of transformers gives a model settings of peft, and no model around it.
    return network.get_base_model() if hasattr(network, "get_base_model") else network


def output_layer(base: Any) -> Any:
    """The layer from the decoder's outputs to the scores of tokens."""
    return base.get_output_embeddings()


def positions(config: Any) -> int | None:
    """The number of positions that the model has vectors for; None where there is no end of them."""
    return int(config.max_position_embeddings) if config.model_type in WITH_POSITIONS else None


def check_positions(config: Any, longest: int) -> None:
    """Raise a DataError for a sentence of more tokens than the model has positions."""
    limit = positions(config)
    if limit is not None and longest > limit:
        raise DataError(f"a sentence of {longest} tokens; {config.model_type} has {limit} positions")


def check_supported(network: nn.Module) -> None:
    """Raise a ConfigError for a model that a search and a replay would not see alike."""
    known, base = (*ENCODER_DECODERS, *CAUSAL), plain_model(network)
    name, config = type(base).__name__, getattr(base, "config", None)
    if name not in known:
        raise ConfigError(f"model {name} is not supported; accepted: {', '.join(known)}")
    for kind in getattr(config, "layer_types", None) or ():
        if kind != "full_attention":
            raise ConfigError(f"{name} has layers of {kind}; accepted: full_attention")
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rotation in VARYING_ROTATIONS:
        raise ConfigError(
            f"{name} has rope_type {rotation!r}, which varies with the length; accepted: other rope types"
        )
    if getattr(config, "add_cross_attention", False):
        raise ConfigError(f"{name} with add_cross_attention; accepted: without")
    if getattr(base, "is_quantized", False):
        kind = getattr(base.quantization_method, "value", base.quantization_method)
        raise ConfigError(f"{name} with quantised weights ({kind}); accepted: weights in float32, bfloat16 or float16")
    for adapter, settings in getattr(network, "peft_config", {}).items():
        if getattr(settings, "is_prompt_learning", False) or getattr(settings, "is_adaption_prompt", False):
            kind = type(settings).__name__
            raise ConfigError(f"peft's adapter {adapter!r} is a {kind}; accepted: adapters within layers, such as LoRA")
