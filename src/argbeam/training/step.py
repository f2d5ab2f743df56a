"""One training step: forward, backward, clipping and update, launched operation by operation."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.errors import MemoryShortError
from argbeam.losses.contract import StepLoss
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.runtime.group import ALONE, Group
from argbeam.training.optimizer import Optimizer


class Sums:
    """Running sums of what steps report, on the device: adding never waits, reading does."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor]) -> None:
        for name, value in sums.items():
            if name not in self.values:
                self.values[name] = torch.zeros_like(value)
        torch._foreach_add_([self.values[name] for name in sums], list(sums.values()))

    def clear(self) -> None:
        """Back to zero, in place: captured steps add to these very tensors."""
        for value in self.values.values():
            value.zero_()

    def read(self) -> dict[str, float | list[float]]:
        """The values on the host."""
        return {name: value.tolist() for name, value in self.values.items()}


@dataclass(frozen=True)
class BatchGradients:
    """Gradients, loss, count and sums of a pass over some rows. All of them add up over rows and processes."""

    gradients: list[Tensor]
    total: Tensor
    count: Tensor
    sums: dict[str, Tensor]
    divided: bool  # by the count; some losses are not

    @property
    def divisor(self) -> Tensor | None:
        # Losses never report a count of zero; rows of padding alone do.
        return torch.where(self.count > 0, self.count, 1.0) if self.divided else None

    def plus(self, other: "BatchGradients") -> "BatchGradients":
        return self._with(torch._foreach_add(self._tensors(), other._tensors()))

    def add(self, other: "BatchGradients") -> None:
        """Add in place: captured steps add to these very tensors."""
        torch._foreach_add_(self._tensors(), other._tensors())

    def clear(self) -> None:
        """Back to zero, in place."""
        torch._foreach_zero_(self._tensors())

    def zeros(self) -> "BatchGradients":
        """As many zeros."""
        return self._with([torch.zeros_like(tensor) for tensor in self._tensors()])

    def over(self, group: Group) -> "BatchGradients":
        """The sum over all processes, in one exchange."""
        if group.size == 1:
            return self
        tensors = self._tensors()
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        group.add(flat)
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        return self._with([piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)])

    def _tensors(self) -> list[Tensor]:
        return [*self.gradients, self.total, self.count, *self.sums.values()]

    def _with(self, tensors: Sequence[Tensor]) -> "BatchGradients":
        size = len(self.gradients)
        total, count, *sums = tensors[size:]
        named = dict(zip(self.sums, sums, strict=True))
        return replace(self, gradients=list(tensors[:size]), total=total, count=count, sums=named)


@dataclass
class TrainStep:
    """Forward, backward, clipping and update of one batch, with running sums of what it reports.

    The batch is this process's share of the group's. Batches before the `last` one of an update only add to `pending`:
    the update is that of one batch of all their rows. `streak` holds, on the device, the number of updates in a row
    that were left out up to now because their gradient was not finite, and the largest such number so far.
    """

    model: Model
    optimizer: Optimizer
    seed: int
    device: torch.device
    bf16: bool = False
    group: Group = ALONE
    sums: Sums = field(default_factory=Sums)

    def __post_init__(self) -> None:
        self.streak = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.pending: BatchGradients | None = None

    def __call__(self, loss: StepLoss, batch: Batch, update: int | Tensor, *, last: bool = True) -> None:
        """Train on one batch, which may lie on the host; `update` is the number of updates before it."""
        update = torch.as_tensor(update, device=self.device)
        found = self._gradients(loss, batch.to(self.device), update)
        if not last or self.pending is not None:
            found = self._accumulated(found)
        if last:
            self._update(found.over(self.group))
            if self.pending is not None:
                self.pending.clear()

    def _accumulated(self, found: BatchGradients) -> BatchGradients:
        """The sum of this update's batches so far. Another loss, whose sums have other names, starts with an update."""
        if self.pending is None or self.pending.sums.keys() != found.sums.keys():
            self.pending = found.zeros()
        self.pending.add(found)
        return self.pending

    def _update(self, found: BatchGradients) -> None:
        norm = self.optimizer.step(found.gradients, total=found.total, count=found.divisor)
        finite = norm.isfinite()
        counted = _where_finite(finite, {**found.sums, "norm": norm})
        self.sums.add({**counted, "updates": torch.ones_like(norm), "not_finite": (~finite).to(norm.dtype)})
        run = torch.where(finite, 0, self.streak[0] + 1)
        self.streak.copy_(torch.stack([run, torch.maximum(run, self.streak[1])]))

    def _gradients(self, loss: StepLoss, batch: Batch, update: Tensor) -> BatchGradients:
        """Of the whole batch or, where memory does not hold it, of its two halves in turn."""
        try:
            return self._pass(loss, batch, update, split=0.0)
        except torch.OutOfMemoryError:
            pass  # the error holds on to what was computed: it must be gone before the next try
        rows, source, target = batch.shape
        if rows > 1:
            with suppress(torch.OutOfMemoryError):
                one, other = (self._pass(loss, half, update, split=0.5) for half in batch.halves())
                return one.plus(other)
        raise MemoryShortError(
            f"out of memory with {rows} sentences of {source} source and {target} target tokens, and in halves too; "
            "lower text.max_length, or batch.size with more batch.accumulate for the same updates"
        )

    def _pass(self, loss: StepLoss, batch: Batch, update: Tensor, *, split: float) -> BatchGradients:
        noise = Noise(self.seed, update, batch.sentence_B)
        # Autocast caches low-precision copies of weights; a captured step must make them anew.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            out = loss(self.model, batch, noise)
        gradients = torch.autograd.grad(out.total, self.optimizer.parameters, materialize_grads=True)
        total = out.total.detach()
        count = total.new_zeros(()) if out.count is None else out.count * (batch.target_length_B > 0).any()
        sums = {**out.sums, "out_of_memory": torch.full_like(total, split)}
        return BatchGradients(
            gradients=list(gradients),
            total=total,
            count=count.to(total.dtype),
            sums={name: value.to(total.dtype) for name, value in sums.items()},
            divided=out.count is not None,
        )


def _where_finite(finite: Tensor, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sums of an update that was made, zeros of one that was left out; all of them at once, as they are many."""
    kept = torch.where(finite, torch.cat([value.flatten() for value in sums.values()]), 0.0)
    parts = torch.split(kept, [value.numel() for value in sums.values()])
    return {name: part.view_as(value) for (name, value), part in zip(sums.items(), parts, strict=True)}
