"""Files that survive a kill: whole files, and JSON lines."""

import errno
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argbeam.errors import ArgbeamError, ConfigError, DataError
from argbeam.files import append_record, read_records, reading, truncate_records, write_atomic, writing
from refusals import refusal

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


class Killed(BaseException):
    """Stands for the process's end: code that tidies up after an Exception must not see it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("call", "error"), [*((call, Killed()) for call in ("open", "write", "fsync", "replace")), ("write", FULL)]
)
def test_an_atomic_write_that_fails_leaves_the_old_content_and_the_next_one_replaces_all_of_it(
    call: str, error: BaseException, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may leave a temporary file until the next write; a full disk leaves none."""
    write_atomic(path, b"a long first version")

    def fail(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(type(error)):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"a long first version"
    assert error is not FULL or list(path.parent.iterdir()) == [path]
    write_atomic(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert list(path.parent.iterdir()) == [path]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """os.write may take fewer bytes than it is given; here 3 at a time."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
        write_atomic(tmp_path / "whole", bytes(range(10)))
        append_record(tmp_path / "records.jsonl", {"update": 12345})
    assert (tmp_path / "whole").read_bytes() == bytes(range(10))
    assert read_records(tmp_path / "records.jsonl") == [{"update": 12345}]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=st.lists(st.dictionaries(st.text(), plain, max_size=3), max_size=5))
def test_records_come_back_as_they_were_appended(records: list[dict[str, Any]], path: Path) -> None:
    path.write_bytes(b"")
    for record in records:
        append_record(path, record)
    assert read_records(path) == records


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_record_with_a_number_that_json_lacks_is_refused_and_nothing_is_written(number: float, path: Path) -> None:
    append_record(path, {"loss": 1.0})
    with pytest.raises(ValueError, match="JSON compliant"):
        append_record(path, {"loss": number})
    assert read_records(path) == [{"loss": 1.0}]


def test_a_cut_at_every_byte_loses_only_the_record_it_falls_in(path: Path) -> None:
    lines = [json.dumps({"update": update}).encode() + b"\n" for update in (9, 10, 11)]
    whole = b"".join(lines)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = [9, 10, 11][: whole[:cut].count(b"\n")]
        assert [record["update"] for record in read_records(path)] == kept
        append_record(path, {"update": 99})
        assert [record["update"] for record in read_records(path)] == [*kept, 99]


def test_a_torn_line_longer_than_a_block_is_cut_off(path: Path) -> None:
    path.write_bytes(b'{"update": 1}\n' + b"x" * 200_000)
    append_record(path, {"update": 2})
    assert path.read_bytes() == b'{"update": 1}\n{"update": 2}\n'


@pytest.mark.parametrize("bad", [b'{"update": ', b"[1]", b"", b"\xff", b"3"])
def test_a_bad_line_in_the_middle_is_an_error_with_its_number(bad: bytes, path: Path) -> None:
    path.write_bytes(b'{"update": 1}\n' + bad + b'\n{"update": 2}\n')
    assert refusal(read_records, path) == f"{path}:2: not a record; every line must be a JSON object"


def test_a_missing_file_of_records_is_an_error(path: Path) -> None:
    reason = "No such file or directory; a file of JSON lines is expected"
    assert refusal(read_records, path) == f"cannot read {path}: {reason}"


CONFIG = partial(reading, error=ConfigError)


@pytest.mark.parametrize(
    ("block", "verb", "error"),
    [(reading, "read", DataError), (writing, "write", ArgbeamError), (CONFIG, "read", ConfigError)],
)
def test_an_error_of_the_system_is_one_line(block: Callable[..., Any], verb: str, error: type[ArgbeamError]) -> None:
    with pytest.raises(error) as caught, block("a/b", "a file is expected"):
        raise FULL
    assert type(caught.value) is error
    assert str(caught.value) == f"cannot {verb} a/b: No space left on device; a file is expected"


def test_a_resumed_run_has_each_record_once(path: Path) -> None:
    """Killed at update 5 (its record torn), resumed at 3: 1 2 3 stay, 4 and half of 5 go, 4 5 6 follow."""
    for update in range(1, 6):
        append_record(path, {"update": update})
    path.write_bytes(path.read_bytes()[:-4])
    assert truncate_records(path, lambda record: record["update"] <= 3) == 1
    for update in range(4, 7):
        append_record(path, {"update": update})
    assert [record["update"] for record in read_records(path)] == [1, 2, 3, 4, 5, 6]


def test_cutting_keeps_all_or_nothing_where_the_caller_says_so(path: Path) -> None:
    assert truncate_records(path, lambda record: False) == 0
    assert not path.exists()
    for update in (1, 2):
        append_record(path, {"update": update})
    content = path.read_bytes()
    assert truncate_records(path, lambda record: True) == 0
    assert path.read_bytes() == content
    assert truncate_records(path, lambda record: False) == 2
    assert path.read_bytes() == b""
