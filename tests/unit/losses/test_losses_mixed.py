"""A mixture equals the weighted sum of its two losses, computed apart."""

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses.bso import Bso, Normalise
from argbeam.losses.contract import Loss
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.losses.mixed import Mixed
from argbeam.losses.mixer import Baseline, Mixer
from argbeam.losses.mrt import Mrt, Sampled
from argbeam.models.contract import Scorer
from argbeam.models.lstm import LstmSeq2Seq
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.successors import Permutation, Unconstrained
from loss_cases import VOCABULARY, assert_same_loss, noisy_batch, small_lstm

ANYTHING = Unconstrained(VOCABULARY, end_symbol=True)
SEQUENCE_LOSSES: dict[str, Loss] = {
    "bso": Bso(ANYTHING, train_beam=3),
    "bso by words": Bso(ANYTHING, train_beam=3, normalise=Normalise.WORDS),
    "mrt": Mrt(ANYTHING, Sampled(4), alpha=0.5, extra_length=3),
    "mixer": Mixer(ANYTHING, Baseline(4).double()),
}


class Counting(LstmSeq2Seq):
    """The model, counting how often it reads its source, makes a list of words ready and scores a list that is not."""

    encodings = listings = unlisted = 0

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        self.encodings += 1
        return super().encode(batch, noise)

    def scorer_of(self, candidates_GC: Tensor | None) -> Scorer:
        self.listings += candidates_GC is not None
        return super().scorer_of(candidates_GC)

    def scores(self, output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        self.unlisted += candidates_GC is not None and not torch.is_grad_enabled()
        return super().scores(output_GRH, candidates_GC)


class FourMethods:
    """The model, without any method that only saves time."""

    def __init__(self, model: Counting) -> None:
        self.encode, self.step, self.output, self.scores = model.encode, model.step, model.output, model.scores


@pytest.mark.parametrize("name", SEQUENCE_LOSSES)
@pytest.mark.parametrize(("weight", "smoothing"), [(0.3, 0.0), (0.5, 0.1)])
def test_a_mixture_is_the_weighted_sum_of_both_over_the_sequence_losses_count(
    name: str, weight: float, smoothing: float
) -> None:
    """Total and gradients in float64, with dropout: both see the noise that each sees alone. The source is read
    once."""
    model, sequence = small_lstm(kind=Counting), SEQUENCE_LOSSES[name]
    examples = [Example((4, 5, 6), (6, 5, EOS), 3), Example((7,), (7, 7, 8, 4, EOS), 8)]
    batch, noise = noisy_batch(examples, update=4, size=3, target_length=7)
    first, second = sequence.at(0)(model, batch, noise), CrossEntropy(smoothing)(model, batch, noise)
    plain = CrossEntropy()(model, batch, noise).total.detach()
    model.encodings = 0
    mixture = Mixed(sequence, weight, smoothing).at(0)
    out = mixture(model, batch, noise)
    assert model.encodings == 1
    assert_same_loss(out.total, (1 - weight) * first.total + weight * second.total, model, 1e-11)
    assert out.count == first.count
    assert mixture.beam == sequence.at(0).beam
    assert out.sums["sequence_loss"] == first.total
    torch.testing.assert_close(out.sums["cross_entropy"], plain)


def test_a_mixtures_search_under_a_constraint_makes_its_words_ready_once_and_finds_the_same() -> None:
    """Five steps score the words of the source: from one list where the model has such lists, else each by itself."""
    examples = [Example((4, 5, 6, 7, 8), (8, 4, 6, 5, 7), 3), Example((7, 4, 7), (7, 7, 4), 8)]
    batch = make_batch(examples)
    conbso = Bso(Permutation(), train_beam=3, open_length=False).at(0)
    mixture = Mixed(Bso(Permutation(), train_beam=3, open_length=False), 0.3).at(0)
    model = small_lstm(kind=Counting)
    parts = 0.7 * conbso(model, batch, None).total + 0.3 * CrossEntropy()(model, batch, None).total
    model.listings = model.unlisted = 0
    out = mixture(model, batch, None)
    assert (model.listings, model.unlisted) == (1, 0)
    plain = mixture(FourMethods(model), batch, None)
    assert (model.listings, model.unlisted) == (1, 5)
    assert out.sums["violations"] == plain.sums["violations"] > 0
    torch.testing.assert_close(out.total, parts, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(plain.total, parts, rtol=1e-11, atol=1e-12)


def test_a_mixture_has_the_weights_and_resets_the_optimizer_of_its_sequence_loss() -> None:
    for reset in (True, False):
        assert Mixed(Bso(ANYTHING, train_beam=4, reset_optimizer=reset), 0.3).reset_optimizer == reset
    mixer = Mixer(ANYTHING, Baseline(4))
    assert Mixed(mixer, 0.3).weights == mixer.weights
