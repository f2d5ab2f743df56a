"""Facts that hold for every loss: an empty batch, the count that divides, the rule of decoding, equal epochs."""

import math
from collections.abc import Callable
from functools import partial
from unittest.mock import Mock

import pytest
import torch

from argbeam.data.batches import make_batch
from argbeam.data.vocabulary import EOS, STANDARD
from argbeam.errors import ConfigError, DataError
from argbeam.losses import Bso, Crf, CrossEntropy, Loss, Mixed, Mixer, Mrt, ScheduledSampling
from argbeam.losses.apao import Apao
from argbeam.losses.bso import COSTS, Normalise, cost_in
from argbeam.losses.mixer import Baseline
from argbeam.losses.mrt import Sampled, Searched
from argbeam.losses.risks import RISKS, risk_in
from argbeam.losses.scheduled_sampling import Linear
from argbeam.models.noise import Noise
from argbeam.search.constraints.trie import Trie
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, Unconstrained
from loss_cases import VOCABULARY, small_lstm
from loss_oracles import gradients
from oracles import example_of

ANYTHING = Unconstrained(VOCABULARY, end_symbol=True)
BASELINE = Baseline(4).double()
BSO = Bso(ANYTHING, train_beam=4, normalise=Normalise.WORDS)
# A loss, the rules its models are decoded by, and its beams in seven epochs.
LOSSES: dict[str, tuple[Loss, ScoreRule, Stop, list[int]]] = {
    "cross-entropy": (CrossEntropy(), LogprobSum(), StopBest(), [0] * 7),
    "bso": (BSO, LastScore(), StopTop(), [2, 2, 3, 3, 4, 4, 4]),
    "crf": (Crf(ANYTHING, train_beam=4), ScoreSum(), StopTop(), [2, 2, 3, 3, 4, 4, 4]),
    "mixture": (Mixed(BSO, 0.3), LastScore(), StopTop(), [2, 2, 3, 3, 4, 4, 4]),
    "mrt": (Mrt(ANYTHING, Sampled(3)), LogprobSum(), StopBest(), [0] * 7),
    "mixer": (Mixer(ANYTHING, BASELINE, 1, 1, 1), LogprobSum(), StopBest(), [0] * 7),
    "scheduled sampling": (ScheduledSampling(ANYTHING, Linear(0.1)), LogprobSum(), StopBest(), [0] * 7),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_of_padding_alone_has_no_loss_and_is_divided_by_one(name: str) -> None:
    model, batch = small_lstm(), make_batch([], size=2, target_length=3)
    out = LOSSES[name][0].at(1)(model, batch, Noise(1, torch.tensor(0), batch.sentence_B))
    assert (out.total.item(), out.count.item()) == (0.0, 1.0)
    assert not any(value.any() for value in out.sums.values())
    assert not any(gradient.any() for gradient in gradients(out.total, model).values())


@pytest.mark.parametrize("name", LOSSES)
def test_models_are_decoded_by_the_rules_of_their_loss(name: str) -> None:
    loss, rule, stop, beams = LOSSES[name]
    assert (loss.rule, loss.stop) == (rule, stop)
    assert [loss.at(epoch).beam for epoch in range(7)] == beams
    assert (loss.weights is None) == (name != "mixer")


@pytest.mark.parametrize("name", ["cross-entropy", "bso", "crf", "mixture", "mrt"])
def test_epochs_with_one_beam_are_equal_and_can_share_a_captured_step(name: str) -> None:
    loss, *_, beams = LOSSES[name]
    assert loss.at(0) == loss.at(1)
    assert hash(loss.at(0)) == hash(loss.at(1))
    assert (loss.at(1) == loss.at(2)) == (beams[1] == beams[2])
    assert name in ("bso", "crf", "mixture") or loss.at(0) == loss.at(7) == loss


@pytest.mark.parametrize(("kind", "default"), [(Bso, None), (Crf, 1)])
def test_the_sum_is_divided_by_nothing_or_by_sentences_or_by_words(
    kind: type[Bso] | type[Crf], default: int | None
) -> None:
    """Two equal sentences of 3 tokens and a padding row; the sum stays the sum."""
    model, example = small_lstm(dropout=0.0), example_of((4, 5, 6))
    fixed = Unconstrained(VOCABULARY, end_symbol=False)
    single = kind(fixed, train_beam=2, open_length=False).at(0)(model, make_batch([example]), None)
    assert single.total > 0
    assert single.count == default
    for normalise, count in ((Normalise.NONE, None), (Normalise.SENTENCES, 2), (Normalise.WORDS, 6)):
        loss = kind(fixed, train_beam=2, open_length=False, normalise=normalise)
        out = loss.at(0)(model, make_batch([example] * 2, size=3, target_length=5), None)
        assert out.total.item() == pytest.approx(2 * single.total.item(), abs=1e-12)
        assert (None if out.count is None else out.count.item()) == count


@pytest.mark.parametrize(
    ("successors", "beams", "message"),
    [
        (ANYTHING, (0, 2, 2), "train_beam = 0: must be at least 1"),
        (ANYTHING, (4, -1, 2), "start_beam = -1: must be at least 1"),
        (ANYTHING, (4, 2, 0), "epochs_per_beam = 0: must be at least 1"),
        (Unconstrained(VOCABULARY, end_symbol=False), (4, 2, 2), "successors without the end symbol, in a search of "),
    ],
)
def test_a_training_search_that_cannot_be_is_an_error(
    successors: Unconstrained, beams: tuple[int, int, int], message: str
) -> None:
    for kind in (Bso, Crf):
        train_beam, start_beam, epochs = beams
        with pytest.raises(ConfigError, match=f"^{message}"):
            kind(successors, train_beam=train_beam, start_beam=start_beam, epochs_per_beam=epochs)


@pytest.mark.parametrize("name", ["margin", "margin_per_token", "cost_scale"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_margin_or_a_scale_that_is_no_finite_number_is_an_error(name: str, value: float) -> None:
    """Nothing violates a margin that is not a number: the loss would be 0."""
    with pytest.raises(ConfigError, match=f"^{name} = {value}: must be a finite number"):
        Bso(ANYTHING, train_beam=2, rule=ScoreSum(), **{name: value})


SEARCHING: dict[str, Callable[..., Loss]] = {
    "bso": partial(Bso, train_beam=2),
    "crf": partial(Crf, train_beam=2),
    "mrt": partial(Mrt, candidates=Sampled(2)),
    "mrt, searched": partial(Mrt, candidates=Searched(2)),
}


@pytest.mark.parametrize("make", SEARCHING.values(), ids=SEARCHING)
def test_gold_that_no_search_can_reach_is_an_error(make: Callable[..., Loss]) -> None:
    """A word that is not in the source; one that is not in the vocabulary; no end symbol."""
    model, batch = small_lstm(), make_batch([example_of((4, 5), source=(5, 4)), example_of((4, 6), source=(4, 5))])
    noise = Noise(1, torch.tensor(0), batch.sentence_B)
    with pytest.raises(DataError, match=r"gold token 2 \(id 6\) is not a valid successor of the tokens before it"):
        make(Permutation(), open_length=False).at(0)(model, batch, noise)
    with pytest.raises(DataError, match=r"gold token 2 \(id 6\) is not a valid successor of the tokens before it"):
        make(Unconstrained(6, end_symbol=False), open_length=False).at(0)(model, batch, noise)
    with pytest.raises(DataError, match=r"^sentence 0: gold without the end symbol \(id 3\) at its end; "):
        make(ANYTHING).at(0)(model, batch, noise)
    with pytest.raises(ConfigError, match=r"^successors without the end symbol, in a search of open length"):
        make(Unconstrained(VOCABULARY, end_symbol=False))


def test_gold_that_a_constraint_forbids_is_an_error_where_prefixes_compete_with_random_ones() -> None:
    model, batch = small_lstm(), make_batch([example_of((4, 6), source=(4, 5))])
    with pytest.raises(DataError, match=r"gold token 2 \(id 6\) is not a valid successor of the tokens before it"):
        Apao(Permutation())(model, batch, Noise(1, torch.tensor(0), batch.sentence_B))


@pytest.mark.parametrize("loss", [Apao(ANYTHING, negatives=2), CrossEntropy(valid=ANYTHING)])
def test_gold_without_the_end_symbol_is_an_error_where_successors_have_it(loss: Loss) -> None:
    batch = make_batch([example_of((4, 6), source=(4, 5))])
    with pytest.raises(DataError, match=r"^sentence 0: gold without the end symbol \(id 3\) at its end; "):
        loss.at(0)(small_lstm(), batch, Noise(1, torch.tensor(0), batch.sentence_B))


OTHER = Unconstrained(VOCABULARY + 3, end_symbol=True)
DRAWING: dict[str, Loss] = {
    "mrt": Mrt(OTHER, Sampled(2)),
    "mrt, searched": Mrt(OTHER, Searched(2)),
    "mixer": Mixer(OTHER, BASELINE, 0, 1, 1),
    "scheduled sampling, sampled": ScheduledSampling(OTHER, Linear(0.5)),
    "scheduled sampling, best": ScheduledSampling(OTHER, Linear(0.5), sampled=False),
    "bso": Bso(OTHER, train_beam=2),
    "crf": Crf(OTHER, train_beam=2),
    "apao": Apao(OTHER, negatives=2),
    "valid only": CrossEntropy(valid=OTHER),
    "a trie": Bso(Trie.of([[4, 5], [6]], vocabulary=VOCABULARY + 3), train_beam=2, rule=LogprobSum()),
}


@pytest.mark.parametrize("name", DRAWING)
def test_successors_of_another_vocabulary_are_an_error(name: str) -> None:
    model, batch = small_lstm(), make_batch([example_of((4, 5, EOS))])
    with pytest.raises(
        ConfigError, match=f"^the successors list {VOCABULARY + 3} tokens, the model scores {VOCABULARY};"
    ):
        DRAWING[name].at(2)(model, batch, Noise(1, torch.tensor(0), batch.sentence_B))


def test_no_candidates_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^Sampled\(0\): must be at least 1"):
        Sampled(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_costs_and_risks_have_the_precision_of_the_model(dtype: torch.dtype) -> None:
    """As `one third` of two tokens in three shows: what float32 has of it differs from float64's by 1e-8."""
    tokens_XT, gold_XT, length_X = torch.tensor([[4, 5, 6]]), torch.tensor([[4, 6, 5]]), torch.tensor([3])
    for cost in COSTS.values():
        assert cost_in(cost, dtype)(tokens_XT, gold_XT, torch.tensor([[False, False, True]])).dtype == dtype
    for risk in RISKS.values():
        assert risk_in(risk, dtype, STANDARD)(tokens_XT, length_X, gold_XT, length_X).dtype == dtype
    own = Mock(return_value=torch.ones(1, 3))
    assert cost_in(own, dtype) is own
    assert risk_in(own, dtype, STANDARD) is own
