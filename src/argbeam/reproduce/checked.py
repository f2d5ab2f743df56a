"""The form of a reproduction's files. They are passed on, and so may come from anywhere and be damaged on the way."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from argbeam.errors import DataError

T = TypeVar("T")
# Making one takes longer than reading a line with it, and files have thousands of lines.
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


@dataclass(frozen=True)
class LengthScore:
    """The scores of sentences of `first` to `last` words; None: and longer."""

    first: int
    last: int | None
    sentences: int
    scores: dict[str, float]


@dataclass(frozen=True)
class Score:
    """What tables read of the record of a split at a beam. Scores by length are not in records of older versions."""

    test_beam: int
    metric: str
    scores: dict[str, float]
    by_length: list[LengthScore] = field(default_factory=list)


@dataclass(frozen=True)
class ScoringLine:
    """A line of scores.jsonl."""

    scoring: str
    records: list[Score]


@dataclass(frozen=True)
class TestLine:
    """A line of tests.jsonl."""

    key: str
    p: dict[str, float]
    signatures: dict[str, str]


@dataclass(frozen=True)
class RunLine:
    """What is read of a line of records.jsonl, ..."""

    kind: str
    violations_per_word: float = 0.0


@dataclass(frozen=True)
class StageLine(RunLine):
    """... and of a stage's line."""

    epochs: int = field(kw_only=True)
    kept_epoch: int = field(kw_only=True)
    seconds: float = field(kw_only=True)


@dataclass(frozen=True)
class TimedStep:
    """A system's time at a beam; decoding has no ratio."""

    system: str
    beam: int
    ms: float
    tokens_per_s: float
    ratio: float | None


@dataclass(frozen=True)
class Timing:
    """timing.json."""

    device: str
    shape: dict[str, int]
    rows: list[TimedStep]


def parsed(data: bytes, kind: type[T], path: Path, mended: str) -> T:
    """The JSON as a `kind`; what has another form is an error of one line, which says how to mend it."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        found: T = _ADAPTERS[kind].validate_json(data, strict=True)
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise damaged(path, f"{place}: {first['msg']}" if place else first["msg"], mended) from None


def check(record: dict[str, Any], kind: type[Any], path: Path, mended: str) -> None:
    """Refuse a line that has not the fields of `kind`; others are its own affair."""
    parsed(json.dumps(record).encode(), kind, path, mended)


def damaged(path: Path, reason: str, mended: str) -> DataError:
    """The error for a file that is not what was written."""
    return DataError(f"{path}: damaged: {reason}; {mended}")
