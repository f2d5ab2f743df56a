"""GBNF: xgrammar reads it, and writes it as plain rules, which are read here, as are those of JSON Schema.

Rules describe the text of an output character by character, spaces included.
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
    references,
)
from argbeam.search.constraints.notations import needed
from argbeam.search.constraints.patterns import pattern_node

# The right side of a rule as xgrammar writes it. A lookahead, in `(=`, only helps xgrammar; it restricts nothing.
_RULE = r"""
start: choice lookahead?
lookahead: "(=" choice ")"
choice: sequence ("|" sequence)*
sequence: item*
item: (STRING | CLASS | REGEX | NAME | "(" choice ")") (STAR | "{" NUMBER "," NUMBER "}")?
STAR: "*" | "+" | "?"
NUMBER: /-?\d+/
NAME: /[a-zA-Z_][\w.-]*/
STRING: /"(\\.|[^"\\])*"/
CLASS: /\[(\\.|[^\]\\])*\]/
REGEX.1: /Regex\("(\\.|[^"\\])*", json_string=true\)/
%ignore " "
"""
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}


def gbnf_grammar(text: str, spelling: Spelling, *, where: str = "grammar") -> Grammar:
    """The grammar of a text in GBNF; it derives outputs from the rule `root`."""
    xgrammar = needed("xgrammar", "xgrammar")
    if found := re.search(r"\[\\(\^|x5[eE])", text):
        line = text.count("\n", 0, found.start()) + 1
        raise DataError(f"{where}:{line}: {found[0]} would be read as [^; write ^ behind another character, as in [a^]")
    try:
        return read_rules(str(xgrammar.Grammar.from_ebnf(text)), spelling, where)
    except RuntimeError as error:
        raise DataError(f"{where}: not a grammar in GBNF: {reason_of(error)}") from None


def read_rules(rules: str, spelling: Spelling, where: str) -> Grammar:
    """The grammar of rules as xgrammar writes them."""
    alphabet = Alphabet(spelling, whole=False)
    found: dict[str, Node] = {}
    for line in filter(None, rules.splitlines()):
        name, _, right = line.partition(" ::= ")
        try:
            found[name] = _repeated(name, _node(_reader().parse(right).children[0], alphabet, where))
        except needed("lark.exceptions", "lark").LarkError:
            raise DataError(f"{where}: the rule {line!r} is not accepted; strings, classes and rules are") from None
    return alphabet.grammar(found, "root")


def _repeated(name: str, node: Node) -> Node:
    """The rule `A ::= X A | Y` as `X* Y`: xgrammar writes every repetition as a rule that contains itself."""
    again: list[Node] = []
    last: list[Node] = []
    for parts in _alternatives(node):
        if parts[-1:] == (Reference(name),):
            again.append(Concatenation(parts[:-1]))
        else:
            last.append(Concatenation(parts))
    if not again or not last or any(name in references(part) for part in (*again, *last)):
        return node
    return Concatenation((Repetition(Alternatives(tuple(again)), 0, None), Alternatives(tuple(last))))


def _alternatives(node: Node) -> list[tuple[Node, ...]]:
    """The alternatives of a node, each as the parts that follow one another."""
    match node:
        case Alternatives(parts):
            return [found for part in parts for found in _alternatives(part)]
        case Concatenation((part,)):
            return _alternatives(part)
        case Concatenation(parts):
            return [parts]
    return [(node,)]


@lru_cache(maxsize=1)
def _reader() -> Any:
    return needed("lark", "lark").Lark(_RULE, parser="lalr")


def _node(tree: Any, alphabet: Alphabet, where: str) -> Node:
    kind, children = getattr(tree, "data", getattr(tree, "type", "")), list(getattr(tree, "children", []))
    match str(kind):
        case "choice":
            return Alternatives(tuple(_node(child, alphabet, where) for child in children))
        case "sequence":
            return Concatenation(tuple(_node(child, alphabet, where) for child in children))
        case "item":
            part, bounds = _node(children[0], alphabet, where), [str(token) for token in children[1:]]
            if not bounds:
                return part
            least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(bounds[0]) or map(int, bounds)
            return Repetition(part, least, None if most < 0 else most)
        case "STRING":
            return alphabet.literal("".join(_letters(str(tree)[1:-1])))
        case "CLASS":
            return _class(str(tree)[1:-1], alphabet)
        case "REGEX":  # characters that JSON would escape are left out
            pattern = "".join(_letters(str(tree)[len('Regex("') : str(tree).rindex('"')]))
            return pattern_node(
                pattern, alphabet.without(lambda name: name < " " or name in '"\\'), where, anchors=True
            )
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


def reason_of(error: Exception) -> str:
    """Xgrammar's message without the time and the place in its source, and without the schema at its end."""
    message = " ".join(str(error).split()).rpartition(" is false: ")[2].partition(" The JSON string is:")[0]
    return re.sub(r"^\[[\d:]+\] \S+: ", "", message)
