"""Minimum risk training against the risk of enumerated outputs, each scored from scratch."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.losses import RISKS
from argbeam.losses.mrt import Mrt, Sampled, Searched, Start
from argbeam.losses.sampling import Outputs, sample
from argbeam.models.contract import Model
from argbeam.models.lstm import LstmSeq2Seq
from argbeam.models.noise import Noise
from argbeam.search.successors import Permutation, Successors, Unconstrained
from loss_cases import assert_same_loss, noisy_batch, small_lstm
from loss_oracles import NAIVE_RISKS, gradients, noise_alone, prefix_logprob
from oracles import Tokens, enumerate_sequences, open_outputs, permutation

VOCABULARY = 6
ANYTHING = Unconstrained(VOCABULARY, end_symbol=True)
EXAMPLES = [Example((4, 5), (5, 4, EOS), 3), Example((4,), (4, EOS), 8)]


@dataclass(frozen=True)
class Given:
    """Candidates told beforehand, the same for every sentence."""

    sequences: tuple[Tokens, ...]
    beam = 0

    def __call__(self, model: Model, start: Start, noise: Noise | None) -> Outputs:
        rows = [[*words, *[PAD] * (start.steps - len(words))] for words in self.sequences]
        lengths = torch.tensor([len(words) for words in self.sequences])
        return Outputs(torch.tensor(rows).expand(len(start.limit_B), -1, -1), lengths.expand(len(start.limit_B), -1))


def expected_risk(
    model: LstmSeq2Seq, batch: Batch, noise: Noise | None, *, space: list[Tokens], alpha: float, risk: str
) -> Tensor:
    """Sentence by sentence over a set of outputs: sum p^alpha risk / sum p^alpha."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(EXAMPLES)):
        gold = EXAMPLES[row].target
        # Noise for as many steps as the longest output has.
        longest = max(len(words) for words in space)
        one = make_batch([Example(EXAMPLES[row].source, (4,) * longest, EXAMPLES[row].sentence)])
        weights = [(prefix_logprob(model, one, noise_alone(noise, row), words) * alpha).exp() for words in space]
        risks = [NAIVE_RISKS[risk](words, gold) for words in space]
        total = total + sum(w * r for w, r in zip(weights, risks, strict=True)) / sum(weights)
    return total


@pytest.mark.parametrize(
    ("risk", "alpha", "with_noise"),
    [("sentence_bleu", 1.0, True), ("zero_one", 0.3, False), ("token_error", 1.0, True)],
)
def test_with_the_whole_space_as_candidates_it_is_the_exact_expected_risk(
    risk: str, alpha: float, with_noise: bool
) -> None:
    """In float64, gradients included; with padding rows and columns."""
    model, space = small_lstm(VOCABULARY, hidden=3), open_outputs(VOCABULARY, limit=3)
    assert len(space) == 40  # END; three words and END; nine pairs and any of four words
    batch = make_batch(EXAMPLES, size=4, source_length=4, target_length=5)
    noise = Noise(1, torch.tensor(4), batch.sentence_B) if with_noise else None
    loss = Mrt(ANYTHING, Given(tuple(space)), alpha=alpha, include_gold=False, risk=RISKS[risk], extra_length=0)
    out = loss(model, batch, noise)
    expected = expected_risk(model, batch, noise, space=space, alpha=alpha, risk=risk)
    # Sentence BLEU is float32 on the device.
    torch.testing.assert_close(out.total, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradients(out.total, model), gradients(expected, model), rtol=1e-5, atol=1e-7)
    assert (out.count, out.sums["candidates"], out.sums["words"]) == (2, 80, 5)
    assert out.sums["risk"] == out.total


ENDED = [output for output in open_outputs(VOCABULARY, limit=3) if output[-1] == EOS]


@pytest.mark.parametrize(
    ("successors", "target", "space", "beam", "extra"),
    [
        (ANYTHING, (5, EOS), ENDED, 60, 1),
        (Permutation(), (5, 4, 1), enumerate_sequences(permutation((4, 5, 1)), length=3), 8, 0),
    ],
)
def test_a_beam_as_wide_as_the_space_finds_the_whole_space(
    successors: Successors, target: Tokens, space: list[Tokens], beam: int, extra: int
) -> None:
    """Outputs of at most 3 tokens, of which a search returns those that ended; or all six orders of three tokens."""
    model = small_lstm(VOCABULARY, hidden=3, dropout=0.0)
    batch = make_batch([Example((4, 5, 1), target, 3), Example((5, 1, 4), target, 8)])
    wide, told = (
        Mrt(successors, candidates, alpha=1.0, include_gold=False, extra_length=extra, open_length=extra > 0)
        for candidates in (Searched(beam), Given(tuple(space)))
    )
    found, expected = wide(model, batch, None), told(model, batch, None)
    assert found.sums["candidates"] == expected.sums["candidates"] == 2 * len(space)
    assert_same_loss(found.total, expected.total, model, 1e-11)
    assert (wide.beam, told.beam) == (beam, 0)


@pytest.mark.parametrize("include_gold", [True, False])
def test_what_is_there_twice_counts_once(include_gold: bool) -> None:
    """Gold among the candidates, or given beside them, is one candidate as well; empty places are none."""
    model = small_lstm(VOCABULARY, hidden=3)
    batch = make_batch(EXAMPLES[:1])

    def of(*sequences: Tokens, gold: bool) -> tuple[float, float]:
        out = Mrt(ANYTHING, Given(sequences), alpha=0.5, include_gold=gold, extra_length=2)(model, batch, None)
        return out.total.item(), out.sums["candidates"].item()

    gold, other, long = (5, 4, EOS), (4, EOS), (4, 4, 4, 4, 4)
    once = of(gold, other, long, gold=False)
    assert once[1] == 3
    assert of(other, long, other, (), gold, other, gold=include_gold) == pytest.approx(
        of(other, long, gold, gold=False)
    )
    assert of(other, long, gold=True) == pytest.approx(once)
    assert of(other, long, gold=False)[1] == 2


def test_sampled_candidates_are_the_samplers() -> None:
    """The loss of the sequences that the sampler draws from the same state, told as candidates."""
    model, (batch, noise) = small_lstm(VOCABULARY, hidden=3, dropout=0.0), noisy_batch(EXAMPLES[:1], update=4)
    start = (model.encode(batch, None), ANYTHING.start(batch))
    words_BRT = sample(model, *start, noise, rows=12, length_B=batch.target_length_B, steps=3).tokens_BRT
    drawn = tuple(tuple(word for word in row if word != PAD) for row in words_BRT[0].tolist())
    assert 1 < len(set(drawn)) < 12
    out = Mrt(ANYTHING, Sampled(12), alpha=0.7, extra_length=0)(model, batch, noise)
    told = Mrt(ANYTHING, Given(tuple(set(drawn))), alpha=0.7, extra_length=0)(model, batch, noise)
    assert out.total.item() == pytest.approx(told.total.item(), abs=1e-12)
    assert out.sums["candidates"] == len({*drawn, EXAMPLES[0].target})
