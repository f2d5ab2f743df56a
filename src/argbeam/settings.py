"""Every setting: its name, default, bounds and one-line meaning, here and nowhere else."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

StopRule = Literal["top", "best"]
# Sizes beyond these are slips of the keyboard: no machine has the memory.
MOST_BEAM, MOST_LAYERS, MOST_WIDTH = 10_000, 1000, 10**6


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("must be a path, not empty and without NUL")
    return text


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must be a printable name, not empty")
    return text


def _stage_name(text: str) -> str:
    # The same letters as a bare TOML key, so that `--set stages.NAME.key` always works.
    if not text or not all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in text):
        raise ValueError("a stage's name has letters, digits, - and _ only")
    return text


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError("must be odd: as many words to the left as to the right")
    return number


def _power(value: Any, accept: ValidatorFunctionWrapHandler) -> Any:
    # One line for the whole setting, where each half of the union would complain by itself.
    try:
        accepted = accept(value)
    except ValidationError:
        accepted = -1.0
    if accepted != "dev" and accepted < 0:
        raise ValueError('must be a number at least 0, or "dev"')
    return accepted


FilePath = Annotated[str, AfterValidator(_path)]
Files = Annotated[list[FilePath], Field(min_length=1)]
LengthPower = Annotated[float | Literal["dev"], WrapValidator(_power)]


class Settings(BaseModel):
    """What all tables of a recipe share: strict types, no unknown keys, no change after loading."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class WordOrderingTask(Settings):
    """Put the words of a sentence back in order."""

    kind: Literal["word_ordering"] = "word_ordering"
    shuffle: Literal["once", "epoch"] = Field(
        default="once",
        description="training sources are shuffled once, as in the paper, or anew in every epoch",
    )


class ParsingTask(Settings):
    """Dependency parsing as a sequence of words and arc-standard reduce actions."""

    kind: Literal["parsing"] = "parsing"
    punctuation: Literal["upos", "ptb", "none"] = Field(
        default="upos", description="what attachment scores leave out: UPOS PUNCT, the PTB's tags, or nothing"
    )


class TranslationTask(Settings):
    """Translate a sentence; the output's length is open."""

    kind: Literal["translation"] = "translation"


Task = Annotated[WordOrderingTask | ParsingTask | TranslationTask, Field(discriminator="kind")]


class GeneratedData(Settings):
    """The generated corpus: a seeded grammar, nothing to download."""

    kind: Literal["generated"] = "generated"
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of the grammar and its sentences")
    types: int = Field(default=2000, ge=200, description="word types of the grammar")
    train: int = Field(ge=1, description="training sentences")
    dev: int = Field(ge=1, description="dev sentences")
    test: int = Field(ge=0, description="test sentences")


class FileData(Settings):
    """What all data with a file list per split share."""

    root: FilePath = Field(default=".", description="folder that the other paths are relative to")
    train: Files = Field(description="training files")
    dev: Files = Field(description="dev files")
    test: list[FilePath] = Field(default_factory=list, description="test files; may be empty")


class TextData(FileData):
    """Plain text, one sentence a line."""

    kind: Literal["text"] = "text"


class ConlluData(FileData):
    """Treebanks in CoNLL-U."""

    kind: Literal["conllu"] = "conllu"


class ConllxData(FileData):
    """Treebanks in CoNLL-X."""

    kind: Literal["conllx"] = "conllx"


class ParallelData(Settings):
    """Two sides in two files, line by line."""

    kind: Literal["parallel"] = "parallel"
    root: FilePath = Field(default=".", description="folder that the other paths are relative to")
    train_source: Files = Field(description="training files, source side")
    train_target: Files = Field(description="training files, target side, in the same order")
    dev_source: Files = Field(description="dev files, source side")
    dev_target: Files = Field(description="dev files, target side, in the same order")
    test_source: list[FilePath] = Field(default_factory=list, description="test files, source side; may be empty")
    test_target: list[FilePath] = Field(default_factory=list, description="test files, target side; may be empty")

    @model_validator(mode="after")
    def _sides_match(self) -> "ParallelData":
        sides = {
            "train": (self.train_source, self.train_target),
            "dev": (self.dev_source, self.dev_target),
            "test": (self.test_source, self.test_target),
        }
        for split, (source, target) in sides.items():
            if len(source) != len(target):
                raise ValueError(
                    f"{split}_source has {len(source)} files, {split}_target {len(target)}; they must pair up"
                )
        return self


