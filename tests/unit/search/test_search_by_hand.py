"""The search at cases small enough to work out by hand; the arithmetic stands in the docstrings."""

import math
from dataclasses import dataclass

import pytest
import torch

from argbeam.data.batches import make_batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.errors import ConfigError
from argbeam.search.result import SearchResult
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Unconstrained
from oracles import Tokens, ToyModel, brute_force_beam, example_of, last_score
from small_models import lstm_model
from toy_cases import sequences, table_case

# Tokens are 4, 5, 6 = a, b, c; scores are given by (prefix, token), all others are -100.

A, B, C = 4, 5, 6
Table = dict[tuple[Tokens, int], float]


def search_table(
    table: Table,
    *,
    beam: int,
    length: int,
    rule: ScoreRule = LastScore(),  # noqa: B008 - frozen and without state
    stop: Stop | None = None,
    n_best: int = 1,
) -> SearchResult:
    """Scores, or probabilities that sum to 1 after each prefix: as logarithms, their softmax is themselves."""
    if isinstance(rule, LogprobSum):
        table = {key: math.log(p) for key, p in table.items()}
    case = table_case(table, length, end_symbol=stop is not None)
    return case.search(beam=beam, rule=rule, stop=stop, n_best=n_best)


# Step 1 keeps a (2.0) and b (1.0). Step 2: a </s> 3.0 is above b c 2.5, so the search ends there, although b c </s>
# would score 9.0 at step 3.
BEST_ENDS = {((), A): 2.0, ((), B): 1.0, ((A,), EOS): 3.0, ((B,), C): 2.5, ((B, C), EOS): 9.0}
# Step 1: </s> 3.0 is on top and is returned first; behind it a 2.0. Step 2: a </s> 9.0 is on top and second, though its
# score is better than the first's. a b 1.0 goes on, and a b </s> 0.5 is third.
IN_ORDER = {((), EOS): 3.0, ((), A): 2.0, ((A,), EOS): 9.0, ((A,), B): 1.0, ((A, B), EOS): 0.5, ((A, B), C): 0.2}
# </s> 3.0 is on top at step 1, a </s> has 1.0 at step 2, a b </s> 5.0 at step 3: the last one wins.
LAST_WINS = {((), EOS): 3.0, ((), A): 2.0, ((A,), EOS): 1.0, ((A,), B): 0.5, ((A, B), EOS): 5.0}


@pytest.mark.parametrize(
    ("table", "stop", "beam", "expected", "scores"),
    [
        (BEST_ENDS, StopTop(), 2, [(A, EOS)], [3.0]),
        (IN_ORDER, StopTop(), 3, [(EOS,), (A, EOS), (A, B, EOS)], [3.0, 9.0, 0.5]),
        (LAST_WINS, StopBest(), 3, [(A, B, EOS), (EOS,), (A, EOS)], [5.0, 3.0, 1.0]),
    ],
)
def test_stop_top_returns_prefixes_in_the_order_of_ending_and_stop_best_by_their_scores(
    table: Table, stop: Stop, beam: int, expected: list[Tokens], scores: list[float]
) -> None:
    result = search_table(table, beam=beam, length=4, stop=stop, n_best=len(expected))
    assert sequences(result, 0) == expected
    assert result.score_BN.tolist() == [scores]
    assert result.finished_BN.all()


def test_length_power_changes_the_winner() -> None:
    """p(</s>) = 0.4, and p(a) p(</s> | a) = 0.6 * 0.6 = 0.36 is less; but log 0.36 / 2 = -0.511 per token is
    above log 0.4 = -0.916."""
    table = {((), EOS): 0.4, ((), A): 0.6, ((A,), EOS): 0.6, ((A,), B): 0.4, ((A, B), C): 1.0}
    by_sum = search_table(table, beam=2, length=3, rule=LogprobSum(), stop=StopBest())
    by_mean = search_table(table, beam=2, length=3, rule=LogprobSum(1.0), stop=StopBest())
    assert sequences(by_sum, 0) == [(EOS,)]
    assert sequences(by_mean, 0) == [(A, EOS)]
    assert by_sum.score_BN.item() == pytest.approx(math.log(0.4))
    assert by_mean.score_BN.item() == pytest.approx(math.log(0.36) / 2)


def test_log_probabilities_stop_when_nothing_on_the_beam_can_win() -> None:
    """p(</s>) = 0.7 at step 1 and p(a) = 0.3: no continuation of a can exceed 0.3, so the beam holds still
    (PAD) at step 2 although the limit is 3."""
    table = {((), EOS): 0.7, ((), A): 0.3, ((A,), EOS): 0.9, ((A,), B): 0.1}
    result = search_table(table, beam=2, length=3, rule=LogprobSum(), stop=StopBest())
    assert sequences(result, 0) == [(EOS,)]
    assert result.beams.tokens_TBJ[1:].eq(PAD).all()


@dataclass(frozen=True)
class Ending:
    """Choices that end after `left` tokens, each of which may be any but the first special ones."""

    left_N: torch.Tensor
    first: int = A
    candidates_BC: None = None

    def allowed(self) -> torch.Tensor:
        return (self.left_N > 0)[:, None] & (torch.arange(7) >= self.first)

    def advance(self, tokens_N: torch.Tensor) -> "Ending":
        return Ending(self.left_N - 1, self.first)

    def select(self, rows_N: torch.Tensor) -> "Ending":
        return Ending(self.left_N[rows_N], self.first)


