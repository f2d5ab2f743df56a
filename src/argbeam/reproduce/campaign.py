"""`argbeam reproduce`: from the names of tables to a plan, its runs, and the report."""

import difflib
import itertools
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from argbeam.errors import ArgbeamError, ConfigError
from argbeam.files import write_atomic
from argbeam.reports.progress import note
from argbeam.reports.table import table
from argbeam.reproduce.corpora import GENERATED, Corpus, Found, find_corpora
from argbeam.reproduce.experiments import EXPERIMENTS, TIMING, Experiment
from argbeam.reproduce.page import write_page
from argbeam.reproduce.plan import Plan, PlannedRun, make_plan
from argbeam.reproduce.plan_file import merged_record, plan_record, read_plan, write_plan
from argbeam.reproduce.runner import Machine, only_process, run_steps
from argbeam.reproduce.scores import read_scores
from argbeam.reproduce.steps import Folders, Step, remaining_steps
from argbeam.reproduce.watch import is_trained, watching
from argbeam.runs.layout import is_made_here
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import difference, in_short, read_recipe_json, recipe_to_toml
from argbeam.settings.shipped import shipped_recipes
from argbeam.tasks.iwslt import prepared

# Batch, source, target, vocabulary, layers, hidden: the translation recipe's shape, and one for the generated corpus.
_SHAPE, _SMALL_SHAPE = (64, 24, 24, 22822, 1, 256), (16, 12, 12, 1000, 1, 48)
_ROUNDS, _SMALL_ROUNDS = 20, 3
# Eight runs keep an H200 busy. Most of them take up to 5 GiB, but parsing's cross-entropy takes 17 and its CRF 12.
_JOBS_ON_A_GPU, _MEMORY_OF_A_JOB = 8, 10 * 2**30


@dataclass(frozen=True)
class Request:
    """What was asked for. No tables: all whose corpora are there. `jobs` 0: as many as the machine is good for."""

    tables: tuple[str, ...]
    data: str
    out: Path
    seeds: int
    jobs: int = 0
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Campaign:
    """A request made ready: its plan, and lines that a user should read."""

    plan: Plan
    corpora: dict[str, Corpus]
    timing: tuple[str, ...]
    folders: Folders
    notes: tuple[str, ...]


def prepare_campaign(request: Request) -> Campaign:
    """Choose tables, find their corpora, plan; whatever a user has to mend is an error before anything runs."""
    folders = Folders(request.out.resolve())
    names = [one.name for one in EXPERIMENTS] + [TIMING]
    for name in request.tables:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{name}: no such table; {hint}accepted: {', '.join(names)}")
    if request.data != GENERATED and not Path(request.data).is_dir():
        raise ConfigError(f"--data {request.data}: no such folder; a folder of corpora, or {GENERATED}, is expected")
    found = find_corpora(request.data, folders.data)
    chosen = [one for one in EXPERIMENTS if not request.tables or one.name in request.tables]
    experiments = [one for one in chosen if one.corpus in found.corpora]
    _need_corpora(request, chosen, found)
    plan = make_plan(
        experiments,
        found.corpora,
        seeds=range(1, request.seeds + 1),
        recipes=shipped_recipes(),
        folder=folders.runs,
        sets=request.sets,
    )
    _check_recipes(plan, folders)
    wants_timing = not request.tables or TIMING in request.tables
    used = {one.corpus for one in experiments}
    return Campaign(
        plan,
        {kind: found.corpora[kind] for kind in used},
        _timing(request, folders) if wants_timing else (),
        folders,
        tuple(_notes(chosen, found, plan)),
    )


def show_plan(campaign: Campaign) -> None:
    """The plan as a table, with what is done."""
    plan, folders = campaign.plan, campaign.folders
    needed = {step.run for step in _steps(campaign)}
    rows = [[run.name, run.origin, run.start or "-", _scorings(run), _state(run, folders, needed)] for run in plan.runs]
    if campaign.timing:
        state = "done" if folders.timing.exists() else "to do, alone"
        rows.append([TIMING, "argbeam bench", "-", "-", state])
    table(("run", "recipe", "starts from", "scored on", "state"), rows, title=f"{len(rows)} runs under {folders.runs}")
    for one in plan.tables:
        print(f"{one.name}: {one.title}, {one.corpus}, {one.split}: {'; '.join(row.label for row in one.rows)}")


