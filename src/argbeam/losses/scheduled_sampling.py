"""Scheduled sampling (Bengio et al. 2015), also known as data as demonstrator (Venkatraman et al. 2015).

A schedule is the probability of reading the model's own token, by epoch (section 2.4). The paper's epsilon is the
probability of the gold token, by update; here it is 1 - epsilon.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from argbeam.data.batches import Batch
from argbeam.losses.contract import Loss, LossOutput
from argbeam.losses.cross_entropy import gold_loss
from argbeam.losses.replay import gold_outputs
from argbeam.losses.sampling import READ_SITE, best_tokens, drawn_tokens, needed, write
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.successors import Successors

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


# Probabilities are multiples of 1 / this: equal ones share captured steps.
_LEVELS = 20


@dataclass(frozen=True)
class ScheduledSampling(Loss):
    """Cross-entropy of the gold tokens after a history with some tokens of the model's own.

    `successors` are the tokens that the model may choose: all rows and steps alike (`Unconstrained`). `sampled` draws
    the token from the model's distribution; otherwise it is the best one.
    """

    successors: Successors
    schedule: Schedule
    highest: float = 1.0
    sampled: bool = True

    def at(self, epoch: int) -> "ScheduledSamplingStep":
        # The first level that is not above `highest`; floats just under a level are meant to be on it.
        highest = math.floor(_LEVELS * self.highest + 1e-9)
        return ScheduledSamplingStep(self, min(highest, round(_LEVELS * self.schedule(epoch))) / _LEVELS)


@dataclass(frozen=True)
class ScheduledSamplingStep:
    """Scheduled sampling with the probability of one epoch."""

    sampling: ScheduledSampling
    probability: float
    beam = 0

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        noise = needed(noise, "scheduled_sampling")
        gold_BT, length_B = batch.target_BT, batch.target_length_B
        steps = gold_BT.shape[1]
        allowed_1V = self.sampling.successors.start(batch).allowed()
        pick = drawn_tokens(allowed_1V, noise, steps=steps) if self.sampling.sampled else best_tokens(allowed_1V)
        own_BT = noise.uniform(READ_SITE, steps=steps, width=1)[..., 0] < self.probability
        state = model.encode(batch, noise)
        read_BT = write(model, state, gold_BT, own_BT, pick, batch.specials)
        out = gold_loss(model, gold_outputs(model, state, read_BT, batch.specials), batch)
        # Nothing reads the last token.
        own_BT = own_BT & (torch.arange(1, steps + 1, device=own_BT.device) < length_B[:, None])
        return LossOutput(out.total, out.count, {**out.sums, "own_words": own_BT.sum().to(out.total.dtype)})