def search_to_the_end(model: ToyModel, choices: Ending, *, beam: int, stop: Stop | None) -> SearchResult:
    """Three tokens of each sentence, where there are as many."""
    length_B = torch.full_like(choices.left_N, 3)
    state = model.encode(make_batch([example_of([A] * 3, sentence=i) for i in range(len(length_B))]), None)
    rule = LastScore()
    return beam_search(model, state, choices, beam_size=beam, length_B=length_B, steps=3, rule=rule, stop=stop)


@pytest.mark.parametrize("stop", [None, StopTop(), StopBest()])
@pytest.mark.parametrize("beam", [1, 3, 30])
def test_a_dead_end_is_reported_and_the_prefix_before_it_returned(stop: Stop | None, beam: int) -> None:
    """Three tokens are wanted; the first sentence may have two, the second three, the third none at all."""
    model = ToyModel(7, scale=3.0)
    result = search_to_the_end(model, Ending(torch.tensor([2, 3, 0])), beam=beam, stop=stop)
    assert result.dead_B.tolist() == [True, False, True]
    assert result.finished_BN[:, 0].tolist() == [False, stop is None, False]
    for b, length in enumerate([2, 3, 0]):
        best = brute_force_beam(lambda prefix: [A, B, C], last_score(model, b), beam=beam, length=length)
        assert sequences(result, b) == best.sequences


def test_what_dies_after_something_has_finished_is_no_dead_end() -> None:
    """Beam 2, stop best: `</s>` 1.0 ends at once, `a` 2.0 goes on and dies. The result is finished, and not dead."""
    model = ToyModel(7, table={((), EOS): 1.0, ((), A): 2.0})
    result = search_to_the_end(model, Ending(torch.tensor([1]), first=EOS), beam=2, stop=StopBest())
    assert result.tokens_BNT[0, 0].tolist() == [EOS, PAD, PAD]
    assert (result.finished_BN.tolist(), result.dead_B.tolist()) == ([[True]], [False])


def test_an_unfinished_output_is_scored_as_a_finished_one_of_its_length() -> None:
    """Nothing ends within two tokens: p(a) p(b | a) = 0.9 * 0.8, and a length power of 1 divides its log by two. The
    second sentence may have one token: log 0.9."""
    table = {((), A): 0.9, ((), B): 0.1, ((A,), B): 0.8, ((A,), C): 0.2, ((B,), C): 1.0}
    logs = {key: math.log(p) for key, p in table.items()}
    case = table_case(logs, 2, end_symbol=True)
    for power, two in ((0.0, math.log(0.72)), (1.0, math.log(0.72) / 2)):
        result = case.search(beam=2, rule=LogprobSum(power), stop=StopBest(), n_best=2)
        assert not result.finished_BN.any()
        assert result.score_BN[0, 0].item() == pytest.approx(two, abs=1e-6)


@pytest.mark.parametrize("stop", [StopTop(), StopBest(), StopBest(cut_off=True), None])
def test_a_search_without_outputs_has_the_beams_of_a_search_for_one(stop: Stop | None) -> None:
    found, one = (search_table(BEST_ENDS, beam=2, length=4, stop=stop, n_best=n_best) for n_best in (0, 1))
    assert (
        found.tokens_BNT.shape[:2] == found.score_BN.shape == found.length_BN.shape == found.finished_BN.shape == (1, 0)
    )
    for ours, expected in zip(vars(found.beams).values(), vars(one.beams).values(), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("stop", [None, StopTop(), StopBest()])
def test_at_most_the_beam_is_returned_whatever_n_best_is(stop: Stop | None) -> None:
    """Beam 2 finds three finished outputs under `best` (5.0, 3.0, 1.0 above); the two best are returned."""
    result = search_table(LAST_WINS, beam=2, length=4, stop=stop, n_best=7)
    assert result.score_BN.shape[1] == 2
    if stop == StopBest():
        assert result.score_BN.tolist() == [[5.0, 3.0]]


def test_sizes_and_successors_that_no_search_can_have_are_errors() -> None:
    case = table_case(LAST_WINS, 4, end_symbol=False)
    with pytest.raises(ConfigError, match=r"^beam 0, n_best 1: a beam is at least 1, n_best at least 0$"):
        case.search(beam=0, rule=LastScore(), stop=None, n_best=1)
    with pytest.raises(ConfigError, match=r"^successors without the end symbol, in a search of open length: no output"):
        case.search(beam=2, rule=LastScore(), stop=StopBest(), n_best=1)
    model, batch = lstm_model(), make_batch([example_of((4, 5))])
    for size in (7, 9):
        choices = Unconstrained(size, end_symbol=True).start(batch)
        state, length_B = model.encode(batch, None), torch.tensor([3])
        with pytest.raises(ConfigError, match=rf"^the successors list {size} tokens, the model scores 8; "):
            beam_search(model, state, choices, beam_size=2, length_B=length_B, steps=3, rule=LastScore())
    with pytest.raises(ConfigError, match=r"^steps = 0: must be at least 1, and at least the longest of length_B$"):
        beam_search(model, state, choices, beam_size=2, length_B=length_B, steps=0, rule=LastScore())
    with pytest.raises(ConfigError, match=r"^steps = 2: must be at least the longest of length_B, 3$"):
        beam_search(model, state, choices, beam_size=2, length_B=length_B, steps=2, rule=LastScore())
