"""Minimum risk training against the risk of enumerated outputs, each scored from scratch."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import BOS, EOS, PAD
from argbeam.losses import RISKS
from argbeam.losses.mrt import Mrt, Sampled, Searched
from argbeam.losses.sampling import sample
from argbeam.models.contract import Model
from argbeam.models.lstm import LstmSeq2Seq
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.score_rules import LogprobSum
from argbeam.search.stop_rules import StopBest
from argbeam.search.successors import Choices, Permutation, Unconstrained
from loss_cases import small_lstm
from loss_oracles import gradients, naive_one_minus_bleu, noise_alone, prefix_logprob
from oracles import Tokens, enumerate_sequences, permutation, unconstrained

VOCABULARY = 6
EXAMPLES = [
    Example((4, 5), (5, 4, EOS), 3),
    Example((4,), (4, EOS), 8),
]


@dataclass(frozen=True)
class Given:
    """Candidates told beforehand, the same for every sentence."""

    sequences: tuple[Tokens, ...]
    beam = 0

    def __call__(
        self, model: Model, state: State, choices: Choices, noise: Noise | None, limit_B: Tensor, steps: int
    ) -> Tensor:
        rows = [[*words, *[PAD] * (steps - len(words))] for words in self.sequences]
        return torch.tensor(rows).expand(len(limit_B), -1, -1)


def naive_bleu_risk(words: Tokens, gold: Tokens) -> float:
    return naive_one_minus_bleu(
        tuple(word for word in words if word != EOS), tuple(word for word in gold if word != EOS), None
    )


def naive_token_error(words: Tokens, gold: Tokens) -> float:
    return 1 - sum(a == b for a, b in zip(words, gold, strict=False)) / max(len(words), len(gold))


NAIVE: dict[str, Callable[[Tokens, Tokens], float]] = {
    "sentence_bleu": naive_bleu_risk,
    "zero_one": lambda words, gold: float(words != gold),
    "token_error": naive_token_error,
}


def expected_risk(
    model: LstmSeq2Seq, batch: Batch, noise: Noise | None, *, space: set[Tokens], alpha: float, risk: str
) -> Tensor:
    """Sentence by sentence over a set of outputs: sum p^alpha risk / sum p^alpha."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(EXAMPLES)):
        gold = EXAMPLES[row].target
        # Noise for as many steps as the longest output has.
        longest = max(len(words) for words in space)
        one = make_batch([Example(EXAMPLES[row].source, (4,) * longest, EXAMPLES[row].sentence)])
        weights = [(prefix_logprob(model, one, noise_alone(noise, row), words) * alpha).exp() for words in space]
        risks = [NAIVE[risk](words, gold) for words in space]
        total = total + sum(w * r for w, r in zip(weights, risks, strict=True)) / sum(weights)
    return total


def whole_space(limit: int) -> set[Tokens]:
    """Every output of at most so many words; those that reach the limit need no end symbol."""
    following = unconstrained(VOCABULARY, end_symbol=True)
    cut = (words for words in enumerate_sequences(following, length=limit) if EOS not in words)
    return {*enumerate_sequences(following, length=limit, end=EOS), *cut}


@pytest.mark.parametrize(
    ("risk", "alpha", "with_noise"),
    [("sentence_bleu", 1.0, True), ("zero_one", 0.3, False), ("token_error", 1.0, True)],
)
def test_with_the_whole_space_as_candidates_it_is_the_exact_expected_risk(
    risk: str, alpha: float, with_noise: bool
) -> None:
    """In float64, gradients included; with padding rows and columns."""
    model, space = small_lstm(VOCABULARY, hidden=3), whole_space(3)
    assert len(space) == 40  # END; three words and END; nine pairs and any of four words
    batch = make_batch(EXAMPLES, size=4, source_length=4, target_length=5)
    noise = Noise(1, torch.tensor(4), batch.sentence_B) if with_noise else None
    loss = Mrt(
        Unconstrained(VOCABULARY, end_symbol=True),
        Given(tuple(sorted(space))),
        alpha=alpha,
        include_gold=False,
        risk=RISKS[risk],
        extra_length=0,
    )
    out = loss(model, batch, noise)
    expected = expected_risk(model, batch, noise, space=space, alpha=alpha, risk=risk)
    # Sentence BLEU is float32 on the device.
    torch.testing.assert_close(out.total, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradients(out.total, model), gradients(expected, model), rtol=1e-5, atol=1e-7)
    assert (out.count, out.sums["candidates"], out.sums["words"]) == (2, 80, 5)
    assert out.sums["risk"] == out.total


