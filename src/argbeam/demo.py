"""The demonstration: seq2seq, BSO and ConBSO on the generated corpus, one table, one report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from argbeam.config import load_recipe
from argbeam.display import note
from argbeam.report import read_runs, score_tables, write_report
from argbeam.scoring import open_run, score_run
from argbeam.settings import Recipe
from argbeam.shipped import find_recipe
from argbeam.tables import table
from argbeam.training import train_run

BEAMS = (1, 5, 10)
_PRETRAIN = "pretrain"


def run_demo(recipes: Mapping[str, Recipe], out: Path, *, as_json: bool = False) -> int:
    """Train, score and report; return the signal that stopped it, or 0. A second call goes on where the first was."""
    for name, recipe in recipes.items():
        outcome = train_run(recipe, out / name, title=name)
        if outcome.signal:
            return outcome.signal
    folders = [out / name for name in recipes if name != _PRETRAIN]
    for folder in folders:
        note(f"{folder.name}: decoding test at beams {', '.join(map(str, BEAMS))}")
        for scored in score_run(open_run(folder), "test", BEAMS):
            if as_json:
                print(json.dumps(scored.record))
    if not as_json:
        found = score_tables(read_runs(folders))[0]
        table(found.headers, found.rows, title=found.title)
        print("\n".join(found.notes))
    page, _ = write_report(folders, out)
    note(f"{page}: the report")
    return 0


def demo_recipes(out: Path, *, seed: int, overrides: Sequence[str] = ()) -> dict[str, Recipe]:
    """The shipped demo recipes by run, in the order of training: BSO and ConBSO share their first stage as a run."""
    names = ("seq2seq", "bso", "conbso")
    sets = [f"seed={seed}", *overrides]
    seq2seq, bso, conbso = (load_recipe(find_recipe(f"demo/{name}"), sets) for name in names)
    (first, stage), *_ = bso.stages.items()
    assert conbso.stages[first] == stage, "the first stage of demo/bso and demo/conbso is trained once for both"
    later = {
        name: recipe.model_copy(
            update={
                "stages": {k: v for k, v in recipe.stages.items() if k != first},
                "start": str(out / _PRETRAIN),
            }
        )
        for name, recipe in (("bso", bso), ("conbso", conbso))
    }
    pretrain = bso.model_copy(update={"name": _PRETRAIN, "stages": {first: stage}})
    return {"seq2seq": seq2seq, _PRETRAIN: pretrain, **later}
