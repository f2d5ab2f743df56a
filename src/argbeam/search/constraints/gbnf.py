"""GBNF and JSON Schema: xgrammar reads both, and writes them as plain rules, which are read here.

Both describe the text of an output character by character, spaces included.
"""

import re
from functools import lru_cache
from typing import Any

from argbeam.errors import DataError
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
from argbeam.search.constraints.notations import needed

# The right side of a rule as xgrammar writes it. A lookahead, in `(=`, only helps xgrammar; it restricts nothing.
_RULE = r"""
start: choice lookahead?
lookahead: "(=" choice ")"
choice: sequence ("|" sequence)*
sequence: item*
item: (STRING | CLASS | NAME | "(" choice ")") (STAR | "{" NUMBER "," NUMBER "}")?
STAR: "*" | "+" | "?"
NUMBER: /-?\d+/
NAME: /[a-zA-Z_][\w.-]*/
STRING: /"(\\.|[^"\\])*"/
CLASS: /\[(\\.|[^\]\\])*\]/
%ignore " "
"""
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}


def gbnf_grammar(text: str, spelling: Spelling, *, where: str = "grammar") -> Grammar:
    """The grammar of a text in GBNF; it derives outputs from the rule `root`."""
    xgrammar = needed("xgrammar", "xgrammar")
    try:
        return _read(str(xgrammar.Grammar.from_ebnf(text)), spelling, where)
    except RuntimeError as error:
        raise DataError(f"{where}: not a grammar in GBNF: {_reason(error)}") from None


def json_schema_grammar(text: str, spelling: Spelling, *, where: str = "schema") -> Grammar:
    """The grammar of the JSON texts that fit a schema, spaced and ordered as `json.dumps` does by default."""
    xgrammar = needed("xgrammar", "xgrammar")
    try:
        return _read(str(xgrammar.Grammar.from_json_schema(text, any_whitespace=False)), spelling, where)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{where}: not a JSON Schema that can be a grammar: {_reason(error)}") from None


def _read(rules: str, spelling: Spelling, where: str) -> Grammar:
    alphabet = Alphabet(spelling, whole=False)
    found: dict[str, Node] = {}
    for line in filter(None, rules.splitlines()):
        name, _, right = line.partition(" ::= ")
        try:
            found[name] = _node(_reader().parse(right).children[0], alphabet)
        except needed("lark.exceptions", "lark").LarkError:
            raise DataError(f"{where}: the rule {line!r} is not accepted; strings, classes and rules are") from None
    return alphabet.grammar(found, "root")


@lru_cache(maxsize=1)
def _reader() -> Any:
    return needed("lark", "lark").Lark(_RULE, parser="lalr")


def _node(tree: Any, alphabet: Alphabet) -> Node:
    kind, children = getattr(tree, "data", getattr(tree, "type", "")), list(getattr(tree, "children", []))
    match str(kind):
        case "choice":
            return Alternatives(tuple(_node(child, alphabet) for child in children))
        case "sequence":
            return Concatenation(tuple(_node(child, alphabet) for child in children))
        case "item":
            part, bounds = _node(children[0], alphabet), [str(token) for token in children[1:]]
            if not bounds:
                return part
            least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(bounds[0]) or map(int, bounds)
            return Repetition(part, least, None if most < 0 else most)
        case "STRING":
            return alphabet.literal("".join(_letters(str(tree)[1:-1])))
        case "CLASS":
            return _class(str(tree)[1:-1], alphabet)
    return Reference(str(tree))


def _class(text: str, alphabet: Alphabet) -> Node:
    """The characters of a class such as `[^a-z\\n]`."""
    negated = text.startswith("^")
    letters = _letters(text.removeprefix("^"), dash="")
    ranges: list[tuple[str, str]] = []
    while letters:
        low, high = letters[0], letters[0]
        letters = letters[1:]
        if len(letters) > 1 and letters[0] == "":
            high, letters = letters[1], letters[2:]
        ranges.append((low or "-", high or "-"))
    return alphabet.matching(lambda name: any(low <= name <= high for low, high in ranges) != negated)


def _letters(text: str, dash: str = "-") -> list[str]:
    """The characters of an escaped text; a dash that is not escaped becomes `dash`."""
    letters = []
    for escaped, plain in _ESCAPED.findall(text):
        if len(escaped) > 1:
            letters.append(chr(int(escaped[1:], 16)))
        else:
            letters.append(_ESCAPES.get(escaped, escaped) if escaped else dash if plain == "-" else plain)
    return letters


def _reason(error: Exception) -> str:
    """Xgrammar's message without the time and the place in its source, and without the schema at its end."""
    message = " ".join(str(error).split()).rpartition(" is false: ")[2].partition(" The JSON string is:")[0]
    return re.sub(r"^\[[\d:]+\] \S+: ", "", message)
