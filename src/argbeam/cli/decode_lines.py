"""Decoding a stream of lines: in input order, in bounded memory, and as soon as the input is there."""

import json
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from gzip import GzipFile
from io import BufferedIOBase, BufferedWriter, FileIO, TextIOWrapper
from lzma import LZMAFile
from pathlib import Path
from typing import Any, TextIO

from argbeam.data.readers.text import check_line, decode_line, is_pipe, open_stream, unpacking
from argbeam.decoding.batch_decoder import WINDOW, Decoded
from argbeam.errors import ArgbeamError, ConfigError, DataError, counted
from argbeam.files import writing
from argbeam.reports.progress import note
from argbeam.runs.load import Run
from argbeam.runtime.group import Group
from argbeam.tasks.contract import Item

_MOST_TRACED = 256  # lines that are decoded together with a trace, which holds the whole search


@dataclass(frozen=True)
class DecodeRequest:
    """The options of `decode` that shape its output."""

    beam: int
    n_best: int = 1
    scores: bool = False
    as_json: bool = False


@dataclass
class Counts:
    """Inputs decoded, in units of `unit`: searches that did not finish, unknown words, lines with a tab."""

    lines: int = 0
    unfinished: int = 0
    dead: int = 0
    words: int = field(default=0, compare=False)
    unknown: int = field(default=0, compare=False)
    with_tab: int = 0
    unit: str = "line"

    def add(self, run: Run, item: Item, decoded: Decoded) -> None:
        self.lines += 1
        self.dead += decoded.dead
        self.unfinished += not decoded.dead and not all(h.finished for h in decoded.hypotheses[:1])
        self.words += len(item.source)
        self.unknown += sum(word not in run.task.source for word in item.source)

    def notices(self) -> Iterator[str]:
        """Lines for the user: none where every search finished, every word is known and no line has a tab."""
        if self.unknown:
            found = f"{self.unknown:,} of {counted(self.words, 'word')} {'is' if self.unknown == 1 else 'are'} unknown"
            yield f"{found}: rare in the training data, or not in it"
        if self.with_tab:
            yield f"{counted(self.with_tab, 'line')} with a tab: all columns were decoded as one sentence"
        if self.unfinished or self.dead:
            yield (
                f"of {counted(self.lines, self.unit)} {self.unfinished:,} unfinished (the length limit was met) "
                f"and {self.dead:,} at a dead end"
            )


@dataclass(frozen=True)
class Files:
    """The input, called `name` in errors, and the outputs."""

    source: BufferedIOBase
    name: str
    out: TextIO
    trace: TextIO | None


@contextmanager
def opened(group: Group, source: str, output: str, trace: str | None = None) -> Iterator[Files]:
    """Open files by name; `-` is stdin or stdout.

    Only the first process of several has them; the others read nothing and write nowhere.
    """
    name = "stdin" if source == "-" else source
    _check_apart(source, output, trace)
    if not group.leads:
        source, output, trace = os.devnull, os.devnull, os.devnull if trace else None
    with ExitStack() as files:
        read: Any = _stdin() if source == "-" else files.enter_context(_open_input(Path(source)))
        written = sys.stdout if output == "-" else files.enter_context(_open_output(output))
        traced = files.enter_context(_open_output(trace)) if trace else None
        yield Files(read, name, written, traced)


def _stdin() -> Any:
    if sys.stdin is None:
        raise ConfigError("stdin is closed; --input FILE names a file to decode")
    if sys.stdin.isatty():
        note("argbeam: one sentence a line; Ctrl-D ends the input")
    return sys.stdin.buffer


def decode_file(run: Run, source: str, output: str, request: DecodeRequest, trace: str | None = None) -> Counts:
    """`decode_stream` of the files that `opened` opens."""
    with opened(run.group, source, output, trace) as files:
        return decode_stream(run, files.source, files.name, files.out, request, files.trace)


def decode_stream(
    run: Run, source: BufferedIOBase, name: str, out: TextIO, request: DecodeRequest, trace: TextIO | None = None
) -> Counts:
    """Decode every line of `source`, called `name` in errors; write to `out` and, step by step, to `trace`.

    A line that cannot be decoded is an error after the outputs of the lines before it. Of several processes only the
    first one reads, and all of them write the same.
    """
    counts = Counts()
    for chunk in shared(run.group, chunks(source, name, most=_MOST_TRACED if trace else WINDOW)):
        found = run.search_items(
            chunk,
            beam=request.beam,
            n_best=request.n_best,
            trace=trace is not None,
            place=f"{name}:",
            first=counts.lines + 1,
        )
        for line, item, decoded in found:
            counts.add(run, item, decoded)
            counts.with_tab += "\t" in line
            out.writelines(f"{text}\n" for text in _output(run, line, item, decoded, counts.lines, request))
            if trace is not None:
                trace.write(json.dumps(_traced(run, line, decoded, counts.lines), ensure_ascii=False) + "\n")
        out.flush()
    return counts


