"""Text files, plain or compressed: lines, sentences and sentence pairs. One line is in memory."""

import gzip
import lzma
import stat
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path

from argbeam.errors import DataError, counted
from argbeam.files import reading

# Endings of a compressed file's name, and none.
COMPRESSIONS = ("", ".gz", ".xz")
LONGEST_LINE = 1 << 26  # bytes
_BLOCK = 1 << 20  # bytes read at once where lines do not matter


@dataclass(frozen=True)
class TextPair:
    """A sentence and its translation, before tokenisation; `where` is the file and line of the translation."""

    source: str
    target: str
    where: str = field(default="", compare=False)


def unpacked(path: Path) -> Path:
    """The path without the ending of a compression."""
    return path.with_suffix("") if path.suffix in COMPRESSIONS[1:] else path


def read_text(paths: Sequence[Path]) -> Iterator[str]:
    """Read one sentence a line. A line without a word is an error; every Unicode space separates words."""
    for path, line, text in read_lines(paths):
        _need_a_word(text, path, line)
        yield text


def read_tsv(paths: Sequence[Path], *, source_column: int = 0, target_column: int = 1) -> Iterator[TextPair]:
    """Read pairs from tab-separated columns, counted from 0. Other columns are ignored."""
    for path, line, text in read_lines(paths):
        fields = text.split("\t")
        for column in (source_column, target_column):
            if not 0 <= column < len(fields):
                raise DataError(
                    f"{path}:{line}: no column {column} in a line of {len(fields)}; "
                    f"tab-separated columns run from 0 to {len(fields) - 1}"
                )
            _need_a_word(fields[column], path, line, f"column {column} is empty")
        yield TextPair(fields[source_column], fields[target_column], f"{path}:{line}")


def read_parallel(source_paths: Sequence[Path], target_paths: Sequence[Path]) -> Iterator[TextPair]:
    """Read files in step: line i of a target file translates line i of its source file."""
    _need_a_file(source_paths)
    if len(source_paths) != len(target_paths):
        raise DataError(
            f"{source_paths[0]}: {len(source_paths)} source and {len(target_paths)} target files; "
            "each source file needs one target file"
        )
    for source_path, target_path in zip(source_paths, target_paths, strict=True):
        yield from _pairs_in_step(source_path, target_path)


def open_lines(path: Path) -> Generator[tuple[int, str], None, None]:
    r"""Yield (line number from 1, text without its line end) from a UTF-8 file, plain, `.gz` or `.xz`.

    Only `\n` or `\r\n` ends a line: U+2028, U+0085 and a lone `\r` belong to the text. A byte order mark at
    the start is dropped.
    """
    with open_bytes(path) as stream:
        line = 1
        while raw := stream.readline(LONGEST_LINE + 2):
            check_line(len(raw), path, line)
            yield line, decode_line(raw, path, line)
            line += 1


def count_lines_with_tab(path: Path) -> int:
    """The lines of a file with a tab. Where there is none, it takes little more time than reading the bytes."""
    found = 0
    with open_bytes(path) as stream:
        while block := stream.read(_BLOCK):
            if b"\t" in block:
                block += stream.readline()  # whole lines: none is counted twice
                found += sum(b"\t" in line for line in block.split(b"\n"))
    return found


def check_line(length: int, path: Path | str, line: int) -> None:
    """Refuse a line of so many bytes before memory is full: a file without line ends is no text."""
    if length > LONGEST_LINE + 1:  # with its line end
        raise DataError(f"{path}:{line}: a line of more than {LONGEST_LINE >> 20} MiB; lines end in a newline")


def decode_line(raw: bytes, path: Path | str, line: int) -> str:
    """The text of one line of UTF-8, with or without its line end; a byte order mark in line 1 is dropped."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{line}: not UTF-8 at byte {error.start + 1} of the line (0x{raw[error.start]:02x}); "
            "text files are UTF-8"
        ) from error
    if "\0" in text:
        raise DataError(f"{path}:{line}: NUL at byte {raw.index(0) + 1} of the line; text files hold none")
    return text.removeprefix("\ufeff") if line == 1 else text


@contextmanager
def open_bytes(path: Path) -> Iterator[BufferedIOBase]:
    """Open a plain, `.gz` or `.xz` file; a failure to open or to read it is a DataError, and so is a pipe."""
    if is_pipe(path):
        raise DataError(f"{path}: a pipe; it is read more than once, so a file is needed")
    with unpacking(path), open_stream(path) as stream:
        yield stream


def is_pipe(path: Path) -> bool:
    """Whether the path is a named pipe, which opens only when another process opens it too."""
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):  # reported where the file is opened
        return False


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Turn a failure to open, read or decompress the file into a DataError. Nothing else belongs in the block."""
    with reading(path, "a file is expected"):
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: damaged or not a whole {path.suffix} file ({error})") from error


def open_stream(path: Path) -> BufferedIOBase:
    """A plain, `.gz` or `.xz` file, with the system's own errors."""
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: no such file; a path holds no NUL")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        # Not FORMAT_AUTO: the older .lzma container has no check sums, so damage could pass for text.
        return lzma.open(path, "rb", format=lzma.FORMAT_XZ)
    return path.open("rb")


def read_lines(paths: Sequence[Path]) -> Iterator[tuple[Path, int, str]]:
    """Path, line number and text of every line of every file; none may be empty."""
    _need_a_file(paths)
    for path in paths:
        line = 0
        for line, text in open_lines(path):
            yield path, line, text
        _need_a_line(path, line)


def _pairs_in_step(source_path: Path, target_path: Path) -> Iterator[TextPair]:
    source_count = target_count = 0
    with closing(open_lines(source_path)) as sources, closing(open_lines(target_path)) as targets:
        for source, target in zip_longest(sources, targets):
            source_count += source is not None
            target_count += target is not None
            if source is None or target is None:
                continue  # the longer file is read to its end, so that both counts can be named
            _need_a_word(source[1], source_path, source[0])
            _need_a_word(target[1], target_path, target[0])
            yield TextPair(source[1], target[1], f"{target_path}:{target[0]}")
    _need_a_line(source_path, source_count)
    _need_a_line(target_path, target_count)
    if source_count != target_count:
        raise DataError(
            f"{source_path}: {counted(source_count, 'line')}, but {target_path} has {target_count}; "
            "parallel files have one line for each other's"
        )


def _need_a_file(paths: Sequence[Path]) -> None:
    if not paths:
        raise DataError("no file to read was given; at least one is needed")


def _need_a_line(path: Path, count: int) -> None:
    if not count:
        raise DataError(f"{path}: an empty file; at least one line is expected")


def _need_a_word(text: str, path: Path, line: int, found: str = "an empty line") -> None:
    if not text.strip():
        raise DataError(f"{path}:{line}: {found}; at least one word is expected")
