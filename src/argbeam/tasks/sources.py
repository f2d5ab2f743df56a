"""Sentences, trees and sentence pairs of a split, one by one, for every kind of data."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from argbeam.data.generated import corpus
from argbeam.data.generated.interactions import generated_items, generated_sequences
from argbeam.data.readers.conll import Flavour, Tree, read_conll
from argbeam.data.readers.interactions import Codes, ItemSequence, read_items, read_sequences
from argbeam.data.readers.text import TextPair, read_parallel, read_text, read_tsv
from argbeam.errors import DataError
from argbeam.settings import data as settings
from argbeam.tasks.iwslt import prepared

TreeData = settings.GeneratedData | settings.ConlluData | settings.ConllxData
SentenceData = TreeData | settings.TextData
InteractionSource = settings.GeneratedData | settings.InteractionData
PairData = settings.GeneratedData | settings.ParallelData | settings.TsvData | settings.IwsltData


def stream_trees(data: TreeData, split: str) -> Iterator[Tree]:
    """The dependency trees of a split."""
    if isinstance(data, settings.GeneratedData):
        return (Tree(s.words, s.tags, s.heads, s.labels) for s in _generated(data, split))
    flavour = Flavour.CONLLU if isinstance(data, settings.ConlluData) else Flavour.CONLLX
    return read_conll(_files(data, split), flavour=flavour)


def stream_sentences(data: SentenceData, split: str) -> Iterator[tuple[str, ...]]:
    """The sentences of a split as words."""
    if isinstance(data, settings.TextData):
        return (tuple(text.split()) for text in read_text(_files(data, split)))
    return (tree.words for tree in stream_trees(data, split))


def stream_pairs(data: PairData, split: str) -> Iterator[TextPair]:
    """The sentence pairs of a split as raw text."""
    if isinstance(data, settings.GeneratedData):
        return (TextPair(" ".join(s.words), " ".join(s.translation)) for s in _generated(data, split))
    if isinstance(data, settings.IwsltData):
        pairs: list[TextPair] = getattr(prepared(Path(data.root)), split)
        return iter(pairs)
    if isinstance(data, settings.TsvData):
        columns = {"source_column": data.source_column, "target_column": data.target_column}
        return read_tsv(_files(data, split), **columns)
    return read_parallel(_files(data, f"{split}_source"), _files(data, f"{split}_target"))


def read_item_codes(data: InteractionSource) -> dict[str, Codes]:
    """The codes of each item."""
    if isinstance(data, settings.GeneratedData):
        return generated_items(seed=data.seed, types=data.types)
    return read_items(_files(data, "items"))


def stream_sequences(data: InteractionSource, items: Mapping[str, Codes]) -> Iterator[ItemSequence]:
    """The sequences of items that all splits are made of."""
    if isinstance(data, settings.GeneratedData):
        return map(ItemSequence, generated_sequences(seed=data.seed, types=data.types, users=data.train))
    return read_sequences(_files(data, "sequences"), items)


def named_files(data: settings.Data) -> list[tuple[str, Path]]:
    """Every file that a data table names, with its key."""
    if isinstance(data, settings.GeneratedData):
        return []
    lists = {key: names for key, names in data.model_dump().items() if isinstance(names, list)}
    return [(f"data.{key}", Path(data.root) / name) for key, names in lists.items() for name in names]


def _files(data: settings.FileData | settings.ParallelData | settings.InteractionData, key: str) -> list[Path]:
    names: Sequence[str] = getattr(data, key)
    if not names:
        without = "; `--split dev` needs none" if key.startswith("test") else ""
        raise DataError(f"the recipe names no {key} files; data.{key} takes a list of paths{without}")
    return [Path(data.root) / name for name in names]


def _generated(data: settings.GeneratedData, split: str) -> list[corpus.GeneratedSentence]:
    if not getattr(data, split):
        raise DataError(f"data.{split} = 0: the generated corpus has no {split} sentences; ask for at least 1")
    return _splits(data)[split]


@lru_cache(maxsize=1)
def _splits(data: settings.GeneratedData) -> dict[str, list[corpus.GeneratedSentence]]:
    return corpus.splits(data.seed, train=data.train, dev=data.dev, test=data.test, types=data.types)