class TsvData(FileData):
    """Two columns of a tab-separated file."""

    kind: Literal["tsv"] = "tsv"
    source_column: int = Field(default=0, ge=0, description="column of the source side, counted from 0")
    target_column: int = Field(default=1, ge=0, description="column of the target side, counted from 0")

    @model_validator(mode="after")
    def _columns_differ(self) -> "TsvData":
        if self.source_column == self.target_column:
            raise ValueError(f"source_column and target_column are both {self.source_column}; they must differ")
        return self


class IwsltData(Settings):
    """IWSLT 2014 German to English in the files of its distribution, prepared as for MIXER."""

    kind: Literal["iwslt14"] = "iwslt14"
    root: FilePath = Field(default=".", description="folder of the distribution's files, or the one above it")


Data = Annotated[
    GeneratedData | TextData | ConlluData | ConllxData | ParallelData | TsvData | IwsltData,
    Field(discriminator="kind"),
]


class Text(Settings):
    """From lines to tokens and a vocabulary."""

    min_count: int = Field(default=1, ge=1, description="words seen fewer times in training become UNK")
    fold_digits: bool = Field(default=False, description="every digit becomes #")
    lowercase: bool = Field(default=False, description="lowercase all words")
    min_length: int = Field(default=1, ge=1, description="training sentences with fewer words are left out and counted")
    max_length: int = Field(default=60, ge=1, description="training sentences with more words are left out and counted")
    tokenizer: Literal["whitespace", "moses"] = Field(default="whitespace", description="how a line becomes words")
    source_language: str = Field(default="de", description="language of the source side, for the tokenizer")
    target_language: str = Field(default="en", description="language of the target side, for the tokenizer")
    subwords: int = Field(
        default=0, ge=0, description="SentencePiece vocabulary size, translation only; 0: words are the units"
    )
    max_vocabulary: int = Field(default=0, ge=0, description="the most frequent words that are kept; 0: all")

    @model_validator(mode="after")
    def _lengths_ordered(self) -> "Text":
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length} is more than max_length = {self.max_length}; nothing fits"
            )
        return self


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


class Batch(Settings):
    """How sentences are put together."""

    size: int = Field(default=64, ge=1, le=2**20, description="sentences in a batch")
    round_source: int = Field(default=4, ge=1, le=1024, description="source lengths are padded to a multiple of this")
    round_target: int = Field(default=4, ge=1, le=1024, description="target lengths are padded to a multiple of this")


