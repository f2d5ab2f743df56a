"""Settings of models."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from argbeam.settings.strict import MOST_LAYERS, MOST_WIDTH, Settings


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError("must be odd: as many words to the left as to the right")
    return number


class Network(Settings):
    """What all models share."""

    layers: int = Field(default=1, ge=1, le=MOST_LAYERS, description="LSTM layers, of the encoder too where it has any")
    hidden: int = Field(default=256, ge=1, le=MOST_WIDTH, description="size of the hidden states")
    embedding: int = Field(default=256, ge=1, le=MOST_WIDTH, description="size of the word vectors")
    dropout: float = Field(
        default=0.2, ge=0, lt=1, description="dropout between layers and on what the output layer reads"
    )
    init: float = Field(default=0.1, ge=0, le=1000, description="weights start uniform between minus and plus this")
    vectors: str = Field(default="", description="file of word2vec vectors, relative to data.root; empty: none")
    vectors_scale: float = Field(default=1.0, gt=0, description="the vectors are multiplied by this")


class LstmModel(Network):
    """LSTM encoder and decoder with global attention."""

    kind: Literal["lstm"] = "lstm"
    input_feeding: bool = Field(default=True, description="the attention's output is part of the next step's input")


class LstmLmModel(Network):
    """An LSTM language model: it reads no source."""

    kind: Literal["lstm_lm"] = "lstm_lm"


class ConvModel(Network):
    """Convolutional encoder with dot-product attention, LSTM decoder."""

    kind: Literal["conv"] = "conv"
    window: Annotated[int, AfterValidator(_odd)] = Field(
        default=5, ge=1, description="source words that the encoder sees at each position; odd"
    )
    positions: int = Field(
        default=60, ge=1, le=10**6, description="source positions with a vector of their own; later ones share the last"
    )


def _with_kind(model: Any) -> Any:
    """A model is the paper's unless the recipe says otherwise."""
    return {"kind": "lstm", **model} if isinstance(model, dict) else model


Model = Annotated[LstmModel | LstmLmModel | ConvModel, Field(discriminator="kind"), BeforeValidator(_with_kind)]
