"""The margin loss under other policies and with sums of scores, against naive re-scoring."""

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argbeam.data.batches import make_batch
from argbeam.losses.bso import Bso, BsoStep
from argbeam.losses.replay import replay_each, since_restart
from argbeam.models.noise import Noise
from argbeam.search.gold import EarlyUpdate, MaxViolation, Policy, Restart
from argbeam.search.score_rules import LastScore, ScoreSum
from argbeam.search.stop_rules import StopTop
from argbeam.search.successors import Unconstrained
from loss_cases import MODELS, TASKS, VOCABULARY, Task, drawn_batch, lstm
from loss_oracles import (
    TableModel,
    alone,
    gradients,
    naive_bso,
    naive_without_restarts,
    naive_zero_one,
    noise_alone,
    prefix_score,
)
from oracles import UninterruptedSearch, Words, example_of

POLICIES: dict[Callable[[float], Policy], Callable[[UninterruptedSearch, float], int | None] | None] = {
    Restart: None,
    EarlyUpdate: UninterruptedSearch.early_update,
    MaxViolation: UninterruptedSearch.max_violation,
}


def policy_step(
    task: Task, beam: int, policy: Callable[[float], Policy], rule: LastScore | ScoreSum, margin: float = 1.0
) -> BsoStep:
    return Bso(
        task.successors,
        train_beam=beam,
        start_beam=beam,
        stop=task.stop or StopTop(),
        open_length=task.stop is not None,
        margin=margin,
        policy=policy,
        rule=rule,
    ).at(0)


# The newest word's score after restarts is what tests/test_losses_bso.py compares.
@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Restart, ScoreSum()),
        (EarlyUpdate, LastScore()),
        (EarlyUpdate, ScoreSum()),
        (MaxViolation, LastScore()),
        (MaxViolation, ScoreSum()),
    ],
)
@settings(max_examples=8)
@given(data=st.data())
def test_loss_and_gradients_are_those_of_rescoring_the_violating_prefixes(
    policy: Callable[[float], Policy], rule: LastScore | ScoreSum, data: st.DataObject
) -> None:
    task = TASKS[data.draw(st.sampled_from(list(TASKS)))]
    seed = data.draw(st.integers(0, 10**6))
    batch = drawn_batch(
        task,
        random.Random(seed),
        sentences=data.draw(st.integers(1, 3)),
        padding_rows=data.draw(st.integers(0, 2)),
        padding=data.draw(st.integers(0, 2)),
    )
    model = MODELS[data.draw(st.sampled_from(list(MODELS)))](seed, 0.4)
    noise = data.draw(st.sampled_from([None, Noise(seed, torch.tensor(7), batch.sentence_B)]))
    margin = data.draw(st.sampled_from([0.3, 1.0, 2.5]))
    beam = data.draw(st.sampled_from([1, 2, 3, 10]))
    gives_up = isinstance(task.stop, StopTop)
    step_of = POLICIES[policy]

    def margin_loss(search: UninterruptedSearch, gold: Words, score: Callable[[Words], Tensor]) -> Tensor | None:
        assert step_of is not None
        t = step_of(search, margin)
        if t is None:
            return None
        rival = search.rivals[t - 1]
        assert rival is not None
        return margin - score(gold[:t]) + score(rival)

    if step_of is None:
        expected = naive_bso(
            model,
            batch,
            noise,
            successors=task.naive,
            beam=beam,
            margin=margin,
            ended_gives_up_place=gives_up,
            cost=naive_zero_one,
            adds_up=rule.adds_up,
        )
    else:
        expected = naive_without_restarts(
            model,
            batch,
            noise,
            successors=task.naive,
            beam=beam,
            ended_gives_up_place=gives_up,
            adds_up=rule.adds_up,
            loss=margin_loss,
        )
    loss = policy_step(task, beam, policy, rule, margin)(model, batch, noise).total
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("policy", [EarlyUpdate, MaxViolation])
def test_the_cases_compared_with_rescoring_stop_early_and_late_and_sometimes_violate_nothing(
    policy: Callable[[float], Policy],
) -> None:
    """Without this the comparison could pass on cases in which nothing happens."""
    sums: dict[str, float] = {}
    task = TASKS["fixed length"]
    for seed in range(20):
        batch = drawn_batch(task, random.Random(seed), sentences=3, padding_rows=1, padding=1)
        for name, value in policy_step(task, 3, policy, LastScore())(lstm(1, seed, 0.0), batch, None).sums.items():
            sums[name] = sums.get(name, 0.0) + float(value.sum())
    assert 5 < sums["stopped_early"] < sums["sentences"] - 5
    assert 5 < sums["violations"] <= sums["sentences"]
    assert sums["segment_words"] < sums["words"]


