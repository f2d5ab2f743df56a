"""The generated default corpus: sentences of an invented language with dependency trees and translations.

Sentence i of a seed is a function of (seed, i, types) alone, so any stretch of the endless corpus can be
made at any time. A hash of its words puts each sentence into train, dev or test: no sentence can occur
in two of them, and a longer split begins with the shorter one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Splits:
    """Three lists of sentences that share none."""

    train: list[GeneratedSentence]
    dev: list[GeneratedSentence]
    test: list[GeneratedSentence]


def sentences(*, seed: int, start: int = 0, types: int = DEFAULT_TYPES) -> Iterator[GeneratedSentence]:
    """The endless corpus of a seed, from sentence `start` on, with a lexicon of `types` word forms."""
    words = lexicon(types)
    _at_least_zero("start", start)
    for index in count(start):
        # Only random() and seeding by a string are kept the same by every Python version.
        draw = Random(f"{seed}:{index}").random
        while True:
            meaning = plan(words, draw)
            tree = first_language(meaning)
            if SHORTEST <= len(tree.words) <= LONGEST:
                break
        yield GeneratedSentence(
            words=tuple(tree.words),
            tags=tuple(tree.tags),
            heads=tuple(tree.heads),
            labels=tuple(tree.labels),
            translation=tuple(second_language(meaning)),
        )


def generate(*, seed: int, size: int, start: int = 0, types: int = DEFAULT_TYPES) -> list[GeneratedSentence]:
    """Sentences `start` to `start + size - 1` of the corpus of a seed."""
    _at_least_zero("size", size)
    return list(islice(sentences(seed=seed, start=start, types=types), size))


def split_of(sentence: GeneratedSentence) -> str:
    """The split a sentence belongs to: "train" (8 in 10), "dev" or "test"."""
    tenth = crc32(" ".join(sentence.words).encode()) % 10
    return next(split for split, tenths in SPLIT_TENTHS.items() if tenth in tenths)


def splits(seed: int, *, train: int, dev: int, test: int, types: int = DEFAULT_TYPES) -> Splits:
    """The first `train`, `dev` and `test` sentences of each split of the corpus of a seed."""
    sizes = {"train": train, "dev": dev, "test": test}
    for split, size in sizes.items():
        _at_least_zero(split, size)
    found: dict[str, list[GeneratedSentence]] = {split: [] for split in sizes}
    missing = sum(sizes.values())
    stream = sentences(seed=seed, types=types)
    while missing:
        sentence = next(stream)
        split = split_of(sentence)
        if len(found[split]) < sizes[split]:
            found[split].append(sentence)
            missing -= 1
    return Splits(**found)


def write_files(
    folder: Path, seed: int, *, train: int, dev: int, test: int, types: int = DEFAULT_TYPES
) -> dict[str, Path]:
    """Write the splits in every format argbeam reads and return the files by name.

    For each split: `.txt` (one sentence a line), `.src` and `.tgt` (parallel text), `.tsv` (the two side by
    side), `.conllu` and `.conllx` (trees).
    """
    made = splits(seed, train=train, dev=dev, test=test, types=types)
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    for split, part in (("train", made.train), ("dev", made.dev), ("test", made.test)):
        for ending, text in FORMATS.items():
            path = folder / f"{split}.{ending}"
            path.write_text(text(part), encoding="utf-8", newline="\n")
            written[path.name] = path
    return written


def source_text(part: Sequence[GeneratedSentence]) -> str:
    """One tokenised sentence a line."""
    return "".join(f"{' '.join(sentence.words)}\n" for sentence in part)


def target_text(part: Sequence[GeneratedSentence]) -> str:
    """One tokenised translation a line."""
    return "".join(f"{' '.join(sentence.translation)}\n" for sentence in part)


def tsv_text(part: Sequence[GeneratedSentence]) -> str:
    """Sentence, tab, translation."""
    return "".join(f"{' '.join(sentence.words)}\t{' '.join(sentence.translation)}\n" for sentence in part)


def conllu_text(part: Sequence[GeneratedSentence]) -> str:
    """CoNLL-U, with the two comments Universal Dependencies asks for."""
    blocks = []
    for number, sentence in enumerate(part, start=1):
        comments = f"# sent_id = {number}\n# text = {' '.join(sentence.words)}\n"
        blocks.append(f"{comments}{_rows(sentence, second_tag=False)}\n")
    return "".join(blocks)


def conllx_text(part: Sequence[GeneratedSentence]) -> str:
    """CoNLL-X: no comments, and the tag in both tag columns."""
    return "".join(f"{_rows(sentence, second_tag=True)}\n" for sentence in part)


FORMATS: dict[str, Callable[[Sequence[GeneratedSentence]], str]] = {
    "txt": source_text,
    "src": source_text,
    "tgt": target_text,
    "tsv": tsv_text,
    "conllu": conllu_text,
    "conllx": conllx_text,
}


def _rows(sentence: GeneratedSentence, *, second_tag: bool) -> str:
    """Ten columns: id, form, lemma, tag, second tag, features, head, label, and two that stay empty."""
    columns = zip(sentence.words, sentence.tags, sentence.heads, sentence.labels, strict=True)
    return "".join(
        f"{position}\t{word}\t_\t{tag}\t{tag if second_tag else '_'}\t_\t{head}\t{label}\t_\t_\n"
        for position, (word, tag, head, label) in enumerate(columns, start=1)
    )


def _at_least_zero(name: str, value: int) -> None:
    if value < 0:
        raise ConfigError(f"generated corpus: {name} = {value}; a number of sentences is 0 or more")
