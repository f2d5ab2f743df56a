"""Brute force: a model whose scores are a table, and searches as plain loops over one sentence's prefixes.

Nothing here is batched or shared with argbeam's own search. A prefix is a tuple of tokens, without BOS.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import reject
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.data.batches import Batch, Example
from argbeam.data.vocabulary import BOS, EOS, PAD
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.stop_rules import Stop, StopTop

Tokens = tuple[int, ...]
Next = Callable[[Tokens], list[int]]
Score = Callable[[Tokens], float]

_PRIME = 2**31 - 1


@dataclass(frozen=True)
class ToyModel:
    """A pseudo-random score for each token after each prefix of each sentence, from -scale to scale, no two equal.

    `table`, where given, holds scores by (prefix, token) for hand-computed cases; all others are `missing`.
    """

    vocabulary: int
    seed: int = 0
    scale: float = 1.0
    table: dict[tuple[Tokens, int], float] | None = None
    missing: float = -100.0

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        # Every row carries its sentence's number, so that a row selected from another sentence shows.
        nothing_B0 = torch.zeros(batch.sentence_B.shape[0], 0, dtype=torch.int64)
        return State(sentence={}, hypothesis={"number": batch.sentence_B, "read": nothing_B0})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        read_NT = torch.cat([state.hypothesis["read"], tokens_N[:, None]], 1)
        return State(state.sentence, {**state.hypothesis, "read": read_NT}, state.time + 1)

    def output(self, state: State) -> Float[Tensor, "N V"]:
        read_NT = state.hypothesis["read"]
        if read_NT.shape[1] == 0:
            return torch.zeros(read_NT.shape[0], self.vocabulary, dtype=torch.float64)
        if self.table is not None:
            rows = [[self.score_of(0, tuple(row[1:]), v) for v in range(self.vocabulary)] for row in read_NT.tolist()]
            return torch.tensor(rows, dtype=torch.float64)
        key_N = state.hypothesis["number"]
        for column_N in read_NT.unbind(1)[1:]:
            key_N = _mixed(key_N, column_N)
        high_NV, low_NV = self._drawn(key_N[:, None], torch.arange(self.vocabulary)[None])
        return self._score(high_NV.double(), low_NV.double())

    def scores(
        self, output_GRH: Float[Tensor, "G R V"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        return columns_of(output_GRH, candidates_GC)

    def score_of(self, sentence: int, prefix: Tokens, token: int) -> float:
        """The score of one token after one prefix."""
        if self.table is not None:
            return self.table.get((prefix, token), self.missing)
        key = sentence
        for earlier in prefix:
            key = _mixed(key, earlier)
        return self._score(*self._drawn(key, token))

    def _drawn(self, key: Any, token: Any) -> tuple[Any, Any]:
        high = _mixed(_mixed(key, token), self.seed)
        return high, _mixed(high, 12345)

    def _score(self, high: Any, low: Any) -> Any:
        return self.scale * (2 * (high + low / _PRIME) / _PRIME - 1)


def columns_of(scores_GRV: Float[Tensor, "G R V"], candidates_GC: Int[Tensor, "G C"] | None) -> Float[Tensor, "G R C"]:
    """The scores of the candidates, or of the whole vocabulary."""
    if candidates_GC is None:
        return scores_GRV
    return scores_GRV.gather(2, candidates_GC[:, None].expand(-1, scores_GRV.shape[1], -1))


def _mixed(key: Any, token: Any) -> Any:
    """One step of a hash, the same for Python's integers and for int64 (nothing exceeds 63 bits)."""
    for factor in (48271, 1103515245):
        key = ((key ^ (key >> 15)) * factor + (token + 1) * 69621 + 7) % _PRIME
    return key


# Successors: from a prefix to the tokens that may follow it.


def unconstrained(vocabulary: int, *, end_symbol: bool) -> Next:
    """Every token but PAD and BOS, and EOS where sentences end in it."""
    left_out = {PAD, BOS} if end_symbol else {PAD, BOS, EOS}
    return lambda prefix: [token for token in range(vocabulary) if token not in left_out]


def permutation(source: Sequence[int]) -> Next:
    """The tokens of the source that are left."""
    return lambda prefix: sorted((Counter(source) - Counter(prefix)).keys())


