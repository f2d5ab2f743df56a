"""Lines, sentences and pairs: what is read equals what was written, and every damage is a DataError."""

import gzip
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argbeam.data.readers import text as reader
from argbeam.data.readers.text import (
    TextPair,
    count_lines_with_tab,
    open_lines,
    read_parallel,
    read_text,
    read_tsv,
)
from refusals import refusal

PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
# Line ends, NUL, half surrogates and the byte order mark have tests of their own.
line_text = st.text(st.characters(exclude_characters="\n\r\0\ufeff", exclude_categories=["Cs"]))
sentence = (
    st.lists(st.sampled_from(["a", "Ü", "\u2028", "漢", "\x85", "e\u0301"]), min_size=1).map("x ".join).map("w".__add__)
)


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(PACK[path.suffix if path.suffix in PACK else ""](data))
    return path


@given(st.lists(line_text, min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from([*PACK]))
def test_lines_written_are_the_lines_read(lines: list[str], end: str, mark: bool, suffix: str) -> None:
    data = ("\ufeff" * mark + end.join(lines) + end).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), f"t{suffix}", data)
        assert list(open_lines(path)) == list(enumerate(lines, start=1))


def test_only_newlines_end_a_line_and_the_last_one_needs_none(tmp_path: Path) -> None:
    text = "a\u2028b\x85c\rd\x0ce"
    assert list(open_lines(write(tmp_path, "t", f"a\n{text}".encode()))) == [(1, "a"), (2, text)]


@given(
    st.lists(st.text("a\t\rx", max_size=5)), st.sampled_from(["\n", ""]), st.integers(1, 9), st.sampled_from([*PACK])
)
def test_lines_with_a_tab_are_counted_once_wherever_blocks_end(
    lines: list[str], end: str, block: int, suffix: str
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_BLOCK", block)
        path = write(Path(folder), f"t{suffix}", ("\n".join(lines) + end).encode())
        assert count_lines_with_tab(path) == sum("\t" in line for _, line in open_lines(path))


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    """The bad second line is not looked at before it is asked for."""
    lines = open_lines(write(tmp_path, "t", b"good\n\xff\n"))
    assert next(lines) == (1, "good")
    assert "t:2: not UTF-8" in refusal(next, lines)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_compressed_file_cut_short_or_not_compressed_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, f"t{suffix}", b"words\n" * 100)
    for data in (path.read_bytes()[:-9], b"plain text\n"):
        path.write_bytes(data)
        assert f"{path}: damaged or not a whole {suffix} file" in refusal(open_lines, path)


def test_bytes_that_are_not_utf8_and_a_nul_are_named(tmp_path: Path) -> None:
    """Line 2 is `gr`, then the Latin-1 u umlaut, 0xfc: byte 3. In UTF-8 it has two bytes."""
    path = write(tmp_path, "t", b"gut\ngr\xfcn\n")
    assert f"{path}:2: not UTF-8 at byte 3 of the line (0xfc); text files are UTF-8" in refusal(open_lines, path)
    path = write(tmp_path, "t", "ü\0b\n".encode())
    assert f"{path}:1: NUL at byte 3 of the line; text files hold none" in refusal(open_lines, path)


def test_a_missing_file_a_directory_and_an_impossible_path_are_errors(tmp_path: Path) -> None:
    missing = f"cannot read {tmp_path / 'no'}: No such file or directory; a file is expected"
    assert refusal(open_lines, tmp_path / "no") == missing
    assert refusal(open_lines, tmp_path) == f"cannot read {tmp_path}: Is a directory; a file is expected"
    assert "'a\\x00b': no such file; a path holds no NUL" in refusal(open_lines, Path("a\0b"))
    assert refusal(open_lines, tmp_path / ("x" * 5000)).endswith(": File name too long; a file is expected")


def test_files_follow_each_other(tmp_path: Path) -> None:
    one, two = write(tmp_path, "1", b"a b\nc\n"), write(tmp_path, "2.gz", b"d\n")
    assert list(read_text([one, two])) == ["a b", "c", "d"]


@pytest.mark.parametrize("blank", ["", "  ", "\u00a0", "\u2028"])
def test_a_line_without_a_word_is_an_error(tmp_path: Path, blank: str) -> None:
    path = write(tmp_path, "t", f"a\n{blank}\nb\n".encode())
    assert f"{path}:2: an empty line; at least one word is expected" in refusal(read_text, [path])


def test_an_empty_file_and_no_file_are_errors(tmp_path: Path) -> None:
    empty, full = write(tmp_path, "empty", b""), write(tmp_path, "full", b"a\tb\n")
    for read in (read_text, read_tsv):
        assert f"{empty}: an empty file; at least one line is expected" in refusal(read, [full, empty])
        assert "no file to read was given; at least one is needed" in refusal(read, [])
    assert f"{empty}: an empty file" in refusal(read_parallel, [full], [empty])
    assert "no file to read was given" in refusal(read_parallel, [], [])


@given(st.lists(st.tuples(sentence, sentence), min_size=1))
def test_parallel_files_and_columns_give_the_pairs_written(pairs: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write(folder, "t.de.xz", "".join(f"{s}\n" for s, _ in pairs).encode())
        target = write(folder, "t.en", "".join(f"{t}\n" for _, t in pairs).encode())
        table = write(folder, "t.tsv.gz", "".join(f"{t}\tnote\t{s}\n" for s, t in pairs).encode())
        expected = [TextPair(*pair) for pair in pairs]
        assert list(read_parallel([source], [target])) == expected
        assert list(read_tsv([table], source_column=2, target_column=0)) == expected


def test_unequal_counts_of_lines_and_of_files_are_named(tmp_path: Path) -> None:
    two, three = write(tmp_path, "2", b"a\nb\n"), write(tmp_path, "3", b"a\nb\nc\n")
    assert refusal(read_parallel, [two], [three]) == (
        f"{two}: 2 lines, but {three} has 3; parallel files have one line for each other's"
    )
    assert f"{three}: 3 lines, but {two} has 2" in refusal(read_parallel, [three], [two])
    assert refusal(read_parallel, [two, two], [two]) == (
        f"{two}: 2 source and 1 target files; each source file needs one target file"
    )


def test_an_empty_side_and_a_missing_column_are_named(tmp_path: Path) -> None:
    full, gap = write(tmp_path, "full", b"a\nb\n"), write(tmp_path, "gap", b"a\n\n")
    assert f"{gap}:2: an empty line" in refusal(read_parallel, [full], [gap])
    table = write(tmp_path, "t.tsv", b"a\tb\nc\t \n")
    assert f"{table}:2: column 1 is empty; at least one word is expected" in refusal(read_tsv, [table])
    for column in (2, -1):
        assert refusal(read_tsv, [table], target_column=column) == (
            f"{table}:1: no column {column} in a line of 2; tab-separated columns run from 0 to 1"
        )
