"""Word ordering: put the shuffled words of a sentence back in order (Wiseman & Rush 2016, section 5.2)."""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from argbeam.data.batches import Example
from argbeam.data.vocabulary import SPECIALS, Vocabulary
from argbeam.errors import DataError
from argbeam.metrics.bleu import corpus_bleu
from argbeam.search.successors import Permutation, Successors, Unconstrained
from argbeam.settings import Recipe, Text, WordOrderingTask
from argbeam.tasks.contract import Item, Score, read_all
from argbeam.tasks.sources import SentenceData, stream_sentences
from argbeam.tasks.words import build_vocabulary, length_fault, load_vocabulary, symbols, usable

_VOCABULARY_FILE = "vocabulary.json"


@dataclass(frozen=True)
class WordOrdering:
    """One vocabulary serves both sides. Outputs are exactly as long as their source: no end symbol."""

    data: SentenceData
    settings: Text
    seed: int
    source: Vocabulary
    reshuffle: bool = False
    open_length = False
    read = read_all

    @staticmethod
    def fit(recipe: Recipe) -> "WordOrdering":
        task = _task(recipe, Vocabulary(SPECIALS))
        counts = Counter[str]()
        for _, words in task._sentences("train", Counter()):
            counts.update(symbols(words, recipe.text))
        return replace(task, source=build_vocabulary(counts, recipe.text))

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "WordOrdering":
        return _task(recipe, load_vocabulary(assets, _VOCABULARY_FILE))

    @property
    def target(self) -> Vocabulary:
        return self.source

    @property
    def constraint(self) -> Successors:
        return Permutation()

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.source), end_symbol=False)

    @property
    def assets(self) -> dict[str, bytes]:
        return {_VOCABULARY_FILE: self.source.to_json().encode()}

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        for number, words in self._sentences(split, left_out):
            shuffled = list(words)
            random.Random(f"{self.seed}:{split}:{number}").shuffle(shuffled)
            yield Item(
                source=symbols(shuffled, self.settings),
                surface=tuple(shuffled),
                target=symbols(words, self.settings),
                reference=" ".join(words),
            )

    def item(self, line: str, gold: str = "") -> Item:
        words, ordered = tuple(line.split()), gold.split()
        if ordered and (other := (Counter(words) - Counter(ordered)) + (Counter(ordered) - Counter(words))):
            raise DataError(f"gold has other words than the sentence: {min(other)!r}; the same words are expected")
        return Item(symbols(words, self.settings), words, symbols(ordered, self.settings), " ".join(ordered))

    def example(self, item: Item, number: int) -> Example:
        return Example(tuple(self.source.encode(item.source)), tuple(self.source.encode(item.target)), number)

    def training_view(self, example: Example, epoch: int) -> Example:
        if not self.reshuffle:
            return example
        source = list(example.source)
        random.Random(f"{self.seed}:{epoch}:{example.sentence}").shuffle(source)
        return replace(example, source=tuple(source))

    def limit(self, example: Example) -> int:
        return len(example.source)

    def text(self, item: Item, output: Sequence[int]) -> str:
        """Each token id stands for the next source word with that id: unknown words are restored by position."""
        waiting: dict[int, deque[str]] = defaultdict(deque)
        for token, word in zip(self.source.encode(item.source), item.surface, strict=True):
            waiting[token].append(word)
        return " ".join(waiting[token].popleft() if waiting[token] else "<unk>" for token in output)

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        lines = [self.text(item, output) for item, output in zip(items, outputs, strict=True)]
        references = [item.reference for item in items]
        bleu = corpus_bleu(lines, references, tokenize="none")
        exact = sum(a == b for a, b in zip(lines, references, strict=True)) / max(1, len(lines))
        return Score(bleu.score, {"bleu": bleu.score, "exact": 100 * exact}, bleu.signature)

    def _sentences(self, split: str, left_out: Counter[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Sentences with their places in the split."""
        numbered = enumerate(stream_sentences(self.data, split))
        return usable(split, numbered, lambda place: length_fault(self.settings, len(place[1])), left_out)


def _task(recipe: Recipe, vocabulary: Vocabulary) -> WordOrdering:
    assert isinstance(recipe.data, SentenceData) and isinstance(recipe.task, WordOrderingTask)
    return WordOrdering(recipe.data, recipe.text, recipe.seed, vocabulary, recipe.task.shuffle == "epoch")
