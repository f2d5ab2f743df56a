"""Dependency treebanks in CoNLL-U and CoNLL-X, with every error at its line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from argbeam.data.readers.text import open_lines
from argbeam.errors import DataError, counted


class Flavour(Enum):
    """Which columns a file has and which of them holds the tag."""

    CONLLU = "conllu"
    """Ten columns, tags are UPOS (column 4), multiword and empty nodes allowed."""
    CONLLX = "conllx"
    """Eight to ten columns, tags are POSTAG (column 5: the Penn Treebank's)."""


@dataclass(frozen=True)
class Tree:
    """A sentence and its dependency tree. `heads[i]` is the head of word i+1; 0 is the root.

    `heads = (2, 0, 2)` when words 1 and 3 hang from word 2.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]


def read_conll(paths: Sequence[Path], *, flavour: Flavour) -> Iterator[Tree]:
    """Read trees with one root each. Multiword (`1-2`) and empty (`8.1`) nodes of CoNLL-U are left out."""
    if not paths:
        raise DataError("no treebank was given; at least one file is needed")
    for path in paths:
        words = None
        for words in _sentences(path, flavour):
            yield _tree(words, path)
        if words is None:
            raise DataError(f"{path}: no sentence in the file; at least one is expected")


class TreeFault(NamedTuple):
    """What keeps heads from being a tree, and at which word, counted from 1."""

    word: int
    text: str


def tree_fault(heads: Sequence[int]) -> TreeFault | None:
    """The fault that keeps heads from being a tree with one root; None: they are one."""
    size = len(heads)
    for word, head in enumerate(heads, start=1):
        if not 0 <= head <= size:
            return TreeFault(
                word, f"head {head} in a sentence of {counted(size, 'word')}; heads run from 0 (root) to {size}"
            )
    roots = [word for word, head in enumerate(heads, start=1) if head == 0]
    if not roots:
        return TreeFault(1, "no root in this sentence; one word has head 0")
    if len(roots) > 1:
        return TreeFault(roots[1], f"a second root (words {roots[0]} and {roots[1]}); one word has head 0")
    cycle = _cycle(heads)
    if cycle:
        chain = " -> ".join(map(str, [*cycle, cycle[0]]))
        return TreeFault(cycle[0], f"the heads run in a circle ({chain}); they must form a tree")
    return None


class _WordLine(NamedTuple):
    """The columns of a word's line that are used, and its place in the file."""

    line: int
    word: str
    tag: str
    head: int
    label: str


_COLUMNS = {Flavour.CONLLU: (10, 10), Flavour.CONLLX: (8, 10)}  # least, most
_TAG_COLUMN = {Flavour.CONLLU: 3, Flavour.CONLLX: 4}
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
# What only CoNLL-U has: its comments, its enhanced dependencies, its tags.
_COMMENT = re.compile(r"# *(?:(?:sent_id|text|global\.columns) *=|(?:newdoc|newpar)\b)")
_DEPS = re.compile(r"[0-9]+(?:\.[0-9]+)?:\S")
_UPOS = re.compile("ADJ|ADP|ADV|AUX|CCONJ|DET|INTJ|NOUN|NUM|PART|PRON|PROPN|PUNCT|SCONJ|SYM|VERB|X")


def _sentences(path: Path, flavour: Flavour) -> Iterator[list[_WordLine]]:
    words: list[_WordLine] = []
    coarse_tags, fine_tags = set[str](), set[str]()  # of columns 4 and 5
    for line, text in open_lines(path):
        if not text.strip(" "):
            if words:
                yield words
            words = []
            continue
        fields = word_fields(text, path, line, flavour, before=len(words))
        _check_flavour(text, fields, path, line, flavour)
        if fields:
            words.append(_word_line(fields, path, line, flavour))
            coarse_tags.add(fields[3])
            fine_tags.add(fields[4])
    if words:
        yield words
    _check_tags(coarse_tags - {"_"}, fine_tags - {"_"}, path, flavour)


def _check_flavour(text: str, fields: list[str], path: Path, line: int, flavour: Flavour) -> None:
    """Refuse a line that only the other flavour has: its tags would be read from the wrong column."""
    deps = fields[8] if len(fields) > 8 else "_"
    if flavour is Flavour.CONLLX:
        comment = _COMMENT.match(text)
        found = f"a comment `{comment[0]}`" if comment else ""
        found = f"column 9 is {deps!r} (DEPS)" if _DEPS.match(deps) else found
        found = "SpaceAfter=No in column 10 (MISC)" if "SpaceAfter=No" in fields[9:] else found
        if found:
            raise DataError(f'{path}:{line}: {found}; that is CoNLL-U: data.kind = "conllu" reads it')
    elif _NUMBER.fullmatch(deps):
        raise DataError(f'{path}:{line}: column 9 is {deps!r} (PHEAD); that is CoNLL-X: data.kind = "conllx" reads it')


def _check_tags(coarse: set[str], fine: set[str], path: Path, flavour: Flavour) -> None:
    """Refuse a file whose tags show the other flavour."""
    if flavour is Flavour.CONLLX and coarse and not fine:
        raise DataError(
            f"{path}: every tag (column 5) is `_`, and column 4 has tags; that is CoNLL-U's way: "
            'data.kind = "conllu" reads it'
        )
    if flavour is Flavour.CONLLU and coarse and fine and not any(map(_UPOS.fullmatch, coarse)):
        raise DataError(
            f"{path}: no tag in column 4 is a UPOS tag (one is {min(coarse)}), and column 5 has tags; that is "
            'CoNLL-X\'s way: data.kind = "conllx" reads it'
        )


def word_fields(text: str, path: Path, line: int, flavour: Flavour, *, before: int) -> list[str]:
    """The columns of a word's line; empty for a comment and for a multiword or empty node of CoNLL-U.

    `before` is the count of words before it in its sentence.
    """
    if text.startswith("#"):
        return []
    fields = text.split("\t")
    least, most = _COLUMNS[flavour]
    if not least <= len(fields) <= most:
        accepted = str(most) if least == most else f"{least} to {most}"
        raise DataError(
            f"{path}:{line}: {counted(len(fields), 'tab-separated column')}; a {flavour.value} line has {accepted}"
        )
    if flavour is Flavour.CONLLU and _NOT_A_WORD.fullmatch(fields[0]):
        return []
    if fields[0] != str(before + 1):
        more = "; CoNLL-X has no such nodes: that is CoNLL-U" if _NOT_A_WORD.fullmatch(fields[0]) else ""
        raise DataError(
            f"{path}:{line}: id {fields[0]!r} after {counted(before, 'word')}; ids count from 1 without "
            f"gaps, and an empty line ends a sentence{more}"
        )
    return fields


def form_of(fields: Sequence[str], path: Path, line: int) -> str:
    """The word. White space inside it (`10 000`) becomes `_`: spaces separate words in every other file."""
    return _value("form", "_".join(fields[1].split()), path, line)


def _value(name: str, field: str, path: Path, line: int) -> str:
    if not field.strip():
        raise DataError(f"{path}:{line}: the {name} is empty; `_` stands for none")
    return field.strip()


def _word_line(fields: list[str], path: Path, line: int, flavour: Flavour) -> _WordLine:
    form, head = form_of(fields, path, line), fields[6]
    tag = _value("tag", fields[_TAG_COLUMN[flavour]], path, line)
    label = _value("label", fields[7], path, line)
    if len(label.split()) > 1:
        raise DataError(f"{path}:{line}: label {label!r} holds white space; a label is one word")
    if not _NUMBER.fullmatch(head):
        raise DataError(f"{path}:{line}: head {head!r} is not a number; heads run from 0 (root) to the last word's id")
    return _WordLine(line, form, tag, int(head), label)


def _tree(words: list[_WordLine], path: Path) -> Tree:
    lines, forms, tags, heads, labels = zip(*words, strict=True)
    fault = tree_fault(heads)
    if fault is not None:
        raise DataError(f"{path}:{lines[fault.word - 1]}: {fault.text}")
    return Tree(forms, tags, heads, labels)


def _cycle(heads: Sequence[int]) -> list[int]:
    """The words of a cycle, its smallest first, or none. Each word is visited once: O(n)."""
    walk_of = [0] * (len(heads) + 1)  # start of the walk that reached a word first; 0: none yet
    walk_of[0] = -1
    for start in range(1, len(heads) + 1):
        word = start
        while not walk_of[word]:
            walk_of[word] = start
            word = heads[word - 1]
        if walk_of[word] == start:
            cycle = [word]
            while heads[cycle[-1] - 1] != word:
                cycle.append(heads[cycle[-1] - 1])
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
    return []
