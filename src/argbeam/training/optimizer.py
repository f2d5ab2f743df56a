"""Optimizers with a rate per module, gradient renormalisation, and a running average of the weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from argbeam.errors import ConfigError
from argbeam.losses.contract import Loss
from argbeam.models import Network
from argbeam.runtime import device as devices
from argbeam.settings.stages import AdagradOptimizer, Stage
from argbeam.training.schedule import SCHEDULES, RateSchedule, decay_in_force

if devices.TRITON_INSTALLED:
    from argbeam.training.adagrad_kernel import adagrad


class Optimizer(Protocol):
    """An optimizer of some tensors. No operation of a step waits for the device or allocates state, so that a CUDA
    graph can capture it."""

    parameters: list[Tensor]
    averages: list[Tensor]  # of the weights; empty without a running average

    @property
    def state(self) -> list[Tensor]:
        """All that it remembers besides the averages, for checkpoints."""

    def reset(self) -> None:
        """Forget all past gradients, as the authors' code does when the beam grows. A schedule goes on."""

    def step(
        self, gradients: Sequence[Tensor], *, total: Tensor | None = None, count: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Divide the gradients by `count`, rescale them to a norm of at most `max_norm`, update the weights.

        Returns the norm before rescaling. If it or the loss `total` is not finite, no weight changes and the norm
        returned is not finite.
        """

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the weights are their running average, if there is one (as in an averaged perceptron)."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages, in place: captured steps use their memory."""
        for parameter, average in zip(self.parameters, self.averages, strict=False):
            weights = parameter.clone()
            parameter.copy_(average)
            average.copy_(weights)


class Clipping(NamedTuple):
    """The norm of all gradients, whether it and the loss are finite, and the factor of the gradients."""

    norm: Float[Tensor, ""]
    finite: Bool[Tensor, ""]
    scale: Float[Tensor, ""]

    @staticmethod
    def of(gradients: list[Tensor], max_norm: float, total: Tensor | None, count: Tensor | None) -> "Clipping":
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if count is not None:
            norm = norm / count
        if total is not None:
            norm = torch.where(total.isfinite(), norm, torch.nan)
        finite = norm.isfinite()
        scale = torch.where(finite, (max_norm / (norm + 1e-12)).clamp(max=1.0), 0.0)
        return Clipping(norm, finite, scale if count is None else scale / count)


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): w -= rate * g / (sqrt(sum of g^2) + epsilon)."""

    def __init__(
        self,
        groups: Mapping[str, Sequence[nn.Parameter]],
        *,
        rates: Mapping[str, float],
        max_norm: float,
        epsilon: float = 1e-10,
        initial: float = 0.0,
        average: float = 0.0,
    ) -> None:
        self.parameters = _in_order(groups, rates)
        self.rates = [rate for name, rate in rates.items() for _ in groups[name]]
        self.max_norm, self.epsilon, self.initial, self.average = max_norm, epsilon, initial, average
        self.sums = [torch.full_like(p, initial) for p in self.parameters]
        self.averages = [p.detach().clone() for p in self.parameters] if average else []

    @property
    def state(self) -> list[Tensor]:
        return self.sums

    def reset(self) -> None:
        for total in self.sums:
            total.fill_(self.initial)

    @torch.no_grad()
    def step(
        self, gradients: Sequence[Tensor], *, total: Tensor | None = None, count: Tensor | None = None
    ) -> Float[Tensor, ""]:
        given = list(gradients)
        norm, finite, scale = Clipping.of(given, self.max_norm, total, count)
        if devices.kernels_usable(*self.parameters, *given) and all(p.is_contiguous() for p in self.parameters):
            self._kernel_step(given, scale)
            return norm
        # Infinity times zero is not zero: a step that is not finite is zeroed entry by entry.
        scaled = [torch.where(finite, g, 0.0) for g in torch._foreach_mul(given, scale)]
        torch._foreach_addcmul_(self.sums, scaled, scaled)
        roots = torch._foreach_sqrt(self.sums)
        torch._foreach_add_(roots, self.epsilon)
        steps = list(torch._foreach_div(scaled, list(roots)))
        torch._foreach_mul_(steps, [-rate for rate in self.rates])
        torch._foreach_add_(self.parameters, steps)
        if self.averages:
            torch._foreach_lerp_(self.averages, self.parameters, 1.0 - self.average)
        return norm

    def _kernel_step(self, gradients: list[Tensor], scale: Tensor) -> None:
        """The rest of a step in one kernel per tensor."""
        averages: Sequence[Tensor | None] = self.averages or [None] * len(gradients)
        tensors = zip(self.parameters, gradients, self.sums, averages, self.rates, strict=True)
        for weight, gradient, total, average, rate in tensors:
            adagrad(weight, gradient.contiguous(), total, average, scale, rate, self.epsilon, self.average)
            # Autograd does not see the writes of a kernel.
            torch.autograd.graph.increment_version(weight)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), computed by torch's own fused kernel.

    m and v are running averages of g and g^2 with decays `betas`, corrected for their start from zero. With the rate of
    the schedule: w -= rate * (m / (sqrt(v) + eps) + weight_decay * w). Vectors (biases, norms) do not decay.
    """

    def __init__(
        self,
        groups: Mapping[str, Sequence[nn.Parameter]],
        *,
        rates: Mapping[str, float],
        max_norm: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        schedule: RateSchedule = RateSchedule(),  # noqa: B008 - frozen
        average: float = 0.0,
    ) -> None:
        self.parameters = _in_order(groups, rates)
        self.max_norm, self.betas, self.eps = max_norm, betas, eps
        self.schedule, self.average = schedule, average
        self.firsts = [torch.zeros_like(p) for p in self.parameters]
        self.seconds = [torch.zeros_like(p) for p in self.parameters]
        self.averages = [p.detach().clone() for p in self.parameters] if average else []
        # The position in the schedule, and the gradients seen since the last reset; only the first counts those that
        # were not finite. The types are those that the kernel reads, and enough for any count.
        like = self.parameters[0]
        self.update, self.seen = (torch.zeros((), dtype=t, device=like.device) for t in (torch.float64, torch.float32))
        self.kinds = self._kinds([rate for name, rate in rates.items() for _ in groups[name]], weight_decay)

    def _kinds(self, rates: list[float], weight_decay: float) -> dict[tuple[float, float], list[int]]:
        """Places of the tensors that share rate and weight decay: one kernel each."""
        kinds: dict[tuple[float, float], list[int]] = {}
        for i, (parameter, rate) in enumerate(zip(self.parameters, rates, strict=True)):
            kinds.setdefault((rate, weight_decay if parameter.ndim > 1 else 0.0), []).append(i)
        return kinds

    @property
    def state(self) -> list[Tensor]:
        return [*self.firsts, *self.seconds, self.update, self.seen]

    def reset(self) -> None:
        for tensor in (*self.firsts, *self.seconds, self.seen):
            tensor.zero_()

    @torch.no_grad()
    def step(
        self, gradients: Sequence[Tensor], *, total: Tensor | None = None, count: Tensor | None = None
    ) -> Float[Tensor, ""]:
        given = list(gradients)
        norm, finite, scale = Clipping.of(given, self.max_norm, total, count)
        self.update += 1
        self.seen += finite
        factor, not_finite = self.schedule.factor(self.update), (~finite).float()
        scaled = torch._foreach_mul(given, scale)
        # The kernel reads memory in its order: gradients may have another layout, such as that of an expanded tensor.
        laid_out = [
            g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
            for g, p in zip(scaled, self.parameters, strict=True)
        ]
        for (rate, weight_decay), places in self.kinds.items():
            torch._fused_adamw_(
                [self.parameters[i] for i in places],
                [laid_out[i] for i in places],
                [self.firsts[i] for i in places],
                [self.seconds[i] for i in places],
                [],
                [self.seen] * len(places),
                lr=(rate * factor).float(),
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=weight_decay,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
                found_inf=not_finite,  # the kernel then writes nothing
            )
        if self.averages:
            torch._foreach_lerp_(self.averages, self.parameters, 1.0 - self.average)
        return norm


