"""Batches of toy sentences drawn by hypothesis, and the results of their searches as lists of tokens."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st

from argbeam.data.batches import Batch, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.search.gold import Gold, Policy, Restart
from argbeam.search.result import SearchResult, Violations
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, ShiftReduce, Successors, Unconstrained
from oracles import (
    Next,
    Score,
    Tokens,
    ToyModel,
    enumerate_sequences,
    example_of,
    last_score,
    logprob_sum,
    permutation,
    score_sum,
    shift_reduce,
    unconstrained,
)

SCORES: dict[ScoreRule, Callable[[ToyModel, int], Score]] = {
    LastScore(): last_score,
    ScoreSum(): score_sum,
    LogprobSum(): logprob_sum,
}
rules = st.sampled_from(list(SCORES))


@dataclass(frozen=True)
class Case:
    """A toy model and sentences: for each its number, its source, its length (or limit) and its successors as
    a loop knows them."""

    model: ToyModel
    numbers: list[int]
    sources: list[list[int]]
    lengths: list[int]
    by_sentence: list[Next]
    successors: Successors

    @cached_property
    def batch(self) -> Batch:
        rows = zip(self.lengths, self.sources, self.numbers, strict=True)
        return make_batch([example_of([4] * n, source=source, sentence=i) for n, source, i in rows])

    def search(
        self,
        *,
        beam: int,
        rule: ScoreRule,
        stop: Stop | None = None,
        n_best: int = 1,
        golds: list[Tokens] | None = None,
        policy: Policy | None = None,
    ) -> SearchResult:
        gold, lengths = None, self.lengths
        if golds is not None:
            padded = make_batch([example_of(tokens) for tokens in golds])
            gold = Gold(padded.target_BT, padded.target_length_B, policy or Restart())
            lengths = [len(tokens) for tokens in golds]
        return beam_search(
            self.model,
            self.model.encode(self.batch, None),
            self.successors.start(self.batch),
            beam_size=beam,
            length_B=torch.tensor(lengths),
            steps=max(lengths),
            rule=rule,
            stop=stop,
            gold=gold,
            n_best=n_best,
        )

    def score(self, rule: ScoreRule, b: int) -> Score:
        return SCORES[rule](self.model, int(self.batch.sentence_B[b]))

    def golds(self, data: st.DataObject, rule: ScoreRule, stop: Stop | None) -> list[Tokens]:
        """A gold sequence for each sentence, half of the time the best of all."""
        chosen, best = [], data.draw(st.booleans())
        for b, (successors, length) in enumerate(zip(self.by_sentence, self.lengths, strict=True)):
            possible = enumerate_sequences(successors, length=length, end=None if stop is None else EOS)
            chosen.append(max(possible, key=self.score(rule, b)) if best else data.draw(st.sampled_from(possible)))
        return chosen


def table_case(table: dict[tuple[Tokens, int], float], length: int, *, end_symbol: bool = False) -> Case:
    """One sentence of the tokens 4, 5, 6 with scores by (prefix, token); all others are -100."""
    return Case(ToyModel(7, table=table), [0], [[4]], [length], [], Unconstrained(7, end_symbol))


def table_violations(table: dict[tuple[Tokens, int], float], gold: Tokens, policy: Policy, *, beam: int) -> Violations:
    """The violations of such a sentence."""
    found = table_case(table, len(gold)).search(beam=beam, rule=LastScore(), golds=[gold], policy=policy).violations
    assert found is not None
    return found


def widest(case: Case) -> int:
    """No fewer places than there are prefixes of one length in a sentence, and a few more."""
    spaces = zip(case.by_sentence, case.lengths, strict=True)
    return max(len(enumerate_sequences(successors, length=length)) for successors, length in spaces) + 3


SMALL_SPACES = [(5, 5), (6, 4), (7, 3), (8, 3)]  # vocabulary and longest length


@st.composite
def unconstrained_cases(draw: st.DrawFn, *, end_symbol: bool) -> Case:
    vocabulary, longest = draw(st.sampled_from(SMALL_SPACES))
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=4))
    numbers = draw(st.lists(st.integers(0, 10**6), min_size=len(lengths), max_size=len(lengths), unique=True))
    model = ToyModel(vocabulary, seed=draw(st.integers(0, 1000)), scale=draw(st.sampled_from([0.5, 2.0, 5.0])))
    loops = [unconstrained(vocabulary, end_symbol=end_symbol)] * len(lengths)
    sources = [[4]] * len(lengths)
    return Case(model, numbers, sources, lengths, loops, Unconstrained(vocabulary, end_symbol))


@st.composite
def constrained_cases(draw: st.DrawFn, *, parsing: bool) -> Case:
    """Sources to be ordered, or to be parsed with one action or two."""
    sizes = [(6, 1), (7, 2), (8, 2)] if parsing else [(5, 0), (6, 0), (7, 0), (8, 0)]
    vocabulary, actions = draw(st.sampled_from(sizes))
    source = st.lists(st.integers(4, vocabulary - actions - 1), min_size=1, max_size=3 if parsing else 5)
    sources = draw(st.lists(source, min_size=1, max_size=4))
    model = ToyModel(vocabulary, seed=draw(st.integers(0, 1000)), scale=2.0)
    numbers = list(range(len(sources)))
    if not parsing:
        return Case(model, numbers, sources, list(map(len, sources)), list(map(permutation, sources)), Permutation())
    loops = [shift_reduce(source, vocabulary=vocabulary, actions=actions) for source in sources]
    lengths = [2 * len(source) - 1 for source in sources]
    return Case(model, numbers, sources, lengths, loops, ShiftReduce(vocabulary, actions))


ordering_cases, parsing_cases = constrained_cases(parsing=False), constrained_cases(parsing=True)
fixed_cases = st.one_of(unconstrained_cases(end_symbol=False), ordering_cases, parsing_cases)
open_cases = unconstrained_cases(end_symbol=True)
GOLD_CASES: dict[str, tuple[st.SearchStrategy[Case], Stop | None]] = {
    "fixed length": (unconstrained_cases(end_symbol=False), None),
    "permutation": (ordering_cases, None),
    "shift reduce": (parsing_cases, None),
    "stop top": (open_cases, StopTop()),
    "stop best": (open_cases, StopBest()),
}


def sequences(result: SearchResult, b: int) -> list[Tokens]:
    """The sequences returned for a sentence, without padding; places that hold none are left out."""
    rows, lengths, scores = result.tokens_BNT[b].tolist(), result.length_BN[b].tolist(), result.score_BN[b].tolist()
    found = zip(rows, lengths, scores, strict=True)
    return [tuple(row[:length]) for row, length, score in found if score > -math.inf]


def beams_of(result: SearchResult, b: int) -> list[list[tuple[Tokens, float]]]:
    """Every step's prefixes with their scores, read back through the parents."""
    beams, steps = result.beams, []
    rows: list[Tokens] = [()] * beams.tokens_TBJ.shape[2]
    columns = (beams.tokens_TBJ[:, b].tolist(), beams.parents_TBJ[:, b].tolist(), beams.scores_TBJ[:, b].tolist())
    for tokens, parents, scores in zip(*columns, strict=True):
        rows = [(*rows[parent], token) for token, parent in zip(tokens, parents, strict=True)]
        steps.append([(row, score) for row, score in zip(rows, scores, strict=True) if score > -math.inf])
    return steps
