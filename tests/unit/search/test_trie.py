"""The trie against Python's own sets: enumeration of entries, and beam search over a set of prefixes."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.errors import DataError
from argbeam.search import search
from argbeam.search.constraints import trie as tries
from argbeam.search.constraints.automaton import compile_grammar
from argbeam.search.constraints.grammar import Spelling
from argbeam.search.constraints.notations import lark_grammar
from argbeam.search.constraints.pushdown import Pushdown
from argbeam.search.constraints.trie import Trie, TrieChoices
from argbeam.search.gold import Gold, Restart
from argbeam.search.recorder import SearchRecorder
from argbeam.search.result import SearchResult
from argbeam.search.score_rules import NEVER, LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import ListsSuccessors, Successors, check_gold
from loss_cases import small_lstm
from oracles import (
    BruteForce,
    Next,
    Score,
    Tokens,
    ToyModel,
    brute_force_refilled,
    brute_force_stop_best,
    brute_force_stop_top,
    enumerate_sequences,
    example_of,
    last_score,
    logprob_sum,
    score_sum,
)
from tape import TapeRecorder, as_on_a_device


def with_end(entries: list[Tokens]) -> set[Tokens]:
    return {(*entry, EOS) for entry in entries}


def of_set(outputs: set[Tokens]) -> Next:
    """The tokens after a prefix in any output of a set."""
    longer = {(output[:n], output[n]) for output in outputs for n in range(len(output))}
    return lambda prefix: sorted(token for before, token in longer if before == prefix)


def of_trie(trie: Trie, *, listed: bool) -> Next:
    """The tokens that the trie's choices admit after a prefix, by list or by mask."""
    batch = make_batch([example_of([4])])

    def following(prefix: Tokens) -> list[int]:
        choices = trie.start(batch)
        for token in prefix:
            choices = choices.advance(torch.tensor([token]))
        if listed:
            return sorted(choices._successors().tokens_NW[choices._successors().real_NW].tolist())
        return choices.allowed()[0].nonzero()[:, 0].tolist()

    return following


entry_lists = st.lists(st.lists(st.integers(4, 7), max_size=4).map(tuple), min_size=1, max_size=8)


@pytest.mark.parametrize("dense", [0, 40, 1 << 23])
@given(entries=entry_lists)
@settings(max_examples=25)
def test_a_trie_reaches_its_entries_and_nothing_else(dense: int, entries: list[Tokens]) -> None:
    """Every number of levels with a table; duplicates, the empty entry and prefixes of other entries occur."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tries, "_DENSE", dense)
        trie = Trie.of(entries, vocabulary=8)
        outputs = with_end(entries)
        assert trie.entries == len(outputs)
        for listed in (False, True):
            found = enumerate_sequences(of_trie(trie, listed=listed), length=6, end=EOS)
            assert len(found) == len(outputs) and set(found) == outputs
        for output in (*outputs, (), (EOS,), (4,), (4, 4, EOS), (7, 5), (8, EOS)):
            assert trie.accepts(output) == (output in outputs)


def test_an_output_leads_nowhere_after_its_end() -> None:
    batch = make_batch([example_of([4])])
    choices = Trie.of([(4,)], vocabulary=8).start(batch)
    for token in (4, EOS, PAD, 4):
        choices = choices.advance(torch.tensor([token]))
    assert not choices.allowed().any() and not choices._successors().real_NW.any()


def valid_logprob_sum(model: ToyModel, sentence: int, following: Next) -> Score:
    """The sum of the tokens' log-probabilities over the valid successors of each prefix."""

    def logprob(prefix: Tokens, token: int) -> float:
        valid = [model.score_of(sentence, prefix, other) for other in following(prefix)]
        return model.score_of(sentence, prefix, token) - math.log(math.fsum(map(math.exp, valid)))

    return lambda prefix: math.fsum(logprob(prefix[:t], prefix[t]) for t in range(len(prefix)))


