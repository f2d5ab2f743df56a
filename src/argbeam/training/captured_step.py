"""A training step as one CUDA graph per batch shape and loss, or two where updates have several batches.

Every shape in a step is fixed by (B, S, T) and the loss with its beam, and restarts are `where`, not control flow. So
encoder, search, replay, backward, clipping and update are captured once and replayed without the host.
"""

from typing import Any

import torch

from argbeam.data.batches import Batch
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.losses.contract import StepLoss
from argbeam.runtime.graph_cache import MOST_SHAPES, Graph, GraphCache, Recorder
from argbeam.training.step import TrainStep


class CapturedStep:
    """Runs a `TrainStep` by graphs, one for each batch shape, captured when a shape is met for the second time.

    The last batch of an update has graphs of its own.

    A new loss (a larger beam) drops all graphs. After a failed capture all steps run eagerly, that one too.
    """

    def __init__(self, step: TrainStep, recorder: Recorder, most: int = MOST_SHAPES) -> None:
        self.step, self.graphs = step, GraphCache[tuple[Graph, Batch]](recorder, most)
        self.update = torch.zeros((), dtype=torch.int64, device=step.device)
        self.loss: StepLoss | None = None

    def __call__(self, loss: StepLoss, batch: Batch, update: int, *, last: bool = True) -> None:
        """The same as `TrainStep`."""
        self.update.fill_(update)
        if loss != self.loss:
            self.loss = loss
            self.graphs.clear()
        captured = self.graphs.get((batch.shape, last), lambda: self._capture(loss, batch, last=last))
        if captured is None:
            self.step(loss, batch, self.update, last=last)
        else:
            graph, fixed = captured
            fixed.copy_from(batch)
            graph.replay()

    def _capture(self, loss: StepLoss, batch: Batch, *, last: bool) -> tuple[Graph, Batch]:
        """A graph of the step, and the batch whose memory it reads."""
        fixed = batch.clone(self.step.device)
        with self.graphs.capturing() as graph:
            self.step(loss, fixed, self.update, last=last)
        return graph, fixed


def capture_statistics(
    step: CapturedStep | None, search: CapturedSearch | None, device: torch.device
) -> dict[str, Any]:
    """Of steps since the stage began, of searches since the run began; and the most memory ever in use."""
    statistics: dict[str, Any] = {} if step is None else step.graphs.statistics()
    if search is not None:
        statistics |= {f"decode_{name}": value for name, value in search.graphs.statistics().items()}
    if device.type == "cuda":
        statistics["memory_mb"] = round(torch.cuda.max_memory_reserved() / 2**20, 1)
    return statistics
