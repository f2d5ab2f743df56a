"""Settings of the models."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from argbeam.settings.strict import MOST_LAYERS, MOST_WIDTH, Settings

# Score and stop rule of a model before training: none of random weights; pretrained ones have those of `generate`.
RANDOM_WEIGHTS = ("", "")


class ModelSizes(Settings):
    """Keys of the models with LSTM layers."""

    rules: ClassVar[tuple[str, str]] = RANDOM_WEIGHTS
    layers: int = Field(default=1, ge=1, le=MOST_LAYERS, description="LSTM layers of the decoder and an LSTM encoder")
    hidden: int = Field(default=256, ge=1, le=MOST_WIDTH, description="size of the hidden states")
    embedding: int = Field(default=256, ge=1, le=MOST_WIDTH, description="size of the word vectors")
    dropout: float = Field(default=0.2, ge=0, lt=1, description="dropout between layers and before the output layer")
    init: float = Field(default=0.1, ge=0, le=1000, description="initial weights are uniform from -init to init")
    vectors: str = Field(default="", description="file of word2vec vectors, relative to data.root; empty: none")
    vectors_scale: float = Field(default=1.0, gt=0, description="factor of the word2vec vectors")


class LstmModel(ModelSizes):
    """LSTM encoder and decoder with global attention."""

    kind: Literal["lstm"] = "lstm"
    input_feeding: bool = Field(default=True, description="the attention's output is part of the next step's input")


class LstmLmModel(ModelSizes):
    """An LSTM language model: it reads no source."""

    kind: Literal["lstm_lm"] = "lstm_lm"


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError("must be odd: as many words to the left as to the right")
    return number


class ConvModel(ModelSizes):
    """Convolutional encoder with dot-product attention, LSTM decoder."""

    kind: Literal["conv"] = "conv"
    window: Annotated[int, AfterValidator(_odd)] = Field(
        default=5, ge=1, description="words in the encoder's window; odd"
    )
    positions: int = Field(default=60, ge=1, le=10**6, description="positions with vectors; later ones share the last")


class TransformerSizes(Settings):
    """Keys of both Transformers."""

    rules: ClassVar[tuple[str, str]] = RANDOM_WEIGHTS
    layers: int = Field(default=3, ge=1, le=MOST_LAYERS, description="layers of the decoder, and of an encoder")
    hidden: int = Field(default=256, ge=1, le=MOST_WIDTH, description="width of the layers and of the word vectors")
    heads: int = Field(default=4, ge=1, le=MOST_WIDTH, description="heads of attention; they divide hidden")
    feed_forward: int = Field(default=1024, ge=1, le=MOST_WIDTH, description="inner width of the feed-forward layers")
    dropout: float = Field(
        default=0.2, ge=0, lt=1, description="dropout of word vectors, of each residual branch and inside feed-forward"
    )
    tied: bool = Field(default=True, description="target word vectors are the weights of the output layer")
    positions: Literal["sinusoidal", "rotary"] = Field(
        default="sinusoidal", description="positions of words; the source of word ordering, a bag of words, has none"
    )
    vectors: str = Field(default="", description="file of word2vec vectors, relative to data.root; empty: none")
    vectors_scale: float = Field(default=1.0, gt=0, description="factor of the word2vec vectors")
    init: ClassVar[None] = None

    @property
    def embedding(self) -> int:
        """Size of the word vectors."""
        return self.hidden

    @model_validator(mode="after")
    def _heads_fit(self) -> "TransformerSizes":
        if self.hidden % self.heads:
            raise ValueError(f"heads = {self.heads} do not divide hidden = {self.hidden}; all heads have one width")
        if self.positions == "rotary" and self.hidden // self.heads % 2:
            width = self.hidden // self.heads
            raise ValueError(f'positions = "rotary": hidden / heads is {width}; it must be even, for pairs to turn')
        return self


class TransformerModel(TransformerSizes):
    """Transformer encoder and decoder, pre-norm."""

    kind: Literal["transformer"] = "transformer"


class TransformerLmModel(TransformerSizes):
    """A Transformer decoder alone; the source is its prompt."""

    kind: Literal["transformer_lm"] = "transformer_lm"


class HuggingFaceModelSettings(Settings):
    """A model of transformers with its tokenizer, for translation and text2text."""

    kind: Literal["huggingface"] = "huggingface"
    rules: ClassVar[tuple[str, str]] = ("logprob_sum", "best")
    dropout: ClassVar[float] = 0.0  # its configuration has its own
    path: str = Field(min_length=1, description="folder of the model and its tokenizer, as save_pretrained writes it")
    init: ClassVar[None] = None
    vectors: ClassVar[str] = ""
    vectors_scale: ClassVar[float] = 1.0
    embedding: ClassVar[int] = 0


# The paper's model is the default kind.
_with_kind = BeforeValidator(lambda model: {"kind": "lstm", **model} if isinstance(model, dict) else model)
Model = Annotated[
    LstmModel | LstmLmModel | ConvModel | TransformerModel | TransformerLmModel | HuggingFaceModelSettings,
    Field(discriminator="kind"),
    _with_kind,
]
