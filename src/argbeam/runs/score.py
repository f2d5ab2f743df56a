"""Scoring a run on a split, and testing it against another one."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argbeam.decoding.batch_decoder import Evaluation, evaluate, out_of_reach
from argbeam.errors import ArgbeamError, DataError
from argbeam.files import append_record, check_there, write_atomic, writing
from argbeam.metrics.outputs import Statistics
from argbeam.metrics.significance import compare_attachment, compare_bleu, compare_statistics, p_text
from argbeam.reports.progress import counting, note
from argbeam.reports.table import signature_line, table
from argbeam.runs.examples import named_by
from argbeam.runs.layout import EVALUATIONS, PREDICTIONS, folder_of, refuse_links
from argbeam.runs.load import Run, open_run
from argbeam.settings.data import beyond_beam
from argbeam.tasks import Parsing
from argbeam.tasks.contract import Item, ScoresLists, Task
from argbeam.tasks.sources import named_files

_SAVES = "evaluate saves its results there; --no-keep writes nothing"


@dataclass(frozen=True)
class Scored:
    """A split decoded at one beam: its record, and the outputs of all sentences for tests of significance."""

    record: dict[str, Any]
    evaluation: Evaluation
    texts: list[str]
    items: list[Item]


def score_run(run: Run, split: str, beams: Sequence[int], *, keep: bool = True) -> Iterator[Scored]:
    """Decode and score a split at each beam; with `keep`, save predictions and record in the run's folder."""
    if keep:  # before the work, not after it
        _check_writable(folder_of(run.path))
    _check_files(run, split)
    items = run.items(split)
    references = hashlib.sha256(repr([_reference(item) for item in items]).encode()).hexdigest()[:16]
    for line in out_of_reach(run.task, items, where=split) if run.group.leads else ():
        note(line)
    for beam in beams:
        what = f"{run.recipe.name}: decoding {split} at beam {beam}"
        with counting(what, len(items)) if run.group.leads else nullcontext(_unseen) as done:
            found = evaluate(run.decoder(), items, beam=beam, done=done)
        texts = [run.task.text(item, out) if out else "" for item, out in zip(items, found.outputs, strict=True)]
        record = {**run.signature(split=split, beam=beam, evaluation=found), "references": references}
        if keep and run.group.leads:
            _write(run, split, beam, texts, record)
        yield Scored(record, found, texts, items)


def _unseen(count: int) -> None:
    """Show nothing."""


def score_against(
    run: Run,
    against: Path | None,
    split: str,
    beams: Sequence[int],
    *,
    others_sets: Sequence[str] = (),
    keep: bool = True,
) -> list[dict[str, Any]]:
    """The records of a split at each beam; with `against`, tests for a difference to that run in each record.

    `others_sets` are overrides for that run, such as the place of its data.
    """
    scored = list(score_run(run, split, beams, keep=keep))
    results = [one.record for one in scored]
    if against is None:
        return results
    # Overrides of the search belong to one run: the other one is searched as its own recipe says.
    other = open_run(against, others_sets, run.group, keep=keep)
    pairs = list(zip(scored, score_run(other, split, beams, keep=keep), strict=True))
    # The tests take a while, and one process is enough for them.
    tests = run.group.first(lambda: [compare(run, a, other, b) for a, b in pairs])
    return [{**result, "against": test} for result, test in zip(results, tests, strict=True)]


