"""Dependency parsing as a sequence: source words interleaved with arc-standard reduce actions (section 5.2)."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from argbeam.data import Example
from argbeam.errors import DataError
from argbeam.metrics import (
    PTB_PUNCTUATION,
    UPOS_PUNCTUATION,
    AttachmentCounts,
    Punctuation,
    attachment_counts,
    attachment_signature,
)
from argbeam.readers.conll import Tree
from argbeam.settings import ParsingTask, Recipe, Text
from argbeam.successors import ShiftReduce, Successors, Unconstrained
from argbeam.tasks.contract import Fitted, Item, Read, Score
from argbeam.tasks.sources import TreeData, read_trees
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
from argbeam.vocabulary import Vocabulary

_VOCABULARY_FILE, _ROOT_FILE = "vocabulary.json", "root_label.txt"
_UNFINISHED_LABEL = "dep"
PUNCTUATION = {"upos": UPOS_PUNCTUATION, "ptb": PTB_PUNCTUATION, "none": Punctuation("none", frozenset())}


@dataclass(frozen=True)
class Parsing:
    """One vocabulary serves both sides: words first, actions last. An output has 2n - 1 symbols: no end symbol."""

    data: TreeData
    settings: Text
    punctuation: Punctuation
    vocabulary: Vocabulary
    root_label: str
    open_length = False

    @staticmethod
    def fit(recipe: Recipe) -> Fitted:
        data, text = _tree_data(recipe), recipe.text
        trees = read_trees(data, "train")
        fits = [t for t in trees if text.min_length <= len(t.words) <= text.max_length and is_projective(t.heads)]
        if not fits:
            raise DataError(f"{trees[0].path}: no projective tree of {text.min_length} to {text.max_length} words")
        symbols = ([escape_word(symbol(word, text)) for word in t.words] for t in fits)
        words = Vocabulary.build(symbols, min_count=text.min_count, max_size=text.max_vocabulary or None).words
        labels = sorted({label for t in fits for label, head in zip(t.labels, t.heads, strict=True) if head})
        actions = [action(label) for action in (left_action, right_action) for label in labels]
        # The root has no action: its label is the one that most roots have (`root`, or `ROOT` in some treebanks).
        roots = Counter(t.labels[t.heads.index(0)] for t in fits)
        root = max(sorted(roots), key=roots.__getitem__)
        task = Parsing(data, text, _punctuation(recipe), Vocabulary((*words, *actions)), root)
        return Fitted(task, task._items(trees, "train"))

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
        return self._items(read_trees(self.data, split), split)

    def _items(self, trees: Sequence[Tree], split: str) -> Read:
        left_out: dict[str, int] = defaultdict(int)
        items = []
        for tree in trees:
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
            items.append(Item(source=words, surface=tree.words, target=target, tree=tree))
        return Read(items, dict(left_out))

    def item(self, line: str) -> Item:
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
        arcs = self._arcs(item, output)
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
            arcs, tree = self._arcs(item, output), item.tree
            left_out = self.punctuation.mask(tree.tags)
            found.append(attachment_counts(arcs.heads, arcs.labels, tree.heads, tree.labels, is_punctuation=left_out))
        return found

    def _arcs(self, item: Item, output: Sequence[int]) -> Arcs:
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


def _punctuation(recipe: Recipe) -> Punctuation:
    assert isinstance(recipe.task, ParsingTask)
    return PUNCTUATION[recipe.task.punctuation]
