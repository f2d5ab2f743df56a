"""`argbeam inspect`: its sentences, its runs and its files."""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

from argbeam.cli.decode_lines import chunks, opened
from argbeam.errors import ConfigError, counted
from argbeam.reports.inspection import write_inspection
from argbeam.reports.progress import counting
from argbeam.runs.inspect_run import InspectRequest, inspect_runs
from argbeam.runs.load import open_run
from argbeam.runtime.group import ALONE

_SPLITS = ("train", "dev", "test")


def inspect_to(
    runs: Sequence[Path],
    out: Path,
    *,
    split: str | None,
    source: str | None,
    lines: Sequence[str],
    gold: str | None,
    golds: Sequence[str],
    beams: Sequence[int],
    limit: int,
    attention: bool,
    sets: Sequence[str],
) -> list[Path]:
    """Search the sentences of a split, of a file or of the command with every run; return the files written."""
    if source is not None and lines:
        raise ConfigError("--input and --line: one of them is accepted")
    given = "--input" if source is not None else "--line" if lines else ""
    if split is not None and given:
        raise ConfigError(f"--split {split} and {given}: one of them is accepted")
    split = "" if given else "dev" if split is None else split
    if not given and split not in _SPLITS:
        raise ConfigError(f"--split {split}: accepted: {', '.join(_SPLITS)}")
    if split and (gold is not None or golds):
        raise ConfigError("--gold: a split has gold of its own; accepted with --input or --line")
    if gold is not None and golds:
        raise ConfigError("--gold and --gold-line: one of them is accepted")
    where = "line "
    if source is not None:
        lines, where = _lines_of(source, limit)
    if gold is not None:
        golds, _ = _lines_of(gold, limit)
    lines, golds = lines[:limit], golds[:limit]
    if (golds or gold is not None) and len(golds) != len(lines):
        raise ConfigError(
            f"{counted(len(golds), 'line')} of gold for {counted(len(lines), 'sentence')}; one a sentence is expected"
        )
    request = InspectRequest(beams, split, lines, golds, where, limit, attention)
    loaded = [open_run(path, sets) for path in runs]
    inputs = [request.items(run) for run in loaded]
    with counting("sentences", sum(map(len, inputs))) as done:
        data = inspect_runs(loaded, inputs, request, done=done)
    return write_inspection(data, out)


def _lines_of(file: str, limit: int) -> tuple[list[str], str]:
    """The first lines of a file, and what an error says before the number of a line."""
    with opened(ALONE, file, "-") as files:
        return list(islice(chain.from_iterable(chunks(files.source, files.name, most=limit)), limit)), f"{files.name}:"