def run_campaign(campaign: Campaign, jobs: int) -> int:
    """Run what is left and write the report; return the signal that stopped it, or 0."""
    folders = campaign.folders
    with only_process(folders.out):
        for corpus in campaign.corpora.values():
            prepare_data(corpus, folders)
        _write_plan(campaign)
        machine = find_machine(jobs)
        steps = _steps(campaign)
        _make_way(steps, folders)
        note(f"{len(steps)} steps to do, up to {machine.jobs} side by side")
        needed = {step.run for step in steps}
        counted = tuple(run for run in campaign.plan.runs if run.scorings or run.name in needed)
        with watching(replace(campaign.plan, runs=counted), folders) as show:
            outcome = run_steps(steps, folders, machine, show)
        if outcome.signal:
            return outcome.signal
        for path in write_page(folders.out, folders.out):
            print(path)
        if outcome.failed:
            name, said = next(iter(outcome.failed.items()))
            raise ArgbeamError(
                f"{len(outcome.failed)} of {len(steps)} steps failed; the first: {name}: {said} ({folders.log(name)})"
            )
    return 0


def find_machine(jobs: int) -> Machine:
    """What this machine is good for: on CUDA runs share the devices, without it every one has a core."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = torch.cuda.device_count()
    devices = tuple(visible.split(",")[:count]) if visible else tuple(str(number) for number in range(count))
    cores = len(os.sched_getaffinity(0))
    chosen = jobs or (_jobs_on_a_gpu(count) * len(devices) if devices else cores)
    return Machine(chosen, devices, max(1, cores // chosen))


def _jobs_on_a_gpu(count: int) -> int:
    import torch

    smallest = min(torch.cuda.get_device_properties(number).total_memory for number in range(count))
    return max(1, min(_JOBS_ON_A_GPU, smallest // _MEMORY_OF_A_JOB))


def write_recipe(path: Path, recipe: Recipe, *, purpose: str) -> None:
    """The recipe as a file that a step reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, recipe_to_toml(recipe, purpose=purpose).encode())


def prepare_data(corpus: Corpus, folders: Folders) -> None:
    """Write a corpus's prepared files, once for all runs; the last one written says that all are there."""
    if not corpus.prepare:
        return
    folder = folders.data / corpus.name
    last = folder / "prepared.json"
    if last.exists():
        return
    note(f"{folder}: preparing {corpus.prepare}; this takes minutes")
    found = prepared(Path(corpus.prepare))
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split, pairs in (("train", found.train), ("dev", found.dev), ("test", found.test)):
        counts[split] = len(pairs)
        for ending, lines in (("de", [p.source for p in pairs]), ("en", [p.target for p in pairs])):
            write_atomic(folder / f"{split}.{ending}", "".join(f"{line}\n" for line in lines).encode())
    write_atomic(last, json.dumps({"from": corpus.prepare, **counts, "left_out": found.left_out}).encode())


def _need_corpora(request: Request, chosen: Sequence[Experiment], found: Found) -> None:
    absent = [one for one in chosen if one.corpus not in found.corpora]
    if absent and (request.tables or len(absent) == len(chosen)):
        lines = "; or ".join(found.missing[absent[0].corpus])
        raise ConfigError(f"{absent[0].name}: no corpus for it under {request.data}: {lines}")


def _notes(chosen: Sequence[Experiment], found: Found, plan: Plan) -> list[str]:
    notes = []
    for kind in dict.fromkeys(one.corpus for one in chosen):
        corpus = found.corpora.get(kind)
        tables = ", ".join(one.name for one in chosen if one.corpus == kind)
        notes.append(f"{tables}: {corpus.name}" if corpus else f"{tables}: left out, no corpus found")
        notes += [f"  {line}" for line in (*found.missing.get(kind, ()), *(corpus.notes if corpus else ()))]
    if plan.left_out:
        notes.append(f"no recipe yet, left out of the tables: {', '.join(plan.left_out)}")
    return notes


