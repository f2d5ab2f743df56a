"""`argbeam reproduce`: from the names of tables to a plan, its runs, and the report."""

import difflib
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from argbeam.errors import ArgbeamError, ConfigError
from argbeam.files import read_records, write_atomic
from argbeam.reports.progress import duration, note
from argbeam.reports.table import table
from argbeam.reproduce.corpora import GENERATED, Corpus, FoundCorpora, find_corpora, prepare_corpus
from argbeam.reproduce.experiments import EXPERIMENTS, TIMING, Experiment
from argbeam.reproduce.folder import (
    DATA,
    LOGS,
    RECIPES,
    RUNS,
    TIMING_FILE,
    RunSummary,
    check_out,
    read_summaries,
    update_plan,
    write_summaries,
)
from argbeam.reproduce.page import write_page
from argbeam.reproduce.plan import PlannedRun, RunPlan, Scoring, asked, make_plan, runs_left
from argbeam.reproduce.runner import CampaignStep, ShowSteps, find_machine, run_steps
from argbeam.reproduce.sums import FURTHER, GROUPS, chosen_experiments
from argbeam.runs.layout import RECIPE, RECORDS, is_trained, lock_folder
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import difference, in_short, parse_recipe, read_recipe_json, recipe_to_toml

# Rounds, batch, source, target, vocabulary, layers, hidden: of the translation recipe, and for the generated corpus.
_TIMED, _TIMED_SMALL = (20, 64, 24, 24, 22822, 1, 256), (3, 16, 12, 12, 1000, 1, 48)
# Seconds between two reports of progress, on a terminal and elsewhere.
_STATUS_EVERY, _LINE_EVERY = 2.0, 30.0


@dataclass(frozen=True)
class Campaign:
    """A command made ready: its plan, its corpora, the arguments of the timing step (empty: none), and notes.

    `only`: patterns of the names of the runs that are asked for; none: all.
    """

    out: Path
    plan: RunPlan
    corpora: tuple[Corpus, ...]
    timing: tuple[str, ...]
    notes: tuple[str, ...]
    only: tuple[str, ...] = ()

    def run_folder(self, name: str) -> Path:
        return self.out / RUNS / name

    def summaries(self) -> dict[str, RunSummary]:
        return read_summaries(self.out, (run.name for run in self.plan.runs))

    def left(self) -> dict[str, tuple[Scoring, ...]]:
        """The runs to train or score, with their scorings."""
        trained = {run.name for run in self.plan.runs if is_trained(self.run_folder(run.name))}
        scored = {name: found.by_scoring for name, found in self.summaries().items()}
        return runs_left(self.plan, trained=trained, scored=scored, only=self.only)


