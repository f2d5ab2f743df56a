"""The demonstration: seq2seq, BSO and ConBSO on the generated corpus, one table, one report."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from argbeam.errors import ArgbeamError
from argbeam.files import writing
from argbeam.reports.progress import note
from argbeam.reports.report import read_runs, score_tables, write_report
from argbeam.reports.table import table
from argbeam.reproduce.campaign import write_recipe
from argbeam.reproduce.folder import LOGS, RECIPES
from argbeam.reproduce.runner import CampaignStep, ShowSteps, find_machine, run_steps
from argbeam.runs import layout
from argbeam.runs.layout import is_trained
from argbeam.runs.load import open_run
from argbeam.runs.resume import check_same
from argbeam.runs.score import score_run
from argbeam.runs.session import train_run
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import find_recipe, load_recipe

BEAMS = (1, 5, 10)
_PRETRAIN, _SYSTEMS = "pretrain", ("seq2seq", "bso", "conbso")
# Names in the folder of a demo.
_OWN = re.compile(rf"{'|'.join(_SYSTEMS)}|{_PRETRAIN}|{RECIPES}|{LOGS}|report\.(html|md)|seed[0-9]+")


def demo_folder(out: Path, seed: int) -> Path:
    """The folder of a seed's runs: `out` for seed 1, a folder in it for every other; refused where `out` is no demo's.

    It is checked before anything is written.
    """
    with writing(out, "--out takes a folder"):
        for folder in (out, _of_seed(out, seed)):
            layout.refuse_inside_run(folder / _PRETRAIN)
            layout.refuse_foreign(folder, lambda name: bool(_OWN.fullmatch(name)), known="a demo")
    return _of_seed(out, seed)


def _of_seed(out: Path, seed: int) -> Path:
    return out if seed == 1 else out / f"seed{seed}"


def run_demo(recipes: Mapping[str, Recipe], out: Path, *, as_json: bool = False, jobs: int = 0) -> int:
    """Train, score and report; return the signal that stopped it, or 0. A second call resumes.

    `jobs` runs are trained side by side; 0: as many as suit the machine.
    """
    for name, recipe in recipes.items():
        layout.check_out(out / name)
        check_same(recipe, out / name)
    side_by_side = {name: recipe for name, recipe in recipes.items() if not is_trained(out / name)}
    if len(side_by_side) < 2 or (jobs or find_machine(0).jobs) < 2:
        side_by_side = {}
    elif signal := _train_side_by_side(side_by_side, out, jobs):
        return signal
    for name in [name for name in recipes if name not in side_by_side]:
        if signal := train_run(recipes[name], out / name, title=name).signal:
            return signal
    folders = [out / name for name in recipes if name != _PRETRAIN]
    for folder in folders:
        note(f"{folder.name}: decoding test at beams {', '.join(map(str, BEAMS))}")
        for scored in score_run(open_run(folder), "test", BEAMS):
            if as_json:
                print(json.dumps(scored.record))
    if not as_json:
        found = score_tables(read_runs(folders))[0]
        table(found.headers, found.rows, title=found.title)
        print("\n".join([*found.notes, *found.signatures]))
    page, _ = write_report(folders, out)
    note(f"{page}: the report")
    return 0


def demo_recipes(out: Path, *, seed: int, overrides: Sequence[str] = ()) -> dict[str, Recipe]:
    """The shipped demo recipes by run, in training order; the first stage of BSO and ConBSO is one run."""
    sets = [f"seed={seed}", *overrides]
    loaded = {name: load_recipe(find_recipe(f"demo/{name}"), sets) for name in _SYSTEMS}
    (first, stage), *_ = loaded["bso"].stages.items()
    assert loaded["conbso"].stages[first] == stage, "demo/bso and demo/conbso must share their first stage"
    recipes = {
        "seq2seq": loaded["seq2seq"],
        _PRETRAIN: loaded["bso"].model_copy(update={"name": _PRETRAIN, "stages": {first: stage}}),
    }
    for name in ("bso", "conbso"):
        stages = {key: value for key, value in loaded[name].stages.items() if key != first}
        recipes[name] = loaded[name].model_copy(update={"stages": stages, "start": str(out / _PRETRAIN)})
    return recipes


def _train_side_by_side(recipes: Mapping[str, Recipe], out: Path, jobs: int) -> int:
    """Train in one process per run, and show their logs; return the signal that stopped them, or 0."""
    steps = []
    for name, recipe in recipes.items():
        with writing(out, "--out takes a folder"):
            path = write_recipe(out, name, recipe, purpose=f"{name} of the demo.")
        first = Path(recipe.start).name if recipe.start else ""
        needs = (first,) if first in recipes else ()
        steps.append(CampaignStep(name, ("run", str(path), str(out / name)), needs=needs))
    logs = {name: out / LOGS / f"{name}.log" for name in recipes}
    outcome = run_steps(steps, out / LOGS, find_machine(jobs), _following(list(logs.values())))
    if outcome.failed and not outcome.signal:
        name, reason = next(iter(outcome.failed.items()))
        raise ArgbeamError(f"{name}: {reason} ({logs[name]})")
    return outcome.signal


def _following(logs: Sequence[Path]) -> ShowSteps:
    """Show the lines written to the logs since the last call."""
    read = {log: log.stat().st_size if log.exists() else 0 for log in logs}

    def follow(running: Sequence[str], waiting: int) -> None:
        for log in logs:
            text = log.read_bytes()[read[log] :] if log.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            read[log] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                note(f"{log.stem}: {line}")

    return follow
