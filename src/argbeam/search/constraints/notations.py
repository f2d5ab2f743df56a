"""Notations of grammars: Lark's EBNF for context-free grammars, and regular expressions."""

import ast
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from argbeam.errors import ConfigError, DataError
from argbeam.search.constraints.grammar import (
    Alphabet,
    Alternatives,
    Concatenation,
    Grammar,
    Node,
    Reference,
    Repetition,
    Spelling,
)


def regular_expression(text: str, spelling: Spelling, *, where: str = "pattern") -> Grammar:
    """The grammar of a regular expression over the output's text, in greenery's notation: no anchors, no lookaround."""
    if text.startswith("^") or (text.endswith("$") and not text.endswith(r"\$")):
        raise DataError(f"{where}: ^ or $ in {text!r}; the whole output is matched: leave them out, or write [$]")
    alphabet = Alphabet(spelling, whole=False)
    return alphabet.grammar({"start": _pattern_node(text, alphabet, where)}, "start")


def lark_grammar(text: str, spelling: Spelling, *, where: str = "grammar") -> Grammar:
    """The grammar of a text in Lark's EBNF; it derives outputs from the rule `start`."""
    load = needed("lark.load_grammar", "lark")
    from lark.exceptions import LarkError

    try:
        found = load.load_grammar(text, where, [], False)[0]
    except (LarkError, OSError) as error:
        raise DataError(f"{where}: not a grammar in Lark's notation: {' '.join(str(error).split())}") from None
    if found.ignore:
        raise DataError(f"{where}: %ignore; every token of an output counts: write what is optional into the rules")
    alphabet = Alphabet(spelling, whole=spelling.whole)
    reader = _LarkReader({str(name): entry[0] for name, entry in found.term_defs}, alphabet, where)
    rules = {}
    for name, parameters, tree, _ in found.rule_defs:
        if parameters:
            raise DataError(f"{where}: rule {name} has parameters; templates are not accepted")
        rules[str(name)] = reader.node(tree)
    if "start" not in rules:
        raise DataError(f"{where}: no rule start; found {', '.join(rules) or 'no rule'}")
    return alphabet.grammar(rules, "start")


