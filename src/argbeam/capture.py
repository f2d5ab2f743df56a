"""One training step: eager, or as one CUDA graph per batch shape and loss.

Every shape in a step is fixed by (B, S, T) and the loss with its beam, and restarts are `where`, not control flow; so
encoder, search, replay, backward, clipping and update can be recorded once and replayed without the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from argbeam.data import Batch
from argbeam.graphs import MOST_SHAPES, Graph, Graphs, Recorder
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

    @property
    def refused(self) -> str | None:
        """Why steps run eagerly that were to be replayed; None: they do not."""

    def figures(self) -> dict[str, Any]:
        """What recording has cost, for the records."""

    def __call__(self, loss: StepLoss, batch: Batch, update: int) -> None:
        """Train on one batch, which may lie on the host."""


@dataclass
class EagerStepper:
    """Each operation launched as it comes."""

    step: TrainStep
    refused: str | None = None

    @property
    def sums(self) -> Sums:
        return self.step.sums

    def figures(self) -> dict[str, Any]:
        return {}

    def __call__(self, loss: StepLoss, batch: Batch, update: int) -> None:
        self.step(loss, batch.to(self.step.device), torch.tensor(update, device=self.step.device))


@dataclass(frozen=True)
class _Recorded:
    graph: Graph
    batch: Batch


class CapturedStepper:
    """Replays a graph per batch shape; records it when a shape is met for the second time.

    The first step of each shape runs eagerly: it does its work like any other, and leaves every library warm, every sum
    in place and every kernel loaded. (Kernels are compiled for some of their sizes, and a driver may refuse to load one
    while a stream is recorded.) Graphs are dropped when another loss takes the place of theirs (when the beam grows).
    From the first step on that cannot be recorded, all run eagerly, that one too.
    """

    def __init__(self, step: TrainStep, recorder: Recorder, most: int = MOST_SHAPES) -> None:
        self.step, self.graphs = step, Graphs[_Recorded](recorder, most)
        self.update = torch.zeros((), dtype=torch.int64, device=step.device)
        self.loss: StepLoss | None = None

    @property
    def sums(self) -> Sums:
        return self.step.sums

    @property
    def refused(self) -> str | None:
        return self.graphs.refused

    def figures(self) -> dict[str, Any]:
        return self.graphs.figures()

    def __call__(self, loss: StepLoss, batch: Batch, update: int) -> None:
        self.update.fill_(update)
        recorded = self._recorded(loss, batch)
        if recorded is None:
            self.step(loss, batch.to(self.step.device), self.update)
        else:
            recorded.batch.copy_from(batch)
            recorded.graph.replay()

    def _recorded(self, loss: StepLoss, batch: Batch) -> _Recorded | None:
        """The step for batches of this shape; None: it is to run eagerly."""
        if self.graphs.refused is not None:
            return None
        if loss != self.loss:
            self.loss = loss
            self.graphs.clear()
        if not self.graphs.meet(batch.shape):
            return None
        return self.graphs.find(batch.shape) or self._record(loss, batch)

    def _record(self, loss: StepLoss, batch: Batch) -> _Recorded | None:
        try:
            fixed = batch.clone(self.step.device)
            with self.graphs.recording() as graph:
                self.step(loss, fixed, self.update)
        except Exception as error:  # nothing was done on the device; if the step itself is at fault, it fails again
            self.graphs.refuse(error)
            return None
        return self.graphs.keep(batch.shape, _Recorded(graph, fixed))
