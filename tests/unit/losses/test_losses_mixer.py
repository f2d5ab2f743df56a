"""MIXER: its gradient, averaged over all outcomes of its draws, is that of the expected reward."""

import math
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch

from argbeam.data.batches import Example, make_batch
from argbeam.data.vocabulary import BOS, EOS, PAD
from argbeam.losses import mixer as mixer_module
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.losses.mixer import Baseline, Mixer, MixerStep
from argbeam.losses.sampling import Pick, drawn_tokens
from argbeam.search.successors import Unconstrained
from loss_cases import assert_same_loss, noisy_batch, small_lstm
from loss_oracles import NAIVE_RISKS, TableModel, alone, gradients, noise_alone, scores_along
from oracles import Tokens, open_outputs

VOCABULARY = 6
ALLOWED = [token for token in range(VOCABULARY) if token not in (PAD, BOS)]
GOLD = (4, 5, EOS)


def mixer_of(width: int, *, extra: int = 1, expected: float = 0.0) -> Mixer:
    baseline = Baseline(width).double()
    with torch.no_grad():
        baseline.weight_H.copy_(expected * torch.linspace(-1, 1, width))
        baseline.bias.fill_(expected)
    return Mixer(Unconstrained(VOCABULARY, end_symbol=True), baseline, extra_length=extra, baseline_weight=0.5)


def forced(tokens: Tokens) -> Callable[..., Pick]:
    """In the place of `drawn_tokens`: the tokens of one outcome."""
    told = torch.tensor([*tokens, *[4] * 9])
    return lambda *_, **__: lambda scores_BV, t: told[t : t + 1]


@pytest.mark.parametrize(("delta", "extra", "with_noise"), [(2, 1, True), (9, 0, False)])
def test_the_mean_gradient_over_all_outcomes_is_that_of_the_expected_reward(
    delta: int, extra: int, with_noise: bool
) -> None:
    """Each outcome is forced in turn and weighs by its probability. A baseline that differs from step to step and is
    far off changes no mean. delta = 9 is more than there is: all tokens are the model's own."""
    model, loss = small_lstm(VOCABULARY, hidden=3), MixerStep(mixer_of(3, extra=extra, expected=0.7), delta)
    batch, noise = noisy_batch([Example((4, 5), GOLD, 3)])
    # The oracle reads outputs longer than gold: its noise is drawn for as many steps.
    long_batch = make_batch([Example((4, 5), (*GOLD, *[4] * extra), 3)])
    model.dropout = 0.3 if with_noise else 0.0
    begin = max(0, len(GOLD) - delta)
    mean = expected_reward = gold_loss = zero = torch.zeros((), dtype=torch.float64)
    total_probability = 0.0
    for outcome in open_outputs(VOCABULARY, limit=len(GOLD) + extra - begin):
        tokens = (*GOLD[:begin], *outcome)
        scores = scores_along(model, long_batch, noise, tokens)
        own = [scores[t][ALLOWED].log_softmax(0)[ALLOWED.index(tokens[t])] for t in range(begin, len(tokens))]
        logprob = torch.stack(own).sum()
        expected_reward = expected_reward + logprob.exp() * (1 - NAIVE_RISKS["sentence_bleu"](tokens, GOLD))
        gold_loss = -sum((scores[t].log_softmax(0)[GOLD[t]] for t in range(begin)), zero)
        with patch.object(mixer_module, "drawn_tokens", forced(tokens)):
            mean = mean + logprob.detach().exp() * loss(model, batch, noise).total
        total_probability += logprob.exp().item()
    assert total_probability == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(
        gradients(mean, model), gradients(gold_loss - expected_reward, model), rtol=1e-6, atol=1e-8
    )


