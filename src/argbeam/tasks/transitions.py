"""Dependency trees as symbol sequences: words interleaved with arc-standard actions, and back.

A word symbol shifts the next word of the sentence. `@L_x` makes the second item of the stack a dependent
(label x) of the top, `@R_x` the top a dependent of the second; the dependent leaves the stack. The last item
is the root, unmarked:

    small birds sing here      birds -amod-> small, sing -nsubj-> birds, sing -advmod-> here
    small birds @L_amod sing @L_nsubj here @R_advmod

A sentence of n words has 2n-1 symbols. Heads are numbers of words from 1, and 0 for the root.
Wiseman & Rush 2016, section 5.2, "Dependency Parsing".
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from argbeam.data.readers.conll import tree_fault
from argbeam.errors import DataError

# Prefixes of a label: the dependent is the second item of the stack (left arc) or the top (right arc).
LEFT, RIGHT = "@L_", "@R_"
_LIKE_ACTION = re.compile(r"@+[LR]_")


class Arcs(NamedTuple):
    """A dependency tree: for each word its head (from 1; 0 for the root) and the label of that arc."""

    heads: tuple[int, ...]
    labels: tuple[str, ...]


def is_action(symbol: str) -> bool:
    """Whether a symbol is a reduce action; every other symbol is a word and shifts."""
    return symbol.startswith((LEFT, RIGHT))


def escape_word(word: str) -> str:
    """The symbol of a word, never an action: `@L_x` becomes `@@L_x`, `@@L_x` becomes `@@@L_x`; others stay."""
    return "@" + word if _LIKE_ACTION.match(word) else word


def is_projective(heads: Sequence[int]) -> bool:
    """Whether no two arcs of a tree cross, the arc from position 0 to the root among them."""
    spans = [(min(word, head), max(word, head)) for word, head in enumerate(heads, start=1)]
    # Arcs that do not cross are brackets: opened from the left, longest first, each closes before those around it.
    spans.sort(key=lambda span: (span[0], -span[1]))
    open_ends: list[int] = []
    for start, end in spans:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            return False
        open_ends.append(end)
    return True


def actions_of_tree(words: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> tuple[str, ...]:
    """The 2n-1 symbols of a projective tree, every left arc made as soon as possible.

    The words are symbols (escaped, rare ones replaced). The root's label is not part of the sequence.
    """
    if not len(words) == len(heads) == len(labels):
        raise DataError(f"{len(words)} words, {len(heads)} heads and {len(labels)} labels; every word has one of each")
    fault = tree_fault(heads)
    if fault is not None:
        raise DataError(f"word {fault.word}: {fault.text}")
    for word, symbol in enumerate(words, start=1):
        if is_action(symbol):
            raise DataError(f"word {word} is {symbol}, which reads as an action; accepted: {escape_word(symbol)}")
    pending = [0] * (len(words) + 1)  # dependents that each word has yet to take
    for head in heads:
        pending[head] += 1
    symbols: list[str] = []
    stack: list[int] = []
    for word, symbol in enumerate(words, start=1):
        symbols.append(symbol)
        stack.append(word)
        while len(stack) >= 2:
            second, top = stack[-2:]
            # A word is reduced only when it has all its dependents: off the stack it can take none.
            if heads[second - 1] == top and pending[second] == 0:
                symbols.append(LEFT + labels[second - 1])
                pending[top] -= 1
                del stack[-2]
            elif heads[top - 1] == second and pending[top] == 0:
                symbols.append(RIGHT + labels[top - 1])
                pending[second] -= 1
                del stack[-1]
            else:
                break
    if len(stack) > 1:
        raise DataError(f"heads {' '.join(map(str, heads))} make arcs that cross; only projective trees have actions")
    return tuple(symbols)


def tree_of_actions(symbols: Sequence[str], n_words: int, *, root_label: str = "root") -> Arcs:
    """The tree that symbols build over a sentence of n words: the inverse of `actions_of_tree`.

    Only the place of a word symbol counts: an unknown word shifts like any other.
    """
    heads = [0] * n_words
    labels = [root_label] * n_words
    stack: list[int] = []
    shifted = 0
    for position, symbol in enumerate(symbols, start=1):
        if not is_action(symbol):
            shifted += 1
            if shifted > n_words:
                raise DataError(f"symbol {position}: word {symbol!r} is one too many for {n_words} words")
            stack.append(shifted)
            continue
        if len(stack) < 2:
            raise DataError(f"symbol {position}: {symbol} on a stack of {len(stack)}; an action needs 2 items")
        second, top = stack[-2:]
        dependent, head = (second, top) if symbol.startswith(LEFT) else (top, second)
        heads[dependent - 1] = head
        labels[dependent - 1] = symbol[len(LEFT) :]
        stack.remove(dependent)
    if shifted < n_words or len(stack) != 1:
        raise DataError(
            f"the symbols shift {shifted} words of {n_words} and leave {len(stack)} items on the stack; "
            "a tree shifts all and leaves 1"
        )
    return Arcs(tuple(heads), tuple(labels))
