"""Constraints of tasks of open length: from the recipe's list or grammar to successors, and targets checked by them.

A task calls `make_constraint` as soon as it has its vocabulary, and `ValidOutputs.checked` where it streams its items.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Protocol

from argbeam.data.readers.text import open_lines, read_text
from argbeam.data.vocabulary import Vocabulary
from argbeam.errors import DataError
from argbeam.search.constraints.automaton import compile_grammar
from argbeam.search.constraints.gbnf import gbnf_grammar
from argbeam.search.constraints.grammar import Grammar, Spelling
from argbeam.search.constraints.json_schema import json_schema_grammar
from argbeam.search.constraints.matchers import Matchers
from argbeam.search.constraints.notations import lark_grammar, regular_expression
from argbeam.search.constraints.pushdown import Pushdown
from argbeam.search.constraints.rule_automata import NotDeterministic
from argbeam.search.constraints.trie import Trie
from argbeam.search.successors import Successors, Unconstrained
from argbeam.settings.constraints import Constraint, GrammarConstraint, NoConstraint, TrieConstraint
from argbeam.settings.recipe import Recipe
from argbeam.settings.recipe_files import shipped_file
from argbeam.tasks.contract import Item, Task

# Names of the assets of constraints start so.
ASSET = "constraint."
# Names of files that come with argbeam start so.
SHIPPED = "shipped:"
_FACTS, _DATA = ASSET + "json", ASSET + "data"
# Singulars of what facts count.
_ONE = {"entries": "entry", "states": "state"}


class Notation(Protocol):
    """Reads a grammar; `where` names its file in errors."""

    def __call__(self, text: str, spelling: Spelling, *, where: str) -> Grammar: ...


NOTATIONS: dict[str, Notation] = {
    "lark": lark_grammar,
    "regex": regular_expression,
    "gbnf": gbnf_grammar,
    "json_schema": json_schema_grammar,
}


class KnowsOutputs(Successors, Protocol):
    """Successors that know whether a whole sequence is valid."""

    def accepts(self, tokens: Sequence[int]) -> bool: ...


@dataclass(frozen=True)
class TargetSide:
    """What a constraint needs to know of a task's target side.

    `symbols` turns a line of a list into symbols of the vocabulary, as it does a line of the target files;
    `training_targets` gives the targets of the training data as symbols.
    """

    vocabulary: Vocabulary
    spelling: Callable[[], Spelling]
    symbols: Callable[[str], Sequence[str]]
    training_targets: Callable[[], Iterable[Sequence[str]]]


@dataclass(frozen=True, eq=False)
class ValidOutputs:
    """The constraint of a task, if any: its successors, what the records say of it, and its content to be saved."""

    constraint: KnowsOutputs | None
    facts: Mapping[str, int | str]
    content: Callable[[], bytes] = bytes
    leaves_out: bool = False

    def successors(self, target: Vocabulary) -> Successors:
        """The successors of the task's search."""
        return self.constraint or Unconstrained(len(target), end_symbol=True)

    @property
    def assets(self) -> dict[str, bytes]:
        """Files by name, for `make_constraint`."""
        if self.constraint is None:
            return {}
        return {_FACTS: json.dumps(dict(self.facts)).encode(), _DATA: self.content()}

    def checked(self, split: str, items: Iterable[Item], target: Vocabulary, left_out: Counter[str]) -> Iterator[Item]:
        """The items with a valid target; one with another target is a DataError, or is left out of training.

        With `forbidden = "leave_out"` dev and test hold it: no output equals it.
        """
        accepts = lru_cache(maxsize=1 << 16)(partial(self._accepts, target))  # words come back
        for item in items:
            if self.constraint is None or not item.target or accepts(item.target):
                yield item
            elif not self.leaves_out:
                reason = self._reason(item.target, target)
                raise DataError(
                    f"{item.where or split}: the target {item.reference!r} is not a valid output under task.constraint"
                    f'{reason}; accepted: valid targets, or task.constraint.forbidden = "leave_out"'
                )
            elif split == "train":
                left_out["forbidden by the constraint"] += 1
            else:
                yield item

    def _reason(self, symbols: Sequence[str], target: Vocabulary) -> str:
        """Why a target is not valid, where the list or the grammar alone does not tell."""
        for symbol in symbols:
            if symbol not in target:
                return f" ({symbol!r} is an unknown token)"
        found, tokens = self.constraint, (*target.encode(symbols), target.specials.eos)
        if isinstance(found, Pushdown) and replace(found, depth=len(tokens) << 10).accepts(tokens):
            return f" (it is nested more deeply than task.constraint.depth = {found.depth})"
        return ""

    def _accepts(self, target: Vocabulary, symbols: tuple[str, ...]) -> bool:
        tokens = (*target.encode(symbols), target.specials.eos)
        return self.constraint is not None and self.constraint.accepts(tokens)


ANY_OUTPUT = ValidOutputs(None, {})


