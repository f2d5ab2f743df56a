"""The cache of CUDA graphs: its order, its statistics, and what a failed capture leaves."""

import pytest
import torch

from argbeam.runtime.graph_cache import GraphCache
from tape import TapeRecorder


def used(graphs: GraphCache[str], shapes: str) -> list[str | None]:
    """The entry at each use of a shape; an entry is its shape's capital letter."""
    return [graphs.get(shape, shape.upper) for shape in shapes]


def test_a_shape_is_captured_at_its_second_use_and_the_least_recently_used_one_is_dropped() -> None:
    """Room for a b c; a is used, so that d takes the place of b, and e that of c, which is captured again."""
    graphs = GraphCache[str](TapeRecorder(), most=3)
    assert used(graphs, "aabbcc") == [None, "A", None, "B", None, "C"]
    assert used(graphs, "add") == ["A", None, "D"]
    assert list(graphs.entries) == ["c", "a", "d"]
    used(graphs, "ee")
    assert list(graphs.entries) == ["a", "d", "e"]
    assert graphs.statistics()["captured_shapes"] == 3
    assert used(graphs, "c") == ["C"]


def test_after_a_clear_shapes_are_new_and_the_memory_pool_is_another() -> None:
    """A library may still hold memory of a pool without graphs."""
    recorder = TapeRecorder()
    graphs = GraphCache[str](recorder)
    used(graphs, "aa")
    assert recorder.starts == 1
    graphs.clear()
    assert (recorder.starts, used(graphs, "a")) == (2, [None])


def test_captures_are_counted_and_timed() -> None:
    graphs, x = GraphCache[str](TapeRecorder()), torch.tensor([1.0])
    with graphs.capturing() as graph:
        y = x + 1
    x.fill_(5.0)
    graph.replay()
    assert y.item() == 6.0
    statistics = graphs.statistics()
    assert statistics.keys() == {"captures", "capture_seconds", "captured_shapes"}
    assert (statistics["captures"], graphs.seconds > 0) == (1, True)


def test_a_failure_drops_all_entries_and_its_first_cause_is_reported_in_a_line() -> None:
    graphs = GraphCache[str](TapeRecorder())
    used(graphs, "aa")
    with pytest.raises(RuntimeError) as raised, graphs.capturing():
        torch.ones(2).sum().item()

    def broken() -> str:
        try:
            raise raised.value
        finally:
            raise RuntimeError("the capture was broken off")  # as closing a CUDA graph does

    assert [graphs.get("b", broken) for _ in range(2)] == [None, None]
    assert graphs.failure == "RuntimeError: _local_scalar_dense while a graph is recorded"
    assert (used(graphs, "aa"), graphs.captures) == ([None, None], 0)
    assert graphs.statistics()["not_captured"] == graphs.failure


def test_an_error_without_a_message_is_reported_by_its_type() -> None:
    graphs = GraphCache[str](TapeRecorder())
    graphs.fail(ValueError())
    assert graphs.failure == "ValueError"
