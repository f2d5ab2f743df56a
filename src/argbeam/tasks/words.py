"""Words as every task treats them: symbols, vocabularies, and the sentences that training can use."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from argbeam.data.vocabulary import Vocabulary, fold_digits
from argbeam.settings import Text

Sentence = TypeVar("Sentence")


def symbols(words: Iterable[str], text: Text) -> tuple[str, ...]:
    """Words as the model sees them: in lower case and with folded digits if the recipe says so."""
    lowered = (word.lower() for word in words) if text.lowercase else words
    return tuple(fold_digits(word) for word in lowered) if text.fold_digits else tuple(lowered)


def build_vocabulary(counts: Mapping[str, int], text: Text) -> Vocabulary:
    """The vocabulary of counted symbols, with the recipe's limits."""
    return Vocabulary.of_counts(counts, min_count=text.min_count, max_size=text.max_vocabulary or None)


def load_vocabulary(assets: Mapping[str, bytes], name: str) -> Vocabulary:
    """The vocabulary in a task's file."""
    return Vocabulary.from_json(assets[name].decode(), where=name)


def usable(
    split: str, sentences: Iterable[Sentence], fault: Callable[[Sentence], str], left_out: Counter[str]
) -> Iterator[Sentence]:
    """The sentences of a split. Training leaves out those with a fault, counted in `left_out` by fault."""
    for sentence in sentences:
        reason = fault(sentence) if split == "train" else ""
        if reason:
            left_out[reason] += 1
        else:
            yield sentence


def length_fault(text: Text, *lengths: int) -> str:
    """Why training leaves out a sentence (or pair) with so many words (a side); empty: it does not."""
    if min(lengths) < text.min_length:
        return "too short"
    return "too long" if max(lengths) > text.max_length else ""
