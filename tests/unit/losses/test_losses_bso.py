"""BSO, its policies and its rules against naive re-scoring: loss and every gradient, for several kinds of decoders."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argbeam.data.batches import make_batch
from argbeam.losses.bso import Bso, BsoStep, Cost, one_minus_authors_bleu, one_minus_bleu, zero_one
from argbeam.losses.contract import LossOutput
from argbeam.metrics.device_bleu import authors_segment_bleu, segment_bleu
from argbeam.models.noise import Noise
from argbeam.search.gold import EarlyUpdate, MaxViolation, Policy, Restart
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.stop_rules import StopTop
from argbeam.search.successors import Permutation, Unconstrained
from loss_cases import MODELS, TASKS, VOCABULARY, Task, assert_same_loss, drawn_batch, drawn_case, lstm
from loss_oracles import (
    Rescore,
    SegmentCost,
    TableModel,
    bso_of_one,
    gradients,
    naive_one_minus_authors_bleu,
    naive_one_minus_bleu,
    naive_total,
)
from oracles import Score, Tokens, UninterruptedSearch, example_of, uninterrupted_search

# A policy, and the step of a search without restarts that it trains on.
POLICIES: dict[Callable[[float, float], Policy], Callable[[UninterruptedSearch, float, float], int | None] | None] = {
    Restart: None,
    EarlyUpdate: UninterruptedSearch.early_update,
    MaxViolation: UninterruptedSearch.max_violation,
}


def bso_step(
    task: Task,
    beam: int,
    *,
    cost: Cost = zero_one,
    margin: float = 1.0,
    margin_per_token: float = 0.0,
    policy: Callable[[float, float], Policy] = Restart,
    rule: ScoreRule = LastScore(),  # noqa: B008 - frozen and without state
) -> BsoStep:
    stop, open_length = task.stop or StopTop(), task.stop is not None
    search = Bso(task.successors, beam, stop, open_length, margin=margin, margin_per_token=margin_per_token, rule=rule)
    return BsoStep(replace(search, cost=cost, policy=policy), beam)


def hamming(rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor) -> Tensor:
    """A user's cost: the places at which rival and gold differ, counted since the last violation."""
    wrong_BT = (rival_BT != gold_BT).cumsum(1)
    at_violations_BT = torch.where(violation_BT, wrong_BT, 0).cummax(1).values
    before_BT = torch.nn.functional.pad(at_violations_BT[:, :-1], (1, 0))
    return (wrong_BT - before_BT).double()


# The library's own BLEU costs are in float32; the same in float64 can be held against 1e-9.
COSTS: list[tuple[Cost, SegmentCost]] = [
    (zero_one, lambda *_: 1.0),
    (lambda *rows: 1 - segment_bleu(*rows, dtype=torch.float64), naive_one_minus_bleu),
    (lambda *rows: 1 - authors_segment_bleu(*rows, dtype=torch.float64), naive_one_minus_authors_bleu),
    (hamming, lambda rival, gold, _: float(sum(a != b for a, b in zip(rival, gold, strict=True)))),
]


# Every model with constraints and without, but not every model with every task: each takes a second.
CASES = [(model, task) for model in list(MODELS)[:3] for task in TASKS]
CASES += [("language model", task) for task in ("fixed length", "permutation")]
CASES += [("convolutional encoder", task) for task in ("open length, stop top", "permutation")]
CASES += [("example's Transformer", "open length, stop top")]
CASES += [("Transformer", task) for task in ("open length, stop top", "permutation")]
CASES += [("Transformer, decoder only", task) for task in ("open length, stop best", "shift reduce")]


def rescored(task: Task, step: BsoStep, cost: SegmentCost) -> Callable[..., Tensor]:
    """The step's loss of one sentence by scoring every violating prefix from scratch."""
    growth = step.bso.margin_per_token
    return bso_of_one(
        task.naive, beam=step.beam, margin=step.bso.margin, margin_per_token=growth, stop=task.stop, cost=cost
    )


@pytest.mark.parametrize(("model_name", "task_name"), CASES)
@settings(max_examples=6)
@given(data=st.data())
def test_loss_and_gradients_are_those_of_rescoring_every_violating_prefix(
    model_name: str, task_name: str, data: st.DataObject
) -> None:
    """Beams run from 1 to wider than the space: at K = 30 all 24 orders of 4 words fit, and all pairs of 5 words."""
    task = TASKS[task_name]
    model, batch, noise = drawn_case(data, task, [model_name])
    cost, naive_cost = data.draw(st.sampled_from(COSTS))
    beam, margin = data.draw(st.sampled_from([1, 2, 3, 5, 30])), data.draw(st.sampled_from([0.3, 1.0, 2.5]))
    step = bso_step(task, beam, cost=cost, margin=margin)
    expected = naive_total(model, batch, noise, rescored(task, step, naive_cost))
    out = step(model, batch, noise)
    assert_same_loss(out.total, expected, model)
    assert out.sums["violations_by_tenth"].sum() == out.sums["violations"]
    assert out.sums["words_by_tenth"].sum() == out.sums["words"] == batch.target_length_B.sum()
    assert out.sums["sentences"] == (batch.target_length_B > 0).sum()
    assert out.sums["segment_words"] <= out.sums["words"]


