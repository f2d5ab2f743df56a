"""Decoding many sentences against brute force on each, and scores by hand."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.batches import Batch, Example
from argbeam.data.vocabulary import EOS
from argbeam.decoding import batch_decoder
from argbeam.decoding.batch_decoder import BatchDecoder, Decoded, evaluate, perplexity
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.models.lstm import LstmSeq2Seq
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, PermutationChoices, Unconstrained
from argbeam.tasks.contract import Item
from oracles import (
    BruteForce,
    Score,
    Tokens,
    ToyModel,
    brute_force_beam,
    brute_force_refilled,
    brute_force_stop_best,
    brute_force_stop_top,
    logprob_sum,
    permutation,
    unconstrained,
)
from tape import TapeRecorder
from toy_cases import SCORES
from toy_task import VOCABULARY, ToyTask, items_of, number_of

CPU = torch.device("cpu")

sources = st.lists(st.lists(st.integers(4, 6), min_size=1, max_size=4), max_size=9)
kinds = st.sampled_from(["ordering", "top", "best"])


def decoder_of(kind: str, seed: int, *, rule: ScoreRule, batch: int) -> BatchDecoder:
    model = ToyModel(len(VOCABULARY), seed=seed, scale=3.0)
    if kind == "ordering":
        return BatchDecoder(model, ToyTask(Permutation(), open_length=False), rule, StopTop(), CPU, batch)
    stop: Stop = StopTop() if kind == "top" else StopBest()
    task = ToyTask(Unconstrained(len(VOCABULARY), end_symbol=True), open_length=True)
    return BatchDecoder(model, task, rule, stop, CPU, batch)


def score_of(decoder: BatchDecoder, item: Item) -> Score:
    """The score of a prefix of this sentence, by the oracle."""
    assert isinstance(decoder.model, ToyModel)
    return SCORES[decoder.rule](decoder.model, number_of(item))


def by_brute_force(kind: str, decoder: BatchDecoder, item: Item, *, beam: int, n_best: int) -> BruteForce:
    score = score_of(decoder, item)
    source = VOCABULARY.encode(item.source)
    if kind == "ordering":
        return brute_force_beam(permutation(source), score, beam=beam, length=len(source), n_best=n_best)
    following = unconstrained(len(VOCABULARY), end_symbol=True)
    best = brute_force_refilled if decoder.rule.normalised else brute_force_stop_best
    search = brute_force_stop_top if kind == "top" else best
    return search(following, score, beam=beam, length=len(source), n_best=n_best)


@given(
    kind=kinds,
    sources=sources,
    rule=st.sampled_from([LastScore(), LogprobSum()]),
    beam=st.integers(1, 4),
    n_best=st.integers(1, 3),
    batch=st.integers(1, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=20)
def test_decoding_in_windows_and_batches_is_brute_force_on_each_sentence_in_order(
    kind: str, sources: list[list[int]], rule: ScoreRule, beam: int, n_best: int, batch: int, seed: int
) -> None:
    items, decoder = items_of(sources), decoder_of(kind, seed, rule=rule, batch=batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_decoder, "WINDOW", 3)
        found = list(decoder.decode(iter(items), beam=beam, n_best=n_best, trace=True))
    assert len(found) == len(items)
    for item, decoded in zip(items, found, strict=True):
        expected = by_brute_force(kind, decoder, item, beam=beam, n_best=n_best)
        assert [h.tokens for h in decoded.hypotheses] == expected.sequences
        assert [h.finished for h in decoded.hypotheses] == expected.finished
        assert decoded.dead == expected.dead
        expected_scores = [score_of(decoder, item)(h.tokens) for h in decoded.hypotheses]
        assert [h.score for h in decoded.hypotheses] == pytest.approx(expected_scores, abs=1e-9)
        # The search stops when nothing can win any more; the brute force may take more steps.
        steps = traced_beams(decoded)
        score = score_of(decoder, item)
        assert steps == [sorted(kept, key=score, reverse=True) for kept in expected.beams[: len(steps)]]
        assert len(steps) == len(expected.beams) or kind == "best"


@given(
    kind=kinds,
    sources=st.lists(st.lists(st.integers(4, 6), min_size=1, max_size=11), min_size=1, max_size=9),
    beam=st.integers(1, 3),
    n_best=st.integers(1, 2),
    batch=st.integers(1, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=12)
def test_replayed_decoding_finds_the_same_whatever_the_shapes_are_rounded_to(
    kind: str, sources: list[list[int]], beam: int, n_best: int, batch: int, seed: int
) -> None:
    """Three times over the same sentences: eagerly at rounded shapes, while they are recorded, and replayed."""
    items, plain = items_of(sources), decoder_of(kind, seed, rule=LastScore(), batch=batch)
    expected = list(plain.decode(items, beam=beam, n_best=n_best, trace=True))
    captured = CapturedSearch(TapeRecorder())
    decoder = replace(plain, captured=captured)
    for _ in range(3):
        assert list(decoder.decode(items, beam=beam, n_best=n_best, trace=True)) == expected
    # Sources of 1 to 8 and of 9 to 11 tokens, limits alike; batches full, or of 1, 2 or 4 rows.
    assert 1 <= len(captured.graphs.entries) <= 2 * 4
    assert captured.graphs.failure is None


def traced_beams(decoded: Decoded) -> list[list[Tokens]]:
    """The prefixes of every step, read forward through the parents."""
    beams: list[list[Tokens]] = []
    before: list[Tokens] = [()]
    for step in decoded.trace:
        assert step["ranks"] == sorted(step["ranks"], reverse=True)
        pairs = zip(step["tokens"], step["parents"], strict=True)
        before = [(*before[parent], token) for token, parent in pairs]
        beams.append(before)
    return beams


def test_the_batch_size_changes_nothing() -> None:
    """An LSTM in float64: the tokens found are the same, scores to the rounding of products of another shape."""
    model = LstmSeq2Seq(source_vocabulary=7, target_vocabulary=7, layers=1, hidden=5, embedding=4, dropout=0.5).double()
    model.initialise(bound=1.0, generator=torch.Generator().manual_seed(1))
    items = items_of([[4, 5], [6], [4, 4, 5, 6, 6], [5, 6, 4], [5, 5], [6, 5, 4, 4]])
    decoder = BatchDecoder(model, ToyTask(Permutation(), open_length=False), LastScore(), StopTop(), CPU, 1)
    alone = list(decoder.decode(items, beam=3, n_best=3))
    for batch in (2, 4, 100):
        for a, b in zip(alone, replace(decoder, batch=batch).decode(items, beam=3, n_best=3), strict=True):
            assert a.trace == b.trace == ()  # a trace is made on request only
            assert [h.tokens for h in a.hypotheses] == [h.tokens for h in b.hypotheses]
            assert [h.score for h in a.hypotheses] == pytest.approx([h.score for h in b.hypotheses], abs=1e-12)


@dataclass(frozen=True)
class CountedModel(ToyModel):
    """Writes down how many sentences are searched together."""

    sizes: list[int] = field(default_factory=list)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        self.sizes.append(batch.source_BS.shape[0])
        return super().encode(batch, noise)


@pytest.mark.parametrize(
    ("beam", "expected"), [(1, [40, 10]), (10, [40, 10]), (20, [20, 20, 10]), (100, [4] * 12 + [2]), (512, [1] * 50)]
)
def test_wide_beams_are_searched_in_smaller_batches(beam: int, expected: list[int]) -> None:
    """Of 50 sentences 40 at a time up to beam 10, from there on those that make 400 rows, and one at least."""
    model = CountedModel(len(VOCABULARY), seed=1)
    decoder = BatchDecoder(model, ToyTask(Permutation(), open_length=False), LastScore(), StopTop(), CPU, 40)
    found = list(decoder.decode(items_of([[4, 5]] * 50), beam=beam))
    assert model.sizes == expected
    assert [sorted(decoded.hypotheses[0].tokens) for decoded in found] == [[4, 5]] * 50


def test_no_more_is_read_than_a_window() -> None:
    """The first output comes before the fourth sentence is read."""
    items = iter(items_of([[4, 5]] * 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_decoder, "WINDOW", 3)
        decoded = decoder_of("ordering", 1, rule=LastScore(), batch=2).decode(items, beam=1)
        next(decoded)
        assert len(list(items)) == 4
        assert len(list(decoded)) == 2


def test_outputs_that_meet_the_limit_are_counted_as_unfinished() -> None:
    """Limits of one to four tokens; brute force says which outputs end in the end symbol."""
    items = items_of([[4] * (1 + i % 4) for i in range(12)])
    decoder = decoder_of("top", 5, rule=LastScore(), batch=5)
    found = evaluate(decoder, items, beam=2)
    expected = [by_brute_force("top", decoder, item, beam=2, n_best=1) for item in items]
    assert found.outputs == [e.sequences[0] for e in expected]
    assert found.unfinished == sum(not e.finished[0] for e in expected)
    assert 0 < found.unfinished < len(items)
    assert all((output[-1] == EOS) == e.finished[0] for output, e in zip(found.outputs, expected, strict=True))
    assert found.dead == 0
    assert found.score.value == sum(len(output) for output in found.outputs)
    assert len(found.scores) == len(items)


@dataclass(frozen=True)
class ShortPermutation:
    """The source's tokens, each once: where a token repeats, the search runs out of successors."""

    def start(self, batch: Batch) -> PermutationChoices:
        choices = Permutation().start(batch)
        return PermutationChoices(choices.candidates_BC, choices.left_NC.clamp(max=1))


