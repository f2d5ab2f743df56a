"""The search against enumeration, greedy loops and a beam search over lists, at sizes drawn by hypothesis."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.batches import make_batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.search.gold import Restart
from argbeam.search.result import SearchResult
from argbeam.search.score_rules import LogprobSum, ScoreRule
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, ShiftReduce, Unconstrained
from loss_cases import small_lstm
from oracles import (
    BruteForce,
    Tokens,
    ToyModel,
    brute_force_beam,
    brute_force_refilled,
    brute_force_stop_best,
    brute_force_stop_top,
    enumerate_sequences,
    example_of,
    greedy,
    logprob_sum,
    unconstrained,
)
from toy_cases import Case, beams_of, fixed_cases, open_cases, rules, sequences, widest

# Cases, stop rule, end symbol, and the same search over lists.
SEARCHES: dict[str, tuple[st.SearchStrategy[Case], Stop | None, int | None, Callable[..., BruteForce]]] = {
    "fixed length": (fixed_cases, None, None, brute_force_beam),
    "stop top": (open_cases, StopTop(), EOS, brute_force_stop_top),
    "stop best": (open_cases, StopBest(), EOS, brute_force_stop_best),
}


@pytest.mark.parametrize("name", ["fixed length", "stop best"])
@given(data=st.data(), rule=rules, n_best=st.integers(1, 4))
@settings(max_examples=60)
def test_a_beam_as_wide_as_the_space_is_enumeration(
    name: str, data: st.DataObject, rule: ScoreRule, n_best: int
) -> None:
    cases, stop, end, _ = SEARCHES[name]
    case = data.draw(cases)
    beam = widest(case)
    n_best = beam if stop is None else n_best
    result = case.search(beam=beam, rule=rule, stop=stop, n_best=n_best)
    for b, successors in enumerate(case.by_sentence):
        everything = enumerate_sequences(successors, length=case.lengths[b], end=end)
        everything.sort(key=case.score(rule, b), reverse=True)
        assert sequences(result, b) == everything[:n_best]
        assert result.finished_BN[b].sum() == len(everything[:n_best])


@pytest.mark.parametrize("name", SEARCHES)
@given(data=st.data(), rule=rules)
@settings(max_examples=60)
def test_beam_1_is_the_greedy_loop(name: str, data: st.DataObject, rule: ScoreRule) -> None:
    cases, stop, end, _ = SEARCHES[name]
    case = data.draw(cases)
    result = case.search(beam=1, rule=rule, stop=stop)
    for b, successors in enumerate(case.by_sentence):
        assert sequences(result, b) == [greedy(successors, case.score(rule, b), length=case.lengths[b], end=end)]


@pytest.mark.parametrize("name", SEARCHES)
@given(data=st.data(), rule=rules, beam=st.integers(1, 40), n_best=st.integers(1, 6))
@settings(max_examples=60)
def test_a_search_is_the_search_over_lists(
    name: str, data: st.DataObject, rule: ScoreRule, beam: int, n_best: int
) -> None:
    """Sequences, their scores, whether they finished, and every beam; under stop best the loops run to the limit: that
    log-probabilities stop earlier must not show in the result."""
    cases, stop, _, over_lists = SEARCHES[name]
    over_lists = brute_force_refilled if name == "stop best" and rule == LogprobSum() else over_lists
    case = data.draw(cases)
    result = case.search(beam=beam, rule=rule, stop=stop, n_best=n_best)
    for b, successors in enumerate(case.by_sentence):
        score = case.score(rule, b)
        truth = over_lists(successors, score, beam=beam, length=case.lengths[b], n_best=n_best)
        found = len(truth.sequences)
        assert sequences(result, b) == truth.sequences
        assert result.score_BN[b, :found].tolist() == pytest.approx(list(map(score, truth.sequences)), abs=1e-9)
        assert result.finished_BN[b].tolist() == truth.finished + [False] * (result.finished_BN.shape[1] - found)
        assert bool(result.dead_B[b]) == truth.dead
        if over_lists != brute_force_stop_best:
            for searched, kept in zip(_until_over(beams_of(result, b)), truth.beams, strict=False):
                assert [prefix for prefix, _ in searched] == kept
                assert [s for _, s in searched] == pytest.approx(list(map(score, kept)), abs=1e-9)


@given(
    case=open_cases,
    power=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5]),
    beam=st.integers(1, 40),
    n_best=st.integers(1, 4),
    cut_off=st.booleans(),
)
@settings(max_examples=80)
def test_early_stopping_of_normalised_log_probabilities_equals_running_to_the_limit(
    case: Case, power: float, beam: int, n_best: int, cut_off: bool
) -> None:
    result = case.search(beam=beam, rule=LogprobSum(power), stop=StopBest(cut_off), n_best=n_best)
    for b, successors in enumerate(case.by_sentence):
        score = logprob_sum(case.model, int(case.batch.sentence_B[b]))
        length = case.lengths[b]
        truth = brute_force_refilled(
            successors, score, beam=beam, length=length, n_best=n_best, length_power=power, cut_off=cut_off
        )
        assert sequences(result, b) == truth.sequences
        scores = [score(tokens) / max(1, len(tokens)) ** power for tokens in truth.sequences]
        assert result.score_BN[b, : len(scores)].tolist() == pytest.approx(scores, abs=1e-9)
        assert result.finished_BN[b, : len(truth.finished)].tolist() == truth.finished
        # Up to its end the search has the same beams.
        for searched, kept in zip(_until_over(beams_of(result, b)), truth.beams, strict=False):
            assert [prefix for prefix, _ in searched] == kept


@pytest.mark.parametrize("stop", [StopTop(), StopBest()])
@pytest.mark.parametrize("seed", range(5))
def test_a_search_that_ends_long_before_its_limit_finds_what_the_loops_find(stop: Stop, seed: int) -> None:
    """Log-probabilities of three tokens with a limit of 40: all sentences are over early, and no step more is run."""
    loops = [unconstrained(5, end_symbol=True)] * 3
    case = Case(ToyModel(5, seed=seed, scale=2.0), [0, 1, 2], [[4]] * 3, [40] * 3, loops, Unconstrained(5, True))
    result = case.search(beam=3, rule=LogprobSum(), stop=stop)
    over_lists = brute_force_stop_top if stop == StopTop() else brute_force_refilled
    for b, successors in enumerate(loops):
        truth = over_lists(successors, logprob_sum(case.model, b), beam=3, length=40)
        assert sequences(result, b) == truth.sequences
        assert result.finished_BN[b].tolist() == [True]
    assert result.beams.tokens_TBJ.shape[0] < 40


@given(case=st.one_of(fixed_cases, open_cases), rule=rules, beam=st.integers(1, 12), data=st.data())
@settings(max_examples=60)
def test_training_search_without_violations_is_the_decoding_search(
    case: Case, rule: ScoreRule, beam: int, data: st.DataObject
) -> None:
    """With a margin of minus infinity; at open length until a search under `top` would have stopped."""
    stop = StopTop() if case.successors == Unconstrained(case.model.vocabulary, True) else None
    golds = [
        data.draw(st.sampled_from(enumerate_sequences(successors, length=length)))
        for successors, length in zip(case.by_sentence, case.lengths, strict=True)
    ]
    trained = case.search(beam=beam, rule=rule, stop=stop, golds=golds, policy=Restart(-math.inf))
    decoded = case.search(beam=beam, rule=rule, stop=stop)
    assert trained.violations is not None
    assert not trained.violations.violation_BT.any()
    ours, theirs = (
        (beams.tokens_TBJ[..., :beam], beams.parents_TBJ[..., :beam], beams.scores_TBJ[..., :beam])
        for beams in (trained.beams, decoded.beams)
    )
    for b, length in enumerate(case.lengths):
        ended_T = decoded.beams.tokens_TBJ[:, b, 0] == EOS
        until = int(ended_T.long().argmax()) + 1 if stop and ended_T.any() else length
        real = decoded.beams.scores_TBJ[:until, b] > -math.inf
        assert torch.equal(ours[2][:until, b] > -math.inf, real)
        for found, expected in zip(ours, theirs, strict=True):
            assert torch.equal(found[:until, b][real], expected[:until, b][real])


@given(
    sources=st.lists(st.lists(st.integers(4, 7), min_size=1, max_size=5), min_size=2, max_size=4),
    seed=st.integers(0, 100),
    beam=st.integers(1, 6),
    rule=rules,
    task=st.sampled_from(["permutation", "shift-reduce", "top", "best"]),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_sentences_result_does_not_depend_on_neighbours_padding_or_order(
    sources: list[list[int]], seed: int, beam: int, rule: ScoreRule, task: str, data: st.DataObject
) -> None:
    model = small_lstm(10, hidden=5, embedding=4, dropout=0.0, seed=seed)
    successors, stop = {
        "permutation": (Permutation(), None),
        "shift-reduce": (ShiftReduce(10, 2), None),
        "top": (Unconstrained(10, True), StopTop()),
        "best": (Unconstrained(10, True), StopBest()),
    }[task]
    lengths = [2 * len(s) - 1 if task == "shift-reduce" else len(s) for s in sources]
    order = data.draw(st.permutations(range(len(sources))))
    more = data.draw(st.integers(0, 3))
    examples = [example_of([], source=s, sentence=i) for i, s in enumerate(sources)]

    def search(chosen: list[int], *, size: int = 0, source: int = 0, steps: int = 0) -> SearchResult:
        batch = make_batch([examples[i] for i in chosen], size=size, source_length=source)
        padded = [lengths[i] for i in chosen] + [0] * (size - len(chosen))
        return beam_search(
            model,
            model.encode(batch, None),
            successors.start(batch),
            beam_size=beam,
            length_B=torch.tensor(padded),
            steps=max(steps, *padded, 1),
            rule=rule,
            stop=stop,
            n_best=2,
        )

    together = search(list(order), size=len(order) + more, source=5 + more, steps=max(lengths) + more)
    for place, i in enumerate(order):
        alone = search([i])
        assert sequences(together, place) == sequences(alone, 0)
        real = alone.score_BN[0] > -math.inf
        torch.testing.assert_close(
            together.score_BN[place, : len(real)][real], alone.score_BN[0][real], rtol=0, atol=1e-9
        )
        assert together.finished_BN[place, : len(real)].tolist() == alone.finished_BN[0].tolist()
        assert bool(together.dead_B[place]) == bool(alone.dead_B[0])


def _until_over(beams: list[list[tuple[Tokens, float]]]) -> list[list[tuple[Tokens, float]]]:
    """The beams before the search was over: from then on their newest tokens are PAD."""
    return list(itertools.takewhile(lambda kept: all(prefix[-1] != PAD for prefix, _ in kept), beams))