@pytest.mark.parametrize(
    ("policy", "rule"), [(policy, rule) for policy in POLICIES for rule in (LastScore(), ScoreSum(), LogprobSum())][1:]
)
@settings(max_examples=5)
@given(data=st.data())
def test_other_policies_and_sums_have_the_loss_of_rescoring_their_violations(
    policy: Callable[[float, float], Policy], rule: ScoreRule, data: st.DataObject
) -> None:
    """A margin that grows with every token, where scores add up."""
    task = TASKS[data.draw(st.sampled_from(list(TASKS)))]
    model, batch, noise = drawn_case(data, task)
    beam, margin = data.draw(st.sampled_from([1, 2, 3, 10])), data.draw(st.sampled_from([0.3, 1.0, 2.5]))
    growth = data.draw(st.sampled_from([0.0, 0.4])) if rule.adds_up else 0.0
    step = bso_step(task, beam, margin=margin, margin_per_token=growth, policy=policy, rule=rule)
    trained_step = POLICIES[policy]

    def margin_loss(source: Tokens, gold: Tokens, score: Score, rescore: Rescore) -> Tensor | None:
        search = uninterrupted_search(task.naive(source), score, gold, beam=beam, stop=task.stop, ties=False)
        assert trained_step is not None
        t = trained_step(search, margin, growth)
        if t is None:
            return None
        return margin + growth * t - rescore(gold[:t]) + rescore(search.rivals[t - 1] or ())

    loss = rescored(task, step, lambda *_: 1.0) if trained_step is None else margin_loss
    expected = naive_total(model, batch, noise, loss, rule=rule)
    assert_same_loss(step(model, batch, noise).total, expected, model)


@pytest.mark.parametrize(
    ("cost", "naive"), [(one_minus_bleu, naive_one_minus_bleu), (one_minus_authors_bleu, naive_one_minus_authors_bleu)]
)
def test_the_bleu_costs_are_those_of_rescoring_up_to_float32(cost: Cost, naive: SegmentCost) -> None:
    task = TASKS["open length, stop top"]
    for seed in range(5):
        batch = drawn_batch(task, random.Random(seed), sentences=3, padding_rows=1, padding=1)
        step, model = bso_step(task, 3, cost=cost), lstm(1, seed, 0.0)
        expected = naive_total(model, batch, None, rescored(task, step, naive))
        assert_same_loss(step(model, batch, None).total, expected, model, 1e-6)


@pytest.mark.parametrize("elsewhere", [math.nan, math.inf])
def test_a_cost_is_read_at_violations_alone(elsewhere: float) -> None:
    """A share of a segment's words, say, is 0 / 0 where there is no segment."""
    task = TASKS["open length, stop top"]
    batch = drawn_batch(task, random.Random(1), sentences=3, padding_rows=1, padding=1)
    model = lstm(1, 1, 0.0)

    def odd(rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor) -> Tensor:
        return torch.where(violation_BT, hamming(rival_BT, gold_BT, violation_BT), elsewhere)

    loss, expected = (bso_step(task, 3, cost=cost)(model, batch, None).total for cost in (odd, hamming))
    assert loss == expected > 0
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=0, atol=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_cases_compared_with_rescoring_hold_every_kind_of_violation(policy: Callable[[float], Policy]) -> None:
    """Without this the comparisons could pass on cases in which nothing happens."""
    sums: dict[str, float] = {}
    task = TASKS["open length, stop top" if policy is Restart else "fixed length"]
    for seed in range(20):
        batch = drawn_batch(task, random.Random(seed), sentences=3, padding_rows=1, padding=1)
        for name, value in bso_step(task, 3, policy=policy)(lstm(1, seed, 0.0), batch, None).sums.items():
            sums[name] = sums.get(name, 0.0) + float(value.sum())
    if policy is Restart:
        assert 60 < sums["violations"] < sums["words"]  # more than one in a sentence: restarts
        assert min(sums["rival_is_gold"], sums["rival_ended"], sums["gold_on_beam"]) >= 5
    else:
        assert 5 < sums["stopped_early"] < sums["sentences"] - 5
        assert 5 < sums["violations"] <= sums["sentences"]
        assert sums["segment_words"] < sums["words"]


