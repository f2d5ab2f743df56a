"""Dependency treebanks in CoNLL-U and CoNLL-X, with every error at its line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from argbeam.data.readers.text import open_lines
from argbeam.errors import DataError


class Flavour(Enum):
    """Which columns a file has and which of them holds the tag."""

    CONLLU = "conllu"
    """Ten columns, tags are UPOS (column 4), multiword and empty nodes allowed."""
    CONLLX = "conllx"
    """Eight to ten columns, tags are POSTAG (column 5: the Penn Treebank's)."""


@dataclass(frozen=True)
class Tree:
    """A sentence and its dependency tree. `heads[i]` is the head of word i+1; 0 is the root.

    `heads = (2, 0, 2)` when words 1 and 3 hang from word 2. `line` is the line of the first word.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    path: Path
    line: int


def read_conll(paths: Sequence[Path], *, flavour: Flavour) -> list[Tree]:
    """Read trees with one root each. Multiword (`1-2`) and empty (`8.1`) nodes of CoNLL-U are left out."""
    return list(stream_conll(paths, flavour=flavour))


def stream_conll(paths: Sequence[Path], *, flavour: Flavour) -> Iterator[Tree]:
    """The same, one by one."""
    if not paths:
        raise DataError("no treebank was given; at least one file is needed")
    for path in paths:
        empty = True
        for rows in _sentences(path, flavour):
            empty = False
            yield _tree(rows, path)
        if empty:
            raise DataError(f"{path}: no sentence in the file; at least one is expected")


class _Row(NamedTuple):
    line: int
    word: str
    tag: str
    head: int
    label: str


_COLUMNS = {Flavour.CONLLU: (10, 10), Flavour.CONLLX: (8, 10)}  # least, most
_TAG_COLUMN = {Flavour.CONLLU: 3, Flavour.CONLLX: 4}
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")
_NUMBER = re.compile(r"[0-9]{1,9}")


def _sentences(path: Path, flavour: Flavour) -> Iterator[list[_Row]]:
    rows: list[_Row] = []
    has_coarse_tags = has_tags = False
    for line, text in open_lines(path):
        if not text.strip(" "):
            if rows:
                yield rows
            rows = []
        elif fields := word_fields(text, path, line, flavour, before=len(rows)):
            rows.append(_row(fields, path, line, flavour))
            has_coarse_tags, has_tags = has_coarse_tags or fields[3] != "_", has_tags or rows[-1].tag != "_"
    if rows:
        yield rows
    if flavour is Flavour.CONLLX and has_coarse_tags and not has_tags:
        raise DataError(
            f"{path}: every tag (column 5) is `_`, and column 4 has tags; that is CoNLL-U's way: "
            'data.kind = "conllu" reads it'
        )


def word_fields(text: str, path: Path, line: int, flavour: Flavour, *, before: int) -> list[str]:
    """The columns of a word's line, with `before` words of its sentence before it; none of other lines.

    Other lines are comments and the multiword and empty nodes of CoNLL-U.
    """
    if text.startswith("#"):
        return []
    fields = text.split("\t")
    least, most = _COLUMNS[flavour]
    if not least <= len(fields) <= most:
        accepted = str(most) if least == most else f"{least} to {most}"
        raise DataError(f"{path}:{line}: {len(fields)} tab-separated columns; a {flavour.value} line has {accepted}")
    if flavour is Flavour.CONLLU and _NOT_A_WORD.fullmatch(fields[0]):
        return []
    if fields[0] != str(before + 1):
        more = "; CoNLL-X has no such nodes: that is CoNLL-U" if _NOT_A_WORD.fullmatch(fields[0]) else ""
        raise DataError(
            f"{path}:{line}: id {fields[0]!r} after {before} words; ids count from 1 without "
            f"gaps, and an empty line ends a sentence{more}"
        )
    return fields


def form_of(fields: Sequence[str], path: Path, line: int) -> str:
    """The word. White space inside it (`10 000`) becomes `_`, so that words can be written with spaces between them."""
    form = "_".join(fields[1].split())
    _need_a_value("form", form, path, line)
    return form


def _need_a_value(name: str, field: str, path: Path, line: int) -> None:
    if not field:
        raise DataError(f"{path}:{line}: the {name} is empty; `_` stands for none")


def _row(fields: list[str], path: Path, line: int, flavour: Flavour) -> _Row:
    form, tag = form_of(fields, path, line), fields[_TAG_COLUMN[flavour]].strip()
    head, label = fields[6], fields[7].strip()
    _need_a_value("tag", tag, path, line)
    _need_a_value("label", label, path, line)
    if len(label.split()) > 1:
        raise DataError(f"{path}:{line}: label {label!r} holds white space; a label is one word")
    if not _NUMBER.fullmatch(head):
        raise DataError(f"{path}:{line}: head {head!r} is not a number; heads run from 0 (root) to the last word's id")
    return _Row(line, form, tag, int(head), label)


def _tree(rows: list[_Row], path: Path) -> Tree:
    heads = tuple(row.head for row in rows)
    for row in rows:
        if row.head > len(rows):
            raise DataError(
                f"{path}:{row.line}: head {row.head} in a sentence of {len(rows)} words; "
                f"heads run from 0 (root) to {len(rows)}"
            )
    roots = [number for number, head in enumerate(heads, start=1) if head == 0]
    if not roots:
        raise DataError(f"{path}:{rows[0].line}: no root in this sentence; one word has head 0")
    if len(roots) > 1:
        raise DataError(
            f"{path}:{rows[roots[1] - 1].line}: a second root (words {roots[0]} and {roots[1]}); one word has head 0"
        )
    cycle = _cycle(heads)
    if cycle:
        chain = " -> ".join(str(number) for number in [*cycle, cycle[0]])
        raise DataError(f"{path}:{rows[cycle[0] - 1].line}: the heads run in a circle ({chain}); they must form a tree")
    return Tree(
        words=tuple(row.word for row in rows),
        tags=tuple(row.tag for row in rows),
        heads=heads,
        labels=tuple(row.label for row in rows),
        path=path,
        line=rows[0].line,
    )


def _cycle(heads: tuple[int, ...]) -> list[int]:
    """The words of a cycle, its smallest first, or none. Each word is walked over once: O(n)."""
    walk_of = [0] * (len(heads) + 1)  # the walk that reached a word first; 0: none yet
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
