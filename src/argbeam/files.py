"""Files that survive a kill (whole files, records as JSON lines), and OSErrors as one line."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from argbeam.errors import ArgbeamError, DataError

TEMPORARY = ".tmp"


@contextmanager
def reading(path: Path | str, expected: str, error: type[ArgbeamError] = DataError) -> Iterator[None]:
    """Turn an OSError into `cannot read PATH: REASON; EXPECTED`. Only reading belongs in the block."""
    with _as_one_line(f"cannot read {path}", expected, error):
        yield


@contextmanager
def writing(path: Path | str, hint: str, error: type[ArgbeamError] = ArgbeamError) -> Iterator[None]:
    """Turn an OSError into `cannot write PATH: REASON; HINT`. Only writing belongs in the block."""
    with _as_one_line(f"cannot write {path}", hint, error):
        yield


def check_there(path: Path, hint: str) -> None:
    """A DataError where nothing is at the path, or where it cannot be looked at; `hint` ends the message."""
    try:
        path.stat()
    except PermissionError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {hint}") from None
    except (OSError, ValueError):
        raise DataError(f"{path}: no such file; {hint}") from None


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to the disk. After a kill at any moment, `path` has its old content or all of the new.

    The data goes to a hidden file first. A kill may leave that file behind, an OSError does not.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        temporary.replace(path)
        with _opened(path.parent.resolve(), os.O_RDONLY) as folder:
            os.fsync(folder)  # until then the new name is not on the disk
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line, after removing an unfinished last line. NaN and infinity are a ValueError: JSON has neither."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        end = _end_of_last_line(descriptor)
        os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        _write_all(descriptor, line)


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records, in order, without an unfinished last line. Another line that is no JSON object is a DataError."""
    return [record for record, _ in _parse(path)]


def truncate_records(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> int:
    """Cut the file before the first record that `keep` refuses; return the number of removed records.

    A run that resumes from a checkpoint removes the records after it. An unfinished last line goes too, uncounted.
    """
    if not path.exists():
        return 0
    end, kept, records = 0, 0, list(_parse(path))
    for record, after in records:
        if not keep(record):
            break
        end, kept = after, kept + 1
    with _opened(path, os.O_RDWR) as descriptor:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    return len(records) - kept


@contextmanager
def _as_one_line(failure: str, hint: str, error: type[ArgbeamError]) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise error(f"{failure}: {cause.strerror or cause}; {hint}") from cause


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    # Links are not followed: in a folder from elsewhere, one of this name could lead to any file of the user.
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _end_of_last_line(descriptor: int) -> int:
    """The offset after the last newline; 0 without one."""
    end, block = os.lseek(descriptor, 0, os.SEEK_END), 1
    while end > 0:
        start = max(0, end - block)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end, block = start, 65536  # one byte is nearly always enough: the last line is whole
    return 0


def _parse(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record with the offset after its line."""
    with reading(path, "a file of JSON lines is expected"):
        data = path.read_bytes()
    offset = 0
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        offset += len(line) + 1
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number}: not a record; every line must be a JSON object")
        yield record, offset
