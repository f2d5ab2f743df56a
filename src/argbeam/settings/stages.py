"""Settings of training: batches, optimizers, stages."""

from typing import Literal

from pydantic import Field, model_validator

from argbeam.settings.losses import Loss
from argbeam.settings.strict import MOST_BEAM, Settings


class Batching(Settings):
    """From sentences to batches."""

    size: int = Field(default=64, ge=1, le=2**20, description="sentences in a batch")
    round_source: int = Field(default=4, ge=1, le=1024, description="source lengths are padded to a multiple of this")
    round_target: int = Field(default=4, ge=1, le=1024, description="target lengths are padded to a multiple of this")


class AdagradOptimizer(Settings):
    """Adagrad with a learning rate for each module and a bound on the gradient's norm."""

    kind: Literal["adagrad"] = Field(default="adagrad", description="optimizer")
    encoder: float = Field(ge=0, description="learning rate of the encoder")
    decoder: float = Field(ge=0, description="learning rate of the decoder")
    output: float = Field(ge=0, description="learning rate of the output layer")
    max_norm: float = Field(default=5.0, gt=0, description="gradients with a larger norm are scaled down to this")
    initial: float = Field(
        default=0.0, ge=0, description="initial sums of squared gradients; 0: a weight's first update is its whole rate"
    )
    epsilon: float = Field(default=1e-10, gt=0, description="added to the root of the sum, as in the authors' Adagrad")
    average: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="decay of a running average of the weights, scored and saved; 0: no average",
    )


class Stage(Settings):
    """A part of training with one loss and a new optimizer."""

    epochs: int = Field(ge=1, lt=10**6, description="passes over the training data")
    loss: Loss = Field(description="loss to minimise")
    optimizer: AdagradOptimizer = Field(description="optimizer of the stage")
    first_epoch_by_length: bool = Field(default=False, description="order the first epoch from short to long sentences")
    keep: Literal["perplexity", "score", "last"] = Field(
        default="score", description="epoch whose weights are kept: best dev perplexity, best dev score, or the last"
    )
    keep_beam: int = Field(default=5, ge=1, le=MOST_BEAM, description="beam of the dev score that chooses the epoch")
    patience: int = Field(
        default=0,
        ge=0,
        description="stop after this many epochs without a better dev figure at the same beam; 0: never",
    )

    @model_validator(mode="after")
    def _patience_has_a_figure(self) -> "Stage":
        if self.patience and self.keep == "last":
            raise ValueError(f'patience = {self.patience} waits for a better dev figure; keep = "last" has none')
        return self
