"""Live rows against a loop over all rows, and searches over live rows alone against searches over all of them."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses.mixed import EncodedOnce
from argbeam.models import LstmSeq2Seq, Transformer, TransformerLm
from argbeam.models.conv import ConvSeq2Seq
from argbeam.models.noise import Noise
from argbeam.models.state import Places, State
from argbeam.search.gold import EarlyUpdate, Gold, MaxViolation, Policy, Restart
from argbeam.search.live_rows import live_rows
from argbeam.search.result import Beam, SearchResult
from argbeam.search.score_rules import NEVER, LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.search import SearchSettings, result_of, search_in_parts
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, Successors, Unconstrained
from loss_cases import initialised, small_lstm, transformer
from tape import as_on_a_device

VOCABULARY = 30


@given(data=st.data(), batch=st.integers(1, 4), beam_size=st.integers(1, 4), with_gold=st.booleans())
def test_live_rows_are_the_prefixes_that_go_on_each_once(
    data: st.DataObject, batch: int, beam_size: int, with_gold: bool
) -> None:
    """A row of the beam that holds a prefix, and a gold lane that is not on the beam, of sentences that go on."""

    def flags(*shape: int) -> Tensor:
        count = int(torch.tensor(shape).prod())
        return torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))).view(shape)

    holds_BK, is_gold_BK = flags(batch, beam_size), flags(batch, beam_size)
    is_gold_BK &= is_gold_BK.cumsum(1) == 1  # gold is on a beam once at most
    active_B, lanes = flags(batch), beam_size + with_gold
    beam = Beam(torch.where(holds_BK, 0.5, NEVER), is_gold_BK, torch.zeros(batch))
    found = live_rows(beam, active_B, lanes=lanes)

    of_beams, of_gold, same = [], [], {}
    for b in range(batch):
        if not active_B[b]:
            continue
        here = [k for k in range(beam_size) if holds_BK[b, k]]
        of_beams += [b * lanes + k for k in here]
        if with_gold:
            lane = b * lanes + beam_size
            on_beam = [b * lanes + k for k in here if is_gold_BK[b, k]]
            of_gold += [] if on_beam else [lane]
            same[lane] = on_beam[0] if on_beam else lane
    same |= {place: place for place in of_beams}
    of_beams = sorted({0, *of_beams})  # there is always one row at least
    if len(of_beams) + len(of_gold) == batch * lanes:
        assert found is None
        return
    assert found is not None
    assert found.places.place_X.tolist() == of_beams + of_gold
    assert (found.places.lanes, found.beam_rows) == (lanes, len(of_beams))
    assert {
        place: found.places.place_X[row].item() for place, row in enumerate(found.row_BR.flatten()) if place in same
    } == same
    assert found.row_BR.shape == (batch, lanes)
    assert 0 <= found.row_BR.min() <= found.row_BR.max() < len(found.places.place_X)


def batch_of(seed: int, *, sentences: int = 6, end: bool) -> Batch:
    """Sentences of unequal length, one of padding alone, and columns of padding behind the longest."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for number in range(sentences):
        tokens = torch.randint(EOS + 1, VOCABULARY, (1 + (number + seed) % 6,), generator=generator).tolist()
        examples.append(Example(tuple(sorted(tokens)), (*tokens, EOS) if end else tuple(tokens), number))
    return make_batch(examples, size=sentences + 1, target_length=8)


