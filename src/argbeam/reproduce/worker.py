"""One step of a reproduction in its own process: `python -m argbeam.reproduce.worker VERB ...`.

`run RECIPE FOLDER SCORING...` trains a run and scores it; `time FILE DEVICE ROUNDS SIZE...` times training steps.
Standard input is a pipe from the parent process. It closes when the parent ends, killed or not; the step then stops as
for a signal, so that no process runs on unseen.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from argbeam.bench import BenchShape, bench
from argbeam.decoding.length_power import best_power, evaluate_powers
from argbeam.errors import NO_ROOM, OUT_OF_MEMORY, ArgbeamError, MemoryShortError, is_out_of_memory
from argbeam.files import append_record, write_atomic
from argbeam.reproduce.folder import SCORES, read_scores
from argbeam.reproduce.plan import Scoring
from argbeam.reproduce.runner import WRONG_INPUT
from argbeam.reproduce.sentences import scores_by_length, sentences_file
from argbeam.runs.layout import is_trained
from argbeam.runs.load import Run, open_run
from argbeam.runs.score import Scored, score_run, statistics_of
from argbeam.runs.session import train_run
from argbeam.runtime.device import choose_device, set_precision
from argbeam.search.score_rules import with_power
from argbeam.settings.recipe_files import load_recipe
from argbeam.tasks import Parsing

TIMED_BEAMS = (2, 3, 4, 5, 6)


def main() -> None:
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    verb, *arguments = sys.argv[1:]
    try:
        sys.exit({"run": _run, "time": _time}[verb](arguments))
    except Exception as error:
        if is_out_of_memory(error):
            error = MemoryShortError(OUT_OF_MEMORY)
        if not isinstance(error, ArgbeamError):
            raise
        print(f"argbeam: error: {error}", file=sys.stderr)
        sys.exit(exit_code(error))


def exit_code(error: ArgbeamError) -> int:
    """Memory and disk may be free the next time; a recipe, its training, a file or a device stays wrong."""
    disk_full = isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_ROOM
    return 1 if disk_full or isinstance(error, MemoryShortError) else WRONG_INPUT


def score_planned(folder: Path, scorings: Sequence[Scoring], *, root: str = "") -> None:
    """Do the scorings that are not done yet, with the data at `root`; empty: where it was when the run was trained."""
    done = {row.scoring for row in read_scores(folder)}
    for scoring in scorings:
        if scoring in done:
            continue
        sets = [f"data.root={json.dumps(root)}"] if root else []
        sets += [f"decode.stop={scoring.stop}"] if scoring.stop else []
        sets += [f"decode.length_power={scoring.powers[0]}"] if scoring.powers else []
        run = open_run(folder, sets)
        run, tried = _choose_power(run, scoring.powers) if scoring.powers else (run, [])
        records = []
        for scored in score_run(run, scoring.split, scoring.beams):
            sentences = _by_sentence(run, scored)
            path = sentences_file(folder, scoring.text, scored.record["test_beam"])
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, json.dumps(sentences).encode())
            records.append({**scored.record, "by_length": [asdict(one) for one in scores_by_length(sentences)]})
        append_record(folder / SCORES, {"scoring": scoring.text, "records": records, "tried": tried})


def _choose_power(run: Run, powers: Sequence[float]) -> tuple[Run, list[dict[str, Any]]]:
    """The run with the length power that is best on dev, and a record of dev for each power."""
    beam, runs = run.recipe.decode.beam, {power: replace(run, rule=with_power(run.rule, power)) for power in powers}
    found = evaluate_powers(run.decoder(), run.task.read("dev").items, powers, beam=beam)
    records = [runs[power].signature(split="dev", beam=beam, evaluation=one) for power, one in found.items()]
    return runs[best_power({power: one.score.value for power, one in found.items()})], records


def _by_sentence(run: Run, scored: Scored) -> dict[str, Any]:
    """What paired tests and scores by length need of every sentence."""
    metric = scored.record["metric"]
    if statistics := statistics_of(run.task, scored):
        return {"metric": metric, "statistics": {name: rows_NS.tolist() for name, rows_NS in statistics.items()}}
    if isinstance(run.task, Parsing):
        counts = [list(asdict(one).values()) for one in run.task.counts(scored.items, scored.evaluation.outputs)]
        lengths = [len(item.tree.words) for item in scored.items if item.tree is not None]
        return {"metric": metric, "punctuation": run.task.punctuation, "lengths": lengths, "counts": counts}
    return {"metric": metric, "outputs": scored.texts, "references": [item.reference for item in scored.items]}


def _stop_with_parent() -> None:
    # Not through sys.stdin, whose lock would be held when the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _run(arguments: Sequence[str]) -> int:
    """Train or resume, then score: one process, so that files are read once."""
    path, folder, *scorings = arguments
    recipe = load_recipe(path)
    if not is_trained(Path(folder)):
        (Path(folder) / SCORES).unlink(missing_ok=True)  # of another training
        outcome = train_run(recipe, Path(folder))
        if outcome.signal:
            return 128 + outcome.signal
    adapter = TypeAdapter(Scoring)
    score_planned(Path(folder), list(map(adapter.validate_json, scorings)), root=getattr(recipe.data, "root", ""))
    return 0


def _time(arguments: Sequence[str]) -> int:
    path, device, rounds, *sizes = arguments
    batch, source, target, vocabulary, layers, hidden = map(int, sizes)
    chosen = choose_device(device)
    set_precision(chosen, tf32=True)
    shape = BenchShape(batch, source, target, vocabulary, layers, hidden)
    rows = bench(shape, device=chosen, train_beams=TIMED_BEAMS, test_beams=(5,), rounds=int(rounds))
    name = torch.cuda.get_device_name() if chosen.type == "cuda" else "cpu"
    timing = {"device": name, "shape": asdict(shape), "rows": [vars(row) for row in rows]}
    write_atomic(Path(path), json.dumps(timing).encode())
    return 0


if __name__ == "__main__":
    main()
