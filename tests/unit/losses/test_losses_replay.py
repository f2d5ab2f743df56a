"""The replay against the search whose tokens it scores again, and against single sentences."""

import random
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses.bso import Bso, BsoStep, search_with_gold
from argbeam.losses.replay import gold_outputs, replay, replay_each, score, since_restart
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.gold import Restart
from argbeam.search.score_rules import LastScore
from argbeam.search.search import SearchSettings
from argbeam.search.stop_rules import StopTop
from argbeam.search.successors import Permutation, Successors, Unconstrained
from loss_cases import MODELS, TASKS, VOCABULARY, drawn_batch
from loss_oracles import alone, noise_alone, prefix_score

NAMES = ["LSTM, 2 layers", "attention with a cache"]


def sentences(seed: int, *, end: tuple[int, ...]) -> Batch:
    """Three sentences of different lengths, their tokens shuffled, and a padding row."""
    rng = random.Random(seed)
    examples = []
    for number, length in enumerate((2, 7, 5)):
        source = tuple(rng.choices((1, 4, 5, 6, 7), k=length))
        examples.append(Example(source, (*rng.sample(source, k=length), *end), number))
    return make_batch(examples, size=4, target_length=9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("with_noise", [False, True])
@pytest.mark.parametrize(
    ("successors", "stop"),
    [(Permutation(), None), (Unconstrained(VOCABULARY, end_symbol=True), StopTop())],
    ids=["permutation", "open length"],
)
def test_replayed_scores_are_the_searched_scores(
    name: str, with_noise: bool, successors: Successors, stop: StopTop | None
) -> None:
    """Gold's at every token, the rival's at every violation, with the same dropout (property e)."""
    violations = restarts = 0
    for seed in range(6):
        model = MODELS[name](seed, 0.3)
        batch = sentences(seed, end=() if stop is None else (EOS,))
        noise = Noise(seed, torch.tensor(3), batch.sentence_B) if with_noise else None
        state = model.encode(batch, noise)
        settings = SearchSettings(3, LastScore(), stop)
        found, _ = search_with_gold(model, state, successors, settings, batch, Restart(1.0))
        again = replay(model, state, batch.target_BT, found.rival_BT, found.violation_BT)
        real_BT = torch.arange(batch.target_BT.shape[1]) < batch.target_length_B[:, None]
        torch.testing.assert_close(again.gold_score_BT[real_BT], found.gold_score_BT[real_BT], rtol=1e-12, atol=1e-12)
        at = found.violation_BT
        torch.testing.assert_close(again.rival_score_BT[at], found.rival_score_BT[at], rtol=1e-12, atol=1e-12)
        violations += int(at.sum())
        restarts += int((at.sum(1) > 1).sum())
    assert violations > 20
    assert restarts > 5


@pytest.mark.parametrize("name", NAMES)
def test_lanes_score_each_token_after_the_tokens_of_its_own_prefix(name: str) -> None:
    """Any rivals and restarts: the rival's prefix at column t is gold up to the last restart before t, then rival."""
    model = MODELS[name](1, 0.3)
    batch = sentences(0, end=())
    noise = Noise(0, torch.tensor(3), batch.sentence_B)
    generator = torch.Generator().manual_seed(1)
    rival_BT = torch.randint(4, VOCABULARY, batch.target_BT.shape, generator=generator)
    restart_BT = torch.rand(batch.target_BT.shape, generator=generator) < 0.4
    again = replay(model, model.encode(batch, noise), batch.target_BT, rival_BT, restart_BT)
    for row in range(3):
        one, one_noise = alone(batch, row), noise_alone(noise, row)
        gold, rival = one.target_BT[0].tolist(), rival_BT[row].tolist()
        restart = 0
        for t in range(len(gold)):
            own = (*gold[:restart], *rival[restart : t + 1])
            expected = prefix_score(model, one, one_noise, tuple(gold[: t + 1]))
            torch.testing.assert_close(again.gold_score_BT[row, t], expected, rtol=1e-12, atol=1e-12)
            expected = prefix_score(model, one, one_noise, own)
            torch.testing.assert_close(again.rival_score_BT[row, t], expected, rtol=1e-12, atol=1e-12)
            if restart_BT[row, t]:
                restart = t + 1


@pytest.mark.parametrize("name", NAMES)
def test_the_gold_history_alone_has_the_scores_of_the_gold_lane(name: str) -> None:
    model = MODELS[name](1, 0.3)
    batch = sentences(0, end=())
    state = model.encode(batch, None)
    nothing_BT = torch.zeros_like(batch.target_BT, dtype=torch.bool)
    lane_BT = replay(model, state, batch.target_BT, batch.target_BT, nothing_BT).gold_score_BT
    scores_BTV = score(model, state, batch.target_BT)
    torch.testing.assert_close(scores_BTV.gather(2, batch.target_BT[..., None])[..., 0], lane_BT)
    torch.testing.assert_close(model.scores(gold_outputs(model, state, batch.target_BT)), scores_BTV)


@pytest.mark.parametrize("beam", [1, 2, 6, 11])
def test_the_graph_holds_two_rows_and_two_scores_per_token_whatever_the_beam(beam: int) -> None:
    """B = 4 rows, T = 9: with gradient 9 steps of 8 rows, one scoring of 4 * 9 * 2 tokens."""
    model, steps, scored = MODELS["attention with a cache"](1, 0.0), [], []

    def step(state: State, tokens_N: Tensor) -> State:
        steps.extend([len(tokens_N)] * torch.is_grad_enabled())
        return type(model).step(model, state, tokens_N)

    def scores(output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        scores_GRC = type(model).scores(model, output_GRH, candidates_GC)
        scored.extend([scores_GRC.numel()] * torch.is_grad_enabled())
        return scores_GRC

    bso = Bso(Unconstrained(VOCABULARY, end_symbol=True), train_beam=beam)
    with patch.object(model, "step", step), patch.object(model, "scores", scores):
        BsoStep(bso, beam)(model, sentences(0, end=(EOS,)), None)
    assert steps == [8] * 9
    assert scored == [72]


def test_sums_begin_after_the_last_restart_before_a_column() -> None:
    """[1, 2, 3, 4] with restarts at columns 1 and 2, and without any."""
    scores_BT = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 2)
    restart_BT = torch.tensor([[False, True, True, False], [False] * 4])
    assert since_restart(scores_BT, restart_BT).tolist() == [[1.0, 3.0, 3.0, 4.0], [1.0, 3.0, 6.0, 10.0]]


@pytest.mark.parametrize("model_name", MODELS)
def test_every_token_of_a_sequence_is_scored_after_the_tokens_before_it(model_name: str) -> None:
    model = MODELS[model_name](3, 0.4)
    batch = drawn_batch(TASKS["fixed length"], random.Random(3), sentences=2, padding_rows=0, padding=1)
    noise = Noise(5, torch.tensor(2), batch.sentence_B)
    tokens_BRT = torch.randint(4, VOCABULARY, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    steps = batch.target_BT.shape[1]
    scores_BRT = replay_each(model, model.encode(batch, noise), tokens_BRT[:, :, :steps])
    for row in range(2):
        one, one_noise = alone(batch, row), noise_alone(noise, row)
        for r in range(3):
            for t in range(1, int(batch.target_length_B[row]) + 1):
                expected = prefix_score(model, one, one_noise, tuple(tokens_BRT[row, r, :t].tolist()))
                torch.testing.assert_close(scores_BRT[row, r, t - 1], expected, rtol=1e-12, atol=1e-12)
