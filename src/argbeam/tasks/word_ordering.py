"""Word ordering: the words of a sentence are shuffled and to be put back (Wiseman & Rush 2016, section 5.2)."""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from argbeam.data.batches import Example
from argbeam.data.vocabulary import Vocabulary, fold_digits
from argbeam.metrics.bleu import corpus_bleu
from argbeam.search.successors import Permutation, Successors, Unconstrained
from argbeam.settings import IwsltData, ParallelData, Recipe, Text, TsvData, WordOrderingTask
from argbeam.tasks.contract import Fitted, Item, Read, Score, read_all
from argbeam.tasks.sources import SentenceData, stream_sentences

PAIRED = (ParallelData, TsvData, IwsltData)
_VOCABULARY_FILE = "vocabulary.json"


@dataclass(frozen=True)
class WordOrdering:
    """One vocabulary serves both sides. Outputs are exactly as long as their source: no end symbol."""

    data: SentenceData
    settings: Text
    seed: int
    vocabulary: Vocabulary
    reshuffle: bool = False
    open_length = False

    @staticmethod
    def fit(recipe: Recipe) -> Fitted:
        assert not isinstance(recipe.data, PAIRED)
        text = recipe.text
        fits = (s for s in stream_sentences(recipe.data, "train") if text.min_length <= len(s) <= text.max_length)
        symbols = ([symbol(word, text) for word in s] for s in fits)
        limit = recipe.text.max_vocabulary or None
        vocabulary = Vocabulary.build(symbols, min_count=recipe.text.min_count, max_size=limit)
        return Fitted(WordOrdering(recipe.data, recipe.text, recipe.seed, vocabulary, _reshuffle(recipe)))

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "WordOrdering":
        assert not isinstance(recipe.data, PAIRED)
        vocabulary = Vocabulary.from_json(assets[_VOCABULARY_FILE].decode(), where=_VOCABULARY_FILE)
        return WordOrdering(recipe.data, recipe.text, recipe.seed, vocabulary, _reshuffle(recipe))

    @property
    def source(self) -> Vocabulary:
        return self.vocabulary

    @property
    def target(self) -> Vocabulary:
        return self.vocabulary

    @property
    def constraint(self) -> Successors:
        return Permutation()

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.vocabulary), end_symbol=False)

    @property
    def assets(self) -> dict[str, bytes]:
        return {_VOCABULARY_FILE: self.vocabulary.to_json().encode()}

    def read(self, split: str) -> Read:
        return read_all(self, split)

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        for number, words in enumerate(stream_sentences(self.data, split)):
            if split == "train" and not self.settings.min_length <= len(words) <= self.settings.max_length:
                left_out["too short" if len(words) < self.settings.min_length else "too long"] += 1
                continue
            shuffled = list(words)
            random.Random(f"{self.seed}:{split}:{number}").shuffle(shuffled)
            yield Item(
                source=tuple(symbol(word, self.settings) for word in shuffled),
                surface=tuple(shuffled),
                target=tuple(symbol(word, self.settings) for word in words),
                reference=" ".join(words),
            )

    def item(self, line: str) -> Item:
        words = tuple(line.split())
        return Item(source=tuple(symbol(word, self.settings) for word in words), surface=words)

    def example(self, item: Item, number: int) -> Example:
        encode = self.vocabulary.encode
        return Example(tuple(encode(item.source)), tuple(encode(item.target)), number)

    def training_view(self, example: Example, epoch: int) -> Example:
        if not self.reshuffle:
            return example
        source = list(example.source)
        random.Random(f"{self.seed}:{epoch}:{example.sentence}").shuffle(source)
        return replace(example, source=tuple(source))

    def limit(self, example: Example) -> int:
        return len(example.source)

    def text(self, item: Item, output: Sequence[int]) -> str:
        """Each number stands for the next of the source's words with that number: so UNKs are restored by position."""
        waiting: dict[int, deque[str]] = defaultdict(deque)
        for number, word in zip(self.vocabulary.encode(item.source), item.surface, strict=True):
            waiting[number].append(word)
        return " ".join(waiting[number].popleft() if waiting[number] else "<unk>" for number in output)

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        lines = [self.text(item, output) for item, output in zip(items, outputs, strict=True)]
        references = [item.reference for item in items]
        bleu = corpus_bleu(lines, references, tokenize="none")
        exact = sum(a == b for a, b in zip(lines, references, strict=True)) / max(1, len(lines))
        return Score(bleu.score, {"bleu": bleu.score, "exact": 100 * exact}, bleu.signature)


def _reshuffle(recipe: Recipe) -> bool:
    assert isinstance(recipe.task, WordOrderingTask)
    return recipe.task.shuffle == "epoch"


def symbol(word: str, text: Text) -> str:
    """How the model sees a word."""
    word = word.lower() if text.lowercase else word
    return fold_digits(word) if text.fold_digits else word
