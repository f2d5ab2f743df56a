"""Parsing a treebank file: heads and labels are filled in, everything else stays as it is written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import TextIO

from argbeam.decoding import Counts, Request, chunks, shared
from argbeam.errors import ConfigError, DataError
from argbeam.readers.conll import Flavour, form_of, word_fields
from argbeam.run import Run
from argbeam.settings import Recipe
from argbeam.tasks.parsing import Parsing
from argbeam.tasks.transitions import Arcs

_MOST_LINES = 1 << 17  # of the file, read together at most; sentences of one length are decoded together
_HEAD, _LABEL, _DEPS, _MISC = 6, 7, 8, 9


@dataclass
class _Sentence:
    """The lines of a sentence as they are written, comments and the line that ends it among them."""

    lines: list[str] = field(default_factory=list)
    fields: dict[int, list[str]] = field(default_factory=dict)  # of the lines that are words, by their place
    words: list[str] = field(default_factory=list)


def check_alone(others: Mapping[str, bool]) -> None:
    """Refuse the options that ask for another output than one tree a sentence."""
    for option, given in others.items():
        if given:
            raise ConfigError(f"--conll with {option}: a treebank file holds one tree a sentence; give one of the two")


def decode_trees(
    run: Run, source: BufferedIOBase, name: str, out: TextIO, request: Request, trace: TextIO | None = None
) -> Counts:
    """Parse every sentence of `source`, called `name` in errors; columns HEAD and DEPREL are the parse.

    Columns of other analyses that would contradict it (DEPS; PHEAD and PDEPREL in CoNLL-X) become `_`. A file without
    them yet may have `_` in all columns but ID and FORM.
    """
    assert trace is None, "no trace is kept of a treebank file"
    task = run.task
    if not isinstance(task, Parsing):
        raise ConfigError(f"--conll: {run.path} was trained for {run.recipe.task.kind}; a run of parsing is needed")
    counts, decoder, flavour = Counts(), run.decoder(), _flavour(run.recipe)
    pieces = shared(run.group, chunks(source, name, most=_MOST_LINES))
    for sentences, wrong in _sentences(pieces, Path(name), flavour, most=run.recipe.decode.max_words):
        items = [task.item(" ".join(sentence.words)) for sentence in sentences]
        found = decoder.decode(items, beam=request.beam)
        for sentence, item, decoded in zip(sentences, items, found, strict=True):
            counts.lines += 1
            counts.dead += decoded.dead
            tokens: Sequence[int] = decoded.hypotheses[0].tokens if decoded.hypotheses else ()
            out.writelines(line + "\n" for line in _filled(sentence, task.arcs(item, tokens), flavour))
        out.flush()
        # Only now: what came before the bad line is parsed and written.
        if wrong is not None:
            raise wrong
    return counts


def _flavour(recipe: Recipe) -> Flavour:
    return Flavour.CONLLX if recipe.data.kind == "conllx" else Flavour.CONLLU


def _sentences(
    pieces: Iterator[list[str]], path: Path, flavour: Flavour, *, most: int
) -> Iterator[tuple[list[_Sentence], DataError | None]]:
    """The sentences that end in each piece of the file; with the last of them, what is wrong with the line after it."""
    open_, number = _Sentence(), 0
    for piece in pieces:
        whole: list[_Sentence] = []
        for text in piece:
            number += 1
            try:
                _add(open_, text, path, number, flavour, most=most)
            except DataError as error:
                yield whole, error
                return
            if not text.strip(" ") and open_.words:
                whole.append(open_)
                open_ = _Sentence()
        yield whole, None
    if open_.words:
        open_.lines.append("")
        yield [open_], None


def _add(sentence: _Sentence, text: str, path: Path, line: int, flavour: Flavour, *, most: int) -> None:
    fields = word_fields(text, path, line, flavour, before=len(sentence.words)) if text.strip(" ") else []
    if fields:
        if len(sentence.words) == most:
            raise DataError(
                f"{path}:{line}: a sentence of more than {most} words; decode.max_words is the most that is decoded"
            )
        sentence.words.append(form_of(fields, path, line))
        sentence.fields[len(sentence.lines)] = fields
    sentence.lines.append(text)


def _filled(sentence: _Sentence, arcs: Arcs, flavour: Flavour) -> Iterator[str]:
    arc = iter(zip(arcs.heads, arcs.labels, strict=True))
    for place, text in enumerate(sentence.lines):
        if place not in sentence.fields:
            yield text
            continue
        fields = list(sentence.fields[place])
        head, label = next(arc)
        fields[_HEAD], fields[_LABEL] = str(head), label
        others = [_DEPS] if flavour is Flavour.CONLLU else [_DEPS, _MISC]
        for column in others:
            if column < len(fields):
                fields[column] = "_"
        yield "\t".join(fields)