def shift_reduce(source: Sequence[int], *, vocabulary: int, actions: int) -> Next:
    """The next token of the source; the actions, when two items or more are on the stack."""
    first = vocabulary - actions

    def successors(prefix: Tokens) -> list[int]:
        shifts = [token for token in prefix if token < first]
        reduces = len(prefix) - len(shifts)
        following = list(source[len(shifts) : len(shifts) + 1])
        return following + (list(range(first, vocabulary)) if len(shifts) - reduces >= 2 else [])

    return successors


# Scores: the three score rules, each from a whole prefix.


def last_score(model: ToyModel, sentence: int) -> Score:
    """The score of the newest token."""
    return lambda prefix: model.score_of(sentence, prefix[:-1], prefix[-1])


def score_sum(model: ToyModel, sentence: int) -> Score:
    """The sum of the tokens' scores."""
    return lambda prefix: math.fsum(model.score_of(sentence, prefix[:t], prefix[t]) for t in range(len(prefix)))


def logprob_sum(model: ToyModel, sentence: int) -> Score:
    """The sum of the tokens' log-probabilities over the whole vocabulary."""

    def logprob(prefix: Tokens, token: int) -> float:
        scores = [model.score_of(sentence, prefix, other) for other in range(model.vocabulary)]
        return scores[token] - math.log(math.fsum(math.exp(score) for score in scores))

    return lambda prefix: math.fsum(logprob(prefix[:t], prefix[t]) for t in range(len(prefix)))


# Searches.


@dataclass(frozen=True)
class BruteForce:
    """The result of a search in one sentence: sequences in order, whether they ended properly, and the beam of every
    step, best first, before ended prefixes leave it."""

    sequences: list[Tokens]
    finished: list[bool]
    beams: list[list[Tokens]]
    dead: bool = False


def enumerate_sequences(successors: Next, *, length: int, end: int | None = None) -> list[Tokens]:
    """Every sequence of exactly `length` tokens; with `end`, every one of at most `length` that ends in it."""
    complete: list[Tokens] = []
    alive: list[Tokens] = [()]
    for _ in range(length):
        grown = [(*prefix, token) for prefix in alive for token in successors(prefix)]
        complete += [prefix for prefix in grown if prefix[-1] == end]
        alive = [prefix for prefix in grown if prefix[-1] != end]
    return alive if end is None else complete


def open_outputs(vocabulary: int, *, limit: int) -> list[Tokens]:
    """Every output of at most `limit` tokens; those that reach the limit need no end symbol."""
    following = unconstrained(vocabulary, end_symbol=True)
    cut = [tokens for tokens in enumerate_sequences(following, length=limit) if EOS not in tokens]
    return enumerate_sequences(following, length=limit, end=EOS) + cut


def greedy(successors: Next, score: Score, *, length: int, end: int | None = None) -> Tokens:
    """Take the best token again and again; stop at `end`, or where no token may follow."""
    prefix: Tokens = ()
    while len(prefix) < length and successors(prefix) and (not prefix or prefix[-1] != end):
        prefix = max(((*prefix, token) for token in successors(prefix)), key=score)
    return prefix


def _beams(successors: Next, score: Score, *, beam: int, length: int, end: int | None) -> Iterator[list[Tokens]]:
    """The beam of every step; ended prefixes leave it, and a dead end is the last step."""
    kept: list[Tokens] = [()]
    for _ in range(length):
        alive = [prefix for prefix in kept if not prefix or prefix[-1] != end]
        kept = _ranked(successors, score, alive)[:beam]
        if not kept:
            return
        yield kept


def brute_force_beam(successors: Next, score: Score, *, beam: int, length: int, n_best: int = 1) -> BruteForce:
    """A beam search of fixed length. If it meets a dead end, the beam before it is its result."""
    beams = list(_beams(successors, score, beam=beam, length=length, end=None))
    found = (beams[-1] if beams else [()])[:n_best]
    return BruteForce(found, [len(beams) == length] * len(found), beams, dead=len(beams) < length)


