"""Settings of training: optimizers, and stages with a loss each."""

from typing import Literal

from pydantic import Field, model_validator

from argbeam.settings.losses import Loss
from argbeam.settings.strict import MOST_BEAM, Settings


class AdagradOptimizer(Settings):
    """Adagrad with a rate per module and a bound on the gradient's norm."""

    kind: Literal["adagrad"] = Field(default="adagrad", description="the optimizer")
    encoder: float = Field(ge=0, description="learning rate of the encoder")
    decoder: float = Field(ge=0, description="learning rate of the decoder")
    output: float = Field(ge=0, description="learning rate of the output layer")
    max_norm: float = Field(default=5.0, gt=0, description="gradients are rescaled to this norm at most")
    initial: float = Field(
        default=0.0,
        ge=0,
        description="what the sums of squared gradients start from; 0: a weight's first step is its whole rate",
    )
    epsilon: float = Field(default=1e-10, gt=0, description="added to the root of the sum (the authors' Lua Adagrad)")
    average: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="decay of a running average of the weights, which is what is scored and kept; lower on corpora so "
        "small that 1 / (1 - decay) updates are over 4 epochs; 0: none",
    )


Optimizer = AdagradOptimizer


class Stage(Settings):
    """One stretch of training with one loss; its optimizer starts fresh."""

    epochs: int = Field(ge=1, lt=10**6, description="passes over the training data")
    loss: Loss = Field(description="what is minimised")
    optimizer: Optimizer = Field(description="how")
    first_epoch_by_length: bool = Field(default=False, description="the first epoch goes from short to long sentences")
    keep: Literal["perplexity", "score", "last"] = Field(
        default="score",
        description="the epoch whose weights the stage ends with: best dev perplexity, best dev score, last",
    )
    keep_beam: int = Field(default=5, ge=1, le=MOST_BEAM, description="beam of the dev score that chooses the epoch")
    patience: int = Field(
        default=0,
        ge=0,
        description="stop after this many epochs without a better dev figure, counted while the loss stays the same "
        "(a beam that grows changes it); 0: never",
    )

    @model_validator(mode="after")
    def _patience_has_a_figure(self) -> "Stage":
        if self.patience and self.keep == "last":
            raise ValueError(f'patience = {self.patience} waits for a better dev figure; keep = "last" has none')
        return self
