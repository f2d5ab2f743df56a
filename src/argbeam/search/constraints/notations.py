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
from argbeam.search.constraints.patterns import parsed, pattern_node


def regular_expression(text: str, spelling: Spelling, *, where: str = "pattern") -> Grammar:
    """The grammar of a regular expression over the output's text, in Python's notation: no anchors, no lookaround."""
    alphabet = Alphabet(spelling, whole=False)
    return alphabet.grammar({"start": pattern_node(text, alphabet, where)}, "start")


def lark_grammar(text: str, spelling: Spelling, *, where: str = "grammar") -> Grammar:
    """The grammar of a text in Lark's EBNF; it derives outputs from the rule `start`."""
    load = needed("lark.load_grammar", "lark")
    from lark.exceptions import LarkError, UnexpectedToken

    try:
        found, files = load.load_grammar(text, where, [], False)
    except UnexpectedToken as error:
        found = _in_words(error.token.type, repr(str(error.token)))
        accepted = ", ".join(sorted(map(_in_words, error.accepts or error.expected)))
        place = f"{where}:{error.line}:{error.column}"
        raise DataError(f"{place}: {found} in a grammar in Lark's notation; accepted here: {accepted}") from None
    except (LarkError, OSError) as error:
        raise DataError(f"{where}: not a grammar in Lark's notation: {' '.join(str(error).split())}") from None
    if own := [name for name in files if isinstance(name, str)]:  # those of Lark's library are no paths
        raise DataError(f"{where}: %import from {own[0]}; one file holds the whole grammar: write its rules there")
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


# What stands in the quotes of common.ESCAPED_STRING: it ends at the first quote that is not escaped.
_IN_QUOTES = ["/.*?/", r"/(?<!\\)(\\\\)*?/"]

# Symbols of Lark's notation by the names that its parser has for them.
_SYMBOLS = {
    **{"LPAR": "(", "RPAR": ")", "LBRA": "[", "RBRA": "]", "LBRACE": "{", "RBRACE": "}", "COLON": ":", "COMMA": ","},
    **{"OR": "|", "DOT": ".", "DOTDOT": "..", "TILDE": "~", "TO": "->", "OP": "* + ?", "NL": "the end of the line"},
    **{"NL_OR": "a new line with |", "$END": "the end of the file"},
}


class _LarkReader:
    """Nodes from the trees of Lark's own reader of grammars."""

    def __init__(self, terminals: Mapping[str, Any], alphabet: Alphabet, where: str) -> None:
        self.terminals, self.alphabet, self.where = terminals, alphabet, where

    def node(self, tree: Any) -> Node:
        kind, children = getattr(tree, "data", type(tree).__name__), list(getattr(tree, "children", []))
        match kind:
            case "expansions":
                return Alternatives(tuple(map(self.node, children)))
            case "expansion" if [_leaf(child) for child in children] == _IN_QUOTES:
                return pattern_node(r'([^"\\\n]|\\.)*', self.alphabet, self.where)
            case "expansion":
                return Concatenation(tuple(map(self.node, children)))
            case "alias" | "value":
                return self.node(children[0])
            case "maybe":
                return Repetition(self.node(children[0]), 0, 1)
            case "expr":
                return Repetition(self.node(children[0]), *self._bounds(children[1:]))
            case "NonTerminal":
                return Reference(str(tree.name))
            case "Terminal" if (definition := self.terminals.get(str(tree.name))) is not None:
                return self.node(definition) if not self.alphabet.whole else self._token(definition)
            case "literal" | "range" if self.alphabet.whole and not _string(tree):
                return self._token(tree)
            case "literal":
                return self._literal(children[0])
            case "range":
                low, high = self._range(children)
                return self.alphabet.matching(lambda name: len(name) == 1 and low <= name <= high)
        name = getattr(tree, "name", kind)
        raise DataError(f"{self.where}: {name} is not accepted; rules, terminals, strings, ranges and /patterns/ are")

    def _literal(self, token: Any) -> Node:
        text = str(token)
        if token.type == "REGEXP":
            return pattern_node(_pattern_of(text), self.alphabet, f"{self.where}:{token.line}")
        return self.alphabet.literal(_unquoted(text.removesuffix("i")), any_case=text.endswith("i"))

    def _token(self, tree: Any) -> Node:
        """One token that the terminal matches as a whole."""
        return self.alphabet.matching(re.compile(self._python_pattern(tree)).fullmatch)

    def _range(self, tokens: Sequence[Any]) -> tuple[str, str]:
        low, high = (_unquoted(token) for token in tokens)
        if not (len(low) == len(high) == 1 and low <= high):
            raise DataError(f"{self.where}: {tokens[0]}..{tokens[1]}; a range goes from one character to a later one")
        return low, high

    def _bounds(self, tokens: Sequence[Any]) -> tuple[int, int | None]:
        operator, *numbers = (str(token) for token in tokens)
        if operator != "~":
            return {"?": (0, 1), "*": (0, None), "+": (1, None)}[operator]
        if int(numbers[0]) > int(numbers[-1]):
            raise DataError(f"{self.where}: ~{'..'.join(numbers)}; the least number comes first")
        return int(numbers[0]), int(numbers[-1])

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
                least, most = self._bounds(children[1:])
                return f"(?:{self._python_pattern(children[0])}){{{least},{'' if most is None else most}}}"
            case "range":
                low, high = map(re.escape, self._range(children))
                return f"[{low}-{high}]"
            case "literal" if children[0].type == "REGEXP":
                pattern = _pattern_of(str(children[0]))
                parsed(pattern, self.where)  # alone, for an error at its own place
                parsed(f"(?:{pattern})", self.where)  # flags of all, as in (?i)a, are at the start or nowhere
                return f"(?:{pattern})"
            case "literal":
                text = str(children[0])
                string = _unquoted(text.removesuffix("i"))
                if any(map(str.isspace, string)):
                    raise DataError(
                        f"{self.where}: {text} in a terminal, which is one token where tokens are words; a rule may "
                        "have strings of several tokens"
                    )
                return f"(?i:{re.escape(string)})" if text.endswith("i") else re.escape(string)
            case "Terminal" if (definition := self.terminals.get(str(tree.name))) is not None:
                return self._python_pattern(definition)
        raise DataError(f"{self.where}: {getattr(tree, 'name', kind)} is not accepted in a terminal")


def _in_words(name: str, other: str = "") -> str:
    """A symbol of Lark's notation as it is written; `other` for those that are written in many ways."""
    return _SYMBOLS.get(name.lstrip("_")) or other or name.lstrip("_").lower().replace("_", " ")


def _leaf(tree: Any) -> str:
    """The only token of a tree; empty if there are more."""
    while children := getattr(tree, "children", None):
        tree = children[0] if len(children) == 1 else ""
    return str(tree)


def _string(tree: Any) -> bool:
    """Whether a literal is a string, not a pattern."""
    return bool(tree.data == "literal" and tree.children[0].type == "STRING")


def _unquoted(token: Any) -> str:
    """The text of a string of Lark's notation."""
    return str(ast.literal_eval(str(token)))


def _pattern_of(text: str) -> str:
    """The pattern in `/.../`, with the flags behind it."""
    body, _, flags = text[1:].rpartition("/")
    body = body.replace(r"\/", "/")
    return f"(?{flags}:{body})" if flags else body