def test_the_loss_of_one_draw_is_computed_by_hand() -> None:
    """Gold is 4 5 END, delta 2. After 4 only 4 can be drawn, after 4 4 only the end: the output is 4 4 END.

    Token 4 has odds 3 : 1, a loss of -ln(3/4). The own tokens have odds 1 : 0 but for e^-100: no loss, whatever the
    weight. The reward is BLEU of "4 4" against "4 5": of two tokens one is right, of one pair none, which is smoothed
    to a half: sqrt(1/2 * 1/2) = 1/2. The baseline says 0.2 at both own tokens: 0.5 * 2 * (1/2 - 0.2)^2 = 0.09.
    """
    table = {(): {4: math.log(3), 5: 0.0}, (4,): {4: 0.0}, (4, 4): {EOS: 0.0}}
    model = TableModel(table, vocabulary=VOCABULARY)
    loss = mixer_of(len(table) + 1)
    with torch.no_grad():
        loss.baseline.bias.fill_(0.2)
    out = MixerStep(loss, 2)(model, *noisy_batch([Example((4,), (4, 5, EOS), 0)], size=2))
    assert out.total.item() == pytest.approx(math.log(4 / 3) + 0.09, abs=1e-6)
    assert out.sums["loss"].item() == pytest.approx(math.log(4 / 3), abs=1e-6)
    assert out.sums["reward"].item() == pytest.approx(0.5, abs=1e-6)
    assert out.sums["baseline_error"].item() == pytest.approx(0.18, abs=1e-6)
    assert (out.sums["own_words"], out.sums["words"], out.sums["sentences"], out.count) == (2, 3, 1, 1)
    # The baseline learns from the squared error alone: 0.5 * 2 * (0.2 - 0.5) at each of two tokens.
    bias, *_ = torch.autograd.grad(out.total, [loss.baseline.bias])
    assert bias.item() == pytest.approx(0.5 * 2 * 2 * (0.2 - 0.5), abs=1e-6)


def test_no_gradient_of_the_baseline_reaches_the_model() -> None:
    """The model's gradient is the same whatever the error weighs."""
    model = small_lstm(VOCABULARY, hidden=3)
    batch, noise = noisy_batch([Example((4, 5), GOLD, 3), Example((5,), (5, EOS), 4)], size=3)
    found = []
    for weight in (0.0, 100.0):
        base = mixer_of(3, expected=0.3)
        loss = Mixer(base.successors, base.baseline, extra_length=2, baseline_weight=weight)
        found.append(gradients(MixerStep(loss, 2)(model, batch, noise).total, model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert any(gradient.any() for gradient in found[0].values())


def test_a_batch_is_the_sum_of_its_sentences() -> None:
    """Alone and unpadded each draws the same tokens; padding rows add nothing."""
    examples = [Example((4, 5), GOLD, 3), Example((5,), (5, EOS), 4), Example((5, 4, 5), (5, 5, 4, 4, 1, EOS), 9)]
    batch, noise = noisy_batch(examples, size=5, source_length=5, target_length=9)
    model, loss = small_lstm(VOCABULARY, hidden=3), MixerStep(mixer_of(3, extra=3, expected=0.2), 3)
    out = loss(model, batch, noise)
    singles = [loss(model, alone(batch, row), noise_alone(noise, row)) for row in range(3)]
    total = torch.stack([single.total for single in singles]).sum()
    assert_same_loss(out.total, total, model, 1e-11)
    for name in out.sums:
        assert out.sums[name].item() == pytest.approx(sum(single.sums[name].item() for single in singles))
    assert out.count == 3


def test_tokens_are_drawn_from_the_noise_of_their_update() -> None:
    """Through the sampler that the distribution is tested of, with the tokens of no other update."""
    examples = [Example((4, 5), GOLD, number) for number in range(8)]
    seen = []
    for update in (0, 0, 1):
        with patch.object(mixer_module, "drawn_tokens", wraps=drawn_tokens) as spied:
            out = MixerStep(mixer_of(3), 4)(small_lstm(VOCABULARY, hidden=3), *noisy_batch(examples, update=update))
        assert spied.call_count == 1
        seen.append(out.total.item())
    assert seen[0] == seen[1] != seen[2]


def test_the_border_moves_by_the_schedule_after_epochs_of_cross_entropy() -> None:
    """Two epochs of cross-entropy, then three more own tokens at once and again every two epochs."""
    loss = Mixer(Unconstrained(VOCABULARY, end_symbol=True), Baseline(3).double(), 2, 2, 3)
    assert [loss.at(e).delta for e in range(8)] == [0, 0, 3, 3, 6, 6, 9, 9]
    assert loss.at(2) == loss.at(3) != loss.at(4)
    assert (loss.weights.module, loss.weights.rate) == (loss.baseline, 0.01)
    model, (batch, noise) = small_lstm(VOCABULARY, hidden=3), noisy_batch([Example((4, 5), GOLD, 3)])
    assert torch.equal(loss.at(1)(model, batch, noise).total, CrossEntropy()(model, batch, noise).total)