def test_dead_ends_are_counted_and_leave_the_prefix_before_them() -> None:
    """Sources a b, a a and b c b: the second has one token to give, the third two."""
    task = ToyTask(ShortPermutation(), open_length=False)
    decoder = replace(decoder_of("ordering", 1, rule=LastScore(), batch=8), task=task)
    found = evaluate(decoder, items_of([[4, 5], [4, 4], [5, 6, 5]]), beam=3)
    assert (found.dead, found.unfinished) == (2, 0)
    assert [sorted(output) for output in found.outputs] == [[4, 5], [4], [5, 6]]


def test_perplexity_is_the_sum_over_gold_tokens_by_hand() -> None:
    """exp of minus the mean log-probability of all gold tokens; a sentence without gold does not count."""
    model = ToyModel(len(VOCABULARY), seed=3, scale=2.0)
    golds: list[Tokens] = [(4, 5, EOS), (6,), (), (5, 5, 4, 6, EOS), (4, EOS)]
    examples = [Example((4,) * (1 + len(gold)), gold, 7 * i) for i, gold in enumerate(golds)]
    score = math.fsum(logprob_sum(model, 7 * i)(gold) for i, gold in enumerate(golds) if gold)
    expected = math.exp(-score / sum(map(len, golds)))
    for batch in (1, 2, 100):
        assert perplexity(model, examples, batch=batch, device=CPU) == pytest.approx(expected, rel=1e-12)


def test_perplexity_of_equal_scores_is_the_vocabularys_size_without_gold_one_and_of_the_impossible_finite() -> None:
    model = ToyModel(len(VOCABULARY), table={}, missing=0.5)
    assert perplexity(model, [Example((4,), (4, 5, 6), 0)], batch=4, device=CPU) == pytest.approx(len(VOCABULARY))
    model = ToyModel(len(VOCABULARY), table={((), 5): 1e9})
    assert perplexity(model, [], batch=4, device=CPU) == 1.0
    assert math.isfinite(perplexity(model, [Example((4,), (4,), 0)], batch=4, device=CPU))
