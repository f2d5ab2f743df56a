"""Scoring a run on a split, and testing it against another one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argbeam.decoding.evaluate import Evaluation, evaluate
from argbeam.errors import ArgbeamError, DataError
from argbeam.files import append_record, write_atomic, writing
from argbeam.metrics.significance import compare_attachment, compare_bleu
from argbeam.reports.table import signature_line, table
from argbeam.runs.layout import EVALUATIONS, PREDICTIONS, folder_of, refuse_links
from argbeam.runs.load import Run, open_run
from argbeam.tasks import Parsing
from argbeam.tasks.contract import Item


@dataclass(frozen=True)
class Scored:
    """A split at one beam: the record with the signature, and per sentence what tests of significance need."""

    record: dict[str, Any]
    evaluation: Evaluation
    texts: list[str]
    items: list[Item]


def score_run(run: Run, split: str, beams: Sequence[int]) -> Iterator[Scored]:
    """Decode and score a split at each beam; predictions and the record go into the run's folder."""
    refuse_links(folder_of(run.path))  # before the work, not after it
    items = run.items(split)
    for beam in beams:
        found = evaluate(run.decoder(), items, beam=beam)
        texts = [run.task.text(item, out) if out else "" for item, out in zip(items, found.outputs, strict=True)]
        record = run.signature(split=split, beam=beam, evaluation=found)
        if run.group.leads:
            _write(run, split, beam, texts, record)
        yield Scored(record, found, texts, items)


def score_against(
    run: Run, against: Path | None, split: str, beams: Sequence[int], *, others_sets: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The records of a split at each beam; with `against`, tests for a difference to that run beside them.

    `others_sets` are overrides for that run: where its data is now, say.
    """
    group = run.group
    scored = list(score_run(run, split, beams))
    results = [one.record for one in scored]
    if against is None:
        return results
    # A length power belongs to the run it was asked for: the other one is searched as its own recipe says.
    other = open_run(against, others_sets, group)
    pairs = list(zip(scored, score_run(other, split, beams), strict=True))
    # The tests take a while, and one process is enough for them.
    tests = group.first(lambda: [compare(run, a, other, b) for a, b in pairs])
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
    if isinstance(run.task, Parsing) and isinstance(other.task, Parsing):
        counts = [
            one.task.counts(scored.items, scored.evaluation.outputs)
            for one, scored in ((run, ours), (other, theirs))
            if isinstance(one.task, Parsing)
        ]
        tests = compare_attachment(*counts, punctuation=run.task.punctuation)
    else:
        references = [item.reference for item in ours.items]
        tests = compare_bleu(ours.texts, theirs.texts, references, metric=ours.record["metric"])
    return {
        "run": str(other.path),
        "system": theirs.record["system"],
        "scores": theirs.record["scores"],
        "p_values": {name: test.p_value for name, test in tests.items()},
        "tests": {name: test.signature for name, test in tests.items()},
    }


def show_scores(results: Sequence[dict[str, Any]]) -> None:
    """A table of what `score_against` gave: a row per beam, the signature below."""
    first = results[0]
    tests = list(first["against"]["p_values"]) if "against" in first else []
    headers = ["beam", *first["scores"], "unfinished", "dead"]
    headers += [f"{name} {first['against']['run']}" for name in tests] + [f"p ({name})" for name in tests]
    rows = []
    for result in results:
        row = [str(result["test_beam"]), *(f"{value:.2f}" for value in result["scores"].values())]
        row += [str(result["unfinished"]), str(result["dead"])]
        if "against" in result:
            other = result["against"]
            row += [f"{other['scores'][name]:.2f}" for name in tests]
            row += [f"{other['p_values'][name]:.4f}" for name in tests]
        rows.append(row)
    table(headers, rows, title=f"{first['system']}, {first['task']}, {first['split']}")
    print(signature_line(first))
    for name in tests:
        print(f"p ({name}): {first['against']['tests'][name]}")


def _write(run: Run, split: str, beam: int, texts: Sequence[str], record: dict[str, Any]) -> None:
    folder = run.folder
    refuse_links(folder)
    predictions = folder / PREDICTIONS
    power = f".power{record['length_power']:g}" if record["length_power"] else ""
    stop = "" if run.recipe.decode.stop == "auto" else f".stop-{run.recipe.decode.stop}"
    with writing(folder, "evaluate saves its results there"):
        predictions.mkdir(exist_ok=True)
        lines = "".join(f"{text}\n" for text in texts)
        write_atomic(predictions / f"{split}.beam{beam}{power}{stop}.txt", lines.encode())
        append_record(folder / EVALUATIONS, record)


def _reference(item: Item) -> tuple[object, ...]:
    return (item.reference, item.tree and (item.tree.words, item.tree.heads, item.tree.labels))
