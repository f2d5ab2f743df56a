"""Searches with gold that do not restart, against the same search over lists, and at cases worked out by hand."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.vocabulary import EOS
from argbeam.search.gold import EarlyUpdate, MaxViolation, Policy
from argbeam.search.result import Violations
from argbeam.search.score_rules import LastScore, ScoreRule
from argbeam.search.stop_rules import Stop, StopTop
from argbeam.search.successors import Unconstrained
from oracles import Tokens, ToyModel, UninterruptedSearch, uninterrupted_search
from toy_cases import GOLD_CASES, Case, beams_of, rules, table_violations

POLICIES: dict[Callable[[float], Policy], Callable[[UninterruptedSearch, float], int | None]] = {
    EarlyUpdate: UninterruptedSearch.early_update,
    MaxViolation: UninterruptedSearch.max_violation,
}


def check(
    found: Violations, b: int, truth: UninterruptedSearch, gold: Tokens, step: int | None, stop: Stop | None
) -> None:
    """One row of the result against the search over lists; `step` is the one trained on, counted from 1."""
    length = len(gold)
    assert found.stop_B[b] == truth.stop - 1
    assert found.violation_BT[b].nonzero()[:, 0].tolist() == ([] if step is None else [step - 1])
    assert found.gold_score_BT[b, :length].tolist() == pytest.approx(truth.gold_score, abs=1e-9)
    assert found.rival_score_BT[b, :length].tolist() == pytest.approx(truth.rival_score, abs=1e-9)
    assert bool(found.gold_on_beam_B[b]) == (gold in truth.beams[-1])
    assert not found.rival_is_gold_BT[b].any()
    rival = gold if step is None else (*truth.rivals[step - 1], *gold[step:])
    assert tuple(found.rival_BT[b, :length].tolist()) == rival
    ended = step is not None and step < length and stop == StopTop() and rival[step - 1] == EOS
    assert bool(found.rival_ended_BT[b].any()) == ended


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", GOLD_CASES)
def test_a_search_without_restarts_is_the_search_over_lists(name: str, policy: Callable[[float], Policy]) -> None:
    cases, stop = GOLD_CASES[name]
    seen: Counter[str] = Counter()

    @given(
        case=cases,
        beam=st.one_of(st.integers(1, 2), st.integers(1, 30)),
        margin=st.sampled_from([0.0, 1.0, 3.0]),
        rule=rules,
        data=st.data(),
    )
    @settings(max_examples=50)
    def agree(case: Case, beam: int, margin: float, rule: ScoreRule, data: st.DataObject) -> None:
        chosen = case.golds(data, rule, stop)
        result = case.search(beam=beam, rule=rule, stop=stop, golds=chosen, policy=policy(margin))
        assert result.violations is not None
        for b, gold in enumerate(chosen):
            truth = uninterrupted_search(case.by_sentence[b], case.score(rule, b), gold, beam=beam, stop=stop)
            step = POLICIES[policy](truth, margin)
            check(result.violations, b, truth, gold, step=step, stop=stop)
            beams = [[prefix for prefix, _ in kept[:beam]] for kept in beams_of(result, b)[: len(gold)]]
            assert beams == truth.beams
            seen["stopped early" if truth.stop < len(gold) else "to the end"] += 1
            seen["no violation" if step is None else "before the last" if step < len(gold) else "the last"] += 1

    agree()
    wanted = ["stopped early", "to the end", "no violation", "before the last", "the last"]
    assert all(seen[kind] >= 3 for kind in wanted), seen


# Cases computed by hand. Tokens are 4, 5 = a, b; scores not given are -100. The margin is 1 throughout.

A, B = 4, 5


@pytest.mark.parametrize(
    ("policy", "others", "violation", "rival"),
    [
        (EarlyUpdate(1.0), (1.0, 0.0), [False, False], [A, B]),
        (MaxViolation(1.0), (1.0, 0.0), [False, False], [A, B]),
        (EarlyUpdate(1.0), (1.9, 1.5), [False, True], [A, A]),
        (MaxViolation(1.0), (1.9, 1.5), [True, False], [B, B]),
    ],
)
def test_gold_first_by_too_little_violates_at_the_last_step_in_early_update_and_anywhere_in_maximum_violation(
    policy: Policy, others: tuple[float, float], violation: list[bool], rival: list[int]
) -> None:
    """Gold a, a b has 2.0 twice. With b 1.0 and a a 0.0 it is ahead by the margin of 1; with 1.9 and 1.5 by less."""
    table = {((), A): 2.0, ((), B): others[0], ((A,), B): 2.0, ((A,), A): others[1]}
    found = table_violations(table, (A, B), policy, beam=2)
    assert found.stop_B.tolist() == [1]
    assert found.violation_BT.tolist() == [violation]
    assert found.rival_BT.tolist() == [rival]


@pytest.mark.parametrize("policy", [EarlyUpdate(100.0), MaxViolation(100.0)])
def test_a_sentence_without_tokens_stops_at_once_and_is_not_trained_on(policy: Policy) -> None:
    case = Case(ToyModel(7), [0, 1], [[4], [4]], [2, 0], [], Unconstrained(7, False))
    found = case.search(beam=2, rule=LastScore(), golds=[(A, B), ()], policy=policy).violations
    assert found is not None
    assert found.stop_B[1] == 0
    assert found.violation_BT.sum(1).tolist() == [1, 0]
