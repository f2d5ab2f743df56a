"""Scores of successors, and bounds on the scores that a prefix can still reach."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.search.score_rules import NEVER, LastScore, LogprobSum, ScoreRule, ScoreSum


@given(
    total=st.floats(-30, 0),
    later=st.lists(st.floats(-5, 0), min_size=1, max_size=4),
    length=st.integers(1, 5),
    power=st.sampled_from([-0.7, 0.0, 0.5, 1.0, 2.0]),
)
@settings(max_examples=100)
def test_the_bound_of_log_probabilities_is_never_exceeded(
    total: float, later: list[float], length: int, power: float
) -> None:
    """Whatever log-probabilities follow, and wherever before the limit the prefix ends."""
    rule = LogprobSum(power)
    limit = length + len(later)
    bound = rule.bound(torch.tensor([total], dtype=torch.float64), torch.tensor([limit])).item()
    for more in range(1, len(later) + 1):
        ended = torch.tensor([[total + sum(later[:more])]], dtype=torch.float64)
        assert rule.finished_scores(ended, length + more).item() <= bound + 1e-12


@pytest.mark.parametrize("rule", [LastScore(), ScoreSum()])
def test_raw_scores_have_no_bound_while_a_prefix_is_alive(rule: ScoreRule) -> None:
    bound_B = rule.bound(torch.tensor([-3.0, NEVER]), torch.tensor([4, 4]))
    assert bound_B.tolist() == [math.inf, NEVER]


@pytest.mark.parametrize("rule", [LastScore(), ScoreSum(), LogprobSum()])
def test_a_dead_parent_has_dead_successors_whatever_their_tokens_score(rule: ScoreRule) -> None:
    """On a CPU its tokens have the scores of another live row, which may be of a sentence without numbers."""
    found_11C = rule.prefix_scores(torch.tensor([[NEVER]]), torch.tensor([[[math.nan, math.inf, NEVER, 2.0]]]))
    assert found_11C.tolist() == [[[NEVER] * 4]]


@pytest.mark.parametrize("rule", [LastScore(), ScoreSum(), LogprobSum()])
def test_a_parent_that_is_not_a_number_has_successors_that_are_none(rule: ScoreRule) -> None:
    assert rule.prefix_scores(torch.tensor([[math.nan]]), torch.tensor([[[2.0, NEVER]]])).isnan().all()
