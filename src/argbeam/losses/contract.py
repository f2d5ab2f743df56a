"""The contract of a loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.score_rules import LogprobSum, ScoreRule
from argbeam.search.stop_rules import Stop, StopBest


@dataclass(frozen=True)
class LossOutput:
    """A sum, its divisor (None: it is not divided), and detached sums for the records.

    All of them add up over the rows of a batch: several processes, and a device with too little memory, take a batch in
    parts and add the parts.
    """

    total: Float[Tensor, ""]
    count: Float[Tensor, ""] | None
    sums: Mapping[str, Tensor]


@dataclass(frozen=True)
class LossWeights:
    """Weights of a loss besides the model's, and their learning rate. Checkpoints hold them, final models do not."""

    module: nn.Module
    rate: float


class StepLoss(Protocol):
    """The loss of one epoch. Hashable: equal ones may share a captured step."""

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput: ...

    @property
    def beam(self) -> int:
        """Beam of its search; 0 without a search."""


class Loss(Protocol):
    """A loss as a recipe names it: it may change from epoch to epoch. The defaults are those of log-probabilities."""

    def at(self, epoch: int) -> StepLoss:
        """The loss in this epoch of its stage, counted from 0."""

    @property
    def reset_optimizer(self) -> bool:
        """Whether the optimizer's sums start again from zero when the loss changes between two epochs."""
        return False

    @property
    def rule(self) -> ScoreRule:
        """Score rule of models trained with this loss."""
        return LogprobSum()

    @property
    def stop(self) -> Stop:
        """Stop rule of these models, in tasks of open length."""
        return StopBest()

    @property
    def weights(self) -> LossWeights | None:
        """The loss's own weights, if any."""
        return None
