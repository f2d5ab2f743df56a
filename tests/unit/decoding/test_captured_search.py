"""Searches replayed from tapes against the same searches done step by step, and against brute force."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.models import make_model
from argbeam.models.contract import Network
from argbeam.runtime.graph_cache import CudaRecorder
from argbeam.search.constraints.automaton import compile_grammar
from argbeam.search.constraints.grammar import Spelling
from argbeam.search.constraints.notations import lark_grammar
from argbeam.search.constraints.pushdown import Pushdown
from argbeam.search.constraints.trie import Trie
from argbeam.search.result import SearchResult
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.search import Search, SearchSettings
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, ShiftReduce, Successors, Unconstrained, UnconstrainedChoices
from argbeam.settings import ConvModel, LstmLmModel, LstmModel, Model, TransformerLmModel, TransformerModel
from oracles import ToyModel
from tape import TapeRecorder, as_on_a_device

VOCABULARY, STEPS = 9, 20
KINDS: dict[str, Model] = {
    "lstm": LstmModel(layers=2, hidden=5, embedding=4),
    "lstm_lm": LstmLmModel(layers=2, hidden=5, embedding=4),
    "conv": ConvModel(layers=2, hidden=5, embedding=4),
    "transformer": TransformerModel(layers=2, hidden=8, heads=2, feed_forward=7),
    "transformer_lm": TransformerLmModel(layers=2, hidden=8, heads=2, feed_forward=7, positions="rotary"),
}
ANYTHING = Unconstrained(VOCABULARY, end_symbol=True)
# Few successors of each prefix, which are listed, and a stack of at most three brackets.
ENTRIES = [(a, b, a, a + 1) for a in range(4, 8) for b in (4, 8)]
LETTERS = Spelling(("",) * 4 + tuple("()abc"), spaced=False, whole=False)
BRACKETS = Pushdown(compile_grammar(lark_grammar('start: ("(" start ")" | "a".."c")*', LETTERS)), depth=3)
CASES: dict[str, tuple[Successors, Stop | None, ScoreRule]] = {
    "top": (ANYTHING, StopTop(), LastScore()),
    "best": (ANYTHING, StopBest(), LogprobSum(0.5)),
    "fixed length": (Unconstrained(VOCABULARY, end_symbol=False), None, LastScore()),
    "permutation": (Permutation(), None, LogprobSum()),
    "shift-reduce": (ShiftReduce(VOCABULARY, 3), None, LastScore()),
    "open permutation": (Permutation(), StopTop(), LastScore()),
    "trie": (Trie.of(ENTRIES, vocabulary=VOCABULARY), StopBest(), LogprobSum()),
    "grammar": (BRACKETS, StopTop(), ScoreSum()),
}


@pytest.fixture(autouse=True)
def fixed_shapes() -> Iterator[None]:
    """Plain searches too: another number of rows in a product may round otherwise."""
    with as_on_a_device():
        yield


def batches_of(successors: Successors, *, number: int = 3, rows: int = 3) -> list[tuple[Batch, Tensor]]:
    """Batches of one shape whose last row is padding; some permutations ask for a token too many, a dead end."""
    draw = torch.Generator().manual_seed(1)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=draw))

    made = []
    for _ in range(number):
        examples = [
            Example(tuple(between(4, 8) for _ in range(between(1, 6))), (), between(0, 999)) for _ in range(rows)
        ]
        if isinstance(successors, Permutation):
            limits = [len(e.source) + between(0, 1) for e in examples]
        elif isinstance(successors, ShiftReduce):
            limits = [2 * len(e.source) - 1 for e in examples]
        else:
            limits = [between(1, STEPS) for _ in examples]
        made.append((make_batch(examples, source_length=8, size=rows + 1), torch.tensor([*limits, 0])))
    return made


def small_model(kind: str) -> Network:
    model = make_model(KINDS[kind], source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    model.initialise(bound=1.0, generator=torch.Generator().manual_seed(3))
    return model


def values_of(result: SearchResult) -> dict[str, list[object]]:
    """All that a search returns, on the host: its tensors are overwritten by the next search."""
    names = ("score_BN", "finished_BN", "dead_B", "length_BN", "tokens_BNT")
    return {name: getattr(result, name).tolist() for name in names} | {
        f.name: getattr(result.beams, f.name).tolist() for f in fields(result.beams)
    }


@pytest.mark.parametrize(
    ("name", "kind", "beam", "n_best"),
    [
        *((name, None, 4, 3) for name in CASES),
        *((name, None, 1, 1) for name in ("best", "permutation")),
        *((name, kind, 3, 2) for name in ("best", "permutation") for kind in KINDS),
    ],
)
def test_replayed_searches_return_what_plain_ones_do(name: str, kind: str | None, beam: int, n_best: int) -> None:
    """To the bit, beams included, with rubbish in the memory between batches; weights change in place."""
    successors, stop, rule = CASES[name]
    network = None if kind is None else small_model(kind)
    model = network or ToyModel(VOCABULARY, seed=5, scale=3.0)
    search = Search(model, successors, SearchSettings(beam, rule, stop, n_best))
    recorder, batches = TapeRecorder(), batches_of(successors, number=2)
    captured = CapturedSearch(recorder)
    captured(search, *batches[0], steps=STEPS)
    assert captured.graphs.captures == 0  # the first search of a shape is not recorded
    found = []
    for batch, length_B in [*batches, *batches]:
        expected = values_of(search(batch, length_B, steps=STEPS))
        found.append(values_of(captured(search, batch, length_B, steps=STEPS)))
        assert found[-1] == expected
        recorder.forget()
        with torch.no_grad():
            for parameter in network.parameters() if network else ():
                parameter.mul_(-0.9)
    assert (found[: len(batches)] != found[len(batches) :]) == (network is not None)
    assert captured.graphs.failure is None
    # Two searches of each batch have recorded each part and each reading once.
    (recorded,) = captured.graphs.entries.values()
    assert captured.graphs.captures == len(recorder.tapes) == len(recorded.parts) + len(recorded.readings)
    assert sum(tape.replays for tape in recorder.tapes) >= 4 * len(batches)


def test_the_cases_hold_what_they_are_there_for() -> None:
    """Sentences that are dead, that end, that are cut off, and searches of more parts than one."""
    dead = unfinished = ended = 0
    for successors, stop, rule in CASES.values():
        search = Search(ToyModel(VOCABULARY, seed=5, scale=3.0), successors, SearchSettings(3, rule, stop))
        for batch, length_B in batches_of(successors):
            result = search(batch, length_B, steps=STEPS)
            dead += int(result.dead_B.sum())
            unfinished += int((~result.finished_BN[:-1, 0] & ~result.dead_B[:-1]).sum())
            ended += int(result.finished_BN[:, 0].sum()) if stop is not None else 0
    assert min(dead, unfinished, ended) > 0


def permutation_search(model: ToyModel) -> Search:
    return Search(model, Permutation(), SearchSettings(2, LastScore()))


@dataclass(frozen=True)
class NothingEnds:
    """Successors that may contain the end symbol for all that the search can see, but never do."""

    def start(self, batch: Batch) -> UnconstrainedChoices:
        return UnconstrainedChoices(torch.arange(VOCABULARY)[None] > EOS)


def test_a_search_is_looked_at_once_a_part_and_ends_at_the_first_at_which_all_are_over() -> None:
    """Limits 5, 11 and 20 with nothing that ends: 1, 2 and 3 parts of 8 steps, each recorded when first needed."""
    search = Search(ToyModel(VOCABULARY), NothingEnds(), SearchSettings(2, LastScore(), StopTop()))
    recorder, counts = TapeRecorder(), []
    captured, batch = CapturedSearch(recorder), make_batch([Example((4,), (), 1), Example((5,), (), 2)])
    for limits in ([3, 5], [3, 5], [5, 1], [2, 11], [20, 4], [2, 5]):
        captured(search, batch, torch.tensor(limits), steps=24)
        counts.append([tape.replays for tape in recorder.tapes])
    # Tapes in the order of recording: part 1, its reading, part 2, its reading, part 3, its reading.
    assert counts == [[], [1, 1], [2, 2], [3, 2, 1, 1], [4, 2, 2, 1, 1, 1], [5, 3, 2, 1, 1, 1]]


def test_searches_that_differ_in_anything_share_nothing() -> None:
    captured, ((batch, length_B),) = CapturedSearch(TapeRecorder()), batches_of(ANYTHING, number=1)
    first = Search(ToyModel(VOCABULARY, seed=5), ANYTHING, SearchSettings(3, LastScore(), StopTop()))
    fewer = Unconstrained(VOCABULARY - 1, end_symbol=True)
    others = [{"rule": LogprobSum()}, {"rule": LogprobSum(1.0)}, {"stop": StopBest()}, {"stop": None}]
    searches = [
        first,
        replace(first, model=ToyModel(VOCABULARY, seed=6)),
        replace(first, successors=fewer, model=ToyModel(VOCABULARY - 1, seed=5)),
        *(replace(first, settings=replace(first.settings, **o)) for o in [*others, {"beam_size": 2}, {"n_best": 2}]),
    ]
    expected, found = ([values_of(captured(s, batch, length_B, steps=STEPS)) for s in searches] for _ in range(2))
    assert found == expected  # the first round is eager, the second is recorded
    assert len(captured.graphs.entries) == len(searches)
    for _ in range(2):
        captured(first, batch, length_B, steps=STEPS + 1)
    assert len(captured.graphs.entries) == len(searches) + 1


def test_a_number_of_shapes_is_kept_and_dropped_ones_are_recorded_again() -> None:
    captured, search = CapturedSearch(TapeRecorder(), most=2), permutation_search(ToyModel(VOCABULARY, seed=5))
    batches = [make_batch([Example((4, 5, 4), (), 3)], source_length=length) for length in (3, 4, 5)]
    for _ in range(3):
        for batch in batches:
            expected = values_of(search(batch, torch.tensor([3]), steps=3))
            assert values_of(captured(search, batch, torch.tensor([3]), steps=3)) == expected
    assert len(captured.graphs.entries) == 2
    assert captured.graphs.captures == 12  # a part and a reading, of three shapes, in two rounds


def test_graphs_are_freed_at_once_when_their_searches_are_dropped() -> None:
    """A graph that waits for the garbage collector may be freed during another capture, which then fails."""
    captured, search = CapturedSearch(TapeRecorder()), permutation_search(ToyModel(VOCABULARY, seed=5))
    for batch, length_B in batches_of(Permutation()):
        captured(search, batch, length_B, steps=STEPS)
    entries = [weakref.ref(entry) for entry in captured.graphs.entries.values()]
    gc.disable()
    try:
        del captured
        assert entries and not any(entry() for entry in entries)
    finally:
        gc.enable()


def test_a_model_that_reads_from_the_device_is_searched_step_by_step_and_the_reason_is_kept() -> None:
    table, recorder = {((), 4): 1.0, ((4,), 5): 2.0, ((4, 5), 4): 3.0}, TapeRecorder()
    captured, search = CapturedSearch(recorder), permutation_search(ToyModel(VOCABULARY, table=table))
    batch, length_B = make_batch([Example((4, 5, 4), (), 3)]), torch.tensor([3])
    for _ in range(4):
        result = captured(search, batch, length_B, steps=3)
        assert (result.tokens_BNT.tolist(), result.score_BN.tolist()) == ([[[4, 5, 4]]], [[3.0]])
    assert captured.graphs.failure == "RuntimeError: lift_fresh while a graph is recorded"
    assert (captured.graphs.captures, len(recorder.tapes)) == (0, 1)  # it was tried once


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_cuda_graphs_find_what_plain_searches_find(name: str, kind: str) -> None:
    device = torch.device("cuda")
    successors, stop, rule = CASES[name]
    search = Search(small_model(kind).to(device), successors, SearchSettings(3, rule, stop, 2))
    captured = CapturedSearch(CudaRecorder())
    batches = [(batch.to(device), length_B.to(device)) for batch, length_B in batches_of(successors, number=6)]
    for batch, length_B in [*batches, *batches[::-1]]:
        expected = search(batch, length_B, steps=STEPS)
        found = captured(search, batch, length_B, steps=STEPS)
        for name in ("tokens_BNT", "finished_BN", "dead_B"):
            assert torch.equal(getattr(found, name), getattr(expected, name))
        torch.testing.assert_close(found.score_BN, expected.score_BN)
    assert captured.graphs.failure is None
    assert captured.graphs.captures >= 2
