"""Recordings: how many are kept, what they cost, and what happens when one fails."""

import pytest
import torch

from argbeam.runtime.graph_cache import Graphs
from tape import TapeRecorder


def test_the_shape_not_used_for_longest_is_dropped_first() -> None:
    """Kept a b c of 3 at most; a is used, so that d takes the place of b, and e that of c."""
    graphs = Graphs[str](TapeRecorder(), most=3)
    for shape in "abc":
        assert graphs.keep(shape, shape.upper()) == shape.upper()
    assert graphs.find("a") == "A"
    graphs.keep("d", "D")
    assert list(graphs.kept) == ["c", "a", "d"]
    graphs.keep("e", "E")
    assert list(graphs.kept) == ["a", "d", "e"]
    assert graphs.find("c") is None
    assert graphs.figures()["captured_shapes"] == 3


def test_nothing_of_what_was_dropped_is_built_upon() -> None:
    """A pool of memory whose graphs are gone may still be held by others: what comes next has another."""
    recorder = TapeRecorder()
    graphs = Graphs[str](recorder)
    graphs.keep("a", "A")
    assert recorder.starts == 1
    graphs.clear()
    assert (recorder.starts, graphs.find("a"), graphs.meet("a")) == (2, None, False)


def test_recordings_are_counted_and_timed() -> None:
    graphs = Graphs[str](TapeRecorder())
    x = torch.tensor([1.0])
    with graphs.recording() as graph:
        y = x + 1
    x.fill_(5.0)
    graph.replay()
    assert y.item() == 6.0
    figures = graphs.figures()
    assert figures.keys() == {"captures", "capture_seconds", "captured_shapes"}
    assert (figures["captures"], graphs.seconds > 0) == (1, True)


def test_a_failure_drops_what_is_kept_and_its_first_cause_is_told_in_a_line() -> None:
    graphs = Graphs[str](TapeRecorder())
    graphs.keep("a", "A")
    with pytest.raises(RuntimeError) as raised, graphs.recording():
        torch.ones(2).sum().item()
    try:
        try:
            raise raised.value
        finally:
            raise RuntimeError("the recording was broken off")  # as closing a CUDA graph does
    except RuntimeError as error:
        graphs.refuse(error)
    assert graphs.refused == "RuntimeError: _local_scalar_dense while a graph is recorded"
    assert (graphs.find("a"), graphs.captures) == (None, 0)
    assert graphs.figures()["not_captured"] == graphs.refused


def test_an_error_without_words_is_told_by_its_kind() -> None:
    graphs = Graphs[str](TapeRecorder())
    graphs.refuse(ValueError())
    assert graphs.refused == "ValueError"