# Words a to c, whose scores after each prefix stand in a table. Gold a b c at beam 2: b 3, a 2; then b b 5, b a 4, and
# gold a b 1 falls off; then b b c 0.5, b a c 0.2, against gold's 0.4.
A, B, C = 4, 5, 6
LOST: dict[Words, dict[int, float]] = {
    (): {B: 3.0, A: 2.0},
    (B,): {B: 5.0, A: 4.0},
    (A,): {B: 1.0},
    (B, B): {C: 0.5},
    (B, A): {C: 0.2},
    (A, B): {C: 0.4},
}


def by_hand(policy: Callable[[float], Policy], rule: LastScore | ScoreSum) -> tuple[TableModel, BsoStep]:
    model = TableModel(LOST, vocabulary=VOCABULARY)
    task = Task(Unconstrained(VOCABULARY, end_symbol=False), TASKS["fixed length"].naive, lambda rng, source: (), None)
    return model, policy_step(task, 2, policy, rule)


def test_early_update_trains_on_the_step_where_gold_fell_off() -> None:
    """margin - f(gold) + f(rival) = 1 - 1 + 5; by sums 1 - (2 + 1) + (3 + 5) = 6, with a gradient for each word."""
    batch = make_batch([example_of((A, B, C))])
    model, step = by_hand(EarlyUpdate, LastScore())
    out = step(model, batch, None)
    assert out.total.item() == 5.0
    assert model.gradients(out.total) == {((A,), B): -1.0, ((B,), B): 1.0}
    figures = {name: out.sums[name].item() for name in ("violations", "segment_words", "stopped_early", "stop_words")}
    assert figures == {"violations": 1, "segment_words": 2, "stopped_early": 1, "stop_words": 2}
    model, step = by_hand(EarlyUpdate, ScoreSum())
    out = step(model, batch, None)
    assert out.total.item() == 6.0
    assert model.gradients(out.total) == {((), A): -1.0, ((), B): 1.0, ((A,), B): -1.0, ((B,), B): 1.0}


def test_maximum_violation_by_sums_trains_on_the_last_step_here() -> None:
    """Sums of gold 2, 3, 3.4, of its rivals 3, 8, 8.5: 1 - 3.4 + 8.5 = 6.1, and six scores have a gradient."""
    model, step = by_hand(MaxViolation, ScoreSum())
    out = step(model, make_batch([example_of((A, B, C))]), None)
    assert out.total.item() == pytest.approx(6.1, abs=1e-12)
    assert model.gradients(out.total) == {
        **{((), A): -1.0, ((A,), B): -1.0, ((A, B), C): -1.0},
        **{((), B): 1.0, ((B,), B): 1.0, ((B, B), C): 1.0},
    }
    assert (out.sums["segment_words"], out.sums["stop_words"], out.sums["stopped_early"]) == (3, 2, 1)


def test_steps_with_different_policies_or_rules_do_not_share_a_captured_step() -> None:
    steps = {by_hand(policy, rule)[1] for policy in POLICIES for rule in (LastScore(), ScoreSum())}
    task = TASKS["permutation"]
    assert len({policy_step(task, 2, policy, rule) for policy in POLICIES for rule in (LastScore(), ScoreSum())}) == 6
    assert len(steps) == 6
    assert policy_step(task, 2, EarlyUpdate, ScoreSum()) == policy_step(task, 2, EarlyUpdate, ScoreSum())


def test_sums_begin_after_the_last_restart_before_a_column() -> None:
    """[1, 2, 3, 4] with restarts at columns 1 and 2, and without any."""
    words_BT = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 2)
    restart_BT = torch.tensor([[False, True, True, False], [False] * 4])
    assert since_restart(words_BT, restart_BT).tolist() == [[1.0, 3.0, 3.0, 4.0], [1.0, 3.0, 6.0, 10.0]]


@pytest.mark.parametrize("model_name", MODELS)
def test_every_word_of_a_sequence_is_scored_after_the_words_before_it(model_name: str) -> None:
    model = MODELS[model_name](3, 0.4)
    batch = drawn_batch(TASKS["fixed length"], random.Random(3), sentences=2, padding_rows=0, padding=1)
    noise = Noise(5, torch.tensor(2), batch.sentence_B)
    words_BRT = torch.randint(4, VOCABULARY, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    steps = batch.target_BT.shape[1]
    scores_BRT = replay_each(model, model.encode(batch, noise), words_BRT[:, :, :steps])
    for row in range(2):
        one, one_noise = alone(batch, row), noise_alone(noise, row)
        for r in range(3):
            for t in range(1, int(batch.target_length_B[row]) + 1):
                expected = prefix_score(model, one, one_noise, tuple(words_BRT[row, r, :t].tolist()))
                torch.testing.assert_close(scores_BRT[row, r, t - 1], expected, rtol=1e-12, atol=1e-12)
