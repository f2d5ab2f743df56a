"""A loss and its gradients as one CUDA graph per batch shape, inside of a module's `forward`.

`Trainer` keeps its own optimizer, clipping and exchange of gradients: it gets a loss whose backward pass hands over the
gradients of the graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.losses.contract import LossOutput, StepLoss
from argbeam.models.huggingface.adapter import HuggingFaceModel
from argbeam.models.noise import Noise
from argbeam.runtime.graph_cache import Graph, GraphCache, Recorder


class CapturedLoss:
    """Computes losses by graphs, captured when a batch shape is met for the second time; without a recorder, eagerly.

    A new loss (a larger beam) drops all graphs. After a failed capture all losses are computed eagerly, that one too.
    Weights may change in place between two calls.
    """

    def __init__(self, model: HuggingFaceModel, recorder: Recorder | None) -> None:
        self.model = model
        self.graphs = None if recorder is None else GraphCache[_LossGraph](recorder)
        self.loss: StepLoss | None = None
        self.gradients: list[Tensor] = []

    def __call__(self, loss: StepLoss, batch: Batch, noise: Noise) -> LossOutput:
        if self.graphs is None:
            return loss(self.model, batch, noise)
        if loss != self.loss:
            self.loss = loss
            self.graphs.clear()
        captured = self.graphs.get(batch.shape, lambda: self._capture(loss, batch, noise))
        return loss(self.model, batch, noise) if captured is None else captured.replay(batch, noise)

    @property
    def failure(self) -> str | None:
        """Why nothing is captured any more."""
        return None if self.graphs is None else self.graphs.failure

    def _capture(self, loss: StepLoss, batch: Batch, noise: Noise) -> "_LossGraph":
        assert self.graphs is not None
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        if not self.gradients:
            self.gradients = [torch.zeros_like(weight) for weight in weights]
        fixed, update = batch.clone(batch.source_BS.device), noise.update.clone()
        with self.graphs.capturing() as graph, casts_made_anew(batch.source_BS.device), aliases(self.model) as leaves:
            out = loss(self.model, fixed, replace(noise, update=update, sentence_B=fixed.sentence_B))
            found = torch.autograd.grad(out.total, leaves, materialize_grads=True)
            # All graphs write to the same places: they never run at the same time.
            torch._foreach_copy_(self.gradients, list(found))
        total = out.total.detach()
        return _LossGraph(graph, fixed, update, replace(out, total=total), weights, self.gradients)


class _LossGraph:
    """A graph, the places it reads from and those it writes to."""

    def __init__(
        self,
        graph: Graph,
        batch: Batch,
        update: Tensor,
        out: LossOutput,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
    ) -> None:
        self.graph, self.batch, self.update, self.out = graph, batch, update, out
        self.weights, self.gradients = weights, gradients

    def replay(self, batch: Batch, noise: Noise) -> LossOutput:
        self.batch.copy_from(batch)
        self.update.copy_(noise.update, non_blocking=True)
        self.graph.replay()
        total = _WithGradients.apply(self.out.total, self.gradients, *self.weights)  # type: ignore[no-untyped-call]
        # The next replay overwrites what this one has found.
        return replace(self.out, total=total, sums={name: value.clone() for name, value in self.out.sums.items()})


class _WithGradients(torch.autograd.Function):
    """A loss whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, gradients: Sequence[Tensor], *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, None, *torch._foreach_mul(list(ctx.gradients), grads[0]))


@contextmanager
def casts_made_anew(device: torch.device) -> Iterator[None]:
    """The caller's autocast without its cache: a graph may not read low-precision copies of weights made before it."""
    kind, enabled = device.type, torch.is_autocast_enabled(device.type)
    with torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=enabled, cache_enabled=False):
        yield


@contextmanager
def aliases(model: nn.Module) -> Iterator[list[Tensor]]:
    """Other leaves with the memory of the trained weights, which the model has within.

    DDP holds on to the weights' own nodes of autograd. They belong to its stream, so no graph could be captured.
    """
    own = {id(weight): weight for weight in model.parameters() if weight.requires_grad}
    leaves = {key: nn.Parameter(weight.detach()) for key, weight in own.items()}
    places = [
        (module._parameters, name, weight)
        for module in model.modules()
        for name, weight in module._parameters.items()
        if id(weight) in own
    ]
    try:
        for parameters, name, weight in places:
            parameters[name] = leaves[id(weight)]
        yield list(leaves.values())
    finally:
        for parameters, name, weight in places:
            parameters[name] = weight