def test_an_end_may_be_farther_than_the_tables_count() -> None:
    """The tables hold 16 bits; an entry of 33,000 tokens is valid all the same."""
    choices = Trie.of([(4,) * 33_000, (5,)], vocabulary=8).start(make_batch([example_of([4])]))
    assert choices.allowed()[0].nonzero()[:, 0].tolist() == [4, 5]
    assert choices.advance(torch.tensor([4])).allowed()[0].nonzero()[:, 0].tolist() == [4]


SEARCHES: list[tuple[ScoreRule, Stop, Callable[..., BruteForce], Callable[[ToyModel, int, Next], Score]]] = [
    (LastScore(), StopTop(), brute_force_stop_top, lambda model, sentence, _: last_score(model, sentence)),
    (ScoreSum(), StopTop(), brute_force_stop_top, lambda model, sentence, _: score_sum(model, sentence)),
    (ScoreSum(), StopBest(), brute_force_stop_best, lambda model, sentence, _: score_sum(model, sentence)),
    (LogprobSum(), StopBest(), brute_force_refilled, lambda model, sentence, _: logprob_sum(model, sentence)),
    (LogprobSum(valid_only=True), StopBest(), brute_force_refilled, valid_logprob_sum),
]


@pytest.mark.parametrize(("rule", "stop", "brute_force", "score"), SEARCHES)
@pytest.mark.parametrize(("vocabulary", "dense"), [(8, 0), (300, 1 << 23), (300, 0)])
@given(entries=entry_lists, beam=st.integers(1, 4), seed=st.integers(0, 1000), limit=st.integers(1, 6))
@settings(max_examples=6)
def test_beam_search_under_a_trie_is_brute_force_over_the_set(
    rule: ScoreRule,
    stop: Stop,
    brute_force: Callable[..., BruteForce],
    score: Callable[[ToyModel, int, Next], Score],
    vocabulary: int,
    dense: int,
    entries: list[Tokens],
    beam: int,
    seed: int,
    limit: int,
) -> None:
    """With 300 tokens successors are listed, and scored by themselves where few; with 8 they are a mask.

    The set holds the outputs that fit into the limit; where none does, all of them, and the search is cut off. Scores
    are normalised over all of them in any case.
    """
    model = ToyModel(vocabulary, seed)
    batch = make_batch([Example((4,), (), 0), Example((4,), (), 5)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tries, "_DENSE", dense)
        found = search.beam_search(
            model,
            model.encode(batch, None),
            Trie.of(entries, vocabulary=vocabulary).start(batch),
            beam_size=beam,
            length_B=torch.tensor([limit, 6]),
            steps=6,
            rule=rule,
            stop=stop,
            n_best=beam,
        )
    outputs = with_end(entries)
    for row, (sentence, length) in enumerate([(0, limit), (5, 6)]):
        fitting = {output for output in outputs if len(output) <= length}
        by = score(model, sentence, of_set(outputs))
        expected = brute_force(of_set(fitting or outputs), by, beam=beam, length=length, n_best=beam)
        assert not fitting or all(expected.finished)
        found_outputs = [tuple(t for t in output if t != PAD) for output in found.tokens_BNT[row].tolist()]
        assert [output for output in found_outputs if output] == expected.sequences


@pytest.mark.parametrize("rule", [LastScore(), ScoreSum(), LogprobSum()], ids=lambda rule: rule.name)
def test_listed_successors_give_the_training_search_of_the_mask(
    rule: ScoreRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [(a, b, c) for a in range(4, 9) for b in range(4, 8) for c in range(4, 6 + a % 2)]
    trie, model = Trie.of(entries, vocabulary=60), ToyModel(60, 3)
    batch = make_batch([Example((4,), (*entries[i], EOS), i) for i in (0, 20, 33)], target_length=5)
    check_gold(trie, batch, open_length=True)
    gold = Gold(batch.target_BT, batch.target_length_B, Restart())

    def searched() -> SearchResult:
        return search.beam_search(
            model, model.encode(batch, None), trie.start(batch), beam_size=3, length_B=batch.target_length_B, steps=5,
            rule=rule, stop=StopTop(), gold=gold, n_best=0,
        )  # fmt: skip

    assert isinstance(trie.start(batch), ListsSuccessors) and trie.start(batch).listed() is not None
    listed = searched()
    monkeypatch.setattr(TrieChoices, "listed", lambda self: None)
    masked = searched()
    assert listed.violations is not None and masked.violations is not None and listed.violations.violation_BT.any()
    active_BT = torch.arange(5) < batch.target_length_B[:, None]
    for name, expected in vars(masked.violations).items():
        real = active_BT if expected.ndim == 2 else ...
        assert_close(getattr(listed.violations, name)[real], expected[real])
    there_TBJ = (masked.beams.scores_TBJ > NEVER) & active_BT.T[..., None]  # what is in empty places does not matter
    for name, expected in vars(masked.beams).items():
        assert_close(getattr(listed.beams, name)[there_TBJ], expected[there_TBJ])


@pytest.mark.parametrize("kind", ["trie", "grammar"])
def test_a_training_search_under_a_constraint_can_be_captured(kind: str) -> None:
    """Nothing is read back from the device; a replay over another batch gives what a search of it gives."""
    successors: Successors = Trie.of([(a, b, a) for a in range(4, 7) for b in (4, 9)], vocabulary=12)
    if kind == "grammar":
        letters = Spelling(("",) * 4 + tuple("()abcdef"), spaced=False, whole=False)
        text = 'start: ("(" start ")" | "a".."c")*'
        successors = Pushdown(compile_grammar(lark_grammar(text, letters)), depth=3)
    model = small_lstm(12)
    targets = [(4, 9, 4, EOS), (6, 4, 6, EOS), (5, 9, 5, EOS)] if kind == "trie" else [(4, 6, 5, EOS), (7, 8, EOS)]
    batches = [make_batch([Example((4, 5), target, i)], target_length=4) for i, target in enumerate(targets)]

    def searched(batch: Batch) -> SearchResult:
        gold, length_B = Gold(batch.target_BT, batch.target_length_B, Restart()), batch.target_length_B
        found = search.beam_search(
            model, model.encode(batch, None), successors.start(batch), beam_size=3, length_B=length_B, steps=4,
            rule=ScoreSum(), stop=StopTop(), gold=gold, n_best=0,
        )  # fmt: skip
        assert found.violations is not None
        return found

    place, expected = batches[0].clone(torch.device("cpu")), []
    with as_on_a_device():
        expected = [vars(searched(batch).violations) for batch in batches]
    with TapeRecorder().record() as tape:
        found = searched(place)
    for batch, values in zip(batches, expected, strict=True):
        place.copy_from(batch)
        tape.replay()
        for name, value in values.items():
            assert_close(getattr(found.violations, name), value)


@pytest.mark.parametrize("kind", ["trie", "grammar"])
def test_outputs_that_must_end_within_a_limit_can_be_captured(kind: str) -> None:
    """Sentence 0 may have 2 or 4 tokens, sentence 1 four: the limits are inputs of the graph."""
    successors: Successors = Trie.of([(4,), (4, 5, 6), (7, 5, 6, 4), (5, 5)], vocabulary=12)
    if kind == "grammar":
        letters = Spelling(("",) * 4 + tuple("()abcdef"), spaced=False, whole=False)
        successors = Pushdown(compile_grammar(lark_grammar('start: "(" start ")" | "a".."c"', letters)), depth=3)
    model, batch, place_B = small_lstm(12), make_batch([Example((4, 5), (), i) for i in (0, 1)]), torch.tensor([4, 4])

    def searched() -> SearchResult:
        return search.beam_search(
            model, model.encode(batch, None), successors.start(batch), beam_size=2, length_B=place_B, steps=4,
            rule=ScoreSum(), stop=StopBest(), end_early=False,
        )  # fmt: skip

    expected = []
    for limit in (2, 4):
        place_B.copy_(torch.tensor([limit, 4]))
        with as_on_a_device():
            expected.append(searched())
    with TapeRecorder().record() as tape:
        found = searched()
    for limit, values in zip((2, 4), expected, strict=True):
        place_B.copy_(torch.tensor([limit, 4]))
        tape.replay()
        assert found.finished_BN.all() and found.length_BN[0] <= limit
        assert found.tokens_BNT.equal(values.tokens_BNT)


@given(entries=entry_lists)
@settings(max_examples=20)
def test_a_saved_trie_is_the_same_trie(entries: list[Tokens]) -> None:
    trie = Trie.of(entries, vocabulary=8)
    loaded = Trie.from_bytes(trie.saved)
    assert (loaded.vocabulary, loaded.entries, loaded.end_symbol) == (8, trie.entries, True)
    assert (loaded.first_X == trie.first_X).all() and (loaded.token_E == trie.token_E).all()
    assert loaded.saved == trie.saved  # runs compare the bytes


def test_a_trie_of_fixed_length_has_no_end_symbol() -> None:
    trie = Trie.of([(4, 5), (5, 5)], vocabulary=8, end_symbol=False)
    assert set(enumerate_sequences(of_trie(trie, listed=True), length=2)) == {(4, 5), (5, 5)}
    assert trie.accepts((4, 5)) and not trie.accepts((4,))


@pytest.mark.parametrize(
    ("entries", "end_symbol", "message"),
    [
        ([], True, "^a trie without entries"),
        ([(4,), (5, EOS)], True, "^entry 2 of a trie: token id 3; 0 to 7 are accepted, without end symbols"),
        ([(), (4, 9)], True, "^entry 2 of a trie: token id 9"),
        ([(4,), (1 << 40,)], True, "^entry 2 of a trie: a token id beyond 32 bits; 0 to 7 are accepted"),
        ([(4,), (4, 5)], False, "^a trie without the end symbol with entries of 1 to 2 tokens"),
        ([()], False, "^a trie without the end symbol with entries of 0 to 0"),
    ],
)
def test_entries_that_no_output_could_equal_are_data_errors(
    entries: list[Tokens], end_symbol: bool, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Trie.of(entries, vocabulary=8, end_symbol=end_symbol)


def test_bytes_that_hold_no_trie_are_a_data_error() -> None:
    for data in (b"", b"PK", Trie.of([(4,)], vocabulary=8).saved[:-30]):
        with pytest.raises(DataError, match=r"^x: not a saved trie"):
            Trie.from_bytes(data, where="x")


def test_the_record_of_a_search_counts_the_listed_successors_of_each_prefix() -> None:
    """Beam 2, two sentences; entries a b, a c, b, over many tokens: after `a` two successors, after `b` one."""
    model, recorder = ToyModel(100, 2), SearchRecorder(3)
    batch, trie = make_batch([Example((4,), (), i) for i in range(2)]), Trie.of([(4, 5), (4, 6), (5,)], vocabulary=100)
    settings, length_B = search.SearchSettings(2, ScoreSum(), StopBest()), torch.tensor([3, 3])
    state, choices = model.encode(batch, None), trie.start(batch)
    with torch.no_grad():
        pauses = search.search_in_parts(model, state, choices, settings, length_B=length_B, steps=3, watch=recorder)
        search.result_of(pauses)
    first, second = recorder.steps[:2]
    assert [row[0] for row in first["valid"]] == [2, 2]
    for kept, valid in zip(first["kept"], second["valid"], strict=True):
        assert [{4: 2, 5: 1}[token] for _, token in kept] == valid
