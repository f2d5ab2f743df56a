"""Score rules and stop rules on tensors small enough to read."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.batches import make_batch
from argbeam.search.score_rules import NEVER, LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.stop_rules import StopTop
from oracles import ToyModel, example_of

RULES: list[ScoreRule] = [LastScore(), ScoreSum(), LogprobSum(), LogprobSum(1.0)]


def token_scores(rule: ScoreRule, candidates: list[list[int]] | None) -> torch.Tensor:
    """Scores of first tokens in two toy sentences."""
    model = ToyModel(8, scale=3.0)
    batch = make_batch([example_of([4], sentence=i) for i in range(2)])
    state = model.step(model.encode(batch, None), torch.tensor([2, 2]))
    candidates_BC = None if candidates is None else torch.tensor(candidates)
    return rule.token_scores(model, model.output(state)[:, None], candidates_BC)


@pytest.mark.parametrize("rule", RULES)
def test_candidates_are_columns_of_the_whole_vocabulary(rule: ScoreRule) -> None:
    """Log-probabilities too: they are normalised over all tokens, constrained or not."""
    whole_BRV = token_scores(rule, None)
    chosen_BRC = token_scores(rule, [[7, 4, 4], [5, 6, 7]])
    assert torch.equal(chosen_BRC[0, 0], whole_BRV[0, 0, [7, 4, 4]])
    assert torch.equal(chosen_BRC[1, 0], whole_BRV[1, 0, [5, 6, 7]])


@given(
    total=st.floats(-30, 0),
    later=st.lists(st.floats(-5, 0), min_size=1, max_size=4),
    length=st.integers(1, 5),
    power=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
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


def test_stop_top_returns_ended_prefixes_down_to_the_first_that_goes_on() -> None:
    """Places 0 and 1 have ended, 2 goes on, 3 has ended below it: the first two are returned, in their order, before
    all that end at a later step."""
    score_BK = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    ended_BK = torch.tensor([[True, True, False, True]])
    priority_K = StopTop().priority(LastScore(), score_BK, ended_BK, 5)[0].tolist()
    assert priority_K[0] > priority_K[1] > NEVER
    assert priority_K[2:] == [NEVER, NEVER]
    later_K = StopTop().priority(LastScore(), score_BK + 100, ended_BK, 6)[0].tolist()
    assert priority_K[1] > later_K[0] > NEVER