def make_optimizer(model: Network, loss: Loss, stage: Stage, *, updates_per_epoch: int) -> Optimizer:
    """The optimizer of a stage, for the weights of the model and of the loss, on their device."""
    groups, settings = model.modules_by_rate(), stage.optimizer
    average = decay_in_force(settings.average, updates_per_epoch)
    if isinstance(settings, AdagradOptimizer):
        rates = {name: getattr(settings, name) for name in groups}
    else:
        rates = {name: settings.rate * getattr(settings, f"{name}_factor") for name in groups}
    if loss.weights is not None:
        groups["loss"], rates["loss"] = list(loss.weights.module.parameters()), loss.weights.rate
    if isinstance(settings, AdagradOptimizer):
        return Adagrad(
            groups,
            rates=rates,
            max_norm=settings.max_norm,
            epsilon=settings.epsilon,
            initial=settings.initial,
            average=average,
        )
    schedule = RateSchedule(SCHEDULES[settings.schedule], settings.warmup, stage.epochs * updates_per_epoch)
    return AdamW(
        groups,
        rates=rates,
        max_norm=settings.max_norm,
        betas=(settings.betas[0], settings.betas[1]),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        schedule=schedule,
        average=average,
    )


def _in_order(groups: Mapping[str, Sequence[nn.Parameter]], rates: Mapping[str, float]) -> list[Tensor]:
    """The parameters in the order of the rates. A group without a rate would silently not be trained."""
    if rates.keys() != groups.keys():
        named = " and ".join(", ".join(names) or "none" for names in (rates, groups))
        raise ConfigError(f"rates, groups of parameters: {named}; each group needs a rate")
    parameters: list[Tensor] = [p for name in rates for p in groups[name]]
    assert len({id(p) for p in parameters}) == len(parameters), "a parameter with two rates"
    return parameters
