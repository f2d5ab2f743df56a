"""Deterministic automata of grammars as tables that a search steps through.

A state of a rule is on top of a stack; below it are the states to return to when rules end. A regular grammar has one
state and no stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from argbeam.errors import DataError
from argbeam.search.constraints.grammar import Grammar
from argbeam.search.constraints.rule_automata import NotDeterministic, RuleAutomata, classes_of
from argbeam.search.successors import NO_END

# Classes of tokens: those that no rule takes, the end symbol, and from 2 on sets of tokens that rules treat alike.
NEVER_TAKEN, END = 0, 1
# Entries of a stack: nothing, the only state of a prefix that no output starts with, and from 2 on states.
NOTHING, DEAD = 0, 1
_MOST_CELLS = 1 << 26

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


@dataclass(frozen=True)
class WaysToEnd:
    """The fewest tokens until the rule of a state ends, where the states that replace it have room r + 1 on the stack.

    `state_QR[q, r]` begins in state q, `token_QRC[q, r, c]` with a token of class c, which counts. `NO_END`: it never
    ends. More room than R changes nothing.
    """

    state_QR: IntArray
    token_QRC: IntArray


def ways_to_end(automaton: Automaton, depth: int) -> WaysToEnd:
    """The ways to an end on a stack of at most `depth` states."""
    (states, classes), longest = automaton.size_QC.shape, automaton.pushed_QCM.shape[2]
    state_E, class_E = np.nonzero(automaton.size_QC)
    edges_EX = np.column_stack([state_E, automaton.size_QC[state_E, class_E], automaton.pushed_QCM[state_E, class_E]])
    some_EX = np.unique(edges_EX, axis=0)  # classes with the same effect are one edge; edges of a state are neighbours
    by_room_RQ = np.where(automaton.ends_Q, 0, NO_END)[None]  # without room
    endless_Q = _settled(some_EX, by_room_RQ, longest) if longest > 1 else None
    for room in range(1, depth + 1):
        by_room_RQ = np.vstack([by_room_RQ, _settled(some_EX, np.vstack([by_room_RQ, by_room_RQ[-1:]]), room)])
        if endless_Q is None or (room >= longest and (by_room_RQ[-longest:] == endless_Q).all()):
            break
    token_QRC = np.full((states, len(by_room_RQ) - 1, classes), NO_END, np.int16)
    for room in range(1, len(by_room_RQ)):
        token_QRC[state_E, room - 1, class_E] = _costs(edges_EX, by_room_RQ, room)
    return WaysToEnd(by_room_RQ[1:].T.astype(np.int32), token_QRC)


def _settled(edges_EX: IntArray, by_room_RQ: IntArray, room: int) -> IntArray:
    """The fewest tokens of each state with this much room: the last row, once no edge makes one of them smaller."""
    found_RQ = by_room_RQ.copy()
    states, first_E = np.unique(edges_EX[:, 0], return_index=True)
    while len(states):
        best = np.minimum(np.minimum.reduceat(_costs(edges_EX, found_RQ, room), first_E), found_RQ[-1, states])
        if (best == found_RQ[-1, states]).all():
            break
        found_RQ[-1, states] = best
    settled_Q: IntArray = found_RQ[-1]
    return settled_Q


def _costs(edges_EX: IntArray, by_room_RQ: IntArray, room: int) -> IntArray:
    """The tokens that each edge (state, size, states pushed) takes until the rule has ended, its own included.

    Worked example: an edge that pushes `x y` in room 3 takes 1 token, then those of x in room 2, then those of y in
    room 3.
    """
    size_E1, pushed_EM = edges_EX[:, 1:2], edges_EX[:, 2:]
    place_M = np.arange(pushed_EM.shape[1])
    room_EM = (room - (size_E1 - 1 - place_M)).clip(0, len(by_room_RQ) - 1)
    steps_EM = np.where(place_M < size_E1, by_room_RQ[room_EM, pushed_EM], 0)
    return np.where(size_E1[:, 0] <= room, (1 + steps_EM.sum(1)).clip(max=NO_END), NO_END)


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
    """The automaton over tokens of several atoms, from one over atoms without calls.

    Its states are those that are reached between two tokens, numbered in the order of discovery.
    """
    after_QA, token_X, columns = _atom_steps(rules, grammar, atom_classes)
    found, tokens = [rules.starts[grammar.start]], len(grammar.atoms_of)
    number = {found[0]: 0}
    rows: list[IntArray] = []
    before: list[set[int]] = [set()]
    for state in found:  # grows
        reached_X = _reached(state, after_QA, columns)
        taken = np.flatnonzero(reached_X < len(after_QA) - 1)
        targets, place = np.unique(reached_X[taken], return_inverse=True)
        for target in targets.tolist():
            if target not in number:
                number[target] = len(found)
                found.append(target)
                before.append(set())
            before[number[target]].add(len(rows))
        row_V = np.full(tokens, -1, np.int32)
        row_V[token_X[taken]] = np.array([number[target] for target in targets.tolist()], np.int32)[place.reshape(-1)]
        rows.append(row_V)
        if len(found) * tokens > _MOST_CELLS:
            raise NotDeterministic(f"more than {_MOST_CELLS:,} pairs of states and tokens")
    after_QV, ends = np.stack(rows), [rules.ends[state] for state in found]
    live_Q = np.array([*_live(before, ends), False])  # the last is that of nowhere, -1
    if not live_Q[0]:
        raise DataError("no output is valid: the grammar derives nothing from the tokens of the vocabulary")
    after_QV[~live_Q[after_QV]] = -1
    some_C, class_V = _alike(after_QV)
    moves: list[dict[int, tuple[int, ...]]] = [
        {c: (to,) for c, to in enumerate(row) if to >= 0} for row in after_QV[:, some_C].tolist()
    ]
    class_V = class_V + 2
    class_V[list(grammar.ends)] = END
    return _tables(class_V, moves, ends, 0)


def _atom_steps(
    rules: RuleAutomata, grammar: Grammar, atom_classes: Mapping[int, int]
) -> tuple[IntArray, IntArray, list[IntArray]]:
    """The state after a state and a class of atoms, the last state being nowhere; the tokens that have atoms, the
    longest first; and the class of their first atom, of their second, and so on, of the tokens that have so many.
    """
    nowhere, never = len(rules.edges), max(atom_classes.values(), default=-1) + 1
    after_QA = np.full((nowhere + 1, never + 1), nowhere, np.int32)
    for state, edges in enumerate(rules.edges):
        for symbol, target in edges.items():
            after_QA[state, int(symbol)] = target
    spelled = sorted(
        (token for token, atoms in enumerate(grammar.atoms_of) if atoms), key=lambda v: -len(grammar.atoms_of[v])
    )
    columns: list[list[int]] = [[] for _ in range(max(map(len, grammar.atoms_of)))]
    for token in spelled:
        for column, atom in zip(columns, grammar.atoms_of[token], strict=False):
            column.append(atom_classes.get(atom, never))
    return after_QA, np.array(spelled, np.int64), [np.array(column, np.int32) for column in columns]


def _reached(state: int, after_QA: IntArray, columns: list[IntArray]) -> IntArray:
    """The state after a state and each token that has atoms."""
    reached_X = np.full(len(columns[0]), state, np.int32)
    on_the_way = np.arange(len(reached_X))
    for column in columns:  # most tokens are short, and most of the others are soon nowhere
        on_the_way = on_the_way[: np.searchsorted(on_the_way, len(column))]
        after = after_QA[reached_X[on_the_way], column[on_the_way]]
        reached_X[on_the_way] = after
        on_the_way = on_the_way[after < len(after_QA) - 1]
    return reached_X


def _alike(after_QV: IntArray) -> tuple[IntArray, IntArray]:
    """A token of each class, and the class of each token: those of one class lead from every state to the same one."""
    for seed in count():
        weight_Q = np.random.default_rng(seed).integers(1 << 63, size=len(after_QV), dtype=np.uint64)
        sum_V = np.zeros(after_QV.shape[1], np.uint64)
        for weight, row_V in zip(weight_Q, after_QV, strict=True):
            sum_V += weight * row_V.astype(np.uint64)
        _, some_C, class_V = np.unique(sum_V, return_index=True, return_inverse=True)
        class_V = class_V.reshape(-1)
        if all((row_V[some_C][class_V] == row_V).all() for row_V in after_QV):  # no two sums are the same by chance
            return some_C, class_V
    raise AssertionError


def _live(before: list[set[int]], ends: list[bool]) -> list[bool]:
    """Whether a state can reach one in which an output may end; `before` are the states that lead to each."""
    live, waiting = list(ends), [state for state, end in enumerate(ends) if end]
    while waiting:
        for state in before[waiting.pop()]:
            if not live[state]:
                live[state] = True
                waiting.append(state)
    return live


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
