"""The contract of a loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.score_rules import ScoreRule
from argbeam.search.stop_rules import Stop


@dataclass(frozen=True)
class LossOutput:
    """A sum, the number it is a sum over (None: it is not divided by anything), and detached sums for the records.

    All of them add up over the rows of a batch: that of the whole is the sum of those of its parts, in which processes
    and a device with too little memory take it.
    """

    total: Float[Tensor, ""]
    count: Float[Tensor, ""] | None
    sums: Mapping[str, Tensor]


@dataclass(frozen=True)
class LossWeights:
    """What a loss learns besides the model, and at which rate. It is trained and saved with the model, not kept."""

    module: nn.Module
    rate: float


class StepLoss(Protocol):
    """A loss with everything about it fixed. Hashable: equal ones may share a captured step."""

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput: ...

    @property
    def beam(self) -> int:
        """The beam it searches with; 0 if it does not search."""


class Loss(Protocol):
    """A loss as a recipe names it: it may change with the progress of training, and only with that."""

    def at(self, epoch: int) -> StepLoss:
        """The loss in this epoch of its stage, counted from 0."""

    @property
    def reset_optimizer(self) -> bool:
        """Whether the optimizer forgets what it has seen when the loss changes from one epoch to the next."""

    @property
    def rule(self) -> ScoreRule:
        """How a model trained with this loss ranks prefixes."""

    @property
    def stop(self) -> Stop:
        """When its search ends, in tasks of open length."""

    @property
    def weights(self) -> LossWeights | None:
        """The loss's own weights, where it has some."""