class CrossEntropyLoss(Settings):
    """Log-loss of the gold words given the gold history."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class SequenceLoss(Settings):
    """What losses of whole sequences share."""

    cross_entropy: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="weight of cross-entropy mixed in; the sequence loss has the rest",
    )


class SearchLoss(SequenceLoss):
    """What all losses share that train with the beam search."""

    train_beam: int = Field(
        default=6, ge=1, le=MOST_BEAM, description="K_tr, the beam the curriculum ends with; test beam plus 1"
    )
    start_beam: int = Field(default=2, ge=1, le=MOST_BEAM, description="beam of the first epoch")
    epochs_per_beam: int = Field(default=2, ge=1, description="epochs before the beam grows by 1")
    constrained: bool = Field(default=False, description="train under the task's constraint, as ConBSO does")
    stop: StopRule = Field(
        default="top", description="when search ends in open-length tasks: top-ranked or best ending"
    )
    reset_optimizer: bool = Field(default=False, description="zero Adagrad's sums whenever the beam grows")

    @model_validator(mode="after")
    def _beams_ordered(self) -> "SearchLoss":
        if self.start_beam > self.train_beam:
            raise ValueError(
                f"start_beam = {self.start_beam} is more than train_beam = {self.train_beam}; it must not be"
            )
        return self


class BsoLoss(SearchLoss):
    """Beam-search optimization (Wiseman & Rush 2016, section 4), and its relatives that do not restart."""

    kind: Literal["bso"] = "bso"
    policy: Literal["restart", "early_update", "max_violation"] = Field(
        default="restart",
        description="which violations are trained on: all, restarting after each; where gold falls off; the worst",
    )
    rule: Literal["last_score", "score_sum"] = Field(
        default="last_score",
        description="what ranks prefixes and is held against the margin: the newest word's score, or the sum",
    )
    margin: float = Field(default=1.0, ge=0, description="gold must score better than the rival by this")
    cost: Literal["zero_one", "sentence_bleu", "authors_bleu"] = Field(
        default="zero_one",
        description="cost of a violation: 1, 1 - sentence BLEU, or the authors' variant of it",
    )
    cost_scale: float = Field(default=1.0, gt=0, description="costs are multiplied by this")
    normalise: Literal["none", "sentences", "words"] = Field(default="none", description="what the loss is divided by")


class CrfLoss(SearchLoss):
    """The globally normalised model with early update (Andor et al. 2016)."""

    kind: Literal["crf"] = "crf"
    normalise: Literal["none", "sentences", "words"] = Field(
        default="sentences", description="what the loss is divided by"
    )


class LinearSchedule(Settings):
    """The same step up in every epoch."""

    kind: Literal["linear"] = "linear"
    slope: float = Field(default=0.05, ge=0, le=1, description="how much the probability grows in an epoch")


class ExponentialSchedule(Settings):
    """1 - base^epoch."""

    kind: Literal["exponential"] = "exponential"
    base: float = Field(default=0.95, gt=0, le=1, description="the probability is 1 - base^epoch")


class InverseSigmoidSchedule(Settings):
    """1 - k / (k + exp(epoch / k))."""

    kind: Literal["inverse_sigmoid"] = "inverse_sigmoid"
    k: float = Field(default=6.0, ge=1, description="the probability is 1 - k / (k + exp(epoch / k))")


Schedule = Annotated[LinearSchedule | ExponentialSchedule | InverseSigmoidSchedule, Field(discriminator="kind")]


class ScheduledSamplingLoss(Settings):
    """Cross-entropy after histories with some words of the model's own (Bengio et al. 2015)."""

    kind: Literal["scheduled_sampling"] = "scheduled_sampling"
    schedule: Schedule = Field(description="probability of reading the model's own word, by epoch")
    highest: float = Field(default=1.0, ge=0, le=1, description="the probability grows no further than this")
    own_word: Literal["sampled", "best"] = Field(
        default="sampled", description="the model's own word: drawn from its distribution, or its best"
    )


class MixerLoss(Settings):
    """Cross-entropy for the first words of a sentence, REINFORCE for the rest (Ranzato et al. 2016)."""

    kind: Literal["mixer"] = "mixer"
    cross_entropy_epochs: int = Field(default=0, ge=0, description="epochs before the first words are sampled")
    epochs_per_border: int = Field(default=2, ge=1, description="epochs before more words are sampled")
    words_per_border: int = Field(default=3, ge=1, description="how many more words at a sentence's end are sampled")
    extra_length: int = Field(
        default=4, ge=0, le=10**6, description="words that an output may have more than gold, in open-length tasks"
    )
    baseline_rate: float = Field(default=0.01, ge=0, description="learning rate of the expected reward's regression")
    baseline_weight: float = Field(
        default=0.01, ge=0, description="weight of the regression's error, which has a part in the gradient's norm"
    )


