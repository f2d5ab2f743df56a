"""Searches with gold that do not restart, against the same search over lists, and at cases worked out by hand."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.vocabulary import EOS
from argbeam.search.gold import EarlyUpdate, MaxViolation, Policy, Restart
from argbeam.search.result import Violations
from argbeam.search.score_rules import LastScore, ScoreRule, ScoreSum
from argbeam.search.stop_rules import Stop, StopBest, StopTop
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


# Cases computed by hand. Tokens are 4, 5, 6 = a, b, c; scores not given are -100. The margin is 1 throughout.

A, B, C = 4, 5, 6

# Gold a b c at beam 2. Step 1: b 3.0, gold a 2.0. Step 2: b b 5.0, b a 4.0, gold a b 1.0 is third and falls off.
# Step 3 goes on from b b and b a: b b c 0.5, b a c 0.2; gold a b c has 0.4.
LOST = {
    ((), B): 3.0,
    ((), A): 2.0,
    ((B,), B): 5.0,
    ((B,), A): 4.0,
    ((A,), B): 1.0,
    ((B, B), C): 0.5,
    ((B, A), C): 0.2,
    ((A, B), C): 0.4,
}


def test_early_update_stops_where_gold_falls_off_and_its_rival_is_the_top_prefix() -> None:
    """Gold is second at step 1, which is on the beam, so that the violation there (2.0 < 3.0 + 1) does not count."""
    found = table_violations(LOST, (A, B, C), EarlyUpdate(1.0), beam=2)
    assert found.stop_B.tolist() == [1]
    assert found.violation_BT.tolist() == [[False, True, False]]
    assert found.rival_BT.tolist() == [[B, B, C]]  # behind the violation, gold
    assert found.gold_score_BT.tolist() == [[2.0, 1.0, 0.4]]
    assert found.rival_score_BT.tolist() == [[3.0, 5.0, 0.5]]
    assert found.gold_on_beam_B.tolist() == [False]


def test_maximum_violation_takes_the_step_that_gold_is_furthest_behind() -> None:
    """Behind by 1.0, 4.0, 0.1: step 2. By sums, gold has 2.0, 3.0, 3.4 and its rivals 3.0, 8.0, 8.5: step 3, by 5.1."""
    found = table_violations(LOST, (A, B, C), MaxViolation(1.0), beam=2)
    assert found.violation_BT.tolist() == [[False, True, False]]
    found = table_violations(LOST, (A, B, C), MaxViolation(1.0), beam=2, rule=ScoreSum())
    assert found.violation_BT.tolist() == [[False, False, True]]
    assert found.rival_BT.tolist() == [[B, B, C]]
    assert found.rival_score_BT.tolist()[0] == pytest.approx([3.0, 8.0, 8.5])


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


def test_under_stop_top_a_search_that_ends_before_gold_has_lost_it() -> None:
    """Step 1: </s> 3.0 is first, gold a 2.0 second and still on the beam; decoding would return </s> here. Where the
    end symbol is a token like any other, the search goes on: a </s> 5.0 at step 2, ahead of </s> a, 1.0."""
    table = {((), EOS): 3.0, ((), A): 2.0, ((A,), EOS): 5.0, ((A,), A): 0.0, ((EOS,), A): 1.0}
    found = table_violations(table, (A, EOS), EarlyUpdate(1.0), beam=2, stop=StopTop())
    assert found.stop_B.tolist() == [0]
    assert found.violation_BT.tolist() == found.rival_ended_BT.tolist() == [[True, False]]
    found = table_violations(table, (A, EOS), EarlyUpdate(1.0), beam=2, stop=StopBest())
    assert found.stop_B.tolist() == [1]
    assert not found.violation_BT.any()


@pytest.mark.parametrize("policy", [EarlyUpdate(100.0), MaxViolation(100.0)])
def test_a_sentence_without_tokens_stops_at_once_and_is_not_trained_on(policy: Policy) -> None:
    case = Case(ToyModel(7), [0, 1], [[4], [4]], [2, 0], [], Unconstrained(7, False))
    found = case.search(beam=2, rule=LastScore(), golds=[(A, B), ()], policy=policy).violations
    assert found is not None
    assert found.stop_B[1] == 0
    assert found.violation_BT.sum(1).tolist() == [1, 0]


def test_one_step_of_each_sentence_is_the_worst_of_those_that_violate() -> None:
    """Columns are sentences: the largest score behind gold among violations; none where there is no violation."""
    violation_TB = torch.tensor([[True, False, True], [True, False, False], [False, False, True]])
    behind_TB = torch.tensor([[1.0, 5.0, -0.5], [2.0, 6.0, 9.0], [3.0, 7.0, -0.2]])
    stop_B = torch.tensor([1, 2, 0])
    worst = MaxViolation().trained(violation_TB, behind_TB, stop_B)
    assert worst.nonzero().tolist() == [[1, 0], [2, 2]]
    stopped = EarlyUpdate().trained(violation_TB, behind_TB, stop_B)
    assert stopped.nonzero().tolist() == [[0, 2], [1, 0]]
    assert torch.equal(Restart().trained(violation_TB, behind_TB, stop_B), violation_TB)
