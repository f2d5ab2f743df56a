"""The replay against the search whose tokens it scores again, and against single sentences."""

import random
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses import replay as replay_module
from argbeam.losses.bso import Bso, BsoStep, search_with_gold
from argbeam.losses.replay import replay
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.gold import Restart
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.search import SearchSettings
from argbeam.search.stop_rules import StopTop
from argbeam.search.successors import Permutation, Successors, Unconstrained
from loss_cases import MODELS, TRANSFORMERS, VOCABULARY, assert_same_loss

NAMES = ["LSTM, 2 layers", "attention with a cache"]


def sentences(seed: int, *, end: tuple[int, ...]) -> Batch:
    """Three sentences of different lengths, their tokens shuffled, and a padding row."""
    rng = random.Random(seed)
    examples = []
    for number, length in enumerate((2, 7, 5)):
        source = tuple(rng.choices((1, 4, 5, 6, 7), k=length))
        examples.append(Example(source, (*rng.sample(source, k=length), *end), number))
    return make_batch(examples, size=4, target_length=9)


@pytest.mark.parametrize("name", [*NAMES, *TRANSFORMERS, "language model", "convolutional encoder"])
@pytest.mark.parametrize("with_noise", [False, True])
@pytest.mark.parametrize(
    ("successors", "stop"),
    [(Permutation(), None), (Unconstrained(VOCABULARY, end_symbol=True), StopTop())],
    ids=["permutation", "open length"],
)
def test_replayed_scores_are_the_searched_scores(
    name: str, with_noise: bool, successors: Successors, stop: StopTop | None
) -> None:
    """Gold's at every token, the rival's at every violation, with the same dropout (property e), beams of 1 to 4."""
    violations = restarts = 0
    for seed in range(4):
        model = MODELS[name](seed, 0.3)
        batch = sentences(seed, end=() if stop is None else (EOS,))
        noise = Noise(seed, torch.tensor(3), batch.sentence_B) if with_noise else None
        state = model.encode(batch, noise)
        settings = SearchSettings(1 + seed, LastScore(), stop)
        found, _ = search_with_gold(model, state, successors, settings, batch, Restart(1.0))
        again = replay(model, state, batch.target_BT, found.rival_BT, found.violation_BT)
        real_BT = torch.arange(batch.target_BT.shape[1]) < batch.target_length_B[:, None]
        torch.testing.assert_close(again.gold_score_BT[real_BT], found.gold_score_BT[real_BT], rtol=1e-12, atol=1e-12)
        at = found.violation_BT
        torch.testing.assert_close(again.rival_score_BT[at], found.rival_score_BT[at], rtol=1e-12, atol=1e-12)
        violations += int(at.sum())
        restarts += int((at.sum(1) > 1).sum())
    assert violations > 15
    assert restarts > 3


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


@pytest.mark.parametrize("rule", [LogprobSum(), ScoreSum()])
def test_log_probabilities_in_parts_have_the_loss_and_gradients_of_one_part(rule: ScoreRule) -> None:
    """72 rows in parts of 7, each scored once forwards and once more for the gradient: no part is kept. Raw scores
    need no parts."""
    model, batch, rows = MODELS["LSTM, 1 layer"](3, 0.0), sentences(1, end=(EOS,)), []

    def scores(output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        rows.extend([output_GRH.shape[0] * output_GRH.shape[1]] * torch.is_grad_enabled())
        return type(model).scores(model, output_GRH, candidates_GC)

    step = BsoStep(Bso(Unconstrained(VOCABULARY, end_symbol=True), train_beam=3, rule=rule), 3)
    whole = step(model, batch, None).total
    with patch.object(replay_module, "_PART", 7), patch.object(model, "scores", scores):
        parts = step(model, batch, None).total
        forwards = list(rows)
        assert_same_loss(parts, whole, model)
    assert forwards == ([7] * 10 + [2] if rule.normalised else [72])
    assert sorted(rows) == sorted(forwards * 2 if rule.normalised else forwards)
