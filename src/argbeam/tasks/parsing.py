"""Dependency parsing: source words interleaved with arc-standard actions (Wiseman & Rush 2016, section 5.2)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from argbeam.data.batches import Example
from argbeam.data.readers.conll import Tree
from argbeam.data.vocabulary import SPECIALS, Vocabulary
from argbeam.errors import DataError
from argbeam.metrics.attachment import PUNCTUATION, AttachmentCounts, attachment_counts, attachment_signature
from argbeam.search.successors import ShiftReduce, Successors, Unconstrained
from argbeam.settings import ParsingTask, Recipe, Text
from argbeam.tasks import transitions
from argbeam.tasks.contract import Item, Score, read_all
from argbeam.tasks.sources import TreeData, stream_trees
from argbeam.tasks.transitions import Arcs, is_projective
from argbeam.tasks.words import build_vocabulary, length_fault, load_vocabulary, symbols, usable

_VOCABULARY_FILE, _ROOT_FILE = "vocabulary.json", "root_label.txt"
_UNFINISHED_LABEL = "dep"


@dataclass(frozen=True)
class Parsing:
    """One vocabulary serves both sides: words first, actions last. An output has 2n - 1 symbols: no end symbol."""

    data: TreeData
    settings: Text
    punctuation: str
    source: Vocabulary
    root_label: str
    open_length = False
    read = read_all

    @staticmethod
    def fit(recipe: Recipe) -> "Parsing":
        task = _task(recipe, Vocabulary(SPECIALS), "root")
        counts, roots = Counter[str](), Counter[str]()
        labels: set[str] = set()
        for tree in task._trees("train", Counter()):
            counts.update(task._symbols(tree.words))
            labels.update(label for label, head in zip(tree.labels, tree.heads, strict=True) if head)
            roots[tree.labels[tree.heads.index(0)]] += 1
        words = build_vocabulary(counts, recipe.text).words
        actions = [side + label for side in (transitions.LEFT, transitions.RIGHT) for label in sorted(labels)]
        # The root has no action: its label is the one that most roots have (`root`, or `ROOT` in some treebanks).
        root = max(sorted(roots), key=roots.__getitem__, default=task.root_label)
        return replace(task, source=Vocabulary((*words, *actions)), root_label=root)

    @staticmethod
    def load(recipe: Recipe, assets: Mapping[str, bytes]) -> "Parsing":
        return _task(recipe, load_vocabulary(assets, _VOCABULARY_FILE), assets[_ROOT_FILE].decode())

    @property
    def target(self) -> Vocabulary:
        return self.source

    @property
    def constraint(self) -> Successors:
        return ShiftReduce(len(self.source), sum(map(transitions.is_action, self.source.words)))

    @property
    def unconstrained(self) -> Successors:
        return Unconstrained(len(self.source), end_symbol=False)

    @property
    def assets(self) -> dict[str, bytes]:
        return {_VOCABULARY_FILE: self.source.to_json().encode(), _ROOT_FILE: self.root_label.encode()}

    def stream(self, split: str, left_out: Counter[str]) -> Iterator[Item]:
        for tree in self._trees(split, left_out):
            words = self._symbols(tree.words)
            # A non-projective tree outside training has no sequence of actions: it is scored, but has no perplexity.
            projective = split == "train" or is_projective(tree.heads)
            target = transitions.actions_of_tree(words, tree.heads, tree.labels) if projective else ()
            yield Item(source=words, surface=tree.words, target=target, tree=tree)

    def item(self, line: str, gold: str = "") -> Item:
        if "\t" in line:
            raise DataError("a tab; a line holds the words of one sentence; `argbeam decode --conll` reads CoNLL-U")
        words, parts = tuple(line.split()), [part.rsplit("/", 2) for part in gold.split()]
        if not parts:
            return Item(source=self._symbols(words), surface=words)
        if [part[0] for part in parts] != list(words) or not all(len(p) == 3 and p[1].isdecimal() for p in parts):
            raise DataError("gold is not a tree of the sentence; its words as word/head/label are expected")
        heads, labels = tuple(int(part[1]) for part in parts), tuple(part[2] for part in parts)
        target = transitions.actions_of_tree(self._symbols(words), heads, labels)
        if unknown := [symbol for symbol in target if transitions.is_action(symbol) and symbol not in self.source]:
            raise DataError(f"gold has an arc that training does not have: {unknown[0]}")
        return Item(self._symbols(words), words, target, gold)

    def example(self, item: Item, number: int) -> Example:
        return Example(tuple(self.source.encode(item.source)), tuple(self.source.encode(item.target)), number)

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
        counts, left_out = [], PUNCTUATION[self.punctuation]
        for item, output in zip(items, outputs, strict=True):
            assert item.tree is not None, "only sentences with a tree can be scored"
            arcs, tree = self.arcs(item, output), item.tree
            mask = [tag in left_out for tag in tree.tags]
            counts.append(attachment_counts(arcs.heads, arcs.labels, tree.heads, tree.labels, is_punctuation=mask))
        return counts

    def arcs(self, item: Item, output: Sequence[int]) -> Arcs:
        """The tree of an output."""
        words = len(item.source)
        if len(output) != 2 * words - 1:
            # A dead end: it is counted as one, and scored as a flat tree under the first word.
            return Arcs((0, *[1] * (words - 1)), (self.root_label, *[_UNFINISHED_LABEL] * (words - 1)))
        return transitions.tree_of_actions(self.source.decode(output), words, root_label=self.root_label)

    def _symbols(self, words: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(transitions.escape_word, symbols(words, self.settings)))

    def _trees(self, split: str, left_out: Counter[str]) -> Iterator[Tree]:
        def fault(tree: Tree) -> str:
            wrong_length = length_fault(self.settings, len(tree.words))
            return wrong_length or ("" if is_projective(tree.heads) else "non-projective")

        return usable(split, stream_trees(self.data, split), fault, left_out)


def _task(recipe: Recipe, vocabulary: Vocabulary, root_label: str) -> Parsing:
    assert isinstance(recipe.data, TreeData) and isinstance(recipe.task, ParsingTask)
    return Parsing(recipe.data, recipe.text, recipe.task.punctuation, vocabulary, root_label)
