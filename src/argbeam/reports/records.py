"""Reader of a run's records, with checks: each line becomes a typed row, or an error with its file and line."""

import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from argbeam.errors import DataError, counted
from argbeam.files import read_records
from argbeam.metrics.outputs import metric_name
from argbeam.settings.mistakes import kind_of

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}  # building one takes longer than reading a line with it


@dataclass(frozen=True)
class StartRow:
    """The first line of records.jsonl."""

    device: str


@dataclass(frozen=True)
class DevFigures:
    """Dev figures of an epoch: `value` is its score in `metric`, such as BLEU, decoded with beam `test_beam`."""

    value: float | None = None
    test_beam: int | None = None
    metric: str = ""


def _with_metric(dev: Any) -> Any:
    return {**dev, "metric": metric_name(dev)} if isinstance(dev, dict) and "value" in dev else dev


@dataclass(frozen=True)
class EpochRow:
    """A line of records.jsonl for an epoch. A figure is None where the loss does not report it."""

    stage: str
    epoch: int
    dev: Annotated[DevFigures, BeforeValidator(_with_metric)]
    beam: int | None = None
    loss_per_word: float | None = None
    gradient_norm: float | None = None
    words_per_second: float | None = None
    seconds: float | None = None  # of training, without dev
    violations_per_word: float | None = None
    violations_by_tenth: list[float] = field(default_factory=list)
    segment_length: float | None = None
    stopped_early_share: float | None = None
    gold_on_beam: float | None = None
    rival_is_gold_share: float | None = None
    rival_ended_share: float | None = None


@dataclass(frozen=True)
class StageRow:
    """A line of records.jsonl for a finished stage; `value` is the kept epoch's dev figure, `keep` says which.

    A `kept_epoch` of -1 is the model that the stage started from. `comparison` has words where it was not improved on.
    """

    stage: str
    epochs: int
    kept_epoch: int
    seconds: float
    keep: str = ""
    value: float | None = None
    comparison: str = ""

    @property
    def kept(self) -> str:
        """The kept epoch, counted from 1, of all epochs."""
        return (
            f"{self.kept_epoch + 1} of {self.epochs}"
            if self.kept_epoch >= 0
            else f"start, of {counted(self.epochs, 'epoch')}"
        )


@dataclass(frozen=True)
class LengthScore:
    """The scores of sentences of `first` to `last` words; None: and longer."""

    first: int
    last: int | None
    sentences: int
    scores: dict[str, float]


@dataclass(frozen=True)
class EvaluationRow:
    """A line of evaluations.jsonl: the scores of a split at a beam, with their signature.

    `by_length` is filled where `argbeam reproduce` scored the run.
    """

    task: str
    split: str
    successors: str
    train_beam: int
    test_beam: int
    rule: str
    length_power: float
    stop: str
    seed: int
    version: str
    metric: str
    scores: dict[str, float]
    sentences: int
    unfinished: int
    dead: int
    length_power_from: str = "recipe"  # missing in records of early versions
    decoded: str = ""  # the same
    weights: str = ""  # the same
    references: str = ""  # a digest of what outputs were compared with; the same
    limit: str = ""  # the same; empty in tasks of fixed length
    by_length: list[LengthScore] = field(default_factory=list)


@dataclass(frozen=True)
class RunRecords:
    """The rows of records.jsonl by kind, each in the order of the file."""

    starts: list[StartRow]
    epochs: list[EpochRow]
    stages: list[StageRow]

    @property
    def epoch_seconds(self) -> float | None:
        """Median training time of an epoch of the last stage, without dev: the first epoch may record CUDA graphs."""
        last = self.epochs[-1].stage if self.epochs else ""
        known = [row.seconds for row in self.epochs if row.stage == last and row.seconds is not None]
        return statistics.median(known) if known else None


def read_run_records(path: Path, *, fix: str) -> RunRecords:
    """Read records.jsonl. `fix` ends each error message: what to do about a damaged file."""
    return RunRecords(
        read_rows(path, StartRow, kind="start", fix=fix),
        read_rows(path, EpochRow, kind="epoch", fix=fix),
        read_rows(path, StageRow, kind="stage", fix=fix),
    )


def read_rows(path: Path, row: type[T], *, kind: str = "", fix: str) -> list[T]:
    """Read a file of JSON lines, or its lines of one kind, as the dataclass `row`. Other keys are ignored."""
    return [
        parse_json(json.dumps(record).encode(), row, f"{path}:{number}", fix)
        for number, record in enumerate(read_records(path), 1)
        if not kind or record.get("kind") == kind
    ]


def parse_json(data: bytes, kind: type[T], where: object, fix: str) -> T:
    """JSON text as the dataclass `kind`, checked strictly."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        parsed: T = _ADAPTERS[kind].validate_json(data, strict=True)
    except ValidationError as error:
        raise damaged(where, _reason(error.errors(include_url=False)[0]), fix) from None
    return parsed


# What pydantic expected, by its type of error, in words.
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "string": "a string",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "dataclass": "a table",
}


def _reason(error: ErrorDetails) -> str:
    """Pydantic's error in our words."""
    place, kind = ".".join(map(str, error["loc"])), error["type"]
    if kind == "missing":
        return f"{place} is missing"
    if kind == "json_invalid":
        found = re.search(r"line ([0-9]+) column ([0-9]+)", error["msg"])
        return f"not JSON at line {found[1]}, column {found[2]}" if found else "not JSON"
    expected = _EXPECTED.get(kind.split("_")[0], "what argbeam writes")
    return f"{place or 'the whole'} is {kind_of(error['input'])}, accepted: {expected}"


def damaged(where: object, reason: str, fix: str) -> DataError:
    """The error for a file with other content than argbeam wrote."""
    return DataError(f"{where}: damaged: {reason}; {fix}")
