"""Training examples on disk: a run needs 12 bytes of memory for each.

STORE/tokens     token ids of all examples, 4 bytes each: source 0, target 0, source 1, target 1, ...
STORE/lengths    token counts of those sequences, 4 bytes each
STORE/header     JSON: the key of the store, counts, SHA-256 of both files, the task's files

The files are not mapped into memory: touched pages would count as the process's own, and a file cut short would kill
the process instead of raising an error.
"""

import base64
import hashlib
import json
import os
import shutil
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from argbeam.data.batches import Example, Lengths
from argbeam.errors import DataError
from argbeam.files import TEMPORARY, reading, write_atomic

FORMAT = 1

_TOKENS, _LENGTHS, _HEADER = "tokens", "lengths", "header"
_INT = np.dtype("<i4")
# Integers gathered before they are written.
_BUFFER = 1 << 17


class StoredExamples(Sequence[Example]):
    """The examples of a store, each read from the disk on access. A store that is not whole is a DataError.

    The caller compares `header["key"]`.
    """

    def __init__(self, folder: Path) -> None:
        self.header = _read_header(folder)
        for name in (_TOKENS, _LENGTHS):
            _check_file(folder / name, self.header["sha256"][name])
        sizes_N2 = np.fromfile(folder / _LENGTHS, dtype=_INT).reshape(-1, 2)
        self.lengths = Lengths(source_N=sizes_N2[:, 0].copy(), target_N=sizes_N2[:, 1].copy())
        self._start_N = np.cumsum(sizes_N2.sum(1, dtype=np.int64)) - sizes_N2.sum(1, dtype=np.int64)
        self._tokens = os.open(folder / _TOKENS, os.O_RDONLY | os.O_NOFOLLOW)
        weakref.finalize(self, os.close, self._tokens)

    def __len__(self) -> int:
        return len(self.lengths.source_N)

    @overload
    def __getitem__(self, number: int) -> Example: ...

    @overload
    def __getitem__(self, number: slice) -> list[Example]: ...

    def __getitem__(self, number: int | slice) -> Example | list[Example]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(f"example {number} of {len(self)}")
        source, target = int(self.lengths.source_N[number]), int(self.lengths.target_N[number])
        size, start = _INT.itemsize, int(self._start_N[number])
        ids = np.frombuffer(os.pread(self._tokens, size * (source + target), size * start), dtype=_INT).tolist()
        if len(ids) != source + target:
            raise DataError(f"example {number}: the store of training examples was cut short while it was in use")
        return Example(tuple(ids[:source]), tuple(ids[source:]), number)

    @property
    def assets(self) -> dict[str, bytes]:
        """The files of the task that made the examples."""
        return {name: base64.b64decode(data) for name, data in self.header["assets"].items()}


def write_store(
    folder: Path, examples: Iterable[Example], *, about: Mapping[str, Any], assets: Mapping[str, bytes]
) -> None:
    """Write examples one by one, then the header with `about`; the folder appears when the store is whole."""
    temporary = folder.with_name(f".{folder.name}{TEMPORARY}")
    remove_store(temporary)
    temporary.mkdir(parents=True)
    tokens, lengths = _IntFile(temporary / _TOKENS), _IntFile(temporary / _LENGTHS)
    for example in examples:
        tokens.add(example.source)
        tokens.add(example.target)
        lengths.add((len(example.source), len(example.target)))
    header = {
        **about,
        "store": FORMAT,
        "sha256": {_TOKENS: tokens.close(), _LENGTHS: lengths.close()},
        "assets": {name: base64.b64encode(data).decode() for name, data in assets.items()},
    }
    write_atomic(temporary / _HEADER, json.dumps(header).encode())
    remove_store(folder)
    temporary.replace(folder)


def remove_store(folder: Path) -> None:
    """Remove a store, whole or not; of a link only the link."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


class _IntFile:
    """A file of integers, written in large pieces."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._pending = array("i")
        self._digest = hashlib.sha256()

    def add(self, integers: Iterable[int]) -> None:
        self._pending.extend(integers)
        if len(self._pending) >= _BUFFER:
            self._flush()

    def close(self) -> str:
        """Put all on the disk and return the digest of the file."""
        self._flush()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def _flush(self) -> None:
        data = np.frombuffer(self._pending, dtype=np.intc).astype(_INT).tobytes() if self._pending else b""
        self._file.write(data)
        self._digest.update(data)
        self._pending = array("i")


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / _HEADER
    with reading(path, "the header of a store is expected"):
        data = path.read_bytes()
    try:
        header = json.loads(data)
        whole = header["store"] == FORMAT and set(header["sha256"]) == {_TOKENS, _LENGTHS}
        whole = whole and all(isinstance(data, str) for data in header["assets"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise DataError(f"{path}: not the header of a store")
    return dict(header)


def _check_file(path: Path, digest: str) -> None:
    with reading(path, "a part of a store is expected"), path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise DataError(f"{path}: altered: its SHA-256 is not the one it was written with")
