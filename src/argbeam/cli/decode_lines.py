"""Decoding a stream of lines: in input order, in bounded memory, and no later than the input allows."""

import json
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from io import BufferedIOBase
from lzma import LZMAFile
from pathlib import Path
from typing import Any, TextIO

from argbeam.data.readers.text import decode_line, open_stream, unpacking
from argbeam.decoding.batch_decoder import Decoded, item_of
from argbeam.errors import NO_ROOM, ArgbeamError, ConfigError, DataError
from argbeam.runs.load import Run
from argbeam.runtime.group import Group
from argbeam.settings import MOST_BEAM
from argbeam.tasks.contract import Item

# Lines that are decoded together at most. Many, since sentences of one length go together; few with a trace, which
# holds the whole search.
_MOST_LINES, _MOST_TRACED = 8192, 256


@dataclass(frozen=True)
class Request:
    """What `decode` is asked for."""

    beam: int
    n_best: int = 1
    scores: bool = False
    as_json: bool = False


@dataclass
class Counts:
    """What a user should hear of after decoding. `unit` is what is counted."""

    lines: int = 0
    unfinished: int = 0
    dead: int = 0
    unit: str = "lines"

    @property
    def notice(self) -> str:
        """In words; empty where all went well."""
        if not self.unfinished and not self.dead:
            return ""
        return (
            f"of {self.lines:,} {self.unit} {self.unfinished:,} are unfinished (the length limit was met) "
            f"and {self.dead:,} met a dead end"
        )


def check_sizes(beam: int, n_best: int) -> None:
    """Refuse what no machine has the memory for, before anything is loaded."""
    for option, value in (("--beam", beam), ("--n-best", n_best)):
        if value > MOST_BEAM:
            raise ConfigError(f"{option} {value}: accepted: at most {MOST_BEAM}")


@dataclass(frozen=True)
class Files:
    """What is read, called `name` in errors, and what is written."""

    source: BufferedIOBase
    name: str
    out: TextIO
    trace: TextIO | None


@contextmanager
def opened(group: Group, source: str, output: str, trace: str = "") -> Iterator[Files]:
    """Files by their names, or stdin and stdout where that is `-`; no `trace`: none is kept.

    Only the first process of several has them; the others read nothing and write nowhere.
    """
    name = "stdin" if source == "-" else source
    _check_apart(source, {"--output": output, "--trace": trace})
    if not group.leads:
        source, output, trace = os.devnull, os.devnull, os.devnull if trace else ""
    with ExitStack() as files:
        read: Any = sys.stdin.buffer if source == "-" else files.enter_context(_open_input(source))
        written = sys.stdout if output == "-" else files.enter_context(_writing(output))
        traced = files.enter_context(_writing(trace)) if trace else None
        yield Files(read, name, written, traced)


def decode_file(run: Run, source: str, output: str, request: Request, trace: str = "") -> Counts:
    """`decode_stream` of files that `opened` knows."""
    with opened(run.group, source, output, trace) as files:
        return decode_stream(run, files.source, files.name, files.out, request, files.trace)


def decode_stream(
    run: Run, source: BufferedIOBase, name: str, out: TextIO, request: Request, trace: TextIO | None = None
) -> Counts:
    """Decode every line of `source`, called `name` in errors; write to `out` and, step by step, to `trace`.

    Of several processes only the first one reads, and all of them write the same.
    """
    counts, decoder = Counts(), run.decoder()
    for chunk in shared(run.group, chunks(source, name, most=_MOST_TRACED if trace else _MOST_LINES)):
        items, wrong = _items(run, chunk, name, counts.lines)
        found = decoder.decode(items, beam=request.beam, n_best=request.n_best, trace=trace is not None)
        for line, item, decoded in zip(chunk, items, found, strict=False):
            counts.lines += 1
            counts.dead += decoded.dead
            counts.unfinished += not decoded.dead and not decoded.hypotheses[0].finished
            for written in _written(run, line, item, decoded, counts.lines, request):
                out.write(written + "\n")
            if trace is not None:
                trace.write(json.dumps(_traced(run, line, decoded, counts.lines), ensure_ascii=False) + "\n")
        out.flush()
        # Only now: what came before the bad line is decoded and written.
        if wrong is not None:
            raise wrong
    return counts