def prepare_campaign(
    tables: Sequence[str],
    *,
    data: str,
    out: Path,
    seeds: int = 1,
    sets: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Campaign:
    """Find the corpora and plan the tables; none: those of the paper whose corpora are there. Errors come first."""
    names = [*(one.name for one in (*EXPERIMENTS, *FURTHER)), *GROUPS, TIMING]
    for name in tables:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{name}: no such table; {hint}accepted: {', '.join(names)}")
    if data != GENERATED and not Path(data).is_dir():
        raise ConfigError(f"--data {data}: no such folder; a folder of corpora, or {GENERATED}, is expected")
    check_out(out)
    out = out.resolve()
    found = find_corpora(data, out / DATA)
    chosen = chosen_experiments(tables)
    planned = [one for one in chosen if one.corpus in found.corpora]
    absent = [one for one in chosen if one not in planned]
    if absent and (tables or not planned):
        lines = "; or ".join(found.missing[absent[0].corpus])
        raise ConfigError(f"{absent[0].name}: no corpus for it under {data}: {lines}")
    plan = make_plan(planned, found.corpora, seeds=range(1, seeds + 1), folder=out / RUNS, sets=sets)
    corpora = tuple(found.corpora[kind] for kind in dict.fromkeys(one.corpus for one in planned))
    timed = not tables or TIMING in tables
    timing = _timing(data, sets, out / TIMING_FILE) if timed and asked(TIMING, only) else ()
    known = [run.name for run in plan.runs if run.scorings] + [TIMING] * timed
    for pattern in only:
        if not any(asked(name, [pattern]) for name in known):
            raise ConfigError(f"--only {pattern}: none of these tables' runs has such a name; --dry-run lists them")
    campaign = Campaign(out, plan, corpora, timing, tuple(_notes(chosen, found)), tuple(only))
    _check_recipes(campaign)
    return campaign


def show_plan(campaign: Campaign) -> None:
    """The plan as a table, with the state of each run."""
    left, found = campaign.left(), campaign.summaries()
    rows = []
    for run in campaign.plan.runs:
        scorings, state = ", ".join(map(str, run.scorings)), _state(campaign, run, found[run.name], left)
        rows.append([run.name, run.origin, run.start or "-", scorings or "-", state])
    if campaign.timing:
        state = "done" if (campaign.out / TIMING_FILE).exists() else "to do, alone"
        rows.append([TIMING, "argbeam bench", "-", "-", state])
    title = f"{len(rows)} runs under {campaign.out / RUNS}"
    table(("run", "recipe", "starts from", "scored on", "state"), rows, title=title)
    for one in campaign.plan.tables:
        print(f"{one.name}: {one.title}, {one.corpus}, {one.split}: {'; '.join(row.label for row in one.rows)}")


def run_campaign(campaign: Campaign, jobs: int) -> int:
    """Run what is left and write the report; return the signal that stopped it, or 0."""
    out = campaign.out
    with lock_folder(out, doing="reproducing into this folder"):
        for corpus in campaign.corpora:
            prepare_corpus(corpus, out / DATA)
        _write_plan(campaign)
        steps, machine = _steps(campaign), find_machine(jobs)
        note(f"{len(steps)} steps to do, up to {machine.jobs} side by side")
        with watching(campaign, [step.name for step in steps]) as show:
            outcome = run_steps(steps, out / LOGS, machine, show)
        write_summaries(out)  # after a signal too: finished runs count as done wherever this file is taken
        if outcome.signal:
            return outcome.signal
        for path in write_page(out, out):
            print(path)
        if outcome.failed:
            name, reason = next(iter(outcome.failed.items()))
            failed = f"{len(outcome.failed)} of {len(steps)} steps failed"
            raise ArgbeamError(f"{failed}; the first: {name}: {reason} ({out / LOGS / name}.log)")
    return 0


def write_recipe(out: Path, run: str, recipe: Recipe, *, purpose: str) -> Path:
    """Write the recipe of a run as a TOML file; return its path."""
    path = out / RECIPES / f"{run}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, recipe_to_toml(recipe, purpose=purpose).encode())
    return path


def work_done(campaign: Campaign, left: Collection[str]) -> tuple[float, int]:
    """The work of the campaign's runs that is done, and all of it. Runs in `left` count by their recorded epochs."""
    done, total = 0.0, 0
    for run in campaign.plan.runs:
        if run.name not in left and not (run.scorings and asked(run.name, campaign.only)):
            continue  # not asked for, or a run that others start from and that none of them needs
        total += run.work
        records = campaign.run_folder(run.name) / RECORDS
        if run.name not in left or is_trained(records.parent):
            done += run.work
        elif records.exists():
            epochs = len([one for one in read_records(records) if one["kind"] == "epoch"])
            done += run.work * min(1.0, epochs / sum(stage.epochs for stage in run.recipe.stages.values()))
    return done, total


def seconds_left(*, elapsed: float, before: float, now: float, total: int) -> float | None:
    """Time for the rest at the speed so far; None before any work is done."""
    return elapsed * (total - now) / (now - before) if now > before else None


@contextmanager
def watching(campaign: Campaign, left: Collection[str]) -> Iterator[ShowSteps]:
    """Report progress on stderr: a status on a terminal, a line every half minute elsewhere."""
    from rich.console import Console
    from rich.status import Status

    terminal = sys.stderr.isatty()
    (before, total), started = work_done(campaign, left), time.monotonic()
    reported = started
    with Status("", console=Console(stderr=True, markup=False, highlight=False)) if terminal else nullcontext() as bar:

        def show(running: Sequence[str], waiting: int) -> None:
            nonlocal reported
            if time.monotonic() - reported < (_STATUS_EVERY if terminal else _LINE_EVERY):
                return
            reported = time.monotonic()
            now, _ = work_done(campaign, left)
            seconds = seconds_left(elapsed=reported - started, before=before, now=now, total=total)
            share = 100 * now / total if total else 100.0
            end = "" if seconds is None else f"; about {duration(seconds)} left"
            line = f"{share:.0f} % of training done; {len(running)} running, {waiting} waiting{end}"
            if bar is None:
                note(line)
            else:
                bar.update("\n  ".join([line, *running]))

        yield show


def _notes(chosen: Sequence[Experiment], found: FoundCorpora) -> Iterator[str]:
    for kind in dict.fromkeys(one.corpus for one in chosen):
        corpus = found.corpora.get(kind)
        tables = ", ".join(one.name for one in chosen if one.corpus == kind)
        yield f"{tables}: {corpus.name}" if corpus else f"{tables}: left out, no corpus found"
        yield from (f"  {line}" for line in (*found.missing.get(kind, ()), *(corpus.notes if corpus else ())))


def _timing(data: str, sets: Sequence[str], path: Path) -> tuple[str, ...]:
    asked = [value for key, _, value in (one.partition("=") for one in sets) if key.strip() == "runtime.device"]
    device = asked[-1].strip().strip('"') if asked else "auto"
    return ("time", str(path), device, *map(str, _TIMED_SMALL if data == GENERATED else _TIMED))


def _steps(campaign: Campaign) -> list[CampaignStep]:
    left, starts = campaign.left(), {run.name: run.start for run in campaign.plan.runs}
    steps = []
    for name, scorings in left.items():
        folder = campaign.run_folder(name)
        arguments = ("run", str(campaign.out / RECIPES / f"{name}.toml"), str(folder), *(one.text for one in scorings))
        needs = (starts[name],) if starts[name] in left and not is_trained(folder) else ()
        steps.append(CampaignStep(name, arguments, folder, needs))
    if campaign.timing and not (campaign.out / TIMING_FILE).exists():
        steps.append(CampaignStep(TIMING, campaign.timing, alone=True))
    return steps


def _state(campaign: Campaign, run: PlannedRun, found: RunSummary, left: Collection[str]) -> str:
    missing = [one for one in run.scorings if one not in found.by_scoring]
    if is_trained(campaign.run_folder(run.name)):
        return f"trained, {len(missing)} to score" if missing else "done"
    if run.scorings and not missing:
        return "done, model elsewhere"
    if run.name not in left:
        return "not needed" if asked(run.name, campaign.only) else "not asked for"
    return "begun" if (campaign.run_folder(run.name) / RECIPE).exists() else "to do"


def _check_recipes(campaign: Campaign) -> None:
    """Refuse a folder of runs with another recipe than the planned one; the data of finished runs may have moved."""
    found = campaign.summaries()
    for run in campaign.plan.runs:
        folder = campaign.run_folder(run.name)
        begun = (folder / RECIPE).exists()
        if not begun and not found[run.name].recipe:
            continue
        before = read_recipe_json(folder / RECIPE) if begun else parse_recipe(found[run.name].recipe, where=run.name)
        unfinished = begun and not is_trained(folder)
        free = ("runtime.",) if unfinished else ("runtime.", "data.", "start", "decode.batch")
        changed = [line for line in difference(before, run.recipe) if not line.startswith(free)]
        if changed:
            fix = "choose another --out, or remove this folder and the run is made again"
            raise ConfigError(f"{folder}: made by another recipe: {in_short(changed)}; {fix}")


def _write_plan(campaign: Campaign) -> None:
    for run in campaign.plan.runs:
        first, whole = f"The first stage of {run.origin}.", f"{run.origin} as `argbeam reproduce` runs it."
        write_recipe(campaign.out, run.name, run.recipe, purpose=whole if run.scorings else first)
    update_plan(campaign.out, campaign.plan)
