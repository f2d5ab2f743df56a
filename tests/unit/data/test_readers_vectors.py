"""Word vectors: both formats give back what was written, and every damage is a DataError."""

import gzip
import lzma
import struct
import tempfile
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from argbeam.data.readers.vectors import Vectors, read_vectors
from refusals import refusal

Table = dict[str, list[float]]
number = st.floats(width=32, allow_nan=False, allow_infinity=False)
word = st.text(st.characters(exclude_characters=" \n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=5)
tables = st.integers(1, 4).flatmap(
    lambda n: st.dictionaries(word, st.lists(number, min_size=n, max_size=n), min_size=1)
)


def as_text(table: Table, *, end: str = "\n") -> bytes:
    size = len(next(iter(table.values())))
    lines = [f"{name} {' '.join(map(repr, vector))}{end}" for name, vector in table.items()]
    return f"{len(table)} {size}\n{''.join(lines)}".encode()


def as_binary(table: Table, *, end: str = "\n") -> bytes:
    size = len(next(iter(table.values())))
    records = [name.encode() + b" " + struct.pack(f"<{size}f", *row) + end.encode() for name, row in table.items()]
    return f"{len(table)} {size}\n".encode() + b"".join(records)


def read(data: bytes, words: list[str], size: int, name: str = "v.vec") -> Vectors:
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(pack(data))
        return read_vectors(path, words=words, size=size)


@given(tables, st.data(), st.sampled_from(["v.vec", "v.txt.xz", "v.bin", "v.bin.gz"]))
def test_the_vectors_written_are_the_vectors_read(table: Table, data: st.DataObject, name: str) -> None:
    asked = data.draw(st.lists(st.sampled_from([*table, "not there"]), unique=True))
    size = len(next(iter(table.values())))
    if "bin" in name:
        written = as_binary(table, end=data.draw(st.sampled_from(["", "\n"])))
    else:
        written = as_text(table, end=data.draw(st.sampled_from(["\n", " \n", "\r\n"])))
    vectors = read(written, asked, size, name)
    assert set(vectors.rows) == set(asked) & set(table)
    assert (vectors.found, vectors.asked) == (len(vectors.rows), len(asked))
    assert vectors.vectors_FD.shape == (vectors.found, size) and vectors.vectors_FD.dtype == torch.float32
    for asked_word, row in vectors.rows.items():
        assert vectors.vectors_FD[row].tolist() == table[asked_word]


def test_the_first_of_two_vectors_of_a_word_counts() -> None:
    assert read(b"2 1\na 1\na 2\n", ["a"], 1).vectors_FD.tolist() == [[1.0]]


def test_a_binary_word_that_is_not_utf8_is_passed_over() -> None:
    data = b"2 1\n\xff\xfe " + struct.pack("<f", 1.0) + b"\na " + struct.pack("<f", 2.0)
    assert read(data, ["a"], 1, "v.bin").vectors_FD.tolist() == [[2.0]]


@pytest.mark.parametrize("name", ["v.vec", "v.bin"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    """20,000 vectors of 100 numbers are 8 MB as float32; with one word asked for 4 MB are enough."""
    path = tmp_path / name
    write = as_binary if name == "v.bin" else as_text
    path.write_bytes(write({f"w{i}": [0.5] * 100 for i in range(20_000)}))
    tracemalloc.start()
    assert read_vectors(path, words=["w19999"], size=100).found == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


TWO = as_binary({"a": [1.0, 2.0], "b": [3.0, 4.0]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1 2\na 1\n", "v.vec:2: 1 numbers after the word; 2 are expected"),
        (b"2 2\na 1 2\nb 1 2 3\n", "v.vec:3: 3 numbers after the word; 2 are expected"),
        (b"1 2\na 1 x\n", "v.vec:2: 'x' in the vector of 'a'; a number is expected"),
        (b"1 2\na 1 1_0\n", "v.vec:2: '1_0' in the vector of 'a'; a number is expected"),
        ("1 2\na 1 \u0661\n".encode(), "v.vec:2: '\u0661' in the vector of 'a'; a number is expected"),
        (b"1 2\na 1 nan\n", "v.vec:2: nan in the vector of 'a'; a finite number is expected"),
        (b"1 2\na 1 1e99\n", "v.vec:2: inf in the vector of 'a'; a finite number is expected"),
        (b"a 1 2\n", "v.vec:1: not a word2vec header ('a 1 2'); `COUNT SIZE` is expected, as `14400 300`"),
        (b"1 3\na 1 2 3\n", "v.vec:1: vectors of size 3; size 2 is expected"),
        (b"3 2\na 1 2\nb 1 2\n", "v.vec: 2 vectors; the first line promises 3"),
        (b"1 2\na 1 2\nb 1 2\n", "v.vec: 2 vectors; the first line promises 1"),
        (b"", "v.vec: no vectors; the first line gives their number and size"),
        (b"1 2\n\xff 1 2\n", "v.vec:2: not UTF-8 at byte 1 of the line (0xff); text files are UTF-8"),
        (TWO[:-4], "v.bin: the file ends in vector 2; the first line promises 2"),
        (TWO[:5], "v.bin: the file ends in vector 1; the first line promises 2"),
        (TWO + b"x", "v.bin: more bytes after vector 2, the last that the first line promises"),
        (b"\x00\x01", "v.bin:1: not a word2vec header ('\\x00\\x01')"),
        (b"", "v.bin:1: not a word2vec header ('')"),
        (b"0 2\n", "v.bin: no vectors; the first line gives their number and size"),
        (TWO.replace(b"2 2", b"2 3", 1), "v.bin:1: vectors of size 3; size 2 is expected"),
        (b"1 2\n" + b"x" * 5000, "v.bin: vector 1 of 1 has no word; are they of size 2?"),
        (b"1 2\na " + struct.pack("<2f", 1.0, float("inf")), "v.bin: vector 1: inf in the vector of 'a'; a finite"),
    ],
)
def test_a_malformed_file_is_named_by_its_line_or_vector(data: bytes, message: str) -> None:
    assert message in refusal(read, data, ["a"], 2, message[:5])
