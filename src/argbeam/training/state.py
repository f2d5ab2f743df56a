"""The state of a run: how far it is, and the tensors that go into a checkpoint and back."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from argbeam.losses import Loss
from argbeam.models import Network, load_weights
from argbeam.training.step import TrainStep


@dataclass
class Position:
    """How far a run is; `batch` counts the updates of the epoch.

    With the tensors this is its whole state: noise depends on the update only. `rule`, `stop` and `trained_by` belong
    to the weights that the stage started from: the names of their score and stop rule, and the number of the stage that
    trained them, -1 for another run's and pretrained ones. `start_search` is the search in training of another run's:
    its beam and successors. Without a `rule` the weights are random. `start_dev` and
    `best_dev` are the dev figures of those weights and of the stage's best epoch, and `tied_epochs` the epochs from the
    first one that was as good to that one.
    """

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    update: int = 0
    records: int = 0
    best_value: float | None = None
    best_epoch: int = -1
    tied_epochs: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    rule: str = ""
    stop: str = ""
    trained_by: int = -1
    start_search: dict[str, Any] = field(default_factory=dict)
    start_dev: dict[str, Any] = field(default_factory=dict)
    best_dev: dict[str, Any] = field(default_factory=dict)

    def add_seconds_since(self, start: float) -> float:
        """Count the time of training since `start`, a time of `perf_counter`, and return it."""
        elapsed = time.perf_counter() - start
        self.seconds += elapsed
        self.epoch_seconds += elapsed
        return elapsed

    def start_next_stage(self) -> None:
        self.stage, self.epoch, self.batch = self.stage + 1, 0, 0
        self.best_value, self.best_epoch, self.tied_epochs = None, -1, 0
        self.start_dev, self.best_dev = {}, {}


def model_tensors(model: Network, best: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, and the best ones of the stage: the whole state between stages."""
    return {f"model.{k}": v for k, v in model.state_dict().items()} | {f"best.{k}": v for k, v in best.items()}


def stage_tensors(loss: Loss, step: TrainStep) -> dict[str, Tensor]:
    """The state of a stage besides the weights."""
    tensors = {f"optimizer.{i}": v for i, v in enumerate(step.optimizer.state)}
    tensors |= {f"average.{i}": v for i, v in enumerate(step.optimizer.averages)}
    if loss.weights is not None:
        tensors |= {f"loss.{k}": v for k, v in loss.weights.module.state_dict().items()}
    tensors |= {f"sums.{k}": v for k, v in step.sums.values.items()}
    return {**tensors, "streak": step.streak}


@torch.no_grad()
def restore_stage(tensors: dict[str, Tensor], loss: Loss, step: TrainStep) -> None:
    """Put the tensors of `stage_tensors` back in place; a checkpoint between stages holds none of them."""
    own = tensors_under(tensors, "loss.", step.device)
    if loss.weights is not None and own:
        load_weights(loss.weights.module, own)
    for name, tensor in stage_tensors(loss, step).items():
        if name in tensors and not name.startswith("loss."):
            tensor.copy_(tensors[name])
    step.sums.values.update(tensors_under(tensors, "sums.", step.device))


def scored_weights(model: Network, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint with the weights that training scores: their running averages, if it holds some.

    Optimizers hold the weights of the loss behind those of the model.
    """
    places = {id(p): i for i, p in enumerate(p for group in model.modules_by_rate().values() for p in group)}
    named = model.named_parameters(remove_duplicate=False)
    averages = {f"model.{name}": f"average.{places[id(p)]}" for name, p in named if id(p) in places}
    return tensors | {name: tensors[average] for name, average in averages.items() if average in tensors}


def tensors_under(tensors: dict[str, Tensor], prefix: str, device: torch.device) -> dict[str, Tensor]:
    """Copies of the tensors whose name starts with a prefix, without it."""
    return {k.removeprefix(prefix): v.to(device, copy=True) for k, v in tensors.items() if k.startswith(prefix)}
