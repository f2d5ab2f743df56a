"""The CRF against enumeration, and against a search over lists that re-scores every prefix."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argbeam.data.batches import make_batch
from argbeam.losses.crf import Crf, CrfStep
from argbeam.models.noise import Noise
from argbeam.search.score_rules import ScoreSum
from argbeam.search.stop_rules import StopTop
from loss_cases import MODELS, TASKS, VOCABULARY, Task, assert_same_loss, drawn_batch, drawn_case, lstm
from loss_oracles import Rescore, TableModel, naive_total
from oracles import Score, Tokens, enumerate_sequences, example_of, training_search, uninterrupted_search


def crf_step(task: Task, beam: int, *, restarts: bool = False) -> CrfStep:
    stop, open_length = task.stop or StopTop(), task.stop is not None
    return Crf(task.successors, beam, stop, open_length, start_beam=beam, restarts=restarts).at(0)


@pytest.mark.parametrize("task_name", ["fixed length", "permutation", "shift reduce"])
@settings(max_examples=6)
@given(data=st.data())
def test_with_a_beam_as_wide_as_the_space_it_is_the_globally_normalised_probability(
    task_name: str, data: st.DataObject
) -> None:
    """All sequences are listed, each is scored from scratch: -log(exp(gold) / sum of exp), and its gradients."""
    task = TASKS[task_name]
    seed = data.draw(st.integers(0, 10**6))
    rng = random.Random(seed)
    batch = drawn_batch(task, rng, sentences=data.draw(st.integers(1, 2)), padding_rows=1, padding=1)
    # Unconstrained, four words of seven are 2,401 sequences: one word less is wide enough a space.
    if task_name == "fixed length":
        short = [example_of(task.target(rng, ())[:2], source=(4, 5), sentence=i) for i in range(2)]
        batch = make_batch(short, target_length=3, size=3)
    model = MODELS[data.draw(st.sampled_from(list(MODELS)))](seed, 0.4)
    noise = data.draw(st.sampled_from([None, Noise(seed, torch.tensor(7), batch.sentence_B)]))
    widest = 1

    def minus_log_probability(source: Tokens, gold: Tokens, score: Score, rescore: Rescore) -> Tensor:
        nonlocal widest
        successors = task.naive(source)
        spaces = [enumerate_sequences(successors, length=t) for t in range(1, len(gold) + 1)]
        widest = max(widest, *map(len, spaces))
        return -(rescore(gold).exp() / torch.stack(list(map(rescore, spaces[-1]))).exp().sum()).log()

    expected = naive_total(model, batch, noise, minus_log_probability, rule=ScoreSum())
    out = crf_step(task, widest)(model, batch, noise)
    assert_same_loss(out.total, expected, model)
    assert out.sums["stopped_early"] == 0


@pytest.mark.parametrize("task_name", TASKS)
@settings(max_examples=6)
@given(data=st.data())
def test_loss_and_gradients_are_those_of_rescoring_the_beam_where_gold_fell_off(
    task_name: str, data: st.DataObject
) -> None:
    task = TASKS[task_name]
    model, batch, noise = drawn_case(data, task)
    beam = data.draw(st.sampled_from([1, 2, 3, 10]))
    stops: list[int] = []

    def minus_log_share(source: Tokens, gold: Tokens, score: Score, rescore: Rescore) -> Tensor:
        search = uninterrupted_search(task.naive(source), score, gold, beam=beam, stop=task.stop, ties=False)
        prefixes = {*search.beams[search.stop - 1], gold[: search.stop]}
        stops.append(search.stop)
        return torch.stack([rescore(prefix) for prefix in prefixes]).logsumexp(0) - rescore(gold[: search.stop])

    expected = naive_total(model, batch, noise, minus_log_share, rule=ScoreSum())
    out = crf_step(task, beam)(model, batch, noise)
    assert_same_loss(out.total, expected, model)
    assert out.sums["stop_words"] == sum(stops)


def test_the_cases_compared_with_rescoring_stop_early_and_late() -> None:
    """Without this the comparison could pass on sentences that all stop at their last word."""
    sums: dict[str, float] = {}
    for name in TASKS:
        for seed in range(5):
            batch = drawn_batch(TASKS[name], random.Random(seed), sentences=3, padding_rows=1, padding=1)
            out = crf_step(TASKS[name], 2)(lstm(1, seed, 0.0), batch, None)
            for key in ("stopped_early", "sentences", "gold_on_beam"):
                sums[key] = sums.get(key, 0.0) + out.sums[key].item()
    assert 10 < sums["stopped_early"] < sums["sentences"] - 10
    assert sums["gold_on_beam"] > 5


@pytest.mark.parametrize("task_name", TASKS)
@settings(max_examples=3)
@given(data=st.data())
def test_with_restarts_every_beam_that_gold_falls_off_is_rescored_and_the_last_one(
    task_name: str, data: st.DataObject
) -> None:
    """Every prefix from its first token: those of one beam share gold's prefix up to the restart, which cancels."""
    task = TASKS[task_name]
    model, batch, noise = drawn_case(data, task)
    beam = data.draw(st.sampled_from([1, 2, 3, 10]))

    def minus_log_shares(source: Tokens, gold: Tokens, score: Score, rescore: Rescore) -> Tensor:
        search = training_search(task.naive(source), score, gold, beam=beam, margin=0.0, stop=task.stop, ties=False)
        total = torch.zeros((), dtype=torch.float64)
        for t, kept in enumerate(search.beams, 1):
            if search.violation[t - 1] or t == len(gold):
                prefixes = {*kept, gold[:t]}
                total = total + torch.stack(list(map(rescore, prefixes))).logsumexp(0) - rescore(gold[:t])
        return total

    expected = naive_total(model, batch, noise, minus_log_shares, rule=ScoreSum())
    assert_same_loss(crf_step(task, beam, restarts=True)(model, batch, noise).total, expected, model)