class MrtLoss(SequenceLoss):
    """Minimum risk training (Shen et al. 2016)."""

    kind: Literal["mrt"] = "mrt"
    candidates: Literal["sampled", "beam"] = Field(
        default="sampled", description="candidates drawn from the model, or the best of a beam search"
    )
    size: int = Field(
        default=8, ge=1, le=MOST_BEAM, description="candidates of a sentence, which is also the search's beam"
    )
    alpha: float = Field(default=0.005, gt=0, description="candidates weigh by their probability to this power")
    include_gold: bool = Field(default=True, description="gold is one more candidate")
    risk: Literal["sentence_bleu", "zero_one", "token_error"] = Field(
        default="sentence_bleu",
        description="risk of a candidate: 1 - sentence BLEU, 1 unless it is gold, or the share of wrong words",
    )
    constrained: bool = Field(default=False, description="candidates keep to the task's constraint")
    extra_length: int = Field(
        default=4, ge=0, le=10**6, description="words that a candidate may have more than gold, in open-length tasks"
    )


Loss = Annotated[
    CrossEntropyLoss | BsoLoss | CrfLoss | ScheduledSamplingLoss | MixerLoss | MrtLoss, Field(discriminator="kind")
]


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
        description="decay of a running average of the weights, which is what is scored and kept; 0: none",
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
        default=0, ge=0, description="stop after this many epochs without a better dev figure; 0: never"
    )

    @model_validator(mode="after")
    def _patience_has_a_figure(self) -> "Stage":
        if self.patience and self.keep == "last":
            raise ValueError(f'patience = {self.patience} waits for a better dev figure; keep = "last" has none')
        return self


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


class Recipe(Settings):
    """All there is to say about a run."""

    name: Annotated[str, AfterValidator(_name)] = Field(description="what tables call the system")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of weights, batches and dropout")
    task: Task = Field(description="what is learnt")
    data: Data = Field(description="where sentences come from")
    text: Text = Field(default=Text(), description="from lines to tokens")
    model: Model = Field(default=LstmModel(), description="the network")
    batch: Batch = Field(default=Batch(), description="how sentences are put together")
    stages: dict[Annotated[str, AfterValidator(_stage_name)], Stage] = Field(
        min_length=1, description="training, in the order of the tables"
    )
    start: str = Field(
        default="",
        description="a finished run whose weights and vocabulary training starts from; empty: none",
    )
    decode: Decode = Field(default=Decode(), description="how the model is searched")
    runtime: Runtime = Field(default=Runtime(), description="device and speed")

    @model_validator(mode="after")
    def _parts_agree(self) -> "Recipe":
        task, accepted = self.task.kind, DATA_OF_TASK[self.task.kind]
        if self.data.kind not in accepted:
            raise ValueError(f'data.kind = "{self.data.kind}": not for {task}; one of {", ".join(accepted)}')
        if self.text.subwords and task != "translation":
            raise ValueError(f"text.subwords = {self.text.subwords}: only for translation; 0 for {task}")
        if self.text.tokenizer == "moses" and (task != "translation" or self.text.subwords):
            used = "SentencePiece reads raw text" if self.text.subwords else f"{task} reads tokenised text"
            raise ValueError(f'text.tokenizer = "moses": {used}; must be "whitespace"')
        if isinstance(self.model, LstmLmModel) and task == "translation":
            raise ValueError(
                'model.kind = "lstm_lm": it reads no source, and only a constraint could tell it what to write; '
                "not for translation"
            )
        for name, stage in self.stages.items():
            if isinstance(stage.loss, SearchLoss | MrtLoss) and stage.loss.constrained and task == "translation":
                raise ValueError(f"stages.{name}.loss.constrained = true: translation has no constraint; must be false")
        last_name, last = list(self.stages.items())[-1]
        if self.decode.length_power and isinstance(last.loss, SearchLoss):
            raise ValueError(
                f"decode.length_power = {json.dumps(self.decode.length_power)}: only for models that sum "
                f"log-probabilities; must be 0 after {last.loss.kind}, the loss of stages.{last_name}"
            )
        return self


DATA_OF_TASK = {
    "word_ordering": ("generated", "text", "conllu", "conllx"),
    "parsing": ("generated", "conllu", "conllx"),
    "translation": ("generated", "parallel", "tsv", "iwslt14"),
}
