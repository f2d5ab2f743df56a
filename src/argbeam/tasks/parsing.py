"""Dependency parsing as a sequence: source words interleaved with arc-standard reduce actions (section 5.2)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from argbeam.data.batches import Example
from argbeam.data.readers.conll import Tree
from argbeam.data.vocabulary import Vocabulary
from argbeam.errors import DataError
from argbeam.metrics.attachment import PUNCTUATION, AttachmentCounts, attachment_counts, attachment_signature
from argbeam.search.successors import ShiftReduce, Successors, Unconstrained
from argbeam.settings import ParsingTask, Recipe, Text
from argbeam.tasks.contract import Fitted, Item, Read, Score, read_all
from argbeam.tasks.sources import TreeData, stream_trees
from argbeam.tasks.transitions import (
    Arcs,
    actions_of_tree,
    escape_word,
    is_action,
    is_projective,
    left_action,
    right_action,
    tree_of_actions,
)
from argbeam.tasks.word_ordering import symbol

_VOCABULARY_FILE, _ROOT_FILE = "vocabulary.json", "root_label.txt"
_UNFINISHED_LABEL = "dep"


@dataclass(frozen=True)
class Parsing:
    """One vocabulary serves both sides: words first, actions last. An output has 2n - 1 symbols: no end symbol."""

    data: TreeData
    settings: Text
    punctuation: str
    vocabulary: Vocabulary
    root_label: str
    open_length = False

    @staticmethod
    def fit(recipe: Recipe) -> Fitted:
        data, text = _tree_data(recipe), recipe.text
        counts, roots = Counter[str](), Counter[str]()
        labels: set[str] = set()
        tree: Tree | None = None
        for tree in stream_trees(data, "train"):
            if text.min_length <= len(tree.words) <= text.max_length and is_projective(tree.heads):
                counts.update(escape_word(symbol(word, text)) for word in tree.words)
                labels.update(label for label, head in zip(tree.labels, tree.heads, strict=True) if head)
                roots[tree.labels[tree.heads.index(0)]] += 1
        if not roots:
            where = f"{tree.path}: " if tree else ""
            raise DataError(f"{where}no projective tree of {text.min_length} to {text.max_length} words")
        words = Vocabulary.of_counts(counts, min_count=text.min_count, max_size=text.max_vocabulary or None).words
        actions = [action(label) for action in (left_action, right_action) for label in sorted(labels)]
        # The root has no action: its label is the one that most roots have (`root`, or `ROOT` in some treebanks).
        root = max(sorted(roots), key=roots.__getitem__)
        return Fitted(Parsing(data, text, _punctuation(recipe), Vocabulary((*words, *actions)), root))

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "Parsing":
        vocabulary = Vocabulary.from_json(assets[_VOCABULARY_FILE].decode(), where=_VOCABULARY_FILE)
        root = assets[_ROOT_FILE].decode()
        return Parsing(_tree_data(recipe), recipe.text, _punctuation(recipe), vocabulary, root)

    @property
    def source(self) -> Vocabulary:
        return self.vocabulary

    @property
    def target(self) -> Vocabulary:
        return self.vocabulary

    @property
    def constraint(self) -> Successors:
        actions = sum(is_action(word) for word in self.vocabulary.words)
        return ShiftReduce(len(self.vocabulary), actions)

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.vocabulary), end_symbol=False)

    @property
    def assets(self) -> dict[str, bytes]:
        return {_VOCABULARY_FILE: self.vocabulary.to_json().encode(), _ROOT_FILE: self.root_label.encode()}

    def read(self, split: str) -> Read:
        return read_all(self, split)

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        for tree in stream_trees(self.data, split):
            length, projective = len(tree.words), is_projective(tree.heads)
            if split == "train" and not self.settings.min_length <= length <= self.settings.max_length:
                left_out["too short" if length < self.settings.min_length else "too long"] += 1
                continue
            if split == "train" and not projective:
                left_out["non-projective"] += 1
                continue
            words = self._symbols(tree.words)
            # A non-projective tree has no sequence of actions: it is scored all the same, but has no perplexity.
            target = actions_of_tree(words, tree.heads, tree.labels) if projective else ()
            yield Item(source=words, surface=tree.words, target=target, tree=tree)

    def item(self, line: str) -> Item:
        if "\t" in line:
            raise DataError("a tab; a line holds the words of one sentence; `argbeam decode --conll` reads CoNLL-U")
        words = tuple(line.split())
        return Item(source=self._symbols(words), surface=words)

    def example(self, item: Item, number: int) -> Example:
        encode = self.vocabulary.encode
        return Example(tuple(encode(item.source)), tuple(encode(item.target)), number)

    def training_view(self, example: Example, epoch: int) -> Example:
        return example

    def limit(self, example: Example) -> int:
        return 2 * len(example.source) - 1

    def text(self, item: Item, output: Sequence[int]) -> str:
        """The words, each followed by its head and label: `small/2/amod birds/3/nsubj sing/0/root`."""
        arcs = self.arcs(item, output)
        parts = zip(item.surface, arcs.heads, arcs.labels, strict=True)
        return " ".join(f"{word}/{head}/{label}" for word, head, label in parts)

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        counts = sum(self.counts(items, outputs), AttachmentCounts())
        return Score(counts.uas, {"uas": counts.uas, "las": counts.las}, attachment_signature(self.punctuation))

    def counts(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> list[AttachmentCounts]:
        """The counts of each sentence, for tests of significance."""
        found = []
        for item, output in zip(items, outputs, strict=True):
            assert item.tree is not None, "only sentences with a tree can be scored"
            arcs, tree = self.arcs(item, output), item.tree
            left_out = [tag in PUNCTUATION[self.punctuation] for tag in tree.tags]
            found.append(attachment_counts(arcs.heads, arcs.labels, tree.heads, tree.labels, is_punctuation=left_out))
        return found

    def arcs(self, item: Item, output: Sequence[int]) -> Arcs:
        """The tree of an output."""
        words = len(item.source)
        if len(output) != 2 * words - 1:
            # A dead end left no tree. It is counted as such, and scored as a tree all the same: the first word is root.
            heads = (0, *(1 for _ in range(words - 1)))
            return Arcs(heads, (self.root_label, *(_UNFINISHED_LABEL for _ in range(words - 1))))
        return tree_of_actions(self.vocabulary.decode(output), words, root_label=self.root_label)

    def _symbols(self, words: Sequence[str]) -> tuple[str, ...]:
        return tuple(escape_word(symbol(word, self.settings)) for word in words)


def _tree_data(recipe: Recipe) -> TreeData:
    assert isinstance(recipe.data, TreeData)
    return recipe.data


def _punctuation(recipe: Recipe) -> str:
    assert isinstance(recipe.task, ParsingTask)
    return recipe.task.punctuation
