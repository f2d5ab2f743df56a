"""A recipe: text, models, decoding, runtime, and the checks across its tables."""

import json
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from argbeam.settings.constraints import NoConstraint
from argbeam.settings.data import Data, Task, Text2TextTask
from argbeam.settings.losses import BsoLoss, CrossEntropyLoss, Loss, SearchLoss
from argbeam.settings.models import (
    HuggingFaceModelSettings,
    LstmLmModel,
    LstmModel,
    Model,
    TransformerLmModel,
    TransformerModel,
)
from argbeam.settings.stages import Batching, Stage
from argbeam.settings.strict import MOST_BEAM, Settings, number_or


class Text(Settings):
    """From lines to tokens and a vocabulary."""

    min_count: int = Field(default=1, ge=1, description="words with fewer occurrences in training become UNK")
    fold_digits: bool = Field(
        default=False, description="replace every digit by #, where outputs are compared with references too"
    )
    lowercase: bool = Field(default=False, description="lowercase all words")
    min_length: int = Field(default=1, ge=1, description="training sentences with fewer words are left out and counted")
    max_length: int = Field(default=60, ge=1, description="training sentences with more words are left out and counted")
    tokenizer: Literal["whitespace", "moses"] = Field(default="whitespace", description="tokenizer of the lines")
    source_language: str = Field(default="de", description="language of the source side, for the tokenizer")
    target_language: str = Field(default="en", description="language of the target side, for the tokenizer")
    subwords: int = Field(default=0, ge=0, description="SentencePiece vocabulary size; 0: no pieces")
    max_vocabulary: int = Field(default=0, ge=0, description="keep this many of the most frequent words; 0: all")

    @model_validator(mode="after")
    def _lengths_ordered(self) -> "Text":
        least, most = self.min_length, self.max_length
        if least > most:
            raise ValueError(f"min_length = {least} is more than max_length = {most}; nothing fits")
        return self


class Decode(Settings):
    """Search with a trained model."""

    beam: int = Field(default=5, ge=1, le=MOST_BEAM, description="K_te, the beam unless the command gives one")
    stop: Literal["auto", "top", "best"] = Field(
        default="auto", description="end of the search in open-length tasks; auto: as in the loss of the weights"
    )
    length_power: Annotated[float | Literal["dev"], number_or("dev")] = Field(
        default=0.0,
        description="in open-length tasks sums of log-probabilities are divided by the length to this power; 0: plain "
        "sums; dev: the best of 0 to 1.6 on dev, at decode.beam",
    )
    length_factor: float = Field(
        default=2.0,
        ge=0,
        le=1000,
        description="length limit of outputs in open-length tasks: this times the source's length",
    )
    length_extra: int = Field(
        default=10, ge=1, le=10**6, description="length limit of outputs in open-length tasks: plus this"
    )
    batch: int = Field(default=128, ge=1, le=2**20, description="sentences decoded together; fewer if long")
    max_words: int = Field(default=2000, ge=1, le=2**20, description="longest accepted sentence, in words")

    @property
    def limit(self) -> str:
        """The length limit of outputs in open-length tasks, as signatures have it: `2*source+10`."""
        return f"{self.length_factor:g}*source+{self.length_extra}"


class Runtime(Settings):
    """Device and speed; results change by rounding only."""

    device: Literal["cpu", "cuda", "auto"] = Field(default="auto", description="auto: CUDA if there is a device")
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="precision of the matrix products of training"
    )
    tf32: bool = Field(default=True, description="allow TF32 in float32 products on CUDA")
    capture: bool = Field(default=True, description="on CUDA, one graph for each batch shape")
    threads: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="CPU threads; 0: torch's default in training, what is fast for the model in decoding",
    )
    checkpoint_every: int = Field(default=500, ge=1, description="updates between checkpoints")
    store: bool = Field(default=False, description="keep examples in a file of the run folder, not in memory")
    not_finite_limit: int = Field(default=20, ge=1, description="stop after this many non-finite gradients in a row")
    tensorboard: bool = Field(default=False, description="write TensorBoard curves too")


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must be a printable name, not empty")
    return text


