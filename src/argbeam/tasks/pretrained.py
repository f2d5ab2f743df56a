"""The tokenizer of a pretrained model as a task's: one vocabulary for both sides, with the model's special tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argbeam.data.vocabulary import Vocabulary
from argbeam.errors import DataError
from argbeam.models.huggingface import folder
from argbeam.models.huggingface.adapt import GenerationSettings, default_prompt, without_prompt
from argbeam.models.huggingface.supported import positions
from argbeam.search.constraints.grammar import Spelling

_PREFIX = "huggingface."


@dataclass(frozen=True, eq=False)
class PretrainedTokenizer:
    """One side of a pair. A source has the special tokens that the model expects; a target ends before its end symbol.

    `prompt` is what the decoder reads before an output; that of a causal model is empty.
    """

    tokenizer: Any
    vocabulary: Vocabulary
    prompt: tuple[int, ...]
    causal: bool
    target: bool
    positions: int | None

    def tokenize(self, line: str) -> list[str]:
        if not self.target:
            return self._tokens(self.tokenizer(line)["input_ids"])
        asked = {"text": line, "add_special_tokens": False} if self.causal else {"text_target": line}
        ids = without_prompt(self.tokenizer(**asked)["input_ids"], self.prompt, self.vocabulary.specials)
        return self._tokens(ids[:-1])

    def detokenize(self, tokens: Sequence[str]) -> str:
        ids = [self.vocabulary.index[token] for token in tokens]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def spelling(self) -> Spelling:
        """How tokens spell a text: each as it stands behind another one. Parts of a character spell nothing."""
        written, words = self.tokenizer.convert_tokens_to_string, self.vocabulary.words
        special, known = set(self.tokenizer.all_special_ids), range(min(len(words), len(self.tokenizer)))
        ordinary = [v for v in known if v not in special and self.tokenizer.convert_ids_to_tokens(v) == words[v]]
        first = next((words[v] for v in ordinary if words[v].isascii() and words[v].isalnum()), words[ordinary[0]])
        before, texts = written([first]), [""] * len(words)
        for v in ordinary:
            text = written([first, words[v]]).removeprefix(before)
            texts[v] = "" if "\ufffd" in text else text
        tokens = self.tokenize(before)
        spaced = bool(tokens) and texts[self.vocabulary.index[tokens[0]]].startswith(" ")
        return Spelling(tuple(texts), spaced, whole=False, ends=self.vocabulary.specials.ends)

    def room(self, source: int) -> int | None:
        """The length of outputs that the model has positions for after a source of so many tokens; None: any."""
        if self.positions is None:
            return None
        return self.positions + 1 - (source if self.causal else len(self.prompt)) if source <= self.positions else 0

    def _tokens(self, ids: Sequence[int]) -> list[str]:
        if (most := max(ids, default=0)) >= len(self.vocabulary):
            token = self.tokenizer.convert_ids_to_tokens(most)
            raise DataError(
                f"token {token!r} has the id {most}, the model of model.path has {len(self.vocabulary)} tokens: call "
                "its resize_token_embeddings(len(tokenizer)) and save it again"
            )
        return self.vocabulary.decode(ids)


def pretrained(path: str, files: Mapping[str, bytes] | None = None) -> tuple[PretrainedTokenizer, PretrainedTokenizer]:
    """Source and target tokenizer of the model in a folder; `files` are those of a run that has saved them."""
    saved = {name.removeprefix(_PREFIX): data for name, data in (files or {}).items() if name.startswith(_PREFIX)}
    tokenizer = folder.tokenizer_of(saved) if saved else folder.open_tokenizer(path)
    settings: GenerationSettings = folder.generation_settings(path)
    vocabulary, prompt = folder.vocabulary_of(tokenizer, settings), default_prompt(settings)
    causal = not settings.config.is_encoder_decoder
    common = (tokenizer, vocabulary, prompt, causal)
    source, target = (PretrainedTokenizer(*common, side, positions(settings.config)) for side in (False, True))
    return source, target


def pretrained_files(tokenizer: PretrainedTokenizer) -> dict[str, bytes]:
    """The tokenizer's files, for the run folder."""
    return {_PREFIX + name: data for name, data in folder.tokenizer_files(tokenizer.tokenizer).items()}
