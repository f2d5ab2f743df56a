"""The tensors of a run: all that training needs to go on, into a checkpoint and back."""

import torch
from torch import Tensor

from argbeam.losses import Loss
from argbeam.models import Network, load_weights
from argbeam.training.optimizer import Adagrad
from argbeam.training.step import Stepper


def model_tensors(model: Network, best: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, and the best ones of the stage: all there is between stages."""
    return {f"model.{k}": v for k, v in model.state_dict().items()} | {f"best.{k}": v for k, v in best.items()}


def stage_tensors(loss: Loss, optimizer: Adagrad, stepper: Stepper) -> dict[str, Tensor]:
    """What a stage has besides the weights."""
    tensors = {f"optimizer.{i}": v for i, v in enumerate(optimizer.sums)}
    tensors |= {f"average.{i}": v for i, v in enumerate(optimizer.averages)}
    if loss.weights is not None:
        tensors |= {f"loss.{k}": v for k, v in loss.weights.module.state_dict().items()}
    tensors |= {f"sums.{k}": v for k, v in stepper.sums.values.items()}
    return {**tensors, "streak": stepper.streak}


def restore_stage(
    tensors: dict[str, Tensor], loss: Loss, optimizer: Adagrad, stepper: Stepper, device: torch.device
) -> None:
    """Put what `stage_tensors` gave back in place; a checkpoint between stages holds none of it."""
    for total, saved in zip(optimizer.sums, _numbered(tensors, "optimizer."), strict=False):
        total.copy_(saved)
    for average, saved in zip(optimizer.averages, _numbered(tensors, "average."), strict=False):
        average.copy_(saved)
    own = tensors_under(tensors, "loss.", device)
    if loss.weights is not None and own:
        load_weights(loss.weights.module, own, "")
    stepper.sums.values.update(tensors_under(tensors, "sums.", device))
    if "streak" in tensors:
        stepper.streak.copy_(tensors["streak"])


def tensors_under(tensors: dict[str, Tensor], prefix: str, device: torch.device) -> dict[str, Tensor]:
    """Copies of the tensors whose name starts with a prefix, without it."""
    return {k.removeprefix(prefix): v.to(device, copy=True) for k, v in tensors.items() if k.startswith(prefix)}


def _numbered(tensors: dict[str, Tensor], prefix: str) -> list[Tensor]:
    return [tensors[f"{prefix}{i}"] for i in range(sum(name.startswith(prefix) for name in tensors))]