def brute_force_stop_top(successors: Next, score: Score, *, beam: int, length: int, n_best: int = 1) -> BruteForce:
    """A beam search that ends when the best prefix of its beam has ended (n times for the n best, at most the beam)."""
    n_best = min(n_best, beam)
    beams: list[list[Tokens]] = []
    found: list[Tokens] = []
    for kept in _beams(successors, score, beam=beam, length=length, end=EOS):
        beams.append(kept)
        found += itertools.takewhile(lambda prefix: prefix[-1] == EOS, kept)
        if len(found) >= n_best:
            break
    return _open_result(found, beams, n_best)


def brute_force_stop_best(
    successors: Next, score: Score, *, beam: int, length: int, n_best: int = 1, length_power: float = 0.0
) -> BruteForce:
    """A beam search that sets ended prefixes aside, runs to the limit, and returns the best of them, at most a beam."""
    n_best = min(n_best, beam)
    beams = list(_beams(successors, score, beam=beam, length=length, end=EOS))
    ended = [prefix for kept in beams for prefix in kept if prefix[-1] == EOS]
    return _best_of(ended, score, beams, n_best, length_power)


def brute_force_refilled(
    successors: Next,
    score: Score,
    *,
    beam: int,
    length: int,
    n_best: int = 1,
    length_power: float = 0.0,
    cut_off: bool = False,
) -> BruteForce:
    """The same with a refilled beam, as fairseq and `generate(early_stopping="never")` of transformers search: of the
    2K best candidates the K best that have not ended go on; an ended one counts if it is among the K best of all. With
    `cut_off` the K best of the last step count as ended, as in `generate`. Beam 1 is the greedy search. `beams` holds
    those that go on, then those that have ended."""
    n_best = min(n_best, beam)
    beams: list[list[Tokens]] = []
    alive: list[Tokens] = [()]
    ended: list[Tokens] = []
    for t in range(1, length + 1):
        candidates = _ranked(successors, score, alive)[: 2 * beam if beam > 1 else 1]
        over = {prefix for prefix in candidates if prefix[-1] == EOS or (cut_off and t == length)}
        alive = [prefix for prefix in candidates if prefix not in over][:beam]
        set_aside = [prefix for prefix in candidates[:beam] if prefix in over]
        ended += set_aside
        beams.append(alive + set_aside)
    return _best_of(ended, score, [kept for kept in beams if kept], n_best, length_power)


def _best_of(
    ended: list[Tokens], score: Score, beams: list[list[Tokens]], n_best: int, length_power: float
) -> BruteForce:
    return _open_result(sorted(ended, key=lambda p: -score(p) / len(p) ** length_power), beams, n_best)


def _open_result(ended: list[Tokens], beams: list[list[Tokens]], n_best: int) -> BruteForce:
    """The first ended prefixes; where none has ended, the top of the last beam that goes on."""
    if ended:
        return BruteForce(ended[:n_best], [prefix[-1] == EOS for prefix in ended[:n_best]], beams)
    top = [prefix for prefix in (beams[-1] if beams else [()]) if not prefix or prefix[-1] != EOS][:1]
    return BruteForce(top, [False] * len(top), beams)


@dataclass(frozen=True)
class TrainingSearch:
    """A search with gold, step by step: column t is the paper's time t + 1.

    `rivals[t]` is the rival's tokens since the last restart where there is a violation, otherwise None. `beams[t]` is
    the beam before anything leaves it.
    """

    violation: list[bool]
    rivals: list[Tokens | None]
    rival_is_gold: list[bool]
    rival_ended: list[bool]
    gold_score: list[float]
    rival_score: list[float]
    beams: list[list[Tokens]]
    gold_on_beam: bool