@pytest.mark.parametrize("task_name", TASKS)
def test_gradients_are_numerical_derivatives(task_name: str) -> None:
    """Central differences, where no decision of the search flips."""
    task, model = TASKS[task_name], lstm(1, 3, 0.3)
    batch = drawn_batch(task, random.Random(5), sentences=2, padding_rows=0, padding=0)
    noise = Noise(1, torch.tensor(2), batch.sentence_B)
    step = bso_step(task, 2, cost=hamming)
    out = step(model, batch, noise)
    assert out.sums["violations"] > out.sums["rival_is_gold"]
    parameters = tuple(model.parameters())
    limits = {"eps": 1e-5, "atol": 1e-7, "rtol": 1e-6}
    assert torch.autograd.gradcheck(lambda *_: step(model, batch, noise).total, parameters, fast_mode=True, **limits)


# Cases computed by hand: tokens a to d, with their scores after each prefix in a table.

A, B, C, D = 4, 5, 6, 7
Scores = dict[Tokens, dict[int, float]]


def by_hand(table: Scores, gold: Tokens, beam: int, **settings: Any) -> tuple[TableModel, LossOutput]:
    """BSO of one sentence of fixed length; words that the table leaves out score -100."""
    model = TableModel(table, vocabulary=VOCABULARY)
    bso = Bso(Unconstrained(VOCABULARY, end_symbol=False), train_beam=beam, open_length=False)
    step = BsoStep(replace(bso, **settings), beam)
    return model, step(model, make_batch([example_of(gold)]), None)


def test_a_rival_that_is_gold_costs_the_margin_and_has_no_gradient() -> None:
    """K = 1. t = 1: gold is the first of 1, so the K-th is gold: loss 1.5, the margin. t = 2 = T: gold has 4.0, the
    best wrong sequence 1.0, and 4.0 >= 1.0 + 1.5. Together 1.5."""
    model, out = by_hand({(): {A: 3.0, B: 2.9}, (A,): {B: 4.0, C: 1.0}}, (A, B), 1, margin=1.5)
    assert out.total.item() == 1.5
    assert out.sums["violations"] == out.sums["rival_is_gold"] == 1
    assert not model.gradients(out.total)


@pytest.mark.parametrize(("settings", "factor"), [({}, 1.0), ({"cost": hamming, "cost_scale": 5.0}, 5.0)])
def test_gold_that_is_first_by_less_than_the_margin_is_a_violation_at_the_last_step(
    settings: dict[str, Any], factor: float
) -> None:
    """T = 1, K = 2: gold 2.0, the best wrong token 1.6, loss 1 - 2.0 + 1.6 = 0.6 (the authors' code finds none). With
    a cost of 1 wrong token and a scale of 5 loss and gradient are 5 times as large."""
    model, out = by_hand({(): {A: 2.0, B: 1.6, C: 0.0}}, (A,), 2, **settings)
    assert out.total.item() == pytest.approx(0.6 * factor, abs=1e-12)
    assert model.gradients(out.total) == {((), A): -factor, ((), B): factor}


# Gold a b c d a, K = 2, margin 1. t = 1: a 5, b 3; 5 >= 3 + 1. t = 2: ab 2, aa 3, bb 2.5: gold is third, 2 < 2.5 + 1,
# the rival is b b: loss 1 - 2 + 2.5 = 1.5. Restart. t = 3: abc 9, abd 0. t = 4: abcd 0, abca 4, abda 3: rival d a,
# loss 1 - 0 + 3 = 4. Restart. t = 5: abcda 7, abcdb 1: none.
FIVE_WORDS: Scores = {
    (): {A: 5.0, B: 3.0},
    (A,): {B: 2.0, A: 3.0},
    (B,): {B: 2.5},
    (A, B): {C: 9.0, D: 0.0},
    (A, B, C): {D: 0.0, A: 4.0},
    (A, B, D): {A: 3.0},
    (A, B, C, D): {A: 7.0, B: 1.0},
}


