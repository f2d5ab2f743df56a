"""Settings of searching a trained model, and of the machine."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from argbeam.settings.strict import MOST_BEAM, Settings


def _power(value: Any, accept: ValidatorFunctionWrapHandler) -> Any:
    # One line for the whole setting, where each half of the union would complain by itself.
    try:
        accepted = accept(value)
    except ValidationError:
        accepted = -1.0
    if accepted != "dev" and accepted < 0:
        raise ValueError('must be a number at least 0, or "dev"')
    return accepted


LengthPower = Annotated[float | Literal["dev"], WrapValidator(_power)]


class Decode(Settings):
    """How a trained model is searched."""

    beam: int = Field(default=5, ge=1, le=MOST_BEAM, description="K_te, the beam when none is asked for")
    stop: Literal["auto", "top", "best"] = Field(
        default="auto",
        description="when search ends in open-length tasks; auto: as the last stage's loss says",
    )
    length_power: LengthPower = Field(
        default=0.0,
        description="sums of log-probabilities are divided by length to this power, from 0 (plain sums) on; "
        "dev: the best of 0 to 1.6 on dev, at decode.beam",
    )
    length_factor: float = Field(
        default=2.0, ge=0, le=1000, description="output limit in open-length tasks: this times the source"
    )
    length_extra: int = Field(default=10, ge=1, le=10**6, description="output limit in open-length tasks: plus this")
    batch: int = Field(
        default=128,
        ge=1,
        le=2**20,
        description="sentences decoded together; fewer where they are long or the beam is wide",
    )
    max_words: int = Field(
        default=2000,
        ge=1,
        le=2**20,
        description="a sentence of more words is refused: a search needs the square of its length in memory",
    )


class Runtime(Settings):
    """Where and how fast; no effect on what is learnt beyond rounding."""

    device: Literal["cpu", "cuda", "auto"] = Field(default="auto", description="auto: CUDA where there is one")
    precision: Literal["float32", "bf16"] = Field(default="float32", description="precision of the matrix products")
    tf32: bool = Field(default=True, description="float32 products may use TF32 on CUDA")
    capture: bool = Field(default=True, description="on CUDA, one graph per batch shape")
    threads: int = Field(default=0, ge=0, le=4096, description="CPU threads; 0: torch's own choice")
    checkpoint_every: int = Field(default=500, ge=1, description="updates between checkpoints")
    store: bool = Field(
        default=False,
        description="training examples are kept in a file of the run folder, built once, instead of memory",
    )
    not_finite_limit: int = Field(
        default=20, ge=1, description="so many gradients in a row that are not finite end the run: it has diverged"
    )
    tensorboard: bool = Field(default=False, description="write TensorBoard curves too")