def test_a_beam_as_wide_as_the_space_finds_the_whole_space() -> None:
    """Both sentences' limits are 3 words: gold of three, and gold of two with one more."""
    model = small_lstm(VOCABULARY, hidden=3)
    model.dropout = 0.0
    batch = make_batch([Example((4, 5), (5, EOS), 3), Example((4,), (4, EOS), 8)])
    successors = Unconstrained(VOCABULARY, end_symbol=True)
    ended = {words for words in whole_space(3) if words[-1] == EOS}
    wide = Mrt(successors, Searched(60, open_length=True), alpha=1.0, include_gold=False, extra_length=1)
    told = Mrt(successors, Given(tuple(ended)), alpha=1.0, include_gold=False, extra_length=1)
    found, expected = wide(model, batch, None), told(model, batch, None)
    # A search returns what has ended; only where nothing has, its top is returned as it is.
    assert found.sums["candidates"] == expected.sums["candidates"] == 2 * len(ended)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradients(found.total, model), gradients(expected.total, model), rtol=1e-9, atol=1e-11)
    assert (wide.beam, told.beam) == (60, 0)


@pytest.mark.parametrize("include_gold", [True, False])
def test_what_is_there_twice_counts_once(include_gold: bool) -> None:
    """Gold among the candidates, or given beside them, is one candidate as well; empty places are none."""
    model = small_lstm(VOCABULARY, hidden=3)
    batch = make_batch(EXAMPLES[:1])
    successors = Unconstrained(VOCABULARY, end_symbol=True)

    def of(*sequences: Tokens, gold: bool) -> tuple[float, float]:
        out = Mrt(successors, Given(sequences), alpha=0.5, include_gold=gold, extra_length=2)(model, batch, None)
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
    model, batch = small_lstm(VOCABULARY, hidden=3), make_batch(EXAMPLES[:1])
    model.dropout = 0.0
    noise = Noise(1, torch.tensor(4), batch.sentence_B)
    successors = Unconstrained(VOCABULARY, end_symbol=True)
    start = (model.encode(batch, None), successors.start(batch))
    words_BRT = sample(model, *start, noise, rows=12, length_B=batch.target_length_B, steps=3)
    drawn = tuple(tuple(word for word in row if word != PAD) for row in words_BRT[0].tolist())
    assert 1 < len(set(drawn)) < 12
    out = Mrt(successors, Sampled(12), alpha=0.7, extra_length=0)(model, batch, noise)
    told = Mrt(successors, Given(tuple(set(drawn))), alpha=0.7, extra_length=0)(model, batch, noise)
    assert out.total.item() == pytest.approx(told.total.item(), abs=1e-12)
    assert out.sums["candidates"] == len({*drawn, EXAMPLES[0].target})


def test_under_a_constraint_all_candidates_are_valid() -> None:
    """A beam over the six orders of three words: the exact risk of exactly these."""
    model, source = small_lstm(VOCABULARY, hidden=3), (4, 5, 1)
    model.dropout = 0.0
    batch = make_batch([Example(source, (5, 4, 1), 0)])
    orders = {tuple(words) for words in enumerate_sequences(permutation(source), length=3, end=None)}
    assert len(orders) == 6
    found, told = (
        Mrt(Permutation(), candidates, alpha=1.0, include_gold=False, extra_length=0)(model, batch, None)
        for candidates in (Searched(8, open_length=False), Given(tuple(orders)))
    )
    assert found.total.item() == pytest.approx(told.total.item(), abs=1e-12)
    assert found.sums["candidates"] == 6


def test_a_batch_of_padding_alone_has_no_risk_and_no_gradient_that_is_not_a_number() -> None:
    model, batch = small_lstm(VOCABULARY, hidden=3), make_batch([], size=2, target_length=3)
    out = Mrt(Unconstrained(VOCABULARY, end_symbol=True), Sampled(3))(
        model, batch, Noise(1, torch.tensor(0), batch.sentence_B)
    )
    assert (out.total.item(), out.count.item() if out.count is not None else None) == (0.0, 1.0)
    assert not any(gradient.any() for gradient in gradients(out.total, model).values())


def test_it_is_the_same_in_every_epoch_and_its_models_rank_by_log_probability() -> None:
    loss = Mrt(Unconstrained(VOCABULARY, end_symbol=True), Sampled(3))
    assert loss.at(0) == loss.at(7) == loss
    assert (loss.rule, loss.stop, loss.beam, loss.weights) == (LogprobSum(), StopBest(), 0, None)
    assert BOS not in loss.successors.start(make_batch(EXAMPLES)).allowed()[0].nonzero().flatten().tolist()
