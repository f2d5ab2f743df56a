"""Adagrad with a rate per module, gradient renormalisation, and a running average of the weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from argbeam.runtime import device as devices

if devices.TRITON_INSTALLED:
    from argbeam.training.adagrad_kernel import adagrad


class Adagrad:
    """Adagrad (Duchi et al. 2011): w -= rate * g / (sqrt(sum of g^2) + epsilon).

    A few operations over all tensors at once. None of them waits for the device or allocates state, so that a CUDA
    graph can capture a step.
    """

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
        self.parameters: list[Tensor] = [p for name in rates for p in groups[name]]
        self.rates = [rate for name, rate in rates.items() for _ in groups[name]]
        self.max_norm, self.epsilon, self.initial, self.average = max_norm, epsilon, initial, average
        self.sums = [torch.full_like(p, initial) for p in self.parameters]
        self.averages = [p.detach().clone() for p in self.parameters] if average else []

    def reset(self) -> None:
        """Forget all past gradients, as the authors' code does when the beam grows."""
        for total in self.sums:
            total.fill_(self.initial)

    @torch.no_grad()
    def step(
        self, gradients: Sequence[Tensor], *, total: Tensor | None = None, count: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Divide the gradients by `count`, rescale them to a norm of at most `max_norm`, update the weights.

        Returns the norm before rescaling. If it or the loss `total` is not finite, nothing changes and the norm
        returned is not finite.
        """
        given = list(gradients)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(given)))
        if count is not None:
            norm = norm / count
        if total is not None:
            norm = torch.where(total.isfinite(), norm, torch.nan)
        finite = norm.isfinite()
        scale = torch.where(finite, (self.max_norm / (norm + 1e-12)).clamp(max=1.0), 0.0)
        if count is not None:
            scale = scale / count
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
