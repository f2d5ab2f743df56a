"""A folder with a model and its tokenizer, as `save_pretrained` of transformers writes them."""

import contextlib
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from argbeam.data.vocabulary import Vocabulary
from argbeam.errors import ConfigError
from argbeam.models.huggingface.adapt import (
    GenerationSettings,
    adapt,
    default_prompt,
    special_tokens,
    unsearched_warning,
)
from argbeam.models.huggingface.adapter import HuggingFaceModel


def open_model(path: str) -> HuggingFaceModel:
    """The model of a folder, adapted; its code must be that of transformers."""
    kind = "AutoModelForSeq2SeqLM" if _opened("AutoConfig", path).is_encoder_decoder else "AutoModelForCausalLM"
    with _quiet():
        network, found = _opened(kind, path, dtype="float32", output_loading_info=True, ignore_mismatched_sizes=True)
    for what, names in (("no weights", found["missing_keys"]), ("weights of another shape", found["mismatched_keys"])):
        if names:  # transformers would draw them at random
            first = min(name if isinstance(name, str) else name[0] for name in names)
            raise ConfigError(
                f"model.path = {path}: {what} for {first} ({len(names)} in all); accepted: all weights of a "
                f"{type(network).__name__}"
            )
    # Given its own settings, `adapt` does not warn of them; training reports them.
    return adapt(network, _opened("AutoTokenizer", path), generation_config=network.generation_config)


def open_tokenizer(path: str) -> Any:
    """The tokenizer of a folder with a model."""
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ConfigError(f"model.path = {path}: no config.json in it; accepted: {_ACCEPTED}")
    tokenizer = _opened("AutoTokenizer", path)
    names = sorted({*tokenizer.vocab_files_names.values()})
    if names and not any((Path(path) / name).is_file() for name in names):
        found = f"no file of a tokenizer in it ({', '.join(names)})"  # transformers makes one without words
        raise ConfigError(f"model.path = {path}: {found}; accepted: {_ACCEPTED}")
    return tokenizer


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


def generation_warning(path: str) -> str | None:
    """A line for users about settings of generation in the folder that no search of argbeam has."""
    return unsearched_warning(generation_settings(path))


def vocabulary_of(tokenizer: Any, settings: GenerationSettings) -> Vocabulary:
    """All tokens that the model scores; ids without a token have a name of their own."""
    size = getattr(settings.config, "decoder_vocab_size", None) or settings.config.vocab_size
    words: dict[str, int] = {}
    for token in range(size):
        word = tokenizer.convert_ids_to_tokens(token) if token < len(tokenizer) else None
        words[word if word and word not in words else f"<unused {token}>"] = token
    return Vocabulary(tuple(words), special_tokens(settings, tokenizer, default_prompt(settings)))


_ACCEPTED = "a folder that save_pretrained of a model and of its tokenizer have written"


def _opened(kind: str, path: str, **options: Any) -> Any:
    try:
        import transformers
    except ImportError:
        raise ConfigError('model.kind = "huggingface" needs transformers: pip install "argbeam[hf]"') from None
    if not Path(path).is_dir():
        raise ConfigError(f"model.path = {path}: no such folder; accepted: {_ACCEPTED}")
    try:
        return getattr(transformers, kind).from_pretrained(path, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = textwrap.shorten(str(error), 300) or type(error).__name__
        raise ConfigError(f"model.path = {path}: {kind} cannot read it: {reason}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the bar and the reports of transformers, which go on afterwards as before."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