class Counting(LstmSeq2Seq):
    """The model, counting the rows that it steps and those that it scores all tokens of."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.stepped, self.scored = [], []

    def step(self, state: State, tokens_N: Tensor) -> State:
        self.stepped.append(len(tokens_N))
        return super().step(state, tokens_N)

    def step_from(self, state: State, rows_X: Tensor, tokens_X: Tensor, places: Places | None) -> State:
        self.stepped.append(len(tokens_X))
        return super().step_from(state, rows_X, tokens_X, places)

    def scorer_of(self, candidates_GC: Tensor | None) -> "Counting":
        return self

    def scores(self, output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        if candidates_GC is None:
            self.scored.append(output_GRH.shape[0] * output_GRH.shape[1])
        return super().scores(output_GRH, candidates_GC)


@pytest.mark.parametrize(("margin", "rows"), [(1e9, [3, 3, 2, 1]), (-1e9, [3, 12, 8, 4])])
def test_one_row_of_a_sentence_is_live_after_a_restart_and_none_after_its_end(margin: float, rows: list[int]) -> None:
    """Sentences of 4, 3 and 2 tokens, K = 4: either every token violates the margin and each beam is gold alone, or
    none does and all beams are full; there gold may have left the beam, and then its lane is stepped too. On a GPU all
    rows are live: 3 sentences with 4 places and a gold lane each. The start symbol is read once per sentence."""
    tokens = EOS + 1 + 4
    batch = make_batch([Example((tokens - 1,), (tokens - 1,) * length, length) for length in (4, 3, 2)])
    for device in (nullcontext(), as_on_a_device()):
        model = small_lstm(tokens, kind=Counting, layers=1, dropout=0.0, bound=0.5, seed=5)
        with device:
            search(model, batch, Unconstrained(tokens, False), LastScore(), None, Restart(margin), beam_size=4)
        if isinstance(device, nullcontext):
            assert model.scored == rows
            lanes = [stepped - beams for stepped, beams in zip(model.stepped, rows, strict=True)]
            assert lanes == [0, 0, 0, 0] if margin > 0 else all(0 <= more <= 3 for more in lanes)
        else:
            assert model.scored == [15] * 4
            assert model.stepped == [3, 15, 15, 15]


def search(
    model: LstmSeq2Seq | ConvSeq2Seq | EncodedOnce,
    batch: Batch,
    successors: Successors,
    rule: ScoreRule,
    stop: Stop | None,
    policy: Policy | None,
    *,
    beam_size: int,
) -> SearchResult:
    state, length_B = model.encode(batch, Noise(3, torch.tensor(4), batch.sentence_B)), batch.target_length_B
    gold, n_best = (None, beam_size) if policy is None else (Gold(batch.target_BT, length_B, policy), 0)
    settings, steps = SearchSettings(beam_size, rule, stop, n_best), batch.target_BT.shape[1]
    with torch.no_grad():
        pauses = search_in_parts(
            model, state, successors.start(batch), settings, length_B=length_B, steps=steps, gold=gold
        )
        return result_of(pauses)


ANYTHING = {stop: Unconstrained(VOCABULARY, end_symbol=stop) for stop in (False, True)}
SEARCHES: dict[str, tuple[Successors, ScoreRule, Stop | None, Policy | None]] = {
    "bso": (ANYTHING[True], LastScore(), StopTop(), Restart(-0.3)),
    "bso, every token violates": (ANYTHING[True], LastScore(), StopTop(), Restart(9.0)),
    "bso, fixed length": (ANYTHING[False], LastScore(), None, Restart(-0.3)),
    "bso, stop best, sums": (ANYTHING[True], ScoreSum(), StopBest(), Restart(-0.3)),
    "bso, sums of log-probabilities": (ANYTHING[True], LogprobSum(), StopTop(), Restart(-0.3, 0.1)),
    "conbso": (Permutation(), LastScore(), None, Restart(-0.3)),
    "conbso, sums of log-probabilities": (Permutation(), LogprobSum(), None, Restart(-0.3, 0.1)),
    "early update": (ANYTHING[False], ScoreSum(), None, EarlyUpdate(0.0)),
    "maximum violation": (ANYTHING[True], LastScore(), StopTop(), MaxViolation(0.5)),
    "maximum violation, constrained": (Permutation(), ScoreSum(), None, MaxViolation(0.5)),
    "decoding": (ANYTHING[True], LogprobSum(1.0), StopBest(), None),
    "decoding, fixed length": (ANYTHING[False], LastScore(), None, None),
    "decoding, constrained": (Permutation(), LogprobSum(), None, None),
}


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=5)
@given(
    seed=st.integers(0, 10_000),
    beam_size=st.sampled_from([1, 2, 3, 6]),
    kind=st.sampled_from([LstmSeq2Seq, Transformer, TransformerLm]),
    wrapped=st.booleans(),
)
def test_a_search_over_live_rows_is_the_search_over_all(
    name: str, seed: int, beam_size: int, kind: type, wrapped: bool
) -> None:
    """Violations, rivals, outputs and their scores; float64, so that no order of products decides who wins."""
    *_, stop, policy = SEARCHES[name]
    batch = batch_of(seed, end=stop is not None)
    results = []
    for device in (nullcontext(), as_on_a_device()):
        lstm = small_lstm(VOCABULARY, hidden=12, embedding=6, bound=0.6, seed=2)
        network = lstm if kind is LstmSeq2Seq else transformer(kind, seed, 0.3, VOCABULARY)
        model = EncodedOnce(network) if wrapped else network
        with device:
            results.append(search(model, batch, *SEARCHES[name], beam_size=beam_size))
    ours, all_rows = results
    assert ours.tokens_BNT.tolist() == all_rows.tokens_BNT.tolist()
    assert ours.dead_B.tolist() == all_rows.dead_B.tolist()
    assert ours.finished_BN.tolist() == all_rows.finished_BN.tolist() or policy is not None
    if policy is None:
        torch.testing.assert_close(ours.score_BN, all_rows.score_BN, rtol=0, atol=1e-10)
        return
    found, expected = ours.violations, all_rows.violations
    assert found is not None and expected is not None
    real_BT = torch.arange(batch.target_BT.shape[1]) < batch.target_length_B[:, None]
    for field in ("violation_BT", "rival_is_gold_BT", "rival_ended_BT", "rival_BT", "stop_B"):
        assert getattr(found, field).tolist() == getattr(expected, field).tolist()
    there_B = batch.target_length_B > 0
    assert found.gold_on_beam_B[there_B].tolist() == expected.gold_on_beam_B[there_B].tolist()
    for field in ("gold_score_BT", "rival_score_BT"):
        of_live, of_all = getattr(found, field)[real_BT], getattr(expected, field)[real_BT]
        torch.testing.assert_close(of_live, of_all, rtol=0, atol=1e-10)


def test_a_model_that_cannot_step_some_rows_is_searched_all_the_same() -> None:
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "hidden": 6, "embedding": 6}
    model = initialised(ConvSeq2Seq(layers=1, dropout=0.0, **sizes), 1, 0.6)
    batch, results = batch_of(5, end=True), []
    for given_model in (model, EncodedOnce(model)):
        for device in (nullcontext(), as_on_a_device()):
            with device:
                found = search(given_model, batch, *SEARCHES["bso"], beam_size=3).violations
                assert found is not None
                results.append((found.violation_BT.tolist(), found.rival_BT.tolist()))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("name", SEARCHES)
def test_scores_that_are_not_numbers_stay_with_their_sentence(name: str) -> None:
    """One sentence has a source token without a vector: its scores are NaN, those of its neighbours are unchanged."""
    *_, stop, policy = SEARCHES[name]
    batch, broken = batch_of(3, end=stop is not None), 2
    model = small_lstm(VOCABULARY, hidden=12, embedding=6, bound=0.6, seed=2)
    with torch.no_grad():
        model.encoder.embedding.weight[EOS] = torch.nan
    source_BS = batch.source_BS.clone()
    source_BS[broken, 0] = EOS
    others = [row for row in range(len(source_BS) - 1) if row != broken]
    for device in (nullcontext(), as_on_a_device()):
        with device:
            whole = search(model, batch, *SEARCHES[name], beam_size=3)
            found = search(model, replace(batch, source_BS=source_BS), *SEARCHES[name], beam_size=3)
        if policy is None:
            assert found.score_BN[broken, 0].isnan()
            torch.testing.assert_close(found.score_BN[others], whole.score_BN[others], rtol=0, atol=1e-10)
            continue
        assert found.violations is not None and whole.violations is not None
        assert found.violations.gold_score_BT[broken, 0].isnan()
        for ours, expected in zip(vars(found.violations).values(), vars(whole.violations).values(), strict=True):
            if ours.dtype == torch.bool:
                assert ours[others].tolist() == expected[others].tolist()