def test_diagnostics_count_violations_and_the_words_of_their_segments() -> None:
    """The five words above: segments of 2 words each, violations at the 2nd and 4th word of 5, that is in the tenths
    10 * 1 // 5 = 2 and 10 * 3 // 5 = 6."""
    model, out = by_hand(FIVE_WORDS, (A, B, C, D, A), 2)
    assert out.total.item() == 5.5
    assert model.gradients(out.total) == {((A,), B): -1.0, ((B,), B): 1.0, ((A, B, C), D): -1.0, ((A, B, D), A): 1.0}
    tenths = {name: out.sums[name].tolist() for name in ("violations_by_tenth", "words_by_tenth")}
    assert tenths == {
        "violations_by_tenth": [0, 0, 1, 0, 0, 0, 1, 0, 0, 0],
        "words_by_tenth": [1, 0, 1, 0, 1, 0, 1, 0, 1, 0],
    }
    scalars = {name: value.item() for name, value in out.sums.items() if value.dim() == 0}
    counts = {
        "violations": 2,
        "rival_is_gold": 0,
        "rival_ended": 0,
        "segment_words": 4,
        "gold_on_beam": 1,
        "replay_differs": 0,
    }
    assert scalars == {"loss": 5.5, "sentences": 1, "words": 5, **counts}


def test_the_beam_is_2_and_grows_by_1_every_2_epochs_up_to_the_train_beam() -> None:
    table = {2: [2, 2, 2, 2, 2, 2], 4: [2, 2, 3, 3, 4, 4, 4, 4], 6: [2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6]}
    for train_beam, beams in table.items():
        bso = Bso(Permutation(), train_beam=train_beam)
        assert [bso.at(epoch).beam for epoch in range(len(beams))] == beams
    faster = Bso(Permutation(), train_beam=5, start_beam=3, epochs_per_beam=1)
    assert [faster.at(epoch).beam for epoch in range(5)] == [3, 4, 5, 5, 5]


# Gold a b c at beam 2: b 3, a 2; then b b 5, b a 4, and gold a b 1 falls off; then b b c 0.5, b a c 0.2, against gold's
# 0.4.
LOST: Scores = {
    (): {B: 3.0, A: 2.0},
    (B,): {B: 5.0, A: 4.0},
    (A,): {B: 1.0},
    (B, B): {C: 0.5},
    (B, A): {C: 0.2},
    (A, B): {C: 0.4},
}


@pytest.mark.parametrize(
    ("policy", "rule", "loss", "gold", "segment"),
    [
        (EarlyUpdate, LastScore(), 5.0, [((A,), B)], 2),
        (EarlyUpdate, ScoreSum(), 6.0, [((), A), ((A,), B)], 2),
        (MaxViolation, ScoreSum(), 6.1, [((), A), ((A,), B), ((A, B), C)], 3),
    ],
)
def test_early_update_trains_where_gold_fell_off_and_maximum_violation_where_it_is_furthest_behind(
    policy: Callable[[float, float], Policy], rule: ScoreRule, loss: float, gold: list[tuple[Tokens, int]], segment: int
) -> None:
    """margin - f(gold) + f(rival) = 1 - 1 + 5 at step 2; by sums 1 - (2 + 1) + (3 + 5) = 6, with a gradient for each
    token, and at step 3 1 - 3.4 + 8.5 = 6.1. The rivals are b b and b b c."""
    model, out = by_hand(LOST, (A, B, C), 2, policy=policy, rule=rule)
    assert out.total.item() == pytest.approx(loss, abs=1e-12)
    rival = {((B,) * len(prefix), max(token, B)): 1.0 for prefix, token in gold}
    assert model.gradients(out.total) == {**dict.fromkeys(gold, -1.0), **rival}
    figures = {name: out.sums[name].item() for name in ("violations", "segment_words", "stopped_early", "stop_words")}
    assert figures == {"violations": 1, "segment_words": segment, "stopped_early": 1, "stop_words": 2}


def test_steps_with_different_policies_or_rules_do_not_share_a_captured_step() -> None:
    task, rules = TASKS["permutation"], (LastScore(), ScoreSum(), LogprobSum())
    assert len({bso_step(task, 2, policy=policy, rule=rule) for policy in POLICIES for rule in rules}) == 9
    assert bso_step(task, 2, policy=EarlyUpdate, rule=ScoreSum()) == bso_step(
        task, 2, policy=EarlyUpdate, rule=ScoreSum()
    )


@pytest.mark.parametrize("rule", [LastScore(), ScoreSum(), LogprobSum()])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_loss_over_scores_that_are_not_numbers_is_not_a_number(
    policy: Callable[[float, float], Policy], rule: ScoreRule
) -> None:
    """Its gradient is not, and a finite total would hide that. One sentence of three, then all of them."""
    model = lstm(1, 3, 0.0)
    batch = make_batch([example_of((4, 5, 6), source=(4, 5)), example_of((5,), source=(6,)), example_of((6, 4))])
    step = bso_step(TASKS["fixed length"], 2, policy=policy, rule=rule)
    assert step(model, batch, None).total.isfinite()
    for token in (6, 4, 5):
        with torch.no_grad():
            model.get_submodule("encoder.embedding").weight[token] = torch.nan
        assert step(model, batch, None).total.isnan()
