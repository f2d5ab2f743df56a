"""LRU cache of CUDA graphs by shape, with capture statistics and the reason if capture failed.

A failed capture is no error: the work then runs operation by operation, and the reason is reported.
"""

import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch

# A recipe's batches have 10 to 15 shapes. Each graph holds some memory: this bounds the memory of odd inputs.
MOST_SHAPES = 64

Captured = TypeVar("Captured")


class Graph(Protocol):
    """A captured sequence of device operations: `torch.cuda.CUDAGraph`, or a stand-in on the CPU."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Captures work."""

    def record(self) -> AbstractContextManager[Graph]:
        """A new graph of the operations inside, none of which runs before `replay`."""

    def start_over(self) -> None:
        """All graphs are gone."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: they never run at the same time."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        # A pool without graphs cannot be used again while a library holds memory of it. cuBLAS does: its workspace lies
        # in the pool of the process's first capture.
        self.pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def record(self) -> Iterator[Graph]:
        # Triton leaves cycles behind when it compiles a kernel. They can hold the autograd nodes of the step before,
        # which belong to another stream: a backward pass that meets them cannot be captured.
        gc.collect()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                yield graph
        finally:
            # A failed capture leaves its own stream as the current one.
            torch.cuda.set_stream(stream)


class GraphCache(Generic[Captured]):
    """Captured work by shape, up to `most` shapes; the least recently used one is dropped.

    `failure` is the reason of the first failed capture. From then on nothing is captured: another try would fail too,
    and cost as much as the work itself.
    """

    def __init__(self, recorder: Recorder, most: int = MOST_SHAPES) -> None:
        self.recorder, self.most = recorder, most
        self.entries: OrderedDict[Hashable, Captured] = OrderedDict()
        self.seen: set[Hashable] = set()
        self.captures, self.seconds = 0, 0.0
        self.failure: str | None = None

    def get(self, shape: Hashable, capture: Callable[[], Captured]) -> Captured | None:
        """The entry of a shape, captured at its second use; None: run eagerly.

        The first use of a shape runs eagerly and leaves libraries initialised and kernels loaded, which a driver may
        refuse during a capture. Shapes that never return cost nothing.
        """
        if self.failure is not None:
            return None
        if shape not in self.seen:
            self.seen.add(shape)
            return None
        if shape not in self.entries:
            try:
                self.entries[shape] = capture()
            except Exception as error:  # nothing ran on the device; if the work itself is wrong, it fails again eagerly
                self.fail(error)
                return None
            if len(self.entries) > self.most:
                self.entries.popitem(last=False)
        self.entries.move_to_end(shape)
        return self.entries[shape]

    def clear(self) -> None:
        self.entries.clear()
        self.seen.clear()
        self.recorder.start_over()

    @contextmanager
    def capturing(self) -> Iterator[Graph]:
        """`Recorder.record`, counted and timed."""
        start = time.perf_counter()
        with self.recorder.record() as graph:
            yield graph
        self.captures += 1
        self.seconds += time.perf_counter() - start

    def fail(self, error: Exception) -> None:
        """Capture nothing any more, and free the memory of all graphs."""
        self.clear()
        # A broken capture fails again when it is closed: the first error of the chain is the cause.
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        lines = str(first).splitlines()
        self.failure = f"{type(first).__name__}: {lines[0]}" if lines else type(first).__name__

    def statistics(self) -> dict[str, Any]:
        """For the records."""
        captured = {"capture_seconds": round(self.seconds, 3), "captured_shapes": len(self.entries)}
        failed = {} if self.failure is None else {"not_captured": self.failure}
        return {"captures": self.captures, **captured, **failed}
