"""Deterministic automata of grammars as tables that a search steps through.

A state of a rule is on top of a stack; below it are the states to return to when rules end. A regular grammar has one
state and no stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from argbeam.errors import DataError
from argbeam.search.constraints.grammar import Grammar
from argbeam.search.constraints.rule_automata import NotDeterministic, RuleAutomata, classes_of

# Classes of tokens: those that no rule takes, the end symbol, and from 2 on sets of tokens that rules treat alike.
NEVER_TAKEN, END = 0, 1
# Entries of a stack: nothing, the only state of a prefix that no output starts with, and from 2 on states.
NOTHING, DEAD = 0, 1

IntArray = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Automaton:
    """Tables of Q states and C classes of tokens.

    On class c, state q is replaced by the first `size_QC[q, c]` of `pushed_QCM[q, c]`, the new top first; size 0: not
    taken. `ends_Q`: the rule may end here, so that the state below takes the token. `start` is the first state;
    `recursive`: whether stacks grow at all.
    """

    class_V: IntArray
    size_QC: IntArray
    pushed_QCM: IntArray
    ends_Q: IntArray
    start: int

    @property
    def recursive(self) -> bool:
        return self.pushed_QCM.shape[2] > 1


def compile_grammar(grammar: Grammar) -> Automaton:
    """The automaton of a grammar; a DataError if no output of the vocabulary is valid."""
    atom_classes = classes_of(grammar)
    rules = RuleAutomata(grammar, atom_classes)
    plain = all(len(atoms) <= 1 for atoms in grammar.atoms_of)
    if not plain:
        if len(rules.starts) > 1 or rules.calls:
            raise NotDeterministic("tokens of several characters, and a rule that contains itself")
        return _over_tokens(rules, grammar, atom_classes)
    moves = [rules.moves(state) for state in range(len(rules.edges))]
    rules.check_ends(moves)
    class_V = np.array([atom_classes.get(atoms[0], -2) + 2 if atoms else NEVER_TAKEN for atoms in grammar.atoms_of])
    class_V[list(grammar.ends)] = END
    return _tables(class_V, moves, rules.ends, rules.starts[grammar.start])


def _over_tokens(rules: RuleAutomata, grammar: Grammar, atom_classes: Mapping[int, int]) -> Automaton:
    """The automaton over tokens of several atoms, from one over atoms without calls."""
    states = len(rules.edges)
    dead, never = states, max(atom_classes.values(), default=-1) + 1
    after_QA = np.full((states + 1, never + 1), dead)
    for state, edges in enumerate(rules.edges):
        for symbol, target in edges.items():
            after_QA[state, int(symbol)] = target
    longest = max(map(len, grammar.atoms_of))
    after_QV = np.repeat(np.arange(states + 1)[:, None], len(grammar.atoms_of), 1)
    for place in range(longest):
        here_V = [atom_classes.get(atoms[place], never) if place < len(atoms) else -1 for atoms in grammar.atoms_of]
        moved_QV = after_QA[after_QV, np.maximum(here_V, 0)]
        after_QV = np.where(np.array(here_V) < 0, after_QV, moved_QV)
    after_QV[:, [not atoms for atoms in grammar.atoms_of]] = dead
    live_Q = np.array([*rules.ends, False])
    while (more_Q := live_Q | live_Q[after_QV].any(1)).sum() > live_Q.sum():
        live_Q = more_Q
    if not live_Q[rules.starts[grammar.start]]:
        raise DataError("no output is valid: the grammar derives nothing from the tokens of the vocabulary")
    after_QV[~live_Q[after_QV]] = dead
    columns_QC, class_V = np.unique(after_QV[:-1], axis=1, return_inverse=True)
    moves: list[dict[int, tuple[int, ...]]] = [
        {c: (int(to),) for c, to in enumerate(row) if to != dead} for row in columns_QC
    ]
    class_V = class_V.reshape(-1) + 2
    class_V[list(grammar.ends)] = END
    return _tables(class_V, moves, rules.ends, rules.starts[grammar.start])


def _tables(class_V: IntArray, moves: list[dict[int, tuple[int, ...]]], ends: list[bool], start: int) -> Automaton:
    classes = int(class_V.max()) + 1
    longest = max((len(pushed) for taken in moves for pushed in taken.values()), default=1)
    size_QC = np.zeros((len(moves) + 2, classes), np.int64)
    pushed_QCM = np.zeros((len(moves) + 2, classes, longest), np.int64)
    for state, taken in enumerate(moves):
        for token_class, pushed in taken.items():
            if token_class + 2 < classes:
                size_QC[state + 2, token_class + 2] = len(pushed)
                pushed_QCM[state + 2, token_class + 2, : len(pushed)] = np.array(pushed) + 2
    ends_Q = np.array([True, False, *ends])
    return Automaton(class_V, size_QC, pushed_QCM, ends_Q, start + 2)
