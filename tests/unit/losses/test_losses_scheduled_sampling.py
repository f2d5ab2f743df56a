"""Scheduled sampling: cross-entropy at one end of its schedule, a loop that reads its own words at the other."""

import math

import pytest
import torch

from argbeam.data.batches import Example
from argbeam.data.vocabulary import BOS, EOS, PAD
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.losses.sampling import READ_SITE, TOKEN_SITE, draw
from argbeam.losses.scheduled_sampling import (
    Exponential,
    InverseSigmoid,
    Linear,
    Schedule,
    ScheduledSampling,
    ScheduledSamplingStep,
)
from argbeam.search.successors import Unconstrained
from loss_cases import EXAMPLES, VOCABULARY, assert_same_loss, noisy_batch, small_lstm
from loss_oracles import alone, gradients, noise_alone

PADDING = {"size": 5, "source_length": 7, "target_length": 8}


def step_of(probability: float, *, sampled: bool = True) -> ScheduledSamplingStep:
    loss = ScheduledSampling(Unconstrained(VOCABULARY, end_symbol=True), Linear(0.1), sampled=sampled)
    return ScheduledSamplingStep(loss, probability)


def test_with_probability_0_it_is_cross_entropy() -> None:
    """To the bit, gradients included: the same operations on the same words."""
    model, (batch, noise) = small_lstm(), noisy_batch(EXAMPLES, update=4, **PADDING)
    out, expected = step_of(0.0)(model, batch, noise), CrossEntropy()(model, batch, noise)
    assert torch.equal(out.total, expected.total)
    ours, theirs = gradients(out.total, model), gradients(expected.total, model)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert out.sums["own_words"] == 0
    assert out.count == expected.count == 3


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_it_is_a_loop_that_feeds_its_own_words(sampled: bool, probability: float) -> None:
    """Sentence by sentence, unpadded, each word chosen when it is needed; which are read is drawn from the noise."""
    model, (batch, noise) = small_lstm(), noisy_batch(EXAMPLES, update=4, **PADDING)
    out = step_of(probability, sampled=sampled)(model, batch, noise)
    total, own = torch.zeros((), dtype=torch.float64), 0
    allowed_V = torch.tensor([word not in (PAD, BOS) for word in range(VOCABULARY)])
    for row in range(3):
        one, one_noise = alone(batch, row), noise_alone(noise, row)
        assert one_noise is not None
        gold = one.target_BT[0].tolist()
        word_1T1 = one_noise.uniform(TOKEN_SITE, steps=len(gold), width=1)
        read_1T1 = one_noise.uniform(READ_SITE, steps=len(gold), width=1)
        state, word = model.encode(one, one_noise), BOS
        for t, target in enumerate(gold):
            state = model.step(state, torch.tensor([word]))
            scores_V = model.scores(model.output(state)[None])[0, 0]
            total = total - torch.log(scores_V.softmax(-1)[target])
            word = target
            if read_1T1[0, t, 0] < probability:
                own += t + 1 < len(gold)
                known_V = scores_V.detach()
                best = max((w for w in range(VOCABULARY) if allowed_V[w]), key=known_V.tolist().__getitem__)
                word = int(draw(known_V, allowed_V, word_1T1[0, t, 0])) if sampled else best
    assert_same_loss(out.total, total, model)
    assert out.sums["own_words"] == own
    # All seven words that something is read after, or some of them.
    assert own == 7 if probability == 1.0 else 0 < own < 7


def test_own_words_are_read_as_often_as_the_probability_says() -> None:
    """2,000 sentences of four words, three of which can be replaced: within five standard deviations of 0.3."""
    examples = [Example((4,), (4, 5, 6, EOS), number) for number in range(2000)]
    out = step_of(0.3)(small_lstm(), *noisy_batch(examples, update=0))
    assert abs(out.sums["own_words"].item() / 6000 - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 6000)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Linear(0.25), {0: 0.0, 1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0, 9: 1.0}),
        # 1 - 0.5^epoch
        (Exponential(0.5), {0: 0.0, 1: 0.5, 2: 0.75, 3: 0.875}),
        # 1 - 1 / (1 + e^epoch) with k = 1: a half, e / (1 + e), e^2 / (1 + e^2); and it does not overflow
        (InverseSigmoid(1.0), {0: 0.5, 1: 0.7310585786300049, 2: 0.8807970779778823, 2000: 1.0}),
        # k = 4: 1 - 4 / (4 + 1) = 0.2; at epoch 4 ln 4 = 5.545.. it would be a half: 5 is before and 6 after it
        (InverseSigmoid(4.0), {0: 0.2, 4: math.e / (4 + math.e)}),
    ],
)
def test_schedules_by_hand(schedule: Schedule, expected: dict[int, float]) -> None:
    for epoch, probability in expected.items():
        assert schedule(epoch) == pytest.approx(probability, abs=1e-12)


def test_an_epochs_probability_is_rounded_and_bounded() -> None:
    """0.03 * epoch in multiples of a twentieth: 0.09 is 0.1, 0.12 is 0.1, 0.15 is 0.15; not above 0.35."""
    loss = ScheduledSampling(Unconstrained(VOCABULARY, end_symbol=True), Linear(0.03), highest=0.35)
    found = [loss.at(epoch).probability for epoch in (0, 3, 4, 5, 12, 99)]
    assert found == pytest.approx([0.0, 0.1, 0.1, 0.15, 0.35, 0.35])
    assert loss.at(3) == loss.at(4) and hash(loss.at(3)) == hash(loss.at(4))
    assert loss.at(4) != loss.at(5)
    between = ScheduledSampling(Unconstrained(VOCABULARY, end_symbol=True), Linear(0.03), highest=0.33)
    assert between.at(99).probability == 0.3  # 0.35 would be above it
