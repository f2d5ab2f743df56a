"""The generated corpus: sentences of an invented language with dependency trees and translations.

Sentence i is a function of (seed, i, types) alone: any stretch of the endless corpus can be made at any time. A hash of
its words puts each sentence into train, dev or test: no sentence is in two splits, and a longer split begins with the
shorter one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from zlib import crc32

from argbeam.data.generated.grammar import plan
from argbeam.data.generated.languages import first_language, second_language
from argbeam.data.generated.lexicon import lexicon
from argbeam.errors import ConfigError

DEFAULT_TYPES = 2000
SHORTEST, LONGEST = 4, 25

# Tenths of the corpus, by a hash of the words.
SPLIT_TENTHS = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}


@dataclass(frozen=True, slots=True)
class GeneratedSentence:
    """Words with UPOS tags, heads (1 is the first word, 0 marks the root), labels, and the translation."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    translation: tuple[str, ...]


def sentences(*, seed: int, start: int = 0, types: int = DEFAULT_TYPES) -> Iterator[GeneratedSentence]:
    """The endless corpus of a seed, from sentence `start` on, with a lexicon of `types` word forms."""
    vocabulary = lexicon(types)
    _at_least_zero("start", start)
    for index in count(start):
        # Only random() and seeding by a string are kept the same by every Python version.
        draw = Random(f"{seed}:{index}").random
        while True:
            meaning = plan(vocabulary, draw)
            tree = first_language(meaning)
            if SHORTEST <= len(tree.words) <= LONGEST:
                break
        columns = (tuple(tree.words), tuple(tree.tags), tuple(tree.heads), tuple(tree.labels))
        yield GeneratedSentence(*columns, translation=tuple(second_language(meaning)))


def split_of(sentence: GeneratedSentence) -> str:
    """The split a sentence belongs to: "train" (8 in 10), "dev" or "test"."""
    tenth = crc32(" ".join(sentence.words).encode()) % 10
    return next(split for split, tenths in SPLIT_TENTHS.items() if tenth in tenths)


def splits(
    seed: int, *, train: int, dev: int, test: int, types: int = DEFAULT_TYPES
) -> dict[str, list[GeneratedSentence]]:
    """The first `train`, `dev` and `test` sentences of the corpus of a seed, by split; no sentence is in two."""
    sizes = {"train": train, "dev": dev, "test": test}
    for split, size in sizes.items():
        _at_least_zero(split, size)
    parts: dict[str, list[GeneratedSentence]] = {split: [] for split in sizes}
    stream = sentences(seed=seed, types=types)
    while any(len(parts[split]) < size for split, size in sizes.items()):
        sentence = next(stream)
        split = split_of(sentence)
        if len(parts[split]) < sizes[split]:
            parts[split].append(sentence)
    return parts


def _at_least_zero(name: str, value: int) -> None:
    if value < 0:
        raise ConfigError(f"generated corpus: {name} = {value}; a number of sentences is 0 or more")