def make_constraint(recipe: Recipe, target: TargetSide, assets: Mapping[str, bytes]) -> ValidOutputs:
    """The constraint of a recipe: the one in the task's files, else read from its own file."""
    settings = constraint_of(recipe)
    if isinstance(settings, NoConstraint):
        return ANY_OUTPUT
    if isinstance(settings, GrammarConstraint):
        try:
            return _grammar(recipe, settings, target, assets)
        except RecursionError:
            path = constraint_file(recipe)
            raise DataError(f"{path}: too many levels of groups or rules within one another; write fewer") from None
    return _trie(recipe, settings, target, assets)


def _trie(recipe: Recipe, settings: TrieConstraint, target: TargetSide, assets: Mapping[str, bytes]) -> ValidOutputs:
    leaves_out, path = settings.forbidden == "leave_out", constraint_file(recipe)
    if _DATA in assets:
        saved = Trie.from_bytes(assets[_DATA], where=_DATA)
        return ValidOutputs(saved, json.loads(assets[_FACTS]), lambda: saved.saved, leaves_out)
    lines = () if path is None else map(target.symbols, read_text([path]))
    words = chain(lines, target.training_targets() if settings.training_targets else ())
    vocabulary, unknown = target.vocabulary, Counter[str]()
    entries = _known(words, vocabulary, unknown)
    first = next(entries, None)
    if first is None:
        reason = "no entry; text.min_length and text.max_length admit none"
        if unknown:
            reason = f"unknown tokens in all entries ({unknown['entries']:,})"
        raise DataError(f"{path or 'training targets'}: {reason}; one at least must be an output")
    trie = Trie.of(chain([first], entries), vocabulary=len(vocabulary), specials=vocabulary.specials)
    facts = {"entries": trie.entries, "entries with unknown tokens left out": unknown["entries"]}
    return ValidOutputs(trie, facts, lambda: trie.saved, leaves_out)


def _grammar(
    recipe: Recipe, settings: GrammarConstraint, target: TargetSide, assets: Mapping[str, bytes]
) -> ValidOutputs:
    """A grammar is saved as it is written, and compiled again."""
    path = constraint_file(recipe)
    assert path is not None
    text = assets[_DATA].decode() if _DATA in assets else "\n".join(line for _, line in open_lines(path))
    if not text.strip():
        raise DataError(f"{path}: an empty file; a grammar in the notation {settings.notation} is expected")
    one_line = settings.notation == "regex"
    if one_line and "\n" in text.strip():
        raise DataError(f"{path}:2: a second line; a regular expression is one line")
    grammar = NOTATIONS[settings.notation](text.strip() if one_line else text, target.spelling(), where=str(path))
    try:
        successors, facts = _compiled(grammar, settings.depth)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return ValidOutputs(successors, facts, text.encode, settings.forbidden == "leave_out")


def _compiled(grammar: Grammar, depth: int) -> tuple[KnowsOutputs, dict[str, int | str]]:
    """The successors of a grammar, on the device if it can be there, and what the records say of them."""
    try:
        automaton = compile_grammar(grammar)
    except NotDeterministic as reason:
        return Matchers.of_grammar(grammar), {"on the host, and slow, because": str(reason)}
    return Pushdown(automaton, depth if automaton.recursive else 1), {"states on the device": len(automaton.ends_Q) - 2}


def constraint_of(recipe: Recipe) -> Constraint:
    """The constraint that a recipe names for its task."""
    found: Constraint = getattr(recipe.task, "constraint", NoConstraint())
    return found


def constraint_file(recipe: Recipe) -> Path | None:
    """The file of the constraint, under `data.root`, or one that comes with argbeam."""
    name = getattr(constraint_of(recipe), "file", "")
    if name.startswith(SHIPPED):
        return shipped_file(name.removeprefix(SHIPPED))
    return Path(getattr(recipe.data, "root", ".")) / name if name else None


def constraint_facts(task: Task) -> Mapping[str, int | str]:
    """What the records say of a task's constraint."""
    valid = getattr(task, "valid", ANY_OUTPUT)
    return valid.facts if isinstance(valid, ValidOutputs) else {}


def in_words(facts: Mapping[str, int | str]) -> str:
    """Facts in one line: `12 entries`, `1 entry`, `why: because`."""
    return ", ".join(
        f"{key}: {fact}" if isinstance(fact, str) else _number_of(fact, key) for key, fact in facts.items()
    )


def _number_of(count: int, things: str) -> str:
    """A count with the name of a fact, whose first word is a plural."""
    plural, space, more = things.partition(" ")
    return f"{count:,} {_ONE[plural] if count == 1 else plural}{space}{more}"


def _known(entries: Iterable[Sequence[str]], target: Vocabulary, unknown: Counter[str]) -> Iterator[list[int]]:
    """The entries as token ids, without those that have unknown tokens: no output could spell them."""
    for entry in entries:
        if all(symbol in target for symbol in entry):
            yield target.encode(entry)
        else:
            unknown["entries"] += 1