def training_search(
    successors: Next,
    score: Score,
    gold: Tokens,
    *,
    beam: int,
    margin: float | tuple[float, float],
    stop: Stop | None,
    ties: bool = True,
) -> TrainingSearch:
    """The search of Wiseman & Rush 2016, section 4.1. A pair of margins: the second one for every token since the last
    restart. Between equals either may be chosen: where that matters (`ties=False`) hypothesis draws another case."""
    first_margin, margin_per_token = margin if isinstance(margin, tuple) else (margin, 0.0)
    steps: list[tuple[Any, ...]] = []
    alive: list[Tokens] = [()]
    kept: list[Tokens] = []
    restarted_at = 0
    for t in range(1, len(gold) + 1):
        ranked = _ranked(successors, score, alive, ties=ties)
        kept = ranked[:beam]
        of_gold = score(gold[:t])
        lead = first_margin + margin_per_token * (t - restarted_at)
        rival, ended = None, False
        if t == len(gold):
            # The best wrong sequence, even where the beam is so narrow that only gold is on it.
            rival = next((prefix for prefix in ranked if prefix != gold), None)
        else:
            if len(kept) == beam:
                rival = kept[beam - 1]
            top_ended = next((prefix for prefix in kept if prefix[-1] == EOS), None)
            if stop == StopTop() and top_ended is not None and of_gold < score(top_ended) + lead:
                rival, ended = top_ended, True
        of_rival = -math.inf if rival is None else score(rival)
        violates = of_gold < of_rival + lead
        segment = rival[restarted_at:] if violates and rival is not None else None
        steps.append((violates, segment, violates and rival == gold[:t], violates and ended, of_gold, of_rival, kept))
        if violates:
            alive, restarted_at = [gold[:t]], t
        else:
            alive = _going_on(kept, stop)
    return TrainingSearch(*map(list, zip(*steps, strict=True)), gold_on_beam=gold in kept)


def _going_on(kept: list[Tokens], stop: Stop | None) -> list[Tokens]:
    """The beam of the next step: under `top` an ended prefix gives up its place."""
    return [prefix for prefix in kept if stop != StopTop() or prefix[-1] != EOS]


def _ranked(successors: Next, score: Score, alive: list[Tokens], *, ties: bool = True) -> list[Tokens]:
    """All successors, best first. Without `ties` no two score alike up to rounding, as they do after much dropout."""
    ranked = sorted(((*p, token) for p in alive for token in successors(p)), key=score, reverse=True)
    if not ties:
        pairs = itertools.pairwise(map(score, ranked))
        if any(a - b <= 1e-12 * (1 + abs(a)) for a, b in pairs if math.isfinite(a + b)):
            reject()
    return ranked


@dataclass(frozen=True)
class UninterruptedSearch:
    """A search with gold and without restarts. `stop` is the step, counted from 1, at which it has lost gold, or its
    last; `rivals[t]` is the best wrong prefix of each step, if there is one."""

    beams: list[list[Tokens]]
    gold_score: list[float]
    rivals: list[Tokens | None]
    rival_score: list[float]
    stop: int

    def behind(self, t: int) -> float:
        return self.rival_score[t - 1] - self.gold_score[t - 1]

    def early_update(self, margin: float, margin_per_token: float = 0.0) -> int | None:
        """The step trained on by early update, if there is one."""
        return self.stop if self.behind(self.stop) > -margin - margin_per_token * self.stop else None

    def max_violation(self, margin: float, margin_per_token: float = 0.0) -> int | None:
        """The step trained on by maximum violation, if there is one."""
        worst = max(range(1, len(self.beams) + 1), key=lambda t: self.behind(t) + margin_per_token * t)
        return worst if self.behind(worst) > -margin - margin_per_token * worst else None


def uninterrupted_search(
    successors: Next, score: Score, gold: Tokens, *, beam: int, stop: Stop | None, ties: bool = True
) -> UninterruptedSearch:
    """The beam search of decoding, with a look at gold after every step; `ties` as in `training_search`."""
    steps: list[tuple[Any, ...]] = []
    alive: list[Tokens] = [()]
    lost = 0
    for t in range(1, len(gold) + 1):
        ranked = _ranked(successors, score, alive, ties=ties)
        kept = ranked[:beam]
        rival = next((prefix for prefix in ranked if prefix != gold[:t]), None)
        steps.append((kept, score(gold[:t]), rival, -math.inf if rival is None else score(rival)))
        ends_here = stop == StopTop() and bool(kept) and kept[0][-1] == EOS
        if not lost and (gold[:t] not in kept or ends_here or t == len(gold)):
            lost = t
        alive = _going_on(kept, stop)
    return UninterruptedSearch(*map(list, zip(*steps, strict=True)), stop=lost)


def example_of(target: Sequence[int], *, source: Sequence[int] = (4,), sentence: int = 0) -> Example:
    """An example from lists."""
    return Example(tuple(source), tuple(target), sentence)