def needed(module: str, package: str) -> Any:
    """An optional package; an error that names it if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"grammars need {package}: pip install 'argbeam[grammar]'") from None


class _LarkReader:
    """Nodes from the trees of Lark's own reader of grammars."""

    def __init__(self, terminals: Mapping[str, Any], alphabet: Alphabet, where: str) -> None:
        self.terminals, self.alphabet, self.where = terminals, alphabet, where

    def node(self, tree: Any) -> Node:
        kind, children = getattr(tree, "data", type(tree).__name__), list(getattr(tree, "children", []))
        match kind:
            case "expansions":
                return Alternatives(tuple(map(self.node, children)))
            case "expansion":
                return Concatenation(tuple(map(self.node, children)))
            case "alias" | "value":
                return self.node(children[0])
            case "maybe":
                return Repetition(self.node(children[0]), 0, 1)
            case "expr":
                return Repetition(self.node(children[0]), *_bounds(children[1:]))
            case "NonTerminal":
                return Reference(str(tree.name))
            case "Terminal" if str(tree.name) in self.terminals:
                definition = self.terminals[str(tree.name)]
                return self.node(definition) if not self.alphabet.whole else self._token(definition)
            case "literal" | "range" if self.alphabet.whole and not _plain(tree):
                return self._token(tree)
            case "literal":
                return self._literal(children[0])
            case "range":
                low, high = (_unquoted(child) for child in children)
                return self.alphabet.matching(lambda name: len(name) == 1 and low <= name <= high)
        name = getattr(tree, "name", kind)
        raise DataError(f"{self.where}: {name} is not accepted; rules, terminals, strings, ranges and /patterns/ are")

    def _literal(self, token: Any) -> Node:
        text = str(token)
        if token.type == "REGEXP":
            return _pattern_node(_pattern_of(text, self.where), self.alphabet, self.where)
        if not text.endswith("i"):
            return self.alphabet.literal(_unquoted(token))
        return Concatenation(
            tuple(self.alphabet.chosen([x.lower(), x.upper()]) for x in _unquoted(text.removesuffix("i")))
        )

    def _token(self, tree: Any) -> Node:
        """One token that the terminal matches as a whole."""
        pattern = re.compile(self._python_pattern(tree))
        return self.alphabet.matching(pattern.fullmatch)

    def _python_pattern(self, tree: Any) -> str:
        kind, children = getattr(tree, "data", type(tree).__name__), list(getattr(tree, "children", []))
        match kind:
            case "expansions" | "maybe":
                inner = "|".join(map(self._python_pattern, children))
                return f"(?:{inner}){'?' if kind == 'maybe' else ''}"
            case "expansion":
                return "".join(map(self._python_pattern, children))
            case "alias" | "value":
                return self._python_pattern(children[0])
            case "expr":
                least, most = _bounds(children[1:])
                return f"(?:{self._python_pattern(children[0])}){{{least},{'' if most is None else most}}}"
            case "range":
                low, high = (re.escape(_unquoted(child)) for child in children)
                return f"[{low}-{high}]"
            case "literal" if children[0].type == "REGEXP":
                return f"(?:{_pattern_of(str(children[0]), self.where)})"
            case "literal":
                text = str(children[0])
                quoted = re.escape(_unquoted(text.removesuffix("i")))
                return f"(?i:{quoted})" if text.endswith("i") else quoted
            case "Terminal" if str(tree.name) in self.terminals:
                return self._python_pattern(self.terminals[str(tree.name)])
        raise DataError(f"{self.where}: {getattr(tree, 'name', kind)} is not accepted in a terminal")


def _plain(tree: Any) -> bool:
    """Whether a literal is a string with its exact letters."""
    return tree.data == "literal" and tree.children[0].type == "STRING" and not str(tree.children[0]).endswith("i")


def _bounds(tokens: Sequence[Any]) -> tuple[int, int | None]:
    operator, *numbers = (str(token) for token in tokens)
    if operator == "~":
        return int(numbers[0]), int(numbers[-1])
    return {"?": (0, 1), "*": (0, None), "+": (1, None)}[operator]


def _unquoted(token: Any) -> str:
    """The text of a string of Lark's notation."""
    return str(ast.literal_eval(str(token)))


def _pattern_of(text: str, where: str) -> str:
    body, _, flags = text[1:].rpartition("/")
    if flags:
        raise DataError(f"{where}: {text}: flags of patterns are not accepted")
    return body.replace(r"\/", "/")


def _fault(pattern: str, error: Exception) -> str:
    """What is wrong with a pattern that greenery does not read: in Python's words, if Python does not either."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as fault:
        return str(fault)
    place = re.search(r"beyond index (\d+)", str(error))
    if place is None:
        return " ".join(str(error).split())
    return (
        f"{pattern[int(place[1]) :]!r} at position {place[1]}; anchors, lookaround and back references are not accepted"
    )


def _pattern_node(pattern: str, alphabet: Alphabet, where: str) -> Node:
    greenery = needed("greenery", "greenery")
    from greenery.parse import NoMatch

    try:
        parsed = greenery.parse(pattern)
    except (NoMatch, ValueError, IndexError) as error:
        raise DataError(f"{where}: {pattern!r} is no regular expression: {_fault(pattern, error)}") from None

    def node(part: Any) -> Node:
        if hasattr(part, "concs"):
            concatenations = sorted(part.concs, key=str)
            return Alternatives(tuple(Concatenation(tuple(map(repeated, conc.mults))) for conc in concatenations))
        return alphabet.matching(part.accepts)

    def repeated(mult: Any) -> Node:
        return Repetition(node(mult.multiplicand), mult.multiplier.min.v, mult.multiplier.max.v)

    return node(parsed)
