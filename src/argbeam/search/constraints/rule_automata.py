"""Automata of the rules of a grammar: states, edges that take an atom or call a rule, and what one atom leads to.

All rules are inlined but for a few, without which no rule would contain itself, so that a regular grammar becomes one
automaton. One atom must tell what to do (the grammar is LL(1) once common beginnings are factored out, which automata
do by themselves); otherwise `NotDeterministic` says why.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from argbeam.errors import DataError
from argbeam.search.constraints.grammar import (
    Alternatives,
    AtomSet,
    Concatenation,
    Grammar,
    Node,
    Reference,
    Repetition,
    atom_sets,
    references,
)

_MOST_STATES = 20_000
# States of all subsets together: seconds of work.
_MOST_SUBSETS = 5_000_000


class NotDeterministic(Exception):  # noqa: N818  the reason why a grammar needs another way, no mistake
    """The grammar has no deterministic automaton of this kind."""


def classes_of(grammar: Grammar) -> dict[int, int]:
    """The class of every atom that a rule takes: atoms of one class are in the same sets of atoms."""
    sets = sorted({node.atoms for rule in grammar.rules.values() for node in atom_sets(rule)}, key=sorted)
    members: dict[int, list[int]] = {}
    for number, atoms in enumerate(sets):
        for atom in atoms:
            members.setdefault(atom, []).append(number)
    classes: dict[tuple[int, ...], int] = {}
    return {atom: classes.setdefault(tuple(inside), len(classes)) for atom, inside in sorted(members.items())}


def called_rules(rules: Mapping[str, Node], start: str) -> set[str]:
    """Few rules without which no rule contains itself: these are called, and all others can be inlined."""
    called: set[str] = set()
    while loops := _recursive(rules, start, called):
        # Rules that are named most often go first, the start before all: each call takes a place on the stack.
        named = Counter(name for loop in loops for name in references(rules[loop]))
        called.add(max(sorted(loops), key=lambda rule: (rule == start, named[rule])))
    return called


def _recursive(rules: Mapping[str, Node], start: str, called: set[str]) -> set[str]:
    """The rules that an output may need and that contain themselves, other than through called ones."""
    reached = {name: set(references(node)) for name, node in rules.items()}
    needed = closed({start}, reached)
    inlined = {name: found - called for name, found in reached.items()}
    return {name for name in needed - called if name in closed(inlined[name], inlined)}


def closed(names: set[str], reached: Mapping[str, set[str]]) -> set[str]:
    """The names, and all that are reached from them."""
    found, waiting = set(names), list(names)
    while waiting:
        more = reached[waiting.pop()] - found
        found |= more
        waiting += more
    return found


class RuleAutomata:
    """One automaton for the start rule and for each rule that is called; states are numbered through.

    `edges[q]` leads from a class, or from the name of a rule that is called, to a state. Every state can reach an end.
    """

    def __init__(self, grammar: Grammar, atom_classes: Mapping[int, int]) -> None:
        self.rules, self.atom_classes = grammar.rules, atom_classes
        self.called = called_rules(grammar.rules, grammar.start)
        self.edges: list[dict[int | str, int]] = []
        self.final: list[bool] = []
        self.rule_of: list[str] = []
        self.starts: dict[str, int] = {}
        for name in (grammar.start, *sorted(self.called - {grammar.start})):
            self.starts[name] = len(self.edges)
            self._add(name)
        self._trim()
        if not self.alive[self.starts[grammar.start]]:
            raise DataError("no output is valid: the grammar derives nothing from the tokens of the vocabulary")

    @property
    def calls(self) -> bool:
        return any(isinstance(symbol, str) for edges in self.edges for symbol in edges)

    @cached_property
    def ends(self) -> list[bool]:
        """Whether a rule may end in a state, perhaps after calls that derive nothing."""
        ends = list(self.final)
        changed = True
        while changed:
            changed = False
            for state, edges in reversed(list(enumerate(self.edges))):  # ends are mostly last
                empty = any(isinstance(s, str) and ends[self.starts[s]] and ends[to] for s, to in edges.items())
                changed = changed or (empty and not ends[state])
                ends[state] = ends[state] or empty
        return ends

    def moves(self, state: int, busy: frozenset[int] = frozenset()) -> dict[int, tuple[int, ...]]:
        """For each class that a state takes, the states that replace it, the new top first."""
        if state in self._moves:
            return self._moves[state]
        if state in busy:
            raise NotDeterministic(f"rule {self.rule_of[state]} starts with itself")
        found: dict[int, tuple[int, ...]] = {}
        for symbol, target in self.edges[state].items():
            options = [(symbol, (target,))] if isinstance(symbol, int) else self._call(symbol, state, target, busy)
            for token_class, pushed in options:
                if found.setdefault(token_class, pushed) != pushed:
                    raise NotDeterministic(f"rule {self.rule_of[state]}: one token does not tell two ways apart")
        self._moves[state] = found
        return found

    @cached_property
    def _moves(self) -> dict[int, dict[int, tuple[int, ...]]]:
        return {}

    def _call(self, rule: str, state: int, target: int, busy: frozenset[int]) -> Iterable[tuple[int, tuple[int, ...]]]:
        start, busy = self.starts[rule], busy | {state}
        back = (target,) if self.edges[target] else ()  # nothing follows: no need to return there
        for token_class, pushed in self.moves(start, busy).items():
            yield token_class, pushed + back
        if self.ends[start]:
            yield from self.moves(target, busy).items()

    def check_ends(self, moves: list[dict[int, tuple[int, ...]]]) -> None:
        """Refuse states in which a token may belong to the rule or to what follows the rule."""
        follow: dict[str, set[int]] = {name: set() for name in self.starts}
        changed = True
        while changed:
            changed = False
            for state, edges in enumerate(self.edges):
                for symbol, target in edges.items():
                    if not isinstance(symbol, str):
                        continue
                    more = set(moves[target]) | (follow[self.rule_of[state]] if self.ends[target] else set())
                    changed = changed or not more <= follow[symbol]
                    follow[symbol] |= more
        for state, taken in enumerate(moves):
            if self.ends[state] and set(taken) & follow[self.rule_of[state]]:
                raise NotDeterministic(f"rule {self.rule_of[state]}: one token does not tell whether it ends")

    def _add(self, name: str) -> None:
        """The deterministic automaton of a rule, by the construction of subsets."""
        nfa = _Nfa(self)
        start, end = nfa.state(), nfa.state()
        nfa.connect(self.rules[name], start, end)
        first = len(self.edges)
        known = {nfa.closure([start]): first}
        waiting, work = list(known), 0
        while waiting:
            subset = waiting.pop(0)
            work += len(subset)
            if work > _MOST_SUBSETS:
                raise NotDeterministic(f"more than {_MOST_SUBSETS:,} states in subsets of rule {name}")
            self.edges.append({})
            self.final.append(end in subset)
            self.rule_of.append(name)
            steps: dict[int | str, set[int]] = {}
            for state in subset:
                for symbol, target in nfa.edges[state]:
                    if symbol is not None:
                        steps.setdefault(symbol, set()).add(target)
            for symbol, targets in sorted(steps.items(), key=str):
                after = nfa.closure(targets)
                if after not in known:
                    known[after] = first + len(known)
                    waiting.append(after)
                    _check_size(len(known))
                self.edges[known[subset]][symbol] = known[after]

    def _trim(self) -> None:
        """Drop edges to states from which no end can be reached."""
        self.alive = list(self.final)
        changed = True
        while changed:
            changed = False
            for state, edges in reversed(list(enumerate(self.edges))):
                reach = any(
                    self.alive[to] and (isinstance(s, int) or self.alive[self.starts[s]]) for s, to in edges.items()
                )
                changed = changed or (reach and not self.alive[state])
                self.alive[state] = self.alive[state] or reach
        self.edges = [
            {
                symbol: to
                for symbol, to in edges.items()
                if self.alive[to] and (isinstance(symbol, int) or self.alive[self.starts[symbol]])
            }
            for edges in self.edges
        ]


class _Nfa:
    """An automaton with empty edges (symbol None), after Thompson (1968)."""

    def __init__(self, automata: RuleAutomata) -> None:
        self.automata = automata
        self.edges: list[list[tuple[int | str | None, int]]] = []

    def state(self) -> int:
        self.edges.append([])
        _check_size(len(self.edges) // 10)
        return len(self.edges) - 1

    def connect(self, node: Node, start: int, end: int) -> None:
        match node:
            case AtomSet(atoms):
                for token_class in {self.automata.atom_classes[atom] for atom in atoms}:
                    self.edges[start].append((token_class, end))
            case Reference(rule) if rule in self.automata.called:
                self.edges[start].append((rule, end))
            case Reference(rule):
                self.connect(self.automata.rules[rule], start, end)
            case Alternatives(parts):
                for part in parts:
                    self.connect(part, start, end)
            case Concatenation(parts):
                self._chain(parts, start, end)
            case Repetition(part, least, None):
                loop = self.state()
                self._chain((part,) * least, start, loop)
                again = self.state()
                self.connect(part, loop, again)
                self.edges[again].append((None, loop))
                self.edges[loop].append((None, end))
            case Repetition(part, least, int(most)):
                last = self.state()
                self._chain((part,) * least, start, last)
                for _ in range(most - least):
                    self.edges[last].append((None, end))
                    following = self.state()
                    self.connect(part, last, following)
                    last = following
                self.edges[last].append((None, end))

    def _chain(self, parts: tuple[Node, ...], start: int, end: int) -> None:
        for part in parts:
            # A state of its own at both ends: loops of neighbours must not meet.
            following = self.state()
            self.connect(part, start, following)
            start = following
        self.edges[start].append((None, end))

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        found, waiting = set(states), list(states)
        while waiting:
            for symbol, target in self.edges[waiting.pop()]:
                if symbol is None and target not in found:
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)


def _check_size(states: int) -> None:
    if states > _MOST_STATES:
        raise NotDeterministic(f"more than {_MOST_STATES:,} states")
