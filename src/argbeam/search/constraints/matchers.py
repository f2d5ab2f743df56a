"""Any context-free grammar as successors, by xgrammar's matchers on the host.

A matcher for each prefix is forked and moved on at every step, and the device waits for it: a search under these
successors is not captured as CUDA graphs. `pushdown` does without, where a grammar is deterministic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.errors import DataError
from argbeam.search.constraints.grammar import (
    EMPTY,
    Alternatives,
    AtomSet,
    Concatenation,
    Grammar,
    Node,
    Reference,
    Repetition,
    atom_sets,
    nullable,
    references,
)
from argbeam.search.constraints.notations import needed
from argbeam.search.constraints.rule_automata import classes_of, closed

# Classes of atoms are written as letters from here on (CJK ideographs: one code point each, none with a meaning in the
# notation). Atoms that no rule takes are the letter before.
_FIRST_LETTER = 0x4E00
# Bits in a word of xgrammar's masks.
_WORD = 32


@dataclass(frozen=True, eq=False)
class Matchers:
    """The outputs of a grammar that xgrammar has compiled; tokens are spelled by the classes of their atoms."""

    compiled: Any
    vocabulary: int

    @staticmethod
    def of_grammar(grammar: Grammar) -> "Matchers":
        """The matchers of a grammar."""
        xgrammar = needed("xgrammar", "xgrammar")
        classes = classes_of(grammar)
        texts = ["".join(_letter(classes.get(a, -1)) for a in atoms) for atoms in grammar.atoms_of]
        names = {name: f"r{number}" for number, name in enumerate(grammar.rules)}
        lines = [f"{names[name]} ::= {_written(node, names, classes)}" for name, node in _rules(grammar).items()]
        source = "\n".join([f"root ::= {names[grammar.start]}", *lines])
        # A token without a text would be a special one for xgrammar.
        spelled = [text or _letter(-1) for text in texts]
        info = xgrammar.TokenizerInfo(spelled, vocab_size=len(texts), stop_token_ids=list(grammar.ends))
        compiled = xgrammar.GrammarCompiler(info).compile_grammar(xgrammar.Grammar.from_ebnf(source))
        return Matchers(compiled, len(texts))

    def start(self, batch: Batch) -> "MatcherChoices":
        matcher = needed("xgrammar", "xgrammar").GrammarMatcher(self.compiled)
        device, rows = batch.source_BS.device, len(batch.source_length_B)
        return MatcherChoices((matcher,) * rows, self.vocabulary, device)

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Whether a whole sequence, end symbol included, is valid."""
        matcher = needed("xgrammar", "xgrammar").GrammarMatcher(self.compiled)
        return all(matcher.accept_token(token) for token in tokens) and bool(matcher.is_terminated())


@dataclass(frozen=True, eq=False)
class MatcherChoices:
    """A matcher for each prefix; None where no output starts with it, or after its end."""

    matchers: tuple[Any, ...]
    vocabulary: int
    device: torch.device
    candidates_BC = None

    def allowed(self) -> Bool[Tensor, "N V"]:
        bits_NW = torch.zeros(len(self.matchers), -(-self.vocabulary // _WORD), dtype=torch.int32)
        for row, matcher in enumerate(self.matchers):
            if matcher is not None:
                matcher.fill_next_token_bitmask(bits_NW, row)
        bit_NWI = (bits_NW[..., None] >> torch.arange(_WORD, dtype=torch.int32)) & 1
        return bit_NWI.bool().flatten(1)[:, : self.vocabulary].to(self.device)

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "MatcherChoices":
        moved = zip(self.matchers, tokens_N.tolist(), strict=True)
        return replace(self, matchers=tuple(_after(matcher, token) for matcher, token in moved))

    def select(self, rows_N: Int[Tensor, " N"]) -> "MatcherChoices":
        return replace(self, matchers=tuple(self.matchers[row] for row in rows_N.tolist()))


def _after(matcher: Any, token: int) -> Any:
    """A matcher of the prefix with one more token; the one of the prefix stays as it is."""
    if matcher is None:
        return None
    forked = matcher.fork()
    return forked if forked.accept_token(token) and not forked.is_terminated() else None


def _letter(token_class: int) -> str:
    """The letter of a class of atoms; surrogates, from U+D800 to U+DFFF, are none."""
    code = _FIRST_LETTER + token_class
    return chr(code if code < 0xD800 else code + 0x800)


def _rules(grammar: Grammar) -> dict[str, Node]:
    """The rules without what derives nothing: prefixes of it would lead to no output.

    One without atoms derives the empty text at most; xgrammar would follow it without end.
    """
    reached = {name: {name, *references(node)} for name, node in grammar.rules.items()}
    taking = {name for name, node in grammar.rules.items() if any(found.atoms for found in atom_sets(node))}
    idle = {name for name in grammar.rules if not closed({name}, reached) & taking}
    rules: dict[str, Node] = {name: EMPTY for name in idle if nullable(grammar.rules, name)}
    known = -1
    while known < len(rules):  # more rules are known to derive something, so that more parts do
        known = len(rules)
        deriving = ((name, _deriving(node, rules)) for name, node in grammar.rules.items() if name not in idle)
        rules |= {name: node for name, node in deriving if node is not None}
    if grammar.start not in rules:
        raise DataError("no output is valid: the grammar derives nothing from the tokens of the vocabulary")
    return {name: rules[name] for name in grammar.rules if name in rules}


def _deriving(node: Node, rules: Mapping[str, Node]) -> Node | None:
    """The node without alternatives that derive nothing; None if it derives nothing. `rules` derive something."""
    match node:
        case AtomSet(atoms):
            return node if atoms else None
        case Reference(rule):
            return node if rule in rules else None
        case Concatenation(parts):
            found = [_deriving(part, rules) for part in parts]
            return None if None in found else Concatenation(tuple(part for part in found if part is not None))
        case Alternatives(parts):
            left = tuple(part for part in (_deriving(part, rules) for part in parts) if part is not None)
            return Alternatives(left) if left else None
        case Repetition(part, least, most):
            some = _deriving(part, rules)
            return Repetition(some, least, most) if some is not None else None if least else EMPTY


def _written(node: Node, names: dict[str, str], classes: dict[int, int]) -> str:
    """A node in xgrammar's notation."""
    match node:
        case AtomSet(atoms):
            letters = {_letter(classes[atom]) for atom in atoms}
            return f"[{''.join(sorted(letters))}]"
        case Reference(rule):
            return names[rule]
        case Concatenation(parts):
            return " ".join(_written(part, names, classes) for part in parts) or '""'
        case Alternatives(parts):
            return f"({' | '.join(_written(part, names, classes) for part in parts)})"
        case Repetition(part, least, most):
            return f"({_written(part, names, classes)}){{{least},{'' if most is None else most}}}"
