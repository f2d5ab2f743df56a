"""Device work that is recorded once and replayed: so many recordings at most, what they cost, why there are none.

A recording that cannot be made is no error. What was to be recorded is then done operation by operation, and the
reason is kept to be told.
"""

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch

# Shapes whose recordings are kept; the one not used for longest goes first. A recipe's batches have 10 to 15 shapes,
# and each recording holds some memory for good: this bounds what odd inputs can take.
MOST_SHAPES = 64

Kept = TypeVar("Kept")


class Graph(Protocol):
    """A recorded sequence of device operations: `torch.cuda.CUDAGraph`, or a stand-in on the CPU."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records what happens inside `record(graph)`."""

    def graph(self) -> Graph: ...

    def record(self, graph: Graph) -> AbstractContextManager[None]: ...

    def start_over(self) -> None:
        """All that was recorded is gone."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: they never run at the same time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def start_over(self) -> None:
        # A pool whose graphs are all gone cannot be used again while a library holds on to some memory of it, as the
        # one that multiplies matrices does to the workspace that it asked for in the first recording of all.
        self.pool = torch.cuda.graph_pool_handle()

    def graph(self) -> Graph:
        return torch.cuda.CUDAGraph()

    @contextmanager
    def record(self, graph: Graph) -> Iterator[None]:
        assert isinstance(graph, torch.cuda.CUDAGraph)
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                yield
        finally:
            # A recording that fails leaves the stream it was made on behind as the current one.
            torch.cuda.set_stream(stream)


class Graphs(Generic[Kept]):
    """What was recorded for each shape, up to a number of shapes.

    `refused` says why nothing can be recorded, from the first failure on: what failed once would fail again, and each
    try costs as much as the work itself.
    """

    def __init__(self, recorder: Recorder, most: int = MOST_SHAPES) -> None:
        self.recorder, self.most = recorder, most
        self.kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self.met: set[Hashable] = set()
        self.captures, self.seconds = 0, 0.0
        self.refused: str | None = None

    def meet(self, shape: Hashable) -> bool:
        """Whether the shape was met before, and is worth a recording."""
        before = shape in self.met
        self.met.add(shape)
        return before

    def find(self, shape: Hashable) -> Kept | None:
        """What is kept for the shape, which is now the one used last."""
        if shape in self.kept:
            self.kept.move_to_end(shape)
        return self.kept.get(shape)

    def keep(self, shape: Hashable, value: Kept) -> Kept:
        self.kept[shape] = value
        while len(self.kept) > self.most:
            self.kept.popitem(last=False)
        return value

    def clear(self) -> None:
        self.kept.clear()
        self.met.clear()
        self.recorder.start_over()

    @contextmanager
    def recording(self) -> Iterator[Graph]:
        """A new graph that holds what is asked of the device inside, and is not done yet."""
        start = time.perf_counter()
        graph = self.recorder.graph()
        with self.recorder.record(graph):
            yield graph
        self.captures += 1
        self.seconds += time.perf_counter() - start

    def refuse(self, error: Exception) -> None:
        """Record nothing any more, and give the memory of what was recorded back."""
        self.clear()
        # A recording that is broken off fails again when it is closed: the first error of the chain is the cause.
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        lines = str(first).splitlines()
        self.refused = f"{type(first).__name__}: {lines[0]}" if lines else type(first).__name__

    def figures(self) -> dict[str, Any]:
        """For the records."""
        figures: dict[str, Any] = {
            "captures": self.captures,
            "capture_seconds": round(self.seconds, 3),
            "captured_shapes": len(self.kept),
        }
        return figures if self.refused is None else {**figures, "not_captured": self.refused}
