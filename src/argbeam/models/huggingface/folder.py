"""A folder with a model and its tokenizer, as `save_pretrained` of transformers writes them."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argbeam.data.vocabulary import Vocabulary
from argbeam.errors import ConfigError
from argbeam.models.huggingface.adapt import GenerationSettings, adapt, default_prompt, special_tokens
from argbeam.models.huggingface.adapter import HuggingFaceModel


def open_model(path: str) -> HuggingFaceModel:
    """The model of a folder, adapted; its code must be that of transformers."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = _opened("AutoConfig", path)
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return adapt(kind.from_pretrained(path, dtype="float32"), _opened("AutoTokenizer", path))


def open_tokenizer(path: str) -> Any:
    """The tokenizer of a folder."""
    return _opened("AutoTokenizer", path)


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """The files of a tokenizer, for `tokenizer_of`."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def tokenizer_of(files: Mapping[str, bytes]) -> Any:
    """The tokenizer of its files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        return _opened("AutoTokenizer", folder)


def generation_settings(path: str) -> GenerationSettings:
    """The settings of generation of a folder's model, without its weights."""
    config = _opened("AutoConfig", path)
    has_own = (Path(path) / "generation_config.json").is_file()
    return GenerationSettings(config, _opened("GenerationConfig", path) if has_own else None)


def vocabulary_of(tokenizer: Any, settings: GenerationSettings) -> Vocabulary:
    """All tokens that the model scores; ids without a token have a name of their own."""
    size = getattr(settings.config, "decoder_vocab_size", None) or settings.config.vocab_size
    words: dict[str, int] = {}
    for token in range(size):
        word = tokenizer.convert_ids_to_tokens(token) if token < len(tokenizer) else None
        words[word if word and word not in words else f"<unused {token}>"] = token
    return Vocabulary(tuple(words), special_tokens(settings, tokenizer, default_prompt(settings)))


def _opened(kind: str, path: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise ConfigError('model.kind = "huggingface" needs transformers: pip install "argbeam[hf]"') from None
    if not Path(path).is_dir():
        raise ConfigError(f"model.path = {path}: no such folder; accepted: one that save_pretrained has written")
    try:
        return getattr(transformers, kind).from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"model.path = {path}: {kind} cannot read it: {reason}") from None
