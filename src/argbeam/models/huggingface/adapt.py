"""From a model and a tokenizer of Hugging Face to argbeam: special tokens, decoder prompt, texts as examples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from argbeam.data.batches import Example
from argbeam.data.vocabulary import SpecialTokens
from argbeam.errors import ConfigError, DataError
from argbeam.models.huggingface.adapter import (
    ENCODER_DECODERS,
    HuggingFaceModel,
    check_supported,
    plain_model,
    use_attention,
)


def adapt(model: nn.Module, tokenizer: Any = None, *, decoder_prompt: Sequence[int] = ()) -> HuggingFaceModel:
    """A model of transformers, or of peft, as argbeam's `Model`: every loss and the search take it.

    The weights are shared: training the result trains `model`. Special tokens come from the model's generation
    configuration, then from its configuration, then from the tokenizer. `decoder_prompt` are the tokens that an
    encoder-decoder reads before an output, such as (decoder_start_token_id, language code); without it they are
    decoder_start_token_id and, if there is one, forced_bos_token_id.
    """
    check_supported(model)
    use_attention(model)
    prompt = tuple(decoder_prompt) or default_prompt(model)
    return HuggingFaceModel(model, specials=special_tokens(model, tokenizer, prompt), decoder_prompt=prompt)


def default_prompt(model: nn.Module) -> tuple[int, ...]:
    """The tokens that the decoder reads first in `generate`; a causal model reads its source."""
    base = plain_model(model)
    if type(base).__name__ not in ENCODER_DECODERS:
        return ()
    start, forced = _setting(base, "decoder_start_token_id"), _setting(base, "forced_bos_token_id")
    start = _setting(base, "bos_token_id") if start is None else start
    if start is None:
        raise ConfigError(f"{type(base).__name__} without decoder_start_token_id; give adapt(decoder_prompt=...)")
    return (start,) if forced is None else (start, forced)


def special_tokens(model: nn.Module, tokenizer: Any, prompt: Sequence[int]) -> SpecialTokens:
    """The special tokens of a model: those that `generate` uses."""
    base = plain_model(model)
    found = {name: _setting(base, f"{name}_token_id") for name in ("eos", "pad", "bos")}
    for name, token in found.items():
        found[name] = getattr(tokenizer, f"{name}_token_id", None) if token is None else token
    eos = found["eos"]
    if eos is None:
        raise ConfigError(f"{type(base).__name__} without eos_token_id; set it in model.generation_config")
    ends = tuple(eos) if isinstance(eos, Iterable) else (int(eos),)
    pad = ends[0] if found["pad"] is None else int(found["pad"])
    first = prompt[0] if prompt else found["bos"]
    barred = {*(_setting(base, "suppress_tokens") or ())}
    barred |= {words[0] for words in _setting(base, "bad_words_ids") or () if len(words) == 1}
    barred |= {pad}
    return SpecialTokens(
        pad=pad,
        unk=getattr(tokenizer, "unk_token_id", None),
        bos=ends[0] if first is None else int(first),
        ends=ends,
        unwritten=tuple(sorted(barred - {*ends})),
    )


@dataclass(frozen=True)
class Texts:
    """Texts as examples of token ids, and outputs as texts, by the tokenizer of an adapted model."""

    tokenizer: Any
    model: HuggingFaceModel

    def example(self, source: str, target: str = "", number: int = 0) -> Example:
        """The pair as token ids; of a causal model the source is the prompt. `number` is its place in its split."""
        source_ids = tuple(self.tokenizer(source)["input_ids"])
        if not source_ids:
            raise DataError(f"sentence {number}: a source without tokens; a source has one at least")
        if not target:
            return Example(source_ids, (), number)
        ids = (
            self.tokenizer(text_target=target)["input_ids"]
            if self.model.crosses
            else self.tokenizer(target, add_special_tokens=False)["input_ids"]
        )
        return Example(source_ids, gold_of(ids, self.model), number)

    def text(self, tokens: Iterable[int]) -> str:
        """The text of an output."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def gold_of(ids: Sequence[int], model: HuggingFaceModel) -> tuple[int, ...]:
    """A gold sequence from a tokenizer's ids: without what the decoder's prompt holds, up to an end symbol."""
    forced = model.decoder_prompt[1:]
    tokens = list(ids[len(forced) :] if forced and tuple(ids[: len(forced)]) == forced else ids)
    end = next((place for place, token in enumerate(tokens) if token in model.specials.ends), None)
    return tuple(tokens[: end + 1]) if end is not None else (*tokens, model.specials.eos)


def _setting(base: Any, name: str) -> Any:
    """A setting of generation, or of the model."""
    found = getattr(getattr(base, "generation_config", None), name, None)
    return getattr(base.config, name, None) if found is None else found
