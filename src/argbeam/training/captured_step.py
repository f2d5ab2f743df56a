"""A training step as one CUDA graph per batch shape and loss.

Every shape in a step is fixed by (B, S, T) and the loss with its beam, and restarts are `where`, not control flow. So
encoder, search, replay, backward, clipping and update can be recorded once and replayed without the host.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.contract import StepLoss
from argbeam.runtime.graph_cache import MOST_SHAPES, Graph, Graphs, Recorder
from argbeam.training.step import Sums, TrainStep


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
    def streak(self) -> Tensor:
        return self.step.streak

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
