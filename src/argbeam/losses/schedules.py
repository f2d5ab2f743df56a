"""Probability of reading the model's own token, by epoch (Bengio et al. 2015, section 2.4).

The paper's epsilon is the probability of the gold token, by update; here it is 1 - epsilon, by epoch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]
"""From the epoch, counted from 0, to the probability of reading the model's own token."""


@dataclass(frozen=True)
class Linear:
    """`slope` more in every epoch."""

    slope: float

    def __call__(self, epoch: int) -> float:
        return min(1.0, self.slope * epoch)


@dataclass(frozen=True)
class Exponential:
    """1 - base^epoch, with a base below 1."""

    base: float

    def __call__(self, epoch: int) -> float:
        return 1.0 - self.base**epoch


@dataclass(frozen=True)
class InverseSigmoid:
    """1 - k / (k + exp(epoch / k)): slow, then fast around epoch k ln k, then slow."""

    k: float

    def __call__(self, epoch: int) -> float:
        # The same with exp(-epoch / k), which cannot overflow.
        return 1.0 / (1.0 + self.k * math.exp(-epoch / self.k))
