"""A recipe: all tables together, and what they must agree on."""

import json
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from argbeam.settings.data import Batch, Data, Task, Text
from argbeam.settings.losses import MrtLoss, SearchLoss
from argbeam.settings.models import LstmLmModel, LstmModel, Model
from argbeam.settings.runtime import Decode, Runtime
from argbeam.settings.strict import Settings
from argbeam.settings.training import Stage

DATA_OF_TASK = {
    "word_ordering": ("generated", "text", "conllu", "conllx"),
    "parsing": ("generated", "conllu", "conllx"),
    "translation": ("generated", "parallel", "tsv", "iwslt14"),
}


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must be a printable name, not empty")
    return text


def _stage_name(text: str) -> str:
    # The same letters as a bare TOML key, so that `--set stages.NAME.key` always works.
    if not text or not all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in text):
        raise ValueError("a stage's name has letters, digits, - and _ only")
    return text


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
