"""Cross-entropy against torch's own formula on single sentences."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from argbeam.data.batches import make_batch
from argbeam.losses import replay
from argbeam.losses.cross_entropy import CrossEntropy
from loss_cases import EXAMPLES, MODELS, TRANSFORMERS, assert_same_loss, noisy_batch, score, small_lstm
from loss_oracles import alone, noise_alone, prefix_logprob


@pytest.mark.parametrize("name", ["LSTM, 2 layers", "attention with a cache", *TRANSFORMERS])
@pytest.mark.parametrize("with_noise", [False, True])
def test_loss_and_gradients_are_the_sum_over_single_sentences(name: str, with_noise: bool) -> None:
    """Each alone, unpadded, token by token: padding counts for nothing, in loss, counts and gradients."""
    network = MODELS[name](1, 0.3)
    batch, some_noise = noisy_batch(EXAMPLES, size=5, source_length=7, target_length=8)
    noise = some_noise if with_noise else None
    out = CrossEntropy()(network, batch, noise)
    singles = [
        prefix_logprob(network, alone(batch, row), noise_alone(noise, row), example.target)
        for row, example in enumerate(EXAMPLES)
    ]
    assert_same_loss(out.total, -torch.stack(singles).sum(), network)
    assert out.count is not None
    assert (out.count.item(), out.sums["sentences"].item(), out.sums["words"].item()) == (3, 3, 10)
    assert out.sums["loss"] == out.total
    assert not out.sums["loss"].requires_grad


def test_a_model_that_finds_all_words_alike_has_the_vocabulary_as_its_perplexity() -> None:
    """Perplexity is exp(loss / words): 8 words, each of probability 1/9, give exp(8 * ln 9 / 8) = 9."""
    network = small_lstm()
    with torch.no_grad():
        for parameter in network.output_layer.parameters():
            parameter.zero_()
    sums = CrossEntropy()(network, make_batch(EXAMPLES, size=4), None).sums
    assert math.exp(sums["loss"] / sums["words"]) == pytest.approx(9.0, abs=1e-9)


@pytest.mark.parametrize("name", ["LSTM, 2 layers", "attention with a cache"])
def test_smoothed_labels_are_torchs_and_the_plain_loss_is_reported_beside(name: str) -> None:
    """Sentence by sentence, unpadded, against torch's own; both ways of reading gold: one pass, and step by step."""
    network = MODELS[name](1, 0.3)
    batch, noise = noisy_batch(EXAMPLES, size=5, source_length=7, target_length=8)
    out = CrossEntropy(label_smoothing=0.1)(network, batch, noise)
    singles, plain = [], []
    for row, example in enumerate(EXAMPLES):
        one, gold_T = alone(batch, row), torch.tensor(example.target)
        scores_TV = score(network, network.encode(one, noise_alone(noise, row)), gold_T[None])[0]
        singles.append(F.cross_entropy(scores_TV, gold_T, label_smoothing=0.1, reduction="sum"))
        plain.append(F.cross_entropy(scores_TV, gold_T, reduction="sum").item())
    assert_same_loss(out.total, torch.stack(singles).sum(), network)
    assert out.sums["cross_entropy"].item() == pytest.approx(sum(plain))
    assert out.sums["loss"] == out.total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_parts_of_many_rows_have_the_loss_and_gradients_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, smoothing: float
) -> None:
    """5 rows of 8 steps in parts of 7; no more than a part is scored at once, so that memory is bounded."""
    network, scored = small_lstm(), []
    batch, noise = noisy_batch(EXAMPLES, size=5, source_length=7, target_length=8)
    plain = network.scores

    def scores(output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        scored.append(output_GRH.shape[0] * output_GRH.shape[1])
        return plain(output_GRH, candidates_GC)

    monkeypatch.setattr(network, "scores", scores)
    losses = []
    for most in (100, 7):
        monkeypatch.setattr(replay, "_PART", most)
        losses.append(CrossEntropy(label_smoothing=smoothing)(network, batch, noise))
    assert scored == [40, 7, 7, 7, 7, 7, 5]
    assert_same_loss(losses[1].total, losses[0].total, network)
    torch.testing.assert_close(losses[1].sums, losses[0].sums)
