"""How often a model reads its own words in an epoch (Bengio et al. 2015, section 2.4).

The paper writes epsilon for the probability of the gold word, and counts updates; here it is the probability of the
model's own word, 1 - epsilon, and counts epochs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]
"""The probability of reading the model's own word, from the number of the epoch."""


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