def _stage_name(text: str) -> str:
    # The letters of a bare TOML key, so that `--set stages.NAME.key` always works.
    if not text or not all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in text):
        raise ValueError("a stage's name has letters, digits, - and _ only")
    return text


DATA_OF_TASK = {
    "word_ordering": ("generated", "text", "conllu", "conllx"),
    "parsing": ("generated", "conllu", "conllx"),
    "translation": ("generated", "parallel", "tsv", "iwslt14"),
    "text2text": ("generated", "parallel", "tsv"),
    "recommendation": ("generated", "interactions"),
}

# Score rule of BSO by the kind of model, where the recipe names none; of other kinds the paper's. A recurrent state
# carries the quality of a prefix into its newest score, the last layer of a Transformer does not (decision 0029).
# Models of transformers stay language models, which `generate` decodes.
BSO_RULE_OF_MODEL = {"transformer": "score_sum", "transformer_lm": "score_sum", "huggingface": "logprob_sum"}


class Recipe(Settings):
    """All settings of a run."""

    name: Annotated[str, AfterValidator(_name)] = Field(description="name of the system in tables")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of weights, batches and dropout")
    task: Task = Field(description="task to learn")
    data: Data = Field(description="kind of corpus")
    text: Text = Text()
    model: Model = Field(default=LstmModel(), description="kind of network")
    batch: Batching = Batching()
    stages: dict[Annotated[str, AfterValidator(_stage_name)], Stage] = Field(min_length=1)
    start: str = Field(default="", description="finished run to take weights and vocabulary from; empty: none")
    decode: Decode = Decode()
    runtime: Runtime = Runtime()

    @property
    def units(self) -> tuple[str, ...]:
        """Tokens of the source and of the target, in tasks that turn text into text."""
        if isinstance(self.model, HuggingFaceModelSettings):
            return ("pieces", "pieces")
        if isinstance(self.task, Text2TextTask):
            return self.task.source, self.task.target
        unit = "pieces" if self.text.subwords else "words"
        return (unit, unit) if self.task.kind == "translation" else ()

    @property
    def ordered_source(self) -> bool:
        """Whether the order of a source means something; in word ordering it is a bag of words."""
        return self.task.kind != "word_ordering"

    @model_validator(mode="before")
    @classmethod
    def _rule_by_model(cls, table: Any) -> Any:
        """The table with BSO's score rule in every stage: records and run folders have the rule in force."""
        match table:
            case {"model": model, "stages": dict(stages)} if rule := BSO_RULE_OF_MODEL.get(_kind(model), ""):
                return {**table, "stages": {name: _with_rule(stage, rule) for name, stage in stages.items()}}
        return table

    @model_validator(mode="after")
    def _parts_agree(self) -> "Recipe":
        task, accepted = self.task.kind, DATA_OF_TASK[self.task.kind]
        if self.data.kind not in accepted:
            raise ValueError(f'data.kind = "{self.data.kind}": not for {task}; one of {", ".join(accepted)}')
        self._check_hugging_face() if isinstance(self.model, HuggingFaceModelSettings) else self._check_units()
        if isinstance(self.model, LstmLmModel) and task not in ("word_ordering", "parsing"):
            raise ValueError(
                'model.kind = "lstm_lm": it reads no source, and only a constraint could tell it what to write; '
                f"not for {task}"
            )
        free = isinstance(getattr(self.task, "constraint", None), NoConstraint)
        for name, stage in self.stages.items() if free else ():
            if key := next((key for key in ("constrained", "valid_only") if getattr(stage.loss, key, False)), ""):
                raise ValueError(
                    f"stages.{name}.loss.{key} = true: {task} has no constraint; must be false, or name one: "
                    "task.constraint"
                )
        return self

    def _check_units(self) -> None:
        task = self.task.kind
        if bool(self.text.subwords) != ("pieces" in self.units) and task == "text2text":
            raise ValueError(
                f'text.subwords = {self.text.subwords}: it is the size of "pieces", which task.source and '
                "task.target name; 0 without them"
            )
        if self.text.subwords and "pieces" not in self.units:
            raise ValueError(f"text.subwords = {self.text.subwords}: only for translation and text2text; 0 for {task}")
        if self.text.tokenizer == "moses" and "words" not in self.units:
            used = "SentencePiece reads raw text" if self.text.subwords else f"{task} reads tokenised text"
            raise ValueError(f'text.tokenizer = "moses": {used}; must be "whitespace"')

    def _check_hugging_face(self) -> None:
        """The tokenizer of the model reads raw text, in tasks of open length from text to text."""
        if self.task.kind not in ("translation", "text2text"):
            raise ValueError(f'model.kind = "huggingface": not for {self.task.kind}; for translation and text2text')
        off = {"tokenizer": "whitespace", "subwords": 0, "lowercase": False, "fold_digits": False, "max_vocabulary": 0}
        for name, value in off.items():
            if getattr(self.text, name) != value:
                raise ValueError(f"text.{name}: the tokenizer of the model reads raw text; must be {json.dumps(value)}")
        for name, stage in self.stages.items():
            if stage.dropout != "model":
                raise ValueError(f'stages.{name}.dropout: the network has its own; must be "model"')

    @model_validator(mode="after")
    def _search_fits_the_model(self, info: ValidationInfo) -> "Recipe":
        """Whichever weights are kept: those of any stage may be, and the epochs of each are decoded too."""
        for rules in [info.context] if info.context else [_rules_of(*stage) for stage in self.stages.items()]:
            check_search(self.decode, rules)
        return self