def compare(run: Run, ours: Scored, other: Run, theirs: Scored) -> dict[str, Any]:
    """Paired bootstrap tests of `ours` against `theirs`, one for each score that can be tested."""
    if ours.record["metric"] != theirs.record["metric"]:
        raise ArgbeamError(
            f"{run.path} and {other.path}: scored by {ours.record['metric']} and {theirs.record['metric']}; "
            "only numbers of one metric can be compared"
        )
    if [_reference(item) for item in ours.items] != [_reference(item) for item in theirs.items]:
        raise DataError(f"{run.path} and {other.path}: scored on other sentences; the same ones are needed")
    metric = ours.record["metric"]
    statistics = [statistics_of(one.task, found) for one, found in ((run, ours), (other, theirs))]
    if statistics[0]:
        tests = compare_statistics([(statistics[0], statistics[1])], metric=metric)
    elif isinstance(run.task, Parsing) and isinstance(other.task, Parsing):
        counts = run.task.counts(ours.items, ours.evaluation.outputs)
        others = other.task.counts(theirs.items, theirs.evaluation.outputs)
        tests = compare_attachment([(counts, others)], punctuation=run.task.punctuation)
    else:
        references = [item.reference for item in ours.items]
        tests = compare_bleu([(ours.texts, theirs.texts)], references, metric=metric)
    return {
        "run": str(other.path),
        "system": theirs.record["system"],
        "scores": theirs.record["scores"],
        "p_values": {name: test.p_value for name, test in tests.items()},
        "tests": {name: test.signature for name, test in tests.items()},
    }


def statistics_of(task: Task, scored: Scored) -> dict[str, Statistics]:
    """Statistics of every sentence by metric; none in tasks that are scored by text or by trees."""
    return dict(task.statistics(scored.items, scored.evaluation.lists)) if isinstance(task, ScoresLists) else {}


def show_scores(results: Sequence[dict[str, Any]]) -> None:
    """Print a table of the results of `score_against`: a row per beam, the signature below."""
    first, rows = results[0], []
    for result in results:
        row = {"beam": str(result["test_beam"]), **{name: f"{value:.2f}" for name, value in result["scores"].items()}}
        row |= {"unfinished": str(result["unfinished"]), "dead": str(result["dead"])}
        if other := result.get("against"):
            row |= {f"{name} {other['run']}": f"{other['scores'][name]:.2f}" for name in other["p_values"]}
            row |= {f"p ({name})": p_text(value) for name, value in other["p_values"].items()}
        rows.append(row)
        if narrow := beyond_beam(result["scores"], result["test_beam"]):
            note(f"beam {result['test_beam']} {narrow}")
    title = f"{first['system']}, {first['task']}, {first['split']}"
    table(list(rows[0]), [list(row.values()) for row in rows], title=title)
    print(signature_line(first))
    for name, test in first.get("against", {"tests": {}})["tests"].items():
        print(f"p ({name}), two-tailed: {test}")


def _check_writable(folder: Path) -> None:
    refuse_links(folder)
    if not os.access(folder, os.W_OK):
        raise ArgbeamError(f"cannot write {folder}: it is read-only for you; {_SAVES}")


def _check_files(run: Run, split: str) -> None:
    """The files of the split must be where the recipe has them."""
    for key, path in named_files(run.recipe.data):
        if key.startswith(f"data.{split}"):
            check_there(path, named_by(key))


def _write(run: Run, split: str, beam: int, texts: Sequence[str], record: dict[str, Any]) -> None:
    folder, predictions = run.folder, run.folder / PREDICTIONS
    of_checkpoint = f"{run.path.stem}." if run.path.is_file() else ""
    refuse_links(folder)
    power = f".power{record['length_power']:g}" if record["length_power"] else ""
    stop = "" if run.recipe.decode.stop == "auto" else f".stop-{run.recipe.decode.stop}"
    limit = "" if record["limit"] in ("", run.trained_limit) else f".limit-{record['limit'].replace('*', 'x')}"
    with writing(folder, _SAVES):
        predictions.mkdir(exist_ok=True)
        lines = "".join(f"{text}\n" for text in texts)
        write_atomic(predictions / f"{of_checkpoint}{split}.beam{beam}{power}{stop}{limit}.txt", lines.encode())
        append_record(folder / EVALUATIONS, record)


def _reference(item: Item) -> tuple[object, ...]:
    return (item.reference, item.tree and (item.tree.words, item.tree.heads, item.tree.labels))
