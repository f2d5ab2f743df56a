"""Learning rate schedules: a factor of the rate as a function of the update, computed on the device.

Updates count from 1. The rate rises linearly over the first `warmup` updates; then it stays, or falls.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Falls = Callable[[Float[Tensor, ""], int, int], Float[Tensor, ""]]
"""Factor of the rate at an update after the warm-up: `falls(update, warmup, updates)`."""


def constant(update: Float[Tensor, ""], warmup: int, updates: int) -> Float[Tensor, ""]:
    """The rate stays."""
    return torch.ones_like(update)


def cosine(update: Float[Tensor, ""], warmup: int, updates: int) -> Float[Tensor, ""]:
    """Half a cosine from 1 down to almost 0 at the last of `updates` (Loshchilov & Hutter 2017, without restarts)."""
    progress = (update - 1 - warmup) / max(1, updates - warmup)
    return 0.5 * (1 + torch.cos(math.pi * progress.clamp(0, 1)))


def inverse_sqrt(update: Float[Tensor, ""], warmup: int, updates: int) -> Float[Tensor, ""]:
    """sqrt(warmup / update) (Vaswani et al. 2017, section 5.3)."""
    return torch.sqrt(max(1, warmup) / update)


SCHEDULES: dict[str, Falls] = {"constant": constant, "cosine": cosine, "inverse_sqrt": inverse_sqrt}


@dataclass(frozen=True)
class RateSchedule:
    """Warm-up, then one of `SCHEDULES` over a stage of so many updates."""

    falls: Falls = constant
    warmup: int = 0
    updates: int = 1

    def factor(self, update: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Factor of the rate at an update, counted from 1."""
        after = self.falls(update, self.warmup, self.updates)
        return torch.where(update < self.warmup, update / max(1, self.warmup), after)
