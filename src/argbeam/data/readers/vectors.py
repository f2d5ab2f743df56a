"""Pre-trained word vectors in word2vec's text and binary formats, for the words of a vocabulary."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from argbeam.data.readers.text import open_bytes, open_lines, unpacked
from argbeam.errors import DataError


@dataclass(frozen=True)
class Vectors:
    """`vectors_FD[rows[word]]` is the vector of a word. The file holds F of the `asked` words."""

    rows: Mapping[str, int]
    vectors_FD: Float[Tensor, "F D"]
    asked: int

    @property
    def found(self) -> int:
        """How many of the words asked for have a vector."""
        return len(self.rows)


def read_vectors(path: Path, *, words: Collection[str], size: int) -> Vectors:
    """Read the vectors of `words` from a word2vec file: `.bin`, also compressed, is binary, anything else text.

    Words are compared exactly. Of a word found twice the first vector counts. Memory grows with the words asked for,
    not with the file.
    """
    wanted = frozenset(words)
    entries = _binary_entries if unpacked(path).suffix == ".bin" else _text_entries
    rows: dict[str, int] = {}
    kept = []
    for word, vector_D in entries(path, wanted, size):
        if word not in rows:
            rows[word] = len(rows)
            kept.append(vector_D)
    vectors_FD = np.stack(kept) if kept else np.zeros((0, size), dtype=np.float32)
    return Vectors(rows, torch.from_numpy(vectors_FD), asked=len(wanted))


_HEADER = re.compile(r"([0-9]{1,12}) ([0-9]{1,9})")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(nan|inf(inity)?)", re.IGNORECASE)
_CHUNK = 1 << 20
_LONGEST_WORD = 4096  # bytes; a longer "word" means that the file is out of step

_Vector = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def _text_entries(path: Path, wanted: frozenset[str], size: int) -> Iterator[tuple[str, _Vector]]:
    count = promised = 0
    for line, text in open_lines(path):
        if line == 1:
            promised = _promised(text, path, size)
            continue
        text = text.rstrip(" ")  # word2vec itself ends each line with a space
        count += 1
        found = text.count(" ")
        if found != size:
            raise DataError(f"{path}:{line}: {found} numbers after the word; {size} are expected")
        word, numbers = text.split(" ", 1)
        if word in wanted:
            yield word, _parse(numbers, f"{path}:{line}", word)
    if not promised and not count:
        raise DataError(f"{path}: no vectors; the first line gives their number and size")
    if count != promised:
        raise DataError(f"{path}: {count} vectors; the first line promises {promised}")


def _parse(numbers: str, where: str, word: str) -> _Vector:
    values = []
    for number in numbers.split(" "):
        # Python reads `1_0`, other scripts' digits and white space around a number as well: no program writes those.
        if not _FLOAT.fullmatch(number):
            raise DataError(f"{where}: {number!r} in the vector of {word!r}; a number is expected")
        values.append(float(number))
    return _finite(values, where, word)


def _binary_entries(path: Path, wanted: frozenset[str], size: int) -> Iterator[tuple[str, _Vector]]:
    # Words are compared as bytes: large public files hold some that are not UTF-8, which nobody can ask for.
    word_of = {word.encode("utf-8"): word for word in wanted}
    with open_bytes(path) as stream:
        header = stream.readline(64)
        promised = _promised(header.decode("latin-1").rstrip("\n"), path, size)
        if not promised:
            raise DataError(f"{path}: no vectors; the first line gives their number and size")
        for number, (name, raw) in enumerate(_records(stream, path, promised, 4 * size), start=1):
            if name in word_of:
                word = word_of[name]
                yield word, _finite(np.frombuffer(raw, dtype="<f4"), f"{path}: vector {number}", word)


def _records(stream: BufferedIOBase, path: Path, promised: int, width: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (word, raw vector) as often as promised: a word, a space, `width` bytes, perhaps a newline."""
    pending, at, number = b"", 0, 1
    while number <= promised:
        space = pending.find(b" ", at, at + _LONGEST_WORD)
        if space < 0 and len(pending) - at >= _LONGEST_WORD:
            raise DataError(f"{path}: vector {number} of {promised} has no word; are they of size {width // 4}?")
        if space < 0 or len(pending) < space + 1 + width:
            more = stream.read(max(_CHUNK, width))
            if not more:
                raise DataError(f"{path}: the file ends in vector {number}; the first line promises {promised}")
            pending, at = pending[at:] + more, 0
            continue
        end = space + 1 + width
        yield pending[at:space].removeprefix(b"\n"), pending[space + 1 : end]
        at, number = end, number + 1
    if (pending[at:] + stream.read(2)) not in (b"", b"\n"):
        raise DataError(f"{path}: more bytes after vector {promised}, the last that the first line promises")


def _promised(header: str, path: Path, size: int) -> int:
    match = _HEADER.fullmatch(header.strip(" \r"))
    if match is None:
        raise DataError(f"{path}:1: not a word2vec header ({header[:40]!r}); `COUNT SIZE` is expected, as `14400 300`")
    if int(match[2]) != size:
        raise DataError(f"{path}:1: vectors of size {int(match[2])}; size {size} is expected")
    return int(match[1])


def _finite(values: list[float] | _Vector, where: str, word: str) -> _Vector:
    with np.errstate(over="ignore"):
        row = np.array(values, dtype=np.float32)
    if not np.isfinite(row).all():
        bad = next(value for value in row.tolist() if not math.isfinite(value))
        raise DataError(f"{where}: {bad} in the vector of {word!r}; a finite number is expected")
    return row