def shared(group: Group, read: Iterator[list[str]]) -> Iterator[list[str]]:
    """The chunks that the first process reads, in every process."""
    while (chunk := group.first(lambda: next(read, None))) is not None:
        yield chunk


def chunks(source: BufferedIOBase, name: str, *, most: int) -> Iterator[list[str]]:
    """Lines that are ready to be read, at most `most` at a time; waits only when there is none.

    A slow pipe is answered line by line, a file is read in large pieces. Damage is an error after the lines before it.
    """
    # A compressed file has no descriptor to wait at: it is read to its end.
    descriptor = None if isinstance(source, GzipFile | LZMAFile) else source.fileno()
    rest, number, lines = bytearray(), 0, list[str]()
    try:
        while data := _read(source, descriptor, Path(name)):
            *whole, last = data.split(b"\n")
            for raw in whole:
                number += 1
                lines.append(decode_line(bytes(rest + raw), name, number))
                rest.clear()
                if len(lines) == most:
                    yield lines
                    lines = []
            rest += last
            check_line(len(rest), name, number + 1)
            if lines and descriptor is not None and not select.select([descriptor], [], [], 0)[0]:
                yield lines
                lines = []
        if rest:
            lines.append(decode_line(bytes(rest), name, number + 1))
    except DataError:
        yield lines
        raise
    if lines:
        yield lines


def _read(source: BufferedIOBase, descriptor: int | None, path: Path) -> bytes:
    with unpacking(path):
        return source.read1(1 << 16) if descriptor is None else os.read(descriptor, 1 << 16)


def _output(run: Run, line: str, item: Item, decoded: Decoded, number: int, request: DecodeRequest) -> Iterator[str]:
    texts = [run.task.text(item, hypothesis.tokens) for hypothesis in decoded.hypotheses]
    if request.as_json:
        outputs = [
            {"text": text, "tokens": run.task.target.decode(h.tokens), "rank": h.score, "finished": h.finished}
            for text, h in zip(texts, decoded.hypotheses, strict=True)
        ]
        yield json.dumps({"input": line, "outputs": outputs, "dead": decoded.dead}, ensure_ascii=False)
        return
    scores = [f"{hypothesis.score:.6g}" for hypothesis in decoded.hypotheses]
    if not texts and (request.n_best == 1 or not decoded.dead):
        # A dead end or a blank line: an empty output keeps the lines of input and output together.
        texts, scores = [""], ["-inf" if decoded.dead else "0"]
    for text, score in zip(texts, scores, strict=True):
        columns = [str(number)] if request.n_best > 1 else []
        columns += [score] if request.scores else []
        yield "\t".join([*columns, text])


def _traced(run: Run, line: str, decoded: Decoded, number: int) -> dict[str, Any]:
    steps = [{**step, "tokens": run.task.target.decode(step["tokens"])} for step in decoded.trace]
    return {"line": number, "input": line, "steps": steps}


def _check_apart(source: str, output: str, trace: str | None) -> None:
    """Refuse one file for two things: the input would be emptied before it is read, two outputs would mix."""
    read, written = _regular_file(source, sys.stdin), _regular_file(output, sys.stdout)
    traced = _regular_file(trace, sys.stdout) if trace else None
    for option, path, place in (("--output", output, written), ("--trace", trace, traced)):
        if place and place == read:
            raise ConfigError(f"{option} {path}: is the input; another file is needed")
    new = bool(trace) and not os.path.lexists(output)
    if (traced and traced == written) or (new and os.path.realpath(trace or "") == os.path.realpath(output)):
        raise ConfigError(f"--trace {trace}: is the output; another file is needed")


def _regular_file(path: str, standard: TextIO | None) -> tuple[int, int] | None:
    """Device and inode of a path, or of `standard` for `-`; None for a pipe, a device, or an error left to opening."""
    try:
        found = os.fstat(standard.fileno()) if path == "-" and standard else Path(path).stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _open_input(path: Path) -> BufferedIOBase:
    _report_pipe(path, "writes to")
    with unpacking(path):
        return open_stream(path)


def _open_output(path: str) -> TextIO:
    _report_pipe(Path(path), "reads")
    with writing(path, "a file is expected"):
        opened: Any = TextIOWrapper(BufferedWriter(_NamedFile(path, "w")), encoding="utf-8", newline="\n")
    opened.mode = "w"  # as `open` sets it
    file: TextIO = opened
    return file


def _report_pipe(path: Path, does: str) -> None:
    """Say what the command waits for."""
    if is_pipe(path):
        note(f"argbeam: {path}: a pipe; waiting for a process that {does} it")


class _NamedFile(FileIO):
    """A file whose failed writes name it, whatever else is open."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise ArgbeamError(f"cannot write {self.name}: {error.strerror}") from None
