"""Files that survive a kill (whole files, records as JSON lines), and the system's errors as one line."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` on the disk; after a kill at any moment `path` holds its old content or all of the new.

    The data goes to a hidden file beside it first; a kill may leave that one, an OSError does not.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        _write_durably(temporary, data)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line. A line that a kill tore is cut off first. NaN and infinity are no JSON: a ValueError."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        end = _end_of_last_line(descriptor)
        os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        _write_all(descriptor, line)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Records:
    """What a file of records holds; `torn` says that a kill cut its last line off, which is left out."""

    records: list[dict[str, Any]]
    torn: bool


def read_records(path: Path) -> Records:
    """All whole records, in order. A line that is whole and no JSON object is a DataError."""
    data = _read(path)
    return Records([record for record, _ in _parse(data, path)], torn=bool(data) and not data.endswith(b"\n"))


def truncate_records(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> int:
    """Cut the file before the first record that `keep` refuses; return how many records went.

    A run that resumes from a checkpoint cuts what was recorded after it, so that nothing stands twice. A torn
    last line goes too, uncounted. A missing file has nothing to cut.
    """
    if not path.exists():
        return 0
    end, kept, records = 0, 0, list(_parse(_read(path), path))
    for record, after in records:
        if not keep(record):
            break
        end, kept = after, kept + 1
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(records) - kept


@contextmanager
def _as_one_line(failure: str, hint: str, error: type[ArgbeamError]) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise error(f"{failure}: {cause.strerror or cause}; {hint}") from cause


def _write_durably(path: Path, data: bytes) -> None:
    # No link is followed: a folder from elsewhere could hold one under this name that leads to a file of the user's.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make the folder's own list of names durable: a rename is not, until then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _end_of_last_line(descriptor: int) -> int:
    """The offset after the last newline, 0 where there is none."""
    end, block = os.lseek(descriptor, 0, os.SEEK_END), 1
    while end > 0:
        start = max(0, end - block)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end, block = start, 65536  # one byte is enough where the last line is whole, which is nearly always
    return 0


def _read(path: Path) -> bytes:
    with reading(path, "a file of JSON lines is expected"):
        return path.read_bytes()


def _parse(data: bytes, path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record with the offset after its line."""
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