class Rules(NamedTuple):
    """The score rule and the stop rule of weights, by their names; `weights` says which weights, for messages."""

    score: str
    stop: str
    weights: str


def _rules_of(name: str, stage: Stage) -> Rules:
    rule, loss = rule_of(stage.loss), stage.loss
    stop = loss.stop if isinstance(loss, SearchLoss) else "best"
    return Rules(rule, stop, f"after {loss.kind} with {rule}, the loss of stages.{name}")


def check_search(decode: Decode, rules: Rules) -> None:
    """Raise a ValueError where weights with these rules cannot be searched as `decode` says."""
    power, stop = json.dumps(decode.length_power), rules.stop if decode.stop == "auto" else decode.stop
    if decode.length_power and not rules.score.endswith("logprob_sum"):
        raise ValueError(
            f"decode.length_power = {power}: only for models that sum log-probabilities; must be 0 {rules.weights}"
        )
    if decode.length_power and stop == "top":
        raise ValueError(
            f'decode.length_power = {power}: the stop rule "top" compares no lengths; must be 0, or '
            'decode.stop = "best"'
        )
    if decode.stop == "best" and rules.score == "score_sum":
        raise ValueError(
            'decode.stop = "best": sums of scores do not compare across lengths; must be "top" or "auto" '
            f"{rules.weights}"
        )


def _kind(model: Any) -> str:
    """The kind of a model's table or settings; a wrong kind is reported later."""
    match model:
        case {"kind": str(kind)}:
            return kind
        case TransformerModel() | TransformerLmModel() | HuggingFaceModelSettings():
            return model.kind
    return ""


def _with_rule(stage: Any, rule: str) -> Any:
    """A stage, as a table or as settings, with this rule where its loss is BSO and names none."""
    match stage:
        case {"loss": {"kind": "bso", **others} as loss} if "rule" not in others:
            return {**stage, "loss": {**loss, "rule": rule}}
        case {"loss": BsoLoss() as loss} if "rule" not in loss.model_fields_set:
            return {**stage, "loss": loss.model_copy(update={"rule": rule})}
        case Stage(loss=BsoLoss() as loss) if "rule" not in loss.model_fields_set:
            return stage.model_copy(update={"loss": loss.model_copy(update={"rule": rule})})
    return stage


def rule_of(loss: Loss) -> str:
    """Name of the score rule of models trained with this loss."""
    if isinstance(loss, BsoLoss):
        return loss.rule
    if isinstance(loss, CrossEntropyLoss) and loss.valid_only:
        return "valid_logprob_sum"
    return "score_sum" if isinstance(loss, SearchLoss) else "logprob_sum"
