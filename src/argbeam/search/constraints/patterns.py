"""Regular expressions in Python's notation as nodes of a grammar.

Python's own parser reads them, and its own matcher tests single characters: `\\w` and `(?i)` mean what they do in `re`.
"""

import importlib
import re
from functools import lru_cache
from typing import Any

from argbeam.errors import DataError
from argbeam.search.constraints.grammar import Alphabet, Alternatives, Concatenation, Node, Repetition

_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
_CATEGORIES |= {f"NOT_{name}": text.upper() for name, text in _CATEGORIES.items()}
# What an automaton cannot do, or not by looking at one token after the other.
_REFUSED = {
    "AT": r"^, $ or \b",
    "ASSERT": "lookahead or lookbehind",
    "ASSERT_NOT": "lookahead or lookbehind",
    "FAILURE": "lookahead",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}
# Of flags about characters a group has one.
_KINDS_OF_TEXT = re.ASCII | re.LOCALE | re.UNICODE


def pattern_node(pattern: str, alphabet: Alphabet, where: str, *, anchors: bool = False) -> Node:
    """The node of a regular expression, which matches a text as a whole, with or without ^ and $ around it.

    With `anchors` they must be there, as in notations in which a pattern alone may match a part of the text.
    """
    tree = parsed(pattern, where)
    items = [(str(operator), str(value)) for operator, value in tree]
    first, last = items[:1] == [("AT", "AT_BEGINNING")], items[-1:] == [("AT", "AT_END")]
    if anchors and not (first and last):
        raise DataError(f"{where}: the pattern {pattern!r}; one with ^ before and $ behind the whole is accepted")
    inner = list(tree)[first : len(items) - last]
    return _PatternReader(pattern, alphabet, where).sequence(inner, tree.state.flags)


def parsed(pattern: str, where: str) -> Any:
    """The tree of a regular expression by Python's parser; `where` names its file in errors."""
    try:
        return importlib.import_module("re._parser").parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise DataError(f"{where}: {pattern!r} is no regular expression: {' '.join(str(error).split())}") from None


class _PatternReader:
    """Nodes from the trees of Python's parser: pairs of an operator and its value."""

    def __init__(self, pattern: str, alphabet: Alphabet, where: str) -> None:
        self.pattern, self.alphabet, self.where = pattern, alphabet, where
        self.one_of = lru_cache(maxsize=None)(self._one_of)  # classes come back

    def sequence(self, items: Any, flags: int) -> Node:
        return Concatenation(tuple(self._node(str(operator), value, flags) for operator, value in items))

    def _node(self, operator: str, value: Any, flags: int) -> Node:
        match operator:
            case "LITERAL" if not flags & re.IGNORECASE:
                return self.alphabet.chosen([chr(value)])
            case "LITERAL":
                return self.one_of(re.escape(chr(value)), flags)
            case "NOT_LITERAL":
                return self.one_of(f"[^{re.escape(chr(value))}]", flags)
            case "ANY":
                return self.one_of(".", flags)
            case "IN":
                return self.one_of(f"[{''.join(_in_class(str(kind), member) for kind, member in value)}]", flags)
            case "BRANCH":
                return Alternatives(tuple(self.sequence(part, flags) for part in value[1]))
            case "SUBPATTERN":
                _, added, removed, part = value
                flags = flags & ~_KINDS_OF_TEXT if added & _KINDS_OF_TEXT else flags
                return self.sequence(part, (flags | added) & ~removed)
            case "MAX_REPEAT" | "MIN_REPEAT":  # the same texts, taken in another order
                least, most, part = value
                return Repetition(self.sequence(part, flags), least, None if str(most) == "MAXREPEAT" else int(most))
        raise DataError(
            f"{self.where}: {_REFUSED.get(operator, operator)} in {self.pattern!r}; characters, classes, groups, | and "
            "repeats are accepted, and ^ and $ around the whole"
        )

    def _one_of(self, text: str, flags: int) -> Node:
        return self.alphabet.matching(re.compile(text, flags).fullmatch)


def _in_class(kind: str, value: Any) -> str:
    """A member of a class as it is written."""
    match kind:
        case "NEGATE":
            return "^"
        case "RANGE":
            return "-".join(re.escape(chr(border)) for border in value)
        case "CATEGORY":
            return _CATEGORIES[str(value).removeprefix("CATEGORY_")]
    return re.escape(chr(value))
