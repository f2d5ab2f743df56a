"""Records read with checks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from argbeam.errors import DataError
from argbeam.files import append_record
from argbeam.reports.records import DevFigures, EpochRow, StageRow, StartRow, parse_json, read_rows, read_run_records
from refusals import refusal

START = {"kind": "start", "device": "cpu"}
EPOCH = {"kind": "epoch", "stage": "bso", "epoch": 0, "dev": {"value": 3, "bleu": 3.0}, "beam": 2, "seconds": 1.5}
STAGE = {"kind": "stage", "stage": "bso", "epochs": 1, "kept_epoch": 0, "seconds": 2.0, "keep": "score"}


@dataclass(frozen=True)
class Score:
    value: float


def records(folder: Path, *lines: dict[str, Any]) -> Path:
    for line in lines:
        append_record(folder / "records.jsonl", line)
    return folder / "records.jsonl"


def test_records_of_a_run_are_rows_by_kind_and_other_keys_and_kinds_are_ignored(tmp_path: Path) -> None:
    found = read_run_records(records(tmp_path, START, EPOCH, {"kind": "resume", "update": 1}, STAGE), fix="")
    assert found.starts == [StartRow("cpu")]
    assert found.epochs == [EpochRow("bso", 0, DevFigures(3.0, metric="BLEU"), beam=2, seconds=1.5)]
    assert found.stages == [StageRow("bso", 1, 0, 2.0, "score")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"kind": "start"}, "device is missing"),
        ({**EPOCH, "dev": {"value": "3"}}, "dev.value is a string, accepted: a number"),
        ({**STAGE, "epochs": True}, "epochs is true or false, accepted: a whole number"),
    ],
)
def test_a_damaged_record_is_an_error_with_its_line(line: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = records(tmp_path, START, line)
    assert refusal(read_run_records, path, fix="remove it") == f"{path}:2: damaged: {reason}; remove it"


def test_lines_of_one_kind_are_read_as_a_dataclass(tmp_path: Path) -> None:
    path = records(tmp_path, {"value": 1, "more": 2}, {"value": 2.5})
    assert read_rows(path, Score, fix="") == [Score(1.0), Score(2.5)]
    append_record(path, {})
    assert refusal(read_rows, path, Score, fix="remove it") == f"{path}:3: damaged: value is missing; remove it"


def test_text_that_is_not_json_is_damaged() -> None:
    with pytest.raises(DataError, match=r"^x\.json: damaged: not JSON at line 1, column 1; remove it$"):
        parse_json(b"{", Score, "x.json", "remove it")
