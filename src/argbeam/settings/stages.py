"""Settings of training: batches, optimizers, stages."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from argbeam.settings.losses import Loss
from argbeam.settings.strict import MOST_BEAM, Settings, number_or


class Batching(Settings):
    """From sentences to batches."""

    size: int = Field(default=64, ge=1, le=2**20, description="sentences in a batch")
    tokens: int = Field(
        default=0,
        ge=0,
        le=2**30,
        description="most tokens of a batch on either side, padding included, instead of batch.size; "
        "a longer sentence is a batch; 0: by sentences",
    )
    accumulate: int = Field(default=1, ge=1, le=2**20, description="batches whose gradients make one update")
    round_source: int = Field(default=4, ge=1, le=1024, description="source lengths are padded to a multiple of this")
    round_target: int = Field(default=4, ge=1, le=1024, description="target lengths are padded to a multiple of this")

    def of_stage(self, stage: "Stage") -> "Batching":
        """The batches of a stage: these, but for what the stage says otherwise."""
        changes = {key: value for key, value in stage.batch.model_dump().items() if value}
        # A stage that counts sentences does not count tokens.
        return self.model_copy(update={"tokens": 0, **changes} if "size" in changes else changes)


class StageBatching(Settings):
    """What a stage changes of the recipe's batches."""

    size: int = Field(default=0, ge=0, le=2**20, description="batch.size of this stage; 0: as there")
    tokens: int = Field(default=0, ge=0, le=2**30, description="batch.tokens of this stage; 0: as there")
    accumulate: int = Field(default=0, ge=0, le=2**20, description="batch.accumulate of this stage; 0: as there")

    @model_validator(mode="after")
    def _one_measure(self) -> "StageBatching":
        if self.size and self.tokens:
            raise ValueError(f"size = {self.size} and tokens = {self.tokens}: one of them must be 0")
        return self


MaxNorm = Annotated[float, Field(gt=0, description="gradients with a larger norm are scaled down to this")]
Average = Annotated[
    float,
    Field(ge=0, lt=1, description="decay of a running average of the weights, scored and saved; 0: no average"),
]


class AdagradOptimizer(Settings):
    """Adagrad with a learning rate for each module and a bound on the gradient's norm."""

    follows_epochs: ClassVar[bool] = False
    kind: Literal["adagrad"] = "adagrad"
    encoder: float = Field(ge=0, description="learning rate of the encoder")
    decoder: float = Field(ge=0, description="learning rate of the decoder")
    output: float = Field(ge=0, description="learning rate of the output layer")
    max_norm: MaxNorm = 5.0
    initial: float = Field(
        default=0.0, ge=0, description="initial sums of squared gradients; 0: a weight's first update is its whole rate"
    )
    epsilon: float = Field(default=1e-10, gt=0, description="added to the root of the sum, as in the authors' Adagrad")
    average: Average = 0.0


def _decays(betas: list[float]) -> list[float]:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError("must be two numbers at least 0 and less than 1")
    return betas


class AdamWOptimizer(Settings):
    """AdamW with warm-up and a schedule of its learning rate."""

    kind: Literal["adamw"] = "adamw"
    rate: float = Field(ge=0, description="learning rate, the highest of the schedule")
    encoder_factor: float = Field(default=1.0, ge=0, description="factor of the rate in the encoder")
    decoder_factor: float = Field(default=1.0, ge=0, description="factor of the rate in the decoder")
    output_factor: float = Field(default=1.0, ge=0, description="factor of the rate in the output layer")
    betas: Annotated[list[float], AfterValidator(_decays)] = Field(
        default=[0.9, 0.98], description="decays of the running averages of gradients and of their squares"
    )
    eps: float = Field(default=1e-8, gt=0, description="added to the root of the average of squares")
    weight_decay: float = Field(
        default=0.0, ge=0, description="decay of the weights at each update, times the rate; none of biases and norms"
    )
    warmup: int = Field(default=0, ge=0, description="updates over which the rate rises from 0")
    schedule: Literal["constant", "cosine", "inverse_sqrt"] = Field(
        default="constant",
        description="rate after the warm-up: constant, half a cosine down to nearly 0 at the stage's last update, or "
        "falling with the root of the update",
    )
    max_norm: MaxNorm = 5.0
    average: Average = 0.0

    @property
    def follows_epochs(self) -> bool:
        """Whether rates depend on the number of epochs."""
        return self.schedule == "cosine"


# The paper's optimizer is the default kind.
_with_kind = BeforeValidator(lambda table: {"kind": "adagrad", **table} if isinstance(table, dict) else table)
Optimizer = Annotated[AdagradOptimizer | AdamWOptimizer, Field(discriminator="kind"), _with_kind]


class Stage(Settings):
    """A part of training with one loss and a new optimizer."""

    epochs: int = Field(ge=1, lt=10**6, description="passes over the training data")
    loss: Loss = Field(description="loss to minimise")
    optimizer: Optimizer = Field(description="optimizer of the stage")
    batch: StageBatching = StageBatching()
    dropout: Annotated[float | Literal["model"], number_or("model", below=1.0)] = Field(
        default="model", description="dropout of this stage; model: model.dropout"
    )
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
