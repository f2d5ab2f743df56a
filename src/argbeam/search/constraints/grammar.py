"""Grammars as rules over atoms.

An atom is what a terminal is made of: a whole token where tokens are words, else a character. With words the terminal
`"is greater"` is the two tokens `is` and `greater`, and `/[a-z]+/` is any one token of small letters; with characters
both are strings of characters. A regular expression always describes the text of the output, spaces included.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from argbeam.data.vocabulary import STANDARD, Vocabulary


class Unit(Enum):
    """What a token of the output is."""

    WORD = "word"
    CHARACTER = "character"
    PIECE = "piece"  # of SentencePiece, whose mark of a space is U+2581


@dataclass(frozen=True)
class Spelling:
    """How the tokens of a vocabulary spell an output. `texts[v]` is the text of token v, empty for special symbols.

    `spaced`: texts start with the space before a word, as in ` the`; that of the first token is not in the output.
    `whole`: terminals of a grammar are whole tokens, and a text is split into them by `split`. `ends` are end symbols.
    """

    texts: tuple[str, ...]
    spaced: bool
    whole: bool
    split: Callable[[str], Sequence[str]] = str.split
    ends: tuple[int, ...] = STANDARD.ends

    @staticmethod
    def of(target: Vocabulary, unit: Unit, split: Callable[[str], Sequence[str]] = str.split) -> "Spelling":
        """The spelling of a vocabulary of words, characters or pieces."""
        texts = [word if word in target else "" for word in target.words]
        if unit is Unit.WORD:
            texts = [f" {text}" if text else "" for text in texts]
        else:
            texts = [text.replace("\u2581", " ") for text in texts]
        spaced, whole = unit is not Unit.CHARACTER, unit is Unit.WORD
        return Spelling(tuple(texts), spaced, whole, split, target.specials.ends)


@dataclass(frozen=True)
class AtomSet:
    """Any one of these atoms."""

    atoms: frozenset[int]


@dataclass(frozen=True)
class Concatenation:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Alternatives:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repetition:
    """From `least` to `most` times; without `most` any number of times."""

    part: "Node"
    least: int
    most: int | None


@dataclass(frozen=True)
class Reference:
    """What the rule of this name derives."""

    rule: str


Node = AtomSet | Concatenation | Alternatives | Repetition | Reference
EMPTY = Concatenation(())


@dataclass(frozen=True)
class Grammar:
    """Rules over atoms; `atoms_of[v]` are the atoms of token v, none for special symbols; `ends` end an output."""

    rules: Mapping[str, Node]
    start: str
    atoms_of: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...] = STANDARD.ends


def atom_sets(node: Node) -> Iterator[AtomSet]:
    """The sets of atoms in a node, without those of the rules that it names."""
    match node:
        case AtomSet():
            yield node
        case Concatenation(parts) | Alternatives(parts):
            for part in parts:
                yield from atom_sets(part)
        case Repetition(part):
            yield from atom_sets(part)


def references(node: Node) -> Iterator[str]:
    """The rules that a node names."""
    match node:
        case Reference(rule):
            yield rule
        case Concatenation(parts) | Alternatives(parts):
            for part in parts:
                yield from references(part)
        case Repetition(part):
            yield from references(part)


class Alphabet:
    """The atoms of a vocabulary: its tokens, or the characters of its tokens."""

    def __init__(self, spelling: Spelling, *, whole: bool) -> None:
        self.spelling, self.whole = spelling, whole
        names = (text.removeprefix(" ") for text in spelling.texts) if whole else sorted(set("".join(spelling.texts)))
        self.names = tuple(names)
        self.index = {name: atom for atom, name in enumerate(self.names) if name}

    def literal(self, text: str, *, any_case: bool = False) -> Node:
        """The text as atoms, in letters of any case if asked; one that no token has matches nothing."""
        names = self.spelling.split(text) if self.whole else text
        if any_case:
            return Concatenation(tuple(self.matching(re.compile(re.escape(n), re.I).fullmatch) for n in names))
        return Concatenation(tuple(self.chosen([name]) for name in names))

    def chosen(self, names: Sequence[str]) -> Node:
        return AtomSet(frozenset(self.index[name] for name in names if name in self.index))

    def matching(self, accepts: Callable[[str], Any]) -> Node:
        return self.chosen([name for name in self.index if accepts(name)])

    def without(self, leaves_out: Callable[[str], bool]) -> "Alphabet":
        """The same atoms, some of which match nothing."""
        fewer = copy(self)
        fewer.index = {name: atom for name, atom in self.index.items() if not leaves_out(name)}
        return fewer

    def grammar(self, rules: dict[str, Node], start: str) -> Grammar:
        texts = self.spelling.texts
        if self.whole:
            return Grammar(
                rules, start, tuple((v,) if text else () for v, text in enumerate(texts)), self.spelling.ends
            )
        if self.spelling.spaced:  # the space before the first token is not in the output; no token has none
            spaced = Concatenation((self.literal(" "), Reference(start)))
            nothing = (EMPTY,) if nullable(rules, start) else ()
            rules, start = {**rules, " start": Alternatives((spaced, *nothing))}, " start"
        atoms_of = tuple(tuple(self.index[letter] for letter in text) for text in texts)
        return Grammar(rules, start, atoms_of, self.spelling.ends)


def nullable(rules: Mapping[str, Node], start: str) -> bool:
    """Whether a rule derives the empty string."""
    empty: set[str] = set()

    def derives(node: Node) -> bool:
        match node:
            case AtomSet():
                return False
            case Reference(rule):
                return rule in empty
            case Concatenation(parts):
                return all(map(derives, parts))
            case Alternatives(parts):
                return any(map(derives, parts))
            case Repetition(part, least):
                return least == 0 or derives(part)

    while more := {name for name, node in rules.items() if name not in empty and derives(node)}:
        empty |= more
    return start in empty