def test_the_cases_with_restarts_restart_more_than_once_in_some_sentences() -> None:
    """Without this the comparison could pass on sentences with one segment each."""
    counts = torch.zeros(2)
    for name in TASKS:
        for seed in range(4):
            batch = drawn_batch(TASKS[name], random.Random(seed), sentences=3, padding_rows=1, padding=1)
            sums = crf_step(TASKS[name], 1, restarts=True)(lstm(1, seed, 0.0), batch, None).sums
            counts += torch.stack([sums["violations"], sums["sentences"]])
    assert counts[0] > 1.2 * counts[1]


A, B, C = 4, 5, 6

# Beam 2, gold a a a. Step 1: b 2, a 1. Step 2, by sums: b b 2 + 1 = 3, b c 2 + 0.5 = 2.5, gold a a 1 + 1 = 2: it falls
# off. What comes after does not count.
LOST: dict[Tokens, dict[int, float]] = {
    (): {B: 2.0, A: 1.0},
    (B,): {B: 1.0, C: 0.5},
    (A,): {A: 1.0},
    (A, A): {A: 50.0},
    (B, B): {A: 9.0},
}


def test_the_loss_is_gold_against_the_beam_of_the_step_where_it_fell_off() -> None:
    """log(e^3 + e^2.5 + e^2) - 2; each score's gradient is the share of the prefixes that hold it, minus 1 in gold."""
    model = TableModel(LOST, vocabulary=VOCABULARY)
    out = crf_step(TASKS["fixed length"], 2)(model, make_batch([example_of((A, A, A))]), None)
    weights = [math.exp(score) for score in (3.0, 2.5, 2.0)]
    first, second, gold = (weight / sum(weights) for weight in weights)
    assert out.total.item() == pytest.approx(-math.log(gold), abs=1e-12)
    expected = {((), A): gold - 1, ((A,), A): gold - 1, ((), B): first + second, ((B,), B): first, ((B,), C): second}
    found = model.gradients(out.total)
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], abs=1e-12) for key in expected)
    assert (out.sums["stopped_early"], out.sums["stop_words"], out.sums["gold_on_beam"]) == (1, 2, 0)
    assert (out.sums["violations"], out.sums["segment_words"]) == (1, 2)