def shared(group: Group, read: Iterator[list[str]]) -> Iterator[list[str]]:
    """The first process's chunks, in every process: only that one reads."""
    while (chunk := group.first(lambda: next(read, None))) is not None:
        yield chunk


def _items(run: Run, chunk: list[str], name: str, before: int) -> tuple[list[Item], DataError | None]:
    """The items of the lines up to the first that cannot be decoded, and what is wrong with that one."""
    items: list[Item] = []
    for line in chunk:
        where = f"{name}:{before + len(items) + 1}"
        try:
            items.append(item_of(run.task, line, most=run.recipe.decode.max_words, where=where))
        except DataError as error:
            return items, error
    return items, None


def _written(run: Run, line: str, item: Item, decoded: Decoded, number: int, request: Request) -> Iterator[str]:
    texts = [run.task.text(item, hypothesis.tokens) for hypothesis in decoded.hypotheses]
    if request.as_json:
        outputs = [
            {"text": text, "tokens": run.task.target.decode(h.tokens), "rank": h.score, "finished": h.finished}
            for text, h in zip(texts, decoded.hypotheses, strict=True)
        ]
        yield json.dumps({"input": line, "outputs": outputs, "dead": decoded.dead}, ensure_ascii=False)
        return
    scores = [f"{hypothesis.score:.6g}" for hypothesis in decoded.hypotheses]
    if not texts and request.n_best == 1:
        texts, scores = [""], ["-inf"]  # a dead end: an empty line keeps the lines of input and output together
    for text, score in zip(texts, scores, strict=True):
        columns = [str(number)] if request.n_best > 1 else []
        columns += [score] if request.scores else []
        yield "\t".join([*columns, text])


def _traced(run: Run, line: str, decoded: Decoded, number: int) -> dict[str, Any]:
    steps = [{**step, "tokens": run.task.target.decode(step["tokens"])} for step in decoded.trace]
    return {"line": number, "input": line, "steps": steps}


def chunks(source: BufferedIOBase, name: str, *, most: int) -> Iterator[list[str]]:
    """The lines that are there to be read, `most` at a time; waits only when there is none.

    A pipe that brings a line now and then is answered line by line, a file is read in large pieces.
    """
    # A compressed file has no descriptor to wait at: it is read to its end.
    descriptor = None if isinstance(source, GzipFile | LZMAFile) else source.fileno()
    rest, number, lines = b"", 0, list[str]()
    while True:
        try:
            with unpacking(Path(name)):
                data = source.read1(1 << 16) if descriptor is None else os.read(descriptor, 1 << 16)
        except DataError:
            yield lines  # what came before the damage
            raise
        if not data:
            break
        *whole, rest = (rest + data).split(b"\n")
        for raw in whole:
            number += 1
            try:
                lines.append(decode_line(raw, name, number))
            except DataError:
                yield lines  # what came before the bad line is decoded and written
                raise
            if len(lines) == most:
                yield lines
                lines = []
        if lines and descriptor is not None and not select.select([descriptor], [], [], 0)[0]:
            yield lines
            lines = []
    try:
        if rest:
            lines.append(decode_line(rest, name, number + 1))
    finally:
        if lines:
            yield lines


def _check_apart(source: str, written: dict[str, str]) -> None:
    """Refuse to write into the input: it would be emptied before it is read, or grow as it is."""
    read = _regular_file(source, sys.stdin)
    for option, path in written.items():
        if path and read and _regular_file(path, sys.stdout) == read:
            raise ConfigError(f"{option} {path}: is the input; another file is needed")


def _regular_file(path: str, standard: TextIO) -> tuple[int, int] | None:
    """Which file a path, or `-` for `standard`, leads to; None: a pipe, a device, or what its opening will tell of."""
    try:
        found = os.fstat(standard.fileno()) if path == "-" else Path(path).stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _open_input(path: str) -> AbstractContextManager[Any]:
    if path.endswith((".gz", ".xz")):
        with unpacking(Path(path)):
            return open_stream(Path(path))
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; a text file is expected") from None


@contextmanager
def _writing(path: str) -> Iterator[TextIO]:
    try:
        with _open_output(path) as file:
            yield file
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ArgbeamError(f"{path}: cannot be written: {error.strerror}") from None


def _open_output(path: str) -> TextIO:
    try:
        return Path(path).open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ArgbeamError(f"{path}: cannot be written: {error.strerror}; a file is expected") from None
