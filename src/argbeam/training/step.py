"""One training step: forward, backward, clipping and update, launched operation by operation."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.errors import ArgbeamError
from argbeam.losses.contract import LossOutput, StepLoss
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.runtime.group import ALONE, Group
from argbeam.training.optimizer import Adagrad


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


@dataclass(frozen=True)
class Parts:
    """What a pass over some rows gives: gradients, loss, count and sums, which add up over rows and processes."""

    tensors: list[Tensor]
    names: list[str]
    divided: bool

    @property
    def gradients(self) -> list[Tensor]:
        return self.tensors[: -2 - len(self.names)]

    @property
    def total(self) -> Tensor:
        return self.tensors[-2 - len(self.names)]

    @property
    def count(self) -> Tensor | None:
        """What the gradients are to be divided by; None: nothing."""
        count = self.tensors[-1 - len(self.names)]
        return torch.where(count > 0, count, 1.0) if self.divided else None

    @property
    def sums(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.tensors[-len(self.names) :], strict=True))

    def plus(self, other: "Parts") -> "Parts":
        return Parts(list(torch._foreach_add(self.tensors, other.tensors)), self.names, self.divided)

    def over(self, group: Group) -> "Parts":
        """The sum over all processes, in one exchange."""
        if group.size == 1:
            return self
        flat = torch.cat([tensor.flatten() for tensor in self.tensors])
        group.add(flat)
        pieces = torch.split(flat, [tensor.numel() for tensor in self.tensors])
        summed = [piece.view_as(tensor) for piece, tensor in zip(pieces, self.tensors, strict=True)]
        return Parts(summed, self.names, self.divided)


@dataclass
class TrainStep:
    """Forward, backward, clipping and update of one batch, with the sums it reports.

    The batch is this process's share of the group's. `streak` holds, on the device, how many updates in a row were left
    out up to now because their gradient was not finite, and the most there ever were.
    """

    model: Model
    optimizer: Adagrad
    seed: int
    device: torch.device
    bf16: bool = False
    group: Group = ALONE
    sums: Sums = field(default_factory=Sums)

    def __post_init__(self) -> None:
        self.streak = torch.zeros(2, dtype=torch.int64, device=self.device)

    def __call__(self, loss: StepLoss, batch: Batch, update: Tensor) -> None:
        parts = self._parts(loss, batch, update).over(self.group)
        norm = self.optimizer.step(parts.gradients, total=parts.total, count=parts.count)
        finite = norm.isfinite()
        self.sums.add(
            {
                **{name: torch.where(finite, value, 0.0) for name, value in parts.sums.items()},
                "norm": torch.where(finite, norm, 0.0),
                "updates": torch.ones_like(norm),
                "not_finite": (~finite).to(norm.dtype),
            }
        )
        run = torch.where(finite, 0, self.streak[0] + 1)
        self.streak.copy_(torch.stack([run, torch.maximum(run, self.streak[1])]))

    def _parts(self, loss: StepLoss, batch: Batch, update: Tensor) -> Parts:
        """Of the whole share or, where memory does not hold it, of its two halves in turn."""
        try:
            return self._pass(loss, batch, update, split=0.0)
        except torch.OutOfMemoryError:
            pass  # the error holds on to what was computed: it must be gone before the next try
        rows, source, target = batch.shape
        if rows > 1:
            with suppress(torch.OutOfMemoryError):
                one, other = (self._pass(loss, half, update, split=0.5) for half in batch.halves())
                return one.plus(other)
        raise ArgbeamError(
            f"out of memory with {rows} sentences of {source} source and {target} target words, and in halves too; "
            "lower batch.size or text.max_length"
        )

    def _pass(self, loss: StepLoss, batch: Batch, update: Tensor, *, split: float) -> Parts:
        noise = Noise(self.seed, update, batch.sentence_B)
        # Autocast keeps the low-precision copies of weights it made; a captured step must make them anew.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            out = loss(self.model, batch, noise)
        gradients = torch.autograd.grad(out.total, self.optimizer.parameters, materialize_grads=True)
        return _gathered(gradients, out, batch, split)


def _gathered(gradients: Sequence[Tensor], out: LossOutput, batch: Batch, split: float) -> Parts:
    total = out.total.detach()
    # Losses never report a count of zero; rows of padding alone count for nothing all the same.
    count = total.new_zeros(()) if out.count is None else out.count * (batch.target_length_B > 0).any()
    sums = {**out.sums, "out_of_memory": torch.full_like(total, split)}
    tensors = [*gradients, total, *(value.to(total.dtype) for value in (count, *sums.values()))]
    return Parts(tensors, list(sums), out.count is not None)


class Stepper(Protocol):
    """Runs training steps."""

    @property
    def sums(self) -> Sums: ...

    @property
    def streak(self) -> Tensor:
        """That of `TrainStep`."""

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

    @property
    def streak(self) -> Tensor:
        return self.step.streak

    def figures(self) -> dict[str, Any]:
        return {}

    def __call__(self, loss: StepLoss, batch: Batch, update: int) -> None:
        self.step(loss, batch.to(self.step.device), torch.tensor(update, device=self.step.device))
