"""One training step: eager, or as one CUDA graph per batch shape and loss.

Every shape in a step is fixed by (B, S, T) and the loss with its beam, and restarts are `where`, not control flow; so
encoder, search, replay, backward, clipping and update can be recorded once and replayed without the host.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from argbeam.data import Batch
from argbeam.losses.contract import StepLoss
from argbeam.models.contract import Model
from argbeam.optim import Adagrad
from argbeam.state import Noise


class Sums:
    """Running sums of what steps report, kept on the device: reading them is what waits, adding is not."""

    def __init__(self, values: Mapping[str, Tensor] | None = None) -> None:
        self.values: dict[str, Tensor] = dict(values or {})

    def add(self, sums: Mapping[str, Tensor]) -> None:
        for name, value in sums.items():
            if name not in self.values:
                self.values[name] = torch.zeros_like(value)
            self.values[name] += value

    def clear(self) -> None:
        """Back to zero, in place: captured steps add to these very tensors."""
        for value in self.values.values():
            value.zero_()

    def read(self) -> dict[str, float | list[float]]:
        """The values on the host."""
        return {name: value.tolist() for name, value in self.values.items()}


@dataclass
class TrainStep:
    """Forward, backward, clipping and update of one batch, with the sums it reports."""

    model: Model
    optimizer: Adagrad
    seed: int
    device: torch.device
    bf16: bool = False
    sums: Sums = field(default_factory=Sums)

    def __call__(self, loss: StepLoss, batch: Batch, update: Tensor) -> None:
        noise = Noise(self.seed, update, batch.sentence_B)
        # Autocast keeps the low-precision copies of weights it made; a captured step must make them anew.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            out = loss(self.model, batch, noise)
        objective = out.total if out.count is None else out.total / out.count
        gradients = torch.autograd.grad(objective, self.optimizer.parameters, materialize_grads=True)
        norm = self.optimizer.step(gradients)
        finite = norm.isfinite()
        self.sums.add(
            {
                **{name: torch.where(finite, value, 0.0) for name, value in out.sums.items()},
                "norm": torch.where(finite, norm, 0.0),
                "updates": torch.ones_like(norm),
                "not_finite": (~finite).to(norm.dtype),
            }
        )


class Stepper(Protocol):
    """Runs training steps."""

    @property
    def sums(self) -> Sums: ...

    def __call__(self, loss: StepLoss, batch: Batch, update: int) -> None:
        """Train on one batch, which may lie on the host."""


@dataclass
class EagerStepper:
    """Each operation launched as it comes."""

    step: TrainStep

    @property
    def sums(self) -> Sums:
        return self.step.sums

    def __call__(self, loss: StepLoss, batch: Batch, update: int) -> None:
        self.step(loss, batch.to(self.step.device), torch.tensor(update, device=self.step.device))


class Graph(Protocol):
    """A recorded sequence of device operations: `torch.cuda.CUDAGraph`, or a stand-in on the CPU."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records what happens inside `record(graph)`."""

    def graph(self) -> Graph: ...

    def record(self, graph: Graph) -> AbstractContextManager[None]: ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: they never run at the same time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def graph(self) -> Graph:
        return torch.cuda.CUDAGraph()

    @contextmanager
    def record(self, graph: Graph) -> Iterator[None]:
        assert isinstance(graph, torch.cuda.CUDAGraph)
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            yield


@dataclass(frozen=True)
class _Recorded:
    graph: Graph
    batch: Batch


class CapturedStepper:
    """Replays a graph per batch shape; records it when a shape is met for the second time.

    The first step of each shape runs eagerly: it does its work like any other, and leaves every library warm, every sum
    in place and every kernel loaded. (Kernels are compiled for some of their sizes, and a driver may refuse to load one
    while a stream is recorded.) Graphs are dropped when another loss takes the place of theirs (when the beam grows).
    """

    def __init__(self, step: TrainStep, recorder: Recorder) -> None:
        self.step, self.recorder = step, recorder
        self.update = torch.zeros((), dtype=torch.int64, device=step.device)
        self.loss: StepLoss | None = None
        self.warm: set[tuple[int, int, int]] = set()
        self.recorded: dict[tuple[int, int, int], _Recorded] = {}
        self.captures, self.seconds = 0, 0.0

    @property
    def sums(self) -> Sums:
        return self.step.sums

    def __call__(self, loss: StepLoss, batch: Batch, update: int) -> None:
        self.update.fill_(update)
        if loss != self.loss:
            self.loss = loss
            self.warm.clear()
            self.recorded.clear()
        if batch.shape not in self.warm:
            self.warm.add(batch.shape)
            self.step(loss, batch.to(self.step.device), self.update)
            return
        recorded = self.recorded.get(batch.shape)
        if recorded is None:
            recorded = self._record(loss, batch)
            self.recorded[batch.shape] = recorded
        recorded.batch.copy_from(batch)
        recorded.graph.replay()

    def _record(self, loss: StepLoss, batch: Batch) -> _Recorded:
        start = time.perf_counter()
        fixed = batch.clone(self.step.device)
        graph = self.recorder.graph()
        with self.recorder.record(graph):
            self.step(loss, fixed, self.update)
        self.captures += 1
        self.seconds += time.perf_counter() - start
        return _Recorded(graph, fixed)
