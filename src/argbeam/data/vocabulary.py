"""The words a model knows, in a fixed order, and their token ids."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from argbeam.errors import ConfigError, DataError

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")


@final
@dataclass(frozen=True)
class Vocabulary:
    """`words[i]` is the word with token id i; the first four are `SPECIALS`.

    A corpus word spelled like a special encodes as UNK: text cannot pad, start or end a sequence.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIALS)] != SPECIALS:
            raise DataError(f"a vocabulary starts with {self.words[:4]}; {SPECIALS} are expected")
        if len(set(self.words)) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"{twice!r} stands twice in a vocabulary; each word is expected once")

    @classmethod
    def build(cls, sentences: Iterable[Sequence[str]], *, min_count: int, max_size: int | None = None) -> "Vocabulary":
        """The vocabulary `of_counts` of the words of sentences."""
        counts = Counter(word for sentence in sentences for word in sentence)
        return cls.of_counts(counts, min_count=min_count, max_size=max_size)

    @classmethod
    def of_counts(cls, counts: Mapping[str, int], *, min_count: int, max_size: int | None = None) -> "Vocabulary":
        """Words counted `min_count` times or more, frequent words first, ties by spelling.

        At most `max_size` words, the four specials not among them.
        """
        if min_count < 1:
            raise ConfigError(f"a vocabulary with min_count {min_count}; 1 or more is accepted")
        if max_size is not None and max_size < 1:
            raise ConfigError(f"a vocabulary with max_size {max_size}; 1 or more is accepted, or none for no limit")
        kept = [word for word, count in counts.items() if count >= min_count and word not in SPECIALS]
        kept.sort(key=lambda word: (-counts[word], word))
        return cls((*SPECIALS, *kept[:max_size]))

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The token id of each word, without the specials."""
        return {word: i for i, word in enumerate(self.words) if i >= len(SPECIALS)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def encode(self, words: Iterable[str]) -> list[int]:
        """Token ids of words, UNK for unknown ones."""
        index = self.index
        return [index.get(word, UNK) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of token ids, specials included."""
        ids = list(ids)
        # A negative id would silently index from the end.
        assert all(0 <= i < len(self.words) for i in ids), f"token ids {ids} in a vocabulary of {len(self.words)}"
        return [self.words[i] for i in ids]

    def to_json(self) -> str:
        """A JSON list of the words, one a line."""
        return json.dumps(self.words, ensure_ascii=False, indent=0) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "vocabulary") -> "Vocabulary":
        """Read what `to_json` wrote; `where` names its file in errors."""
        try:
            words = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON; a list of words is expected") from error
        if not isinstance(words, list) or not all(_is_word(word) for word in words):
            raise DataError(f"{where}: not a list of words; a JSON list of non-empty strings is expected")
        try:
            return cls(tuple(words))
        except DataError as error:
            raise DataError(f"{where}: {error}") from error


def fold_digits(word: str) -> str:
    """Write every decimal digit, of any script, as `#`: `1,984th` becomes `#,###th`."""
    return _DIGIT.sub("#", word)


_DIGIT = re.compile(r"\d")


def _is_word(word: object) -> bool:
    # JSON can spell half of a surrogate pair, which no file could be written with.
    return isinstance(word, str) and word != "" and not any("\ud800" <= char <= "\udfff" for char in word)
