"""From a model and a tokenizer of Hugging Face to argbeam: special tokens, decoder prompt, texts as examples."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from argbeam.data.batches import Example
from argbeam.data.vocabulary import SpecialTokens
from argbeam.errors import ConfigError, DataError
from argbeam.models.huggingface.adapter import HuggingFaceModel, use_attention
from argbeam.models.huggingface.supported import check_positions, check_supported, plain_model


def adapt(
    model: nn.Module, tokenizer: Any = None, *, decoder_prompt: Sequence[int] = (), generation_config: Any = None
) -> HuggingFaceModel:
    """A model of transformers, or of peft, as argbeam's `Model`: every loss and the search take it.

    The weights are shared: training the result trains `model`. Special tokens come from the generation configuration,
    the model's own if none is given, then from the model's configuration, then from the tokenizer. `decoder_prompt`
    are the tokens that an encoder-decoder reads before an output, such as (decoder_start_token_id, language code);
    without it they are decoder_start_token_id and, if there is one, forced_bos_token_id.
    """
    check_supported(model)
    use_attention(model)
    base = plain_model(model)
    settings = GenerationSettings(base.config, generation_config or getattr(base, "generation_config", None))
    if generation_config is None and (warning := unsearched_warning(settings)):
        warnings.warn(warning, stacklevel=2)
    prompt = tuple(decoder_prompt) or default_prompt(settings)
    return HuggingFaceModel(model, specials=special_tokens(settings, tokenizer, prompt), decoder_prompt=prompt)


# Settings by which `generate` changes scores or draws tokens.
_PROCESSORS = (
    *("do_sample", "min_length", "min_new_tokens", "repetition_penalty", "encoder_repetition_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "begin_suppress_tokens", "sequence_bias"),
    "exponential_decay_length_penalty",
)


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of generation, and where they say nothing, of the model."""

    config: Any
    generation: Any

    @property
    def name(self) -> str:
        return str(self.config.model_type)

    def get(self, name: str) -> Any:
        for settings in (self.generation, self.config):
            if getattr(settings, name, None) is not None:
                return getattr(settings, name)
        return None


def unsearched_warning(settings: GenerationSettings) -> str | None:
    """A line for users about settings of generation that losses and searches of argbeam do not have."""
    values = {name: getattr(settings.generation, name, None) for name in _PROCESSORS}
    found = [name for name, value in values.items() if value is True or (value and value != 1)]
    if not found:
        return None
    return f"generation_config has {', '.join(found)}: generate applies it, losses and searches of argbeam do not"


def default_prompt(settings: GenerationSettings) -> tuple[int, ...]:
    """The tokens that the decoder reads first in `generate`; a causal model reads its source."""
    if not settings.config.is_encoder_decoder:
        return ()
    start, forced = settings.get("decoder_start_token_id"), settings.get("forced_bos_token_id")
    start = settings.get("bos_token_id") if start is None else start
    if start is None:
        raise ConfigError(f"{settings.name} without decoder_start_token_id; give adapt(decoder_prompt=...)")
    return (start,) if forced is None else (start, forced)


def special_tokens(settings: GenerationSettings, tokenizer: Any, prompt: Sequence[int]) -> SpecialTokens:
    """The special tokens that `generate` uses."""
    found = {name: settings.get(f"{name}_token_id") for name in ("eos", "pad", "bos")}
    for name, token in found.items():
        found[name] = getattr(tokenizer, f"{name}_token_id", None) if token is None else token
    eos = found["eos"]
    if eos is None:
        raise ConfigError(f"{settings.name} without eos_token_id; set it in model.generation_config")
    barred = {*(settings.get("suppress_tokens") or ())}
    known = tuple(eos) if isinstance(eos, Iterable) else (int(eos),)
    ends = tuple(end for end in known if end not in barred)
    if not ends:
        raise ConfigError(f"{settings.name}: suppress_tokens has all end symbols {known}; one that is not is needed")
    pad = known[0] if found["pad"] is None else int(found["pad"])
    first = prompt[0] if prompt else found["bos"]
    barred |= {words[0] for words in settings.get("bad_words_ids") or () if len(words) == 1}
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
        gold = gold_of(ids, self.model)
        if not self.model.crosses:  # gold's last token is not read
            check_positions(plain_model(self.model.network).config, len(source_ids) + len(gold) - 1)
        return Example(source_ids, gold, number)

    def text(self, tokens: Iterable[int]) -> str:
        """The text of an output."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def gold_of(ids: Sequence[int], model: HuggingFaceModel) -> tuple[int, ...]:
    """A gold sequence from a tokenizer's ids: without what the decoder's prompt holds, up to an end symbol."""
    return without_prompt(ids, model.decoder_prompt, model.specials)


def without_prompt(ids: Sequence[int], prompt: Sequence[int], specials: SpecialTokens) -> tuple[int, ...]:
    """The same by the decoder's prompt and the special tokens."""
    forced = tuple(prompt[1:])
    tokens = list(ids[len(forced) :] if forced and tuple(ids[: len(forced)]) == forced else ids)
    end = next((place for place, token in enumerate(tokens) if token in specials.ends), None)
    return tuple(tokens[: end + 1]) if end is not None else (*tokens, specials.eos)
