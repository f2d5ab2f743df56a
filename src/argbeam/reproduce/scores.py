"""The scores of a planned run, each made once and kept in its folder with what tests of significance need.

RUN/scores.jsonl     a line for each scoring that is done: its records, with their signatures, also by length
RUN/paired/          outputs or counts by sentence, for paired tests
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from argbeam.files import append_record, read_records, write_atomic
from argbeam.reproduce.checked import ScoringLine, check
from argbeam.reproduce.lengths import scores_by_length
from argbeam.reproduce.pairs import paired_file
from argbeam.reproduce.plan import Scoring
from argbeam.runs.load import Run
from argbeam.runs.score import Scored, open_run, score_run
from argbeam.tasks import Parsing

_FILE = "scores.jsonl"


def score_planned(folder: Path, scorings: Sequence[Scoring], *, root: str = "") -> None:
    """Do the scorings that are not done yet. Dev alone chooses a length power; test is decoded with that one only.

    `root` is where the data is now, if not where it was when the run was trained.
    """
    done = read_scores(folder)
    for scoring in scorings:
        if scoring.key in done:
            continue
        sets = [f"data.root={json.dumps(root)}"] if root else []
        sets += [f"decode.stop={scoring.stop}"] if scoring.stop else []
        tried = [_on_dev(folder, [*sets, f"decode.length_power={power}"]) for power in scoring.powers]
        if tried:
            best = max(tried, key=lambda record: next(iter(record["scores"].values())))
            sets.append(f"decode.length_power={best['length_power']}")
        run = open_run(folder, sets)
        records = []
        for scored in score_run(run, scoring.split, scoring.beams):
            kept = _kept(run, scored)
            path = paired_file(folder, scoring.key, scored.record["test_beam"])
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, json.dumps(kept).encode())
            records.append({**scored.record, "by_length": [asdict(one) for one in scores_by_length(kept)]})
        append_record(folder / _FILE, {"scoring": scoring.key, "records": records, "tried": tried})


def read_scores(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of a run by scoring, so far as they are there."""
    path = folder / _FILE
    records = read_records(path).records if path.exists() else []
    for record in records:
        check(record, ScoringLine, path, "remove it, and `argbeam reproduce` scores the run again")
    return {record["scoring"]: record["records"] for record in records}


def _on_dev(folder: Path, sets: Sequence[str]) -> dict[str, Any]:
    run = open_run(folder, sets)
    (scored,) = score_run(run, "dev", [run.recipe.decode.beam])
    return scored.record


def _kept(run: Run, scored: Scored) -> dict[str, Any]:
    """What paired tests need of every sentence."""
    metric = scored.record["metric"]
    if isinstance(run.task, Parsing):
        counts = [list(asdict(one).values()) for one in run.task.counts(scored.items, scored.evaluation.outputs)]
        lengths = [len(item.tree.words) for item in scored.items if item.tree is not None]
        return {"metric": metric, "punctuation": run.task.punctuation, "lengths": lengths, "counts": counts}
    return {"metric": metric, "outputs": scored.texts, "references": [item.reference for item in scored.items]}
