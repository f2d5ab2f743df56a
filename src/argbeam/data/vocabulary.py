"""The words a model knows, in a fixed order, their token ids, and the ids with a meaning of their own."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from argbeam.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

# Of vocabularies built from text. Batches, searches and losses use the `SpecialTokens` that they are given.
PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
UNK_WORD = SPECIALS[UNK]


@final
@dataclass(frozen=True)
class SpecialTokens:
    """Token ids with a meaning of their own; they belong to a vocabulary.

    `pad` fills rows up: lengths say where it begins, so that an output may contain it too. `unk` stands for unknown
    words (None: there are none). `bos` is the first token that a decoder reads. Each of `ends` ends an output of open
    length; gold sequences end in the first. `unwritten` are never successors of `Unconstrained`.
    """

    pad: int = PAD
    unk: int | None = UNK
    bos: int = BOS
    ends: tuple[int, ...] = (EOS,)
    unwritten: tuple[int, ...] = (PAD, BOS)

    def __post_init__(self) -> None:
        if not self.ends:
            raise ConfigError("special tokens without an end symbol; one at least is expected")
        if set(self.ends) & set(self.unwritten):
            raise ConfigError(f"special tokens: an end symbol of {self.ends} is among the unwritten {self.unwritten}")

    @property
    def eos(self) -> int:
        """The end symbol of gold sequences."""
        return self.ends[0]

    def ended(self, tokens: "Tensor") -> "Tensor":
        """A mask of the end symbols among token ids."""
        return one_of(tokens, self.ends)


def one_of(tokens: "Tensor", listed: Sequence[int]) -> "Tensor":
    """A mask of the token ids listed, without a copy of the list to the device."""
    found = tokens != tokens
    for token in listed:
        found = found | (tokens == token)
    return found


STANDARD = SpecialTokens()


@final
@dataclass(frozen=True)
class Vocabulary:
    """`words[i]` is the word with token id i. The first four are `SPECIALS`, unless other `specials` are given.

    A corpus word spelled like a special encodes as UNK: text cannot pad, start or end a sequence.
    """

    words: tuple[str, ...]
    specials: SpecialTokens = STANDARD

    def __post_init__(self) -> None:
        if self.specials == STANDARD and self.words[: len(SPECIALS)] != SPECIALS:
            raise DataError(f"a vocabulary starts with {self.words[:4]}; {SPECIALS} are expected")
        if max(self._special_ids) >= len(self.words):
            raise DataError(f"special token {max(self._special_ids)} in a vocabulary of {len(self.words)}")
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
        """The token id of each word, without the four specials, which text cannot spell; other specials are words."""
        hidden = self._special_ids if self.specials == STANDARD else frozenset[int]()
        return {word: i for i, word in enumerate(self.words) if i not in hidden}

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        specials = self.specials
        unk = () if specials.unk is None else (specials.unk,)
        return frozenset((specials.pad, specials.bos, *unk, *specials.ends))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def encode(self, words: Iterable[str]) -> list[int]:
        """Token ids of words, UNK for unknown ones; a DataError where there is no UNK."""
        index, unk = self.index, self.specials.unk
        if unk is not None:
            return [index.get(word, unk) for word in words]
        words = list(words)
        unknown = [word for word in words if word not in index]
        if unknown:
            raise DataError(f"{unknown[0]!r} is not in the vocabulary, which has no token for unknown words")
        return [index[word] for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of token ids, specials included."""
        ids = list(ids)
        # A negative id would silently index from the end.
        assert all(0 <= i < len(self.words) for i in ids), f"token ids {ids} in a vocabulary of {len(self.words)}"
        return [self.words[i] for i in ids]

    def to_json(self) -> str:
        """A JSON list of the words, one a line; other specials than the usual ones stand before them."""
        words: object = self.words
        if self.specials != STANDARD:
            words = {"specials": asdict(self.specials), "words": self.words}
        return json.dumps(words, ensure_ascii=False, indent=0) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "vocabulary") -> "Vocabulary":
        """Read what `to_json` wrote; `where` names its file in errors."""
        try:
            words, specials = json.loads(text), STANDARD
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON; a list of words is expected") from error
        if isinstance(words, dict) and words.keys() == {"specials", "words"}:
            try:
                ids: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in words["specials"].items()}
                specials = SpecialTokens(**ids)
            except (AttributeError, TypeError) as error:
                raise DataError(f"{where}: not the ids of special tokens: {words['specials']!r}") from error
            words = words["words"]
        if not isinstance(words, list) or not all(_is_word(word) for word in words):
            raise DataError(f"{where}: not a list of words; a JSON list of non-empty strings is expected")
        try:
            return cls(tuple(words), specials)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error


def fold_digits(word: str) -> str:
    """Write every decimal digit, of any script, as `#`: `1,984th` becomes `#,###th`."""
    return _DIGIT.sub("#", word)


_DIGIT = re.compile(r"\d")


def _is_word(word: object) -> bool:
    # JSON can spell half of a surrogate pair, which no file could be written with.
    return isinstance(word, str) and word != "" and not any("\ud800" <= char <= "\udfff" for char in word)
