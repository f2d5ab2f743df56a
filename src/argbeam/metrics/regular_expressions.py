"""Whether two regular expressions in the notation of NL-RX (Locascio et al. 2016) have the same strings.

The notation, symbols separated by spaces: `.`, `[ <LET> ]`, `*`, `+`, `{ 3 , }`, `|`, `&` (both), `~` (all but), `( )`,
and `<M0>` to `<M3>` for words. A backslash takes the next symbol as it is. Precedence as in the dk.brics automaton
library, which the corpus was scored with: `~`, then repetition, concatenation, `&`, `|`.

Two expressions are equal if no string tells them apart: derivatives of both (Brzozowski 1964) are compared for every
first character, and so on. Expressions are tuples, simplified so that few derivatives differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

Regex = tuple[Any, ...]

_WORDS = {"<M0>": "dog", "<M1>": "truck", "<M2>": "ring", "<M3>": "lake"}
_VOWELS, _LOWER, _DIGITS = "aeiou", "abcdefghijklmnopqrstuvwxyz", "0123456789"
_CLASSES = {
    "<VOW>": _VOWELS + _VOWELS.upper(),
    "<NUM>": _DIGITS,
    "<LET>": _LOWER + _LOWER.upper(),
    "<CAP>": _LOWER.upper(),
    "<LOW>": _LOWER,
}
# Characters that no class tells apart, one group each; the last stands for all others.
_CONSONANTS = "".join(sorted(set(_LOWER) - set(_VOWELS)))
_GROUPS = (_VOWELS, _CONSONANTS, _VOWELS.upper(), _CONSONANTS.upper(), _DIGITS, "\0")
_SPECIAL = frozenset("()[]{}|&~*+?.\\")
# Parts of an expression once its repetitions are written out, and pairs of derivatives that are compared. What has more
# counts as unreadable, or as different: `{ 3 , }` ten times over has 59,049 parts. The corpus has at most 170.
_MOST_PARTS, _MOST_PAIRS = 400, 4000

_NOTHING: Regex = ("set", frozenset())  # no string at all
_EMPTY: Regex = ("cat",)
_ANY: Regex = ("set", None)  # every character


@lru_cache(maxsize=1 << 16)  # most outputs of an epoch are those of the epoch before
def same_strings(one: str, other: str) -> bool:
    """Whether two expressions stand for the same strings. One that cannot be read equals only itself."""
    if one.split() == other.split():
        return True
    sides = (parse(one), parse(other))
    if sides[0] is None or sides[1] is None:
        return False
    used = {char for side in sides if side is not None for char in _literals(side)}
    # One character of each group that no expression names stands for all of them.
    others = [next((char for char in group if char not in used), "") for group in _GROUPS]
    letters = [*used, *filter(None, others)]
    seen, open_pairs = {sides}, [sides]
    while open_pairs:
        left, right = open_pairs.pop()
        if left is None or right is None or _ends(left) != _ends(right) or len(seen) > _MOST_PAIRS:
            return False
        for letter in letters:
            pair = (_after(left, letter), _after(right, letter))
            if pair[0] != pair[1] and pair not in seen:
                seen.add(pair)
                open_pairs.append(pair)
    return True


def parse(text: str) -> Regex | None:
    """The expression; None where the text is none."""
    reader = _Reader(text.split())
    try:
        found = reader.union()
    except (_UnreadableError, RecursionError):
        return None
    return found if not reader.left else None


class _UnreadableError(Exception):
    """The symbols are no expression."""


@dataclass
class _Reader:
    """Recursive descent over the symbols."""

    symbols: Sequence[str]
    place: int = field(default=0)

    @property
    def left(self) -> Sequence[str]:
        return self.symbols[self.place : self.place + 1]

    def take(self, *accepted: str) -> bool:
        found = bool(self.left) and self.left[0] in accepted
        self.place += found
        return found

    def expect(self, symbol: str) -> None:
        if not self.take(symbol):
            raise _UnreadableError

    def union(self) -> Regex:
        parts = [self.intersection()]
        while self.take("|"):
            parts.append(self.intersection())
        return _either(parts)

    def intersection(self) -> Regex:
        parts = [self.sequence()]
        while self.take("&"):
            parts.append(self.sequence())
        return _but(_either([_but(part) for part in parts]))

    def sequence(self) -> Regex:
        parts = [self.repetition()]
        while self.left and self.left[0] not in ("|", "&", ")"):
            parts.append(self.repetition())
        return _joined(parts)

    def repetition(self) -> Regex:
        found = self.complement()
        while self.left and self.left[0] in ("*", "+", "?", "{"):
            if self.take("*"):
                found = _star(found)
            elif self.take("+"):
                found = _joined([found, _star(found)])
            elif self.take("?"):
                found = _either([found, _EMPTY])
            else:
                found = self.counted(found)
            if _parts(found) > _MOST_PARTS:
                raise _UnreadableError
        return found

    def counted(self, found: Regex) -> Regex:
        """`{ 3 , }`, `{ 3 }` or `{ 3 , 5 }`."""
        self.expect("{")
        least = self.number()
        most: int | None = least
        if self.take(","):
            most = self.number() if self.left and self.left[0].isdecimal() else None
        self.expect("}")
        if max(least, most or 0) * _parts(found) > _MOST_PARTS:
            raise _UnreadableError
        parts = [found] * least
        if most is None:
            return _joined([*parts, _star(found)])
        return _joined([*parts, *[_either([found, _EMPTY])] * max(0, most - least)])

    def number(self) -> int:
        if not self.left or not self.left[0].isdecimal() or int(self.left[0]) > _MOST_PARTS:
            raise _UnreadableError
        self.place += 1
        return int(self.symbols[self.place - 1])

    def complement(self) -> Regex:
        return _but(self.complement()) if self.take("~") else self.single()

    def single(self) -> Regex:
        if self.take("("):
            if self.take(")"):
                return _EMPTY
            found = self.union()
            self.expect(")")
            return found
        if self.take("["):
            chars = set(self.literal())
            while not self.take("]"):
                chars |= set(self.literal())
            return ("set", frozenset(chars))
        if self.take("."):
            return _ANY
        return _joined([("set", frozenset(char)) for char in self.literal()])

    def literal(self) -> str:
        """The characters of a symbol: of a class, of a word, or the symbol itself."""
        escaped = self.take("\\")
        if not self.left or (self.left[0] in _SPECIAL and not escaped):
            raise _UnreadableError
        symbol = self.left[0]
        self.place += 1
        return _CLASSES.get(symbol) or _WORDS.get(symbol) or symbol


# The expressions, simplified: "set" characters, "cat" parts, "star" part, "or" set of parts, "but" (all but) part.


def _joined(parts: Sequence[Regex]) -> Regex:
    flat = [piece for part in parts for piece in (part[1:] if part[0] == "cat" else (part,))]
    if _NOTHING in flat:
        return _NOTHING
    return flat[0] if len(flat) == 1 else ("cat", *flat)


def _either(parts: Sequence[Regex]) -> Regex:
    every = frozenset(piece for part in parts for piece in (part[1] if part[0] == "or" else (part,))) - {_NOTHING}
    if _but(_NOTHING) in every:
        return _but(_NOTHING)
    return _NOTHING if not every else next(iter(every)) if len(every) == 1 else ("or", every)


def _star(part: Regex) -> Regex:
    return part if part[0] == "star" else _EMPTY if part in (_EMPTY, _NOTHING) else ("star", part)


def _but(part: Regex) -> Regex:
    return part[1] if part[0] == "but" else ("but", part)


def _parts(regex: Regex) -> int:
    """The size of an expression."""
    if regex[0] == "set":
        return 1
    return 1 + sum(map(_parts, regex[1] if regex[0] == "or" else regex[1:]))


def _literals(regex: Regex) -> set[str]:
    """The characters that an expression names, but for whole groups of them."""
    if regex[0] == "set":
        chars = regex[1] or frozenset()
        return set(chars).difference(*(group for group in _GROUPS if chars.issuperset(group)))
    parts = regex[1] if regex[0] == "or" else regex[1:]
    return set().union(*map(_literals, parts))


@lru_cache(maxsize=1 << 16)
def _ends(regex: Regex) -> bool:
    """Whether the empty string is one of them."""
    kind, *parts = regex
    if kind == "or":
        return any(map(_ends, parts[0]))
    if kind == "but":
        return not _ends(parts[0])
    return kind == "star" or (kind == "cat" and all(map(_ends, parts)))


@lru_cache(maxsize=1 << 16)
def _after(regex: Regex, letter: str) -> Regex:
    """What may follow this first character."""
    kind, *parts = regex
    if kind == "set":
        return _EMPTY if parts[0] is None or letter in parts[0] else _NOTHING
    if kind == "or":
        return _either([_after(part, letter) for part in parts[0]])
    if kind == "but":
        return _but(_after(parts[0], letter))
    if kind == "star":
        return _joined([_after(parts[0], letter), regex])
    if not parts:
        return _NOTHING
    rest = _joined(parts[1:])
    first = _joined([_after(parts[0], letter), rest])
    return _either([first, _after(rest, letter)]) if _ends(parts[0]) else first
