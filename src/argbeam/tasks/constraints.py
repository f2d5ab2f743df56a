"""Constraints of tasks of open length: from the recipe's list or grammar to successors, and targets checked by them.

A task calls `make_constraint` as soon as it has its vocabulary, and `ValidOutputs.checked` where it streams its items.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from argbeam.data.readers.text import read_text
from argbeam.data.vocabulary import EOS, UNK, Vocabulary
from argbeam.errors import DataError
from argbeam.search.constraints.trie import Trie
from argbeam.search.successors import Successors, Unconstrained
from argbeam.settings.constraints import Constraint, NoConstraint
from argbeam.settings.recipe import Recipe
from argbeam.tasks.contract import Item, Task

# Names of the assets of constraints start so.
ASSET = "constraint."
_FACTS, _TRIE = ASSET + "json", ASSET + "trie.npz"


class SavedSuccessors(Successors, Protocol):
    """Successors that can be saved, and that know whether a whole sequence is valid."""

    @property
    def saved(self) -> bytes: ...

    def accepts(self, tokens: Sequence[int]) -> bool: ...


@dataclass(frozen=True, eq=False)
class ValidOutputs:
    """The constraint of a task, if any: its successors, and what is known of it for the records."""

    constraint: SavedSuccessors | None
    facts: Mapping[str, int]
    leaves_out: bool = False

    def successors(self, target: Vocabulary) -> Successors:
        """The successors of the task's search."""
        return self.constraint or Unconstrained(len(target), end_symbol=True)

    @property
    def assets(self) -> dict[str, bytes]:
        """Files by name, for `make_constraint`."""
        if self.constraint is None:
            return {}
        return {_FACTS: json.dumps(dict(self.facts)).encode(), _TRIE: self.constraint.saved}

    def checked(self, split: str, items: Iterable[Item], target: Vocabulary, left_out: Counter[str]) -> Iterator[Item]:
        """The items with a valid target; one with another target is a DataError, or is left out of training.

        With `forbidden = "leave_out"` dev and test hold it: no output equals it.
        """
        for item in items:
            if self.constraint is None or not item.target or self._accepts(item, target):
                yield item
            elif not self.leaves_out:
                raise DataError(
                    f"{item.where or split}: the target {' '.join(item.target)!r} is not a valid output under "
                    'task.constraint; accepted: valid targets, or task.constraint.forbidden = "leave_out"'
                )
            elif split == "train":
                left_out["forbidden by the constraint"] += 1
            else:
                yield item

    def _accepts(self, item: Item, target: Vocabulary) -> bool:
        return self.constraint is not None and self.constraint.accepts((*target.encode(item.target), EOS))


ANY_OUTPUT = ValidOutputs(None, {})


def make_constraint(
    recipe: Recipe,
    target: Vocabulary,
    symbols: Callable[[str], Sequence[str]],
    training_targets: Callable[[], Iterable[Sequence[str]]],
    assets: Mapping[str, bytes],
) -> ValidOutputs:
    """The constraint of a recipe over a target vocabulary: the one in the task's files, else read from its own file.

    `symbols` turns a line of the list into symbols of the vocabulary, as it does a line of the target files;
    `training_targets` gives the targets of the training data as symbols.
    """
    settings = constraint_of(recipe)
    if isinstance(settings, NoConstraint):
        return ANY_OUTPUT
    leaves_out = settings.forbidden == "leave_out"
    if _FACTS in assets:
        return ValidOutputs(Trie.from_bytes(assets[_TRIE], where=_TRIE), json.loads(assets[_FACTS]), leaves_out)
    path, left_out = constraint_file(recipe), Counter[str]()
    lines = () if path is None else map(symbols, read_text([path]))
    encoded = map(target.encode, chain(lines, training_targets() if settings.training_targets else ()))
    trie = Trie.of(_known(encoded, left_out), vocabulary=len(target))
    return ValidOutputs(trie, {"entries": trie.entries, "unknown": left_out["unknown"]}, leaves_out)


def constraint_of(recipe: Recipe) -> Constraint:
    """The constraint that a recipe names for its task."""
    found: Constraint = getattr(recipe.task, "constraint", NoConstraint())
    return found


def constraint_file(recipe: Recipe) -> Path | None:
    """The file of the constraint, under `data.root`."""
    name = getattr(constraint_of(recipe), "file", "")
    return Path(getattr(recipe.data, "root", ".")) / name if name else None


def constraint_facts(task: Task) -> Mapping[str, int]:
    """What the records say of a task's constraint: entries, and how many were left out for unknown tokens."""
    valid = getattr(task, "valid", ANY_OUTPUT)
    return valid.facts if isinstance(valid, ValidOutputs) else {}


def _known(entries: Iterable[list[int]], left_out: Counter[str]) -> Iterator[list[int]]:
    """The entries without unknown tokens: no output could spell the others."""
    for entry in entries:
        if UNK in entry:
            left_out["unknown"] += 1
        else:
            yield entry
