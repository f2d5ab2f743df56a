"""Parsing a treebank file: heads and labels are filled in, everything else is copied."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import TextIO

from argbeam.cli.decode_lines import Counts, chunks, opened, shared
from argbeam.data.readers.conll import Flavour, form_of, word_fields
from argbeam.errors import ConfigError, DataError
from argbeam.runs.load import Run
from argbeam.tasks import Task
from argbeam.tasks.parsing import Parsing
from argbeam.tasks.transitions import Arcs

_MOST_LINES = 1 << 17  # of the file, read together at most: sentences of one length are decoded together
_HEAD, _LABEL = 6, 7


@dataclass
class _Block:
    """Lines of the file up to an empty one; a sentence if words are among them."""

    path: Path
    flavour: Flavour
    lines: list[str] = field(default_factory=list)
    fields: dict[int, list[str]] = field(default_factory=dict)  # of lines that hold a word, by index in `lines`
    words: list[str] = field(default_factory=list)

    def add(self, text: str, number: int, *, most: int) -> None:
        """Add line `number` of the file; a sentence has `most` words at most."""
        fields = word_fields(text, self.path, number, self.flavour, before=len(self.words)) if text.strip(" ") else []
        if (fields and len(self.words) == most) or len(self.lines) == _MOST_LINES:
            raise DataError(
                f"{self.path}:{number}: a sentence of more than {most} words (decode.max_words) or {_MOST_LINES} lines"
            )
        if fields:
            self.words.append(form_of(fields, self.path, number))
            self.fields[len(self.lines)] = fields
        self.lines.append(text)

    def filled(self, arcs: Arcs) -> Iterator[str]:
        """The lines with heads and labels."""
        arc = iter(zip(arcs.heads, arcs.labels, strict=True))
        for place, text in enumerate(self.lines):
            yield _with_arc(self.fields[place], *next(arc)) if place in self.fields else text


def check_alone(others: Mapping[str, bool]) -> None:
    """Refuse options for other outputs than one tree a sentence."""
    for option, given in others.items():
        if given:
            raise ConfigError(f"--conll with {option}: a treebank file holds one tree a sentence; give one of the two")


def parse_file(run: Run, source: str, output: str, *, beam: int) -> Counts:
    """`parse_stream` of the files that `opened` opens; a run that does not parse opens nothing."""
    _parser(run)
    with opened(run.group, source, output) as files:
        return parse_stream(run, files.source, files.name, files.out, beam=beam)


def parse_stream(run: Run, source: BufferedIOBase, name: str, out: TextIO, *, beam: int) -> Counts:
    """Parse every sentence of `source`, called `name` in errors.

    Only FORM is read. HEAD and DEPREL are filled in; DEPS, PHEAD and PDEPREL become `_`; everything else is copied.
    """
    counts, task = Counts(unit="sentence"), _parser(run)
    flavour = Flavour.CONLLX if run.recipe.data.kind == "conllx" else Flavour.CONLLU
    pieces = shared(run.group, chunks(source, name, most=_MOST_LINES))
    for blocks in _blocks(pieces, Path(name), flavour, most=run.recipe.decode.max_words):
        parses = run.search_items([" ".join(block.words) for block in blocks if block.words], beam=beam)
        for block in blocks:
            lines: Iterator[str] = iter(block.lines)
            if block.words:
                _, item, decoded = next(parses)
                counts.add(run, item, decoded)
                tokens = decoded.hypotheses[0].tokens if decoded.hypotheses else ()
                lines = block.filled(task.arcs(item, tokens))
            out.writelines(line + "\n" for line in lines)
        out.flush()
    return counts


def _parser(run: Run) -> Parsing:
    task: Task = run.task
    if not isinstance(task, Parsing):
        raise ConfigError(f"--conll: {run.path} was trained for {run.recipe.task.kind}; a run of parsing is needed")
    return task


def _blocks(pieces: Iterator[list[str]], path: Path, flavour: Flavour, *, most: int) -> Iterator[list[_Block]]:
    """The blocks that end in each piece of the file; lines without a word do not wait for the next piece."""
    block, number = _Block(path, flavour), 0
    for piece in pieces:
        whole: list[_Block] = []
        for text in piece:
            number += 1
            try:
                block.add(text, number, most=most)
            except DataError:
                yield whole  # the blocks before the bad line are parsed and written first
                raise
            if not text.strip(" "):
                whole.append(block)
                block = _Block(path, flavour)
        if not block.words:
            whole.append(block)
            block = _Block(path, flavour)
        yield whole
    if block.words:
        block.lines.append("")
        yield [block]


def _with_arc(fields: Sequence[str], head: int, label: str) -> str:
    before, others = fields[:_HEAD], fields[_LABEL + 1 :]
    # A number in the ninth column is CoNLL-X's PHEAD, and PDEPREL follows; otherwise MISC does, which stays.
    cleared = 2 if others and others[0].isdigit() else 1
    return "\t".join([*before, str(head), label, *("_" for _ in others[:cleared]), *others[cleared:]])
