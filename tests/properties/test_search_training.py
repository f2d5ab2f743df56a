"""The search with gold against the same search over lists, and at slips worked out by hand."""

from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.search.gold import Restart
from argbeam.search.result import Violations
from argbeam.search.score_rules import ScoreRule
from oracles import Tokens, TrainingSearch, training_search
from toy_cases import GOLD_CASES, Case, rules, table_violations

# What never occurs in the cases; everything else must occur.
NEVER = {
    "fixed length": {("rival ended", True)},
    # One token is left at the last step: gold on the beam before stays on it.
    "permutation": {("rival ended", True), ("gold on beam", False)},
    "shift reduce": {("rival ended", True)},
    "stop top": set(),
    "stop best": {("rival ended", True)},
}


def check(found: Violations, b: int, truth: TrainingSearch, gold: Tokens) -> None:
    """One row of the result against the search over lists."""
    length = len(gold)
    assert found.violation_BT[b, :length].tolist() == truth.violation
    assert not found.violation_BT[b, length:].any()
    assert found.rival_is_gold_BT[b, :length].tolist() == truth.rival_is_gold
    assert found.rival_ended_BT[b, :length].tolist() == truth.rival_ended
    assert found.gold_score_BT[b, :length].tolist() == pytest.approx(truth.gold_score, abs=1e-9)
    assert found.rival_score_BT[b, :length].tolist() == pytest.approx(truth.rival_score, abs=1e-9)
    assert bool(found.gold_on_beam_B[b]) == truth.gold_on_beam
    start = 0
    for t, rival in enumerate(truth.rivals):
        if rival is not None:
            assert tuple(found.rival_BT[b, start : t + 1].tolist()) == rival
            start = t + 1
    assert tuple(found.rival_BT[b, start:length].tolist()) == gold[start:]


@pytest.mark.parametrize("name", GOLD_CASES)
def test_the_training_search_is_the_search_over_lists(name: str) -> None:
    """What occurs is counted: an agreement on what never happened would say nothing."""
    (cases, stop), never = GOLD_CASES[name], NEVER[name]
    seen: Counter[tuple[str, bool]] = Counter()

    @given(
        case=cases,
        beam=st.one_of(st.integers(1, 4), st.integers(1, 30)),
        margin=st.sampled_from([0.0, 1.0, 3.0]),
        rule=rules,
        data=st.data(),
    )
    @settings(max_examples=90)
    def agree(case: Case, beam: int, margin: float, rule: ScoreRule, data: st.DataObject) -> None:
        chosen = case.golds(data, rule, stop)
        found = case.search(beam=beam, rule=rule, stop=stop, golds=chosen, policy=Restart(margin)).violations
        assert found is not None
        for b, gold in enumerate(chosen):
            score = case.score(rule, b)
            truth = training_search(case.by_sentence[b], score, gold, beam=beam, margin=margin, stop=stop)
            check(found, b, truth, gold)
            for violation, is_gold, ended in zip(truth.violation, truth.rival_is_gold, truth.rival_ended, strict=True):
                seen.update([("violation", violation), ("rival is gold", is_gold), ("rival ended", ended)])
            seen[("gold on beam", truth.gold_on_beam)] += 1

    agree()
    for kind in ("violation", "rival is gold", "rival ended", "gold on beam"):
        for yes in (True, False):
            assert (seen[kind, yes] == 0) if (kind, yes) in never else (seen[kind, yes] >= 2), seen


# Cases computed by hand. Tokens are 4, 5, 6 = a, b, c; scores not given are -100. The margin is 1 throughout.

A, B, C = 4, 5, 6
violations_of = partial(table_violations, policy=Restart(1.0))


@pytest.mark.parametrize("beam", [1, 2, 3, 9])
@pytest.mark.parametrize(("gold", "wrong", "violates"), [(1.0, 0.6, True), (1.5, 0.5, False)])
def test_gold_first_by_less_than_the_margin_at_the_last_step_is_a_violation(
    beam: int, gold: float, wrong: float, violates: bool
) -> None:
    """Whatever the beam, 1.0 < 0.6 + 1; but 1.5 < 0.5 + 1 is false: the margin is reached."""
    found = violations_of({((), A): gold, ((), B): wrong}, (A,), beam=beam)
    assert found.violation_BT.tolist() == [[violates]]
    assert found.rival_BT.tolist() == [[B if violates else A]]
    assert found.rival_is_gold_BT.tolist() == [[False]]
    assert found.gold_on_beam_B.tolist() == [True]


def test_gold_in_the_last_place_of_the_beam_is_a_violation_by_itself() -> None:
    """Beam 2, step 1: b 5.0, then gold a 3.0 = the second place. 3.0 < 3.0 + 1, so the search restarts at a,
    and step 2 knows nothing of b c 9.0: gold a b 2.0 against a c 0.5 is no violation (2.0 < 0.5 + 1 is
    false)."""
    table = {((), A): 3.0, ((), B): 5.0, ((B,), C): 9.0, ((A,), B): 2.0, ((A,), C): 0.5}
    found = violations_of(table, (A, B), beam=2)
    assert found.violation_BT.tolist() == [[True, False]]
    assert found.rival_is_gold_BT.tolist() == [[True, False]]
    assert found.rival_BT.tolist() == [[A, B]]
    assert found.gold_score_BT.tolist() == [[3.0, 2.0]]
    assert found.rival_score_BT.tolist() == [[3.0, 0.5]]