def _timing(request: Request, folders: Folders) -> tuple[str, ...]:
    small = request.data == GENERATED
    asked = [one.partition("=")[2] for one in request.sets if one.partition("=")[0].strip() == "runtime.device"]
    device = asked[-1].strip().strip('"') if asked else "auto"
    shape, rounds = (_SMALL_SHAPE, _SMALL_ROUNDS) if small else (_SHAPE, _ROUNDS)
    return (str(folders.timing), device, str(rounds), *map(str, shape))


def _steps(campaign: Campaign) -> list[Step]:
    plan, folders = campaign.plan, campaign.folders
    return remaining_steps(
        plan,
        folders,
        trained={run.name for run in plan.runs if is_trained(run.name, folders)},
        scored={run.name: read_scores(folders.runs / run.name) for run in plan.runs},
        timing=() if folders.timing.exists() else campaign.timing,
    )


def _scorings(run: PlannedRun) -> str:
    parts = []
    for one in run.scorings:
        how = " by length" if one.powers else f" stop {one.stop}" if one.stop else ""
        parts.append(f"{one.split}{how}")
    return ", ".join(parts) or "-"


def _state(run: PlannedRun, folders: Folders, needed: Collection[str]) -> str:
    scored = read_scores(folders.runs / run.name)
    missing = [one for one in run.scorings if one.key not in scored]
    if is_trained(run.name, folders):
        return f"trained, {len(missing)} to score" if missing else "done"
    if run.scorings and not missing:
        return "done, model elsewhere"
    if run.name not in needed:
        return "not needed"
    return "begun" if (folders.runs / run.name / "recipe.json").exists() else "to do"


def _check_recipes(plan: Plan, folders: Folders) -> None:
    """A run that is there was made by the recipe that is planned. Where its files lie may have changed since it was
    finished, or was passed on without its model, and so may what its results do not depend on."""
    for run in plan.runs:
        path = folders.runs / run.name / "recipe.json"
        if not path.exists():
            continue
        before = read_recipe_json(path)
        going_on = not is_trained(run.name, folders) and is_made_here(path.parent)
        free = ("runtime.",) if going_on else ("runtime.", "data.", "start", "decode.batch")
        changed = [line for line in difference(before, run.recipe) if not line.startswith(free)]
        if changed:
            mended = "choose another --out, or remove this folder and the run is made again"
            raise ConfigError(f"{path.parent}: made by another recipe: {in_short(changed)}; {mended}")


def _make_way(steps: Sequence[Step], folders: Folders) -> None:
    """Records that were passed on without a model are set aside where their run is made again."""
    for step in steps:
        folder = folders.runs / step.run
        if not step.run or not folder.exists() or is_trained(step.run, folders):
            continue
        if not is_made_here(folder) or read_scores(folder):  # scores would be of another training
            aside = _free(folders.out / "passed_on" / step.run)
            aside.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(aside)
            note(f"{step.run}: its model is not here, so it is made again; the records that were here are in {aside}")


def _free(path: Path) -> Path:
    """The path, or the first of `path.2`, `path.3`, ... where it is taken."""
    names = itertools.chain([path.name], (f"{path.name}.{number}" for number in itertools.count(2)))
    return next(free for free in map(path.with_name, names) if not free.exists())


def _write_plan(campaign: Campaign) -> None:
    folders = campaign.folders
    for run in campaign.plan.runs:
        purpose = (
            f"{run.origin} as `argbeam reproduce` runs it." if run.scorings else f"The first stage of {run.origin}."
        )
        write_recipe(folders.recipe(run.name), run.recipe, purpose=purpose)
    before = read_plan(folders.plan) if folders.plan.exists() else None
    write_plan(folders.plan, merged_record(before, plan_record(campaign.plan)))
