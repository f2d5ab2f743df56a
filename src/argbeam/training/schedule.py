"""Learning rate schedules, and what a stage is too short for.

A schedule is a factor of the rate as a function of the update, computed on the device. Updates count from 1. The rate
rises linearly over the first `warmup` updates; then it stays, or falls.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from argbeam.data.batches import BatchPlan
from argbeam.errors import counted
from argbeam.losses import last_beam
from argbeam.search.score_rules import SCORE_RULES
from argbeam.settings.losses import SearchLoss
from argbeam.settings.recipe import rule_of
from argbeam.settings.stages import AdamWOptimizer, Stage

# The most epochs that a running average of the weights reaches back: 1 / (1 - decay) updates.
_LONGEST_AVERAGE = 4

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


def decay_in_force(average: float, updates_per_epoch: int) -> float:
    """The decay of a running average. On a small corpus a longer one would still hold the weights of the start."""
    return min(average, 1 - 1 / (_LONGEST_AVERAGE * updates_per_epoch))


def not_in_force(name: str, stage: Stage, plan: BatchPlan) -> Iterator[str]:
    """Lines for the user about settings that the stage `name` is too short for, its sentences too long, or its scores
    no probabilities."""
    optimizer, updates = stage.optimizer, stage.epochs * plan.updates
    key = f"stages.{name}"
    if isinstance(optimizer, AdamWOptimizer) and optimizer.warmup > updates:
        part = updates / optimizer.warmup
        has = f"the stage has {counted(updates, 'update')}"
        yield f"{key}.optimizer.warmup = {optimizer.warmup}: {has}; the rate ends at {part:.2g} of optimizer.rate"
    if (decay := decay_in_force(optimizer.average, plan.updates)) < optimizer.average:
        most = f"an average holds {_LONGEST_AVERAGE} epochs of {counted(plan.updates, 'update')} at most"
        yield f"{key}.optimizer.average = {optimizer.average}: {most}; it is {decay:.3g} here"
    if isinstance(stage.loss, SearchLoss) and (last := last_beam(stage)) < stage.loss.train_beam:
        grows = f"the beam grows to {last} in {counted(stage.epochs, 'epoch')}"
        yield f"{key}.loss.train_beam = {stage.loss.train_beam}: {grows}; see loss.epochs_per_beam"
    if stage.keep == "perplexity" and not SCORE_RULES[rule := rule_of(stage.loss)].normalised:
        said = f"scores of {rule} are no probabilities, and the start of the stage is no candidate"
        yield f'{key}.keep = "perplexity": {said}; keep = "score" compares both by what decoding finds'
    if plan.accumulate > len(plan):
        yield f"{key}: batch.accumulate = {plan.accumulate}, but the batches of an epoch are {len(plan):,}: one update"
    longest = max(max(source, target) for _, source, target in plan.shapes())
    if plan.tokens and longest > plan.tokens:
        yield f"{key}: batch.tokens = {plan.tokens}, but sentences have up to {longest}; a longer one is a batch"
