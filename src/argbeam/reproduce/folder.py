"""The files of a reproduction's folder that the report is made from, with their checks.

plan.json      tables, rows and runs of all commands for this folder
runs.jsonl     a `RunSummary` of each run, to pass on without the run folders
runs/RUN/      run folders, each with scores.jsonl (a `ScoringRow` for each scoring) and paired/ (by sentence)
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Json, TypeAdapter

from argbeam.errors import DataError
from argbeam.files import reading, write_atomic, writing
from argbeam.reports.records import (
    EvaluationRow,
    RunRecords,
    StageRow,
    damaged,
    parse_json,
    read_rows,
    read_run_records,
)
from argbeam.reproduce.plan import PlannedRow, PlannedTable, RunPlan, Scoring
from argbeam.runs.layout import LOCK, RECIPE, RECORDS, is_trained, refuse_foreign, refuse_inside_run
from argbeam.settings.recipe_files import read_recipe_json

PLAN, SUMMARIES, TESTS, TIMING_FILE = "plan.json", "runs.jsonl", "tests.jsonl", "timing.json"
RUNS, LOGS, RECIPES, DATA = "runs", "logs", "recipes", "data"
SCORES = "scores.jsonl"
PAGE = "reproduction"
# Everything that `argbeam reproduce` writes.
_OWN = {PLAN, SUMMARIES, TESTS, TIMING_FILE, RUNS, LOGS, RECIPES, DATA, LOCK, f"{PAGE}.html", f"{PAGE}.md"}
_FIX_PLAN = "remove it, and `argbeam reproduce` plans again and keeps the runs"


@dataclass(frozen=True)
class RunRecord:
    """A planned run: its name, its shipped recipe, and the run it starts from (empty: none)."""

    name: str
    origin: str
    start: str


@dataclass(frozen=True)
class PlanRecord:
    """Content of plan.json: the runs and tables of all plans."""

    runs: tuple[RunRecord, ...]
    tables: tuple[PlannedTable, ...]


def check_out(out: Path) -> None:
    """Refuse a folder that is neither empty nor a reproduction, before anything is written there."""
    with writing(out, "--out takes a folder"):
        refuse_inside_run(out / RUNS)
        if not (out / PLAN).is_file():
            refuse_foreign(out, _OWN.__contains__, known="a reproduction")


def update_plan(out: Path, plan: RunPlan) -> None:
    """Write plan.json: the plan, and the tables, seeds and runs of earlier plans that it does not hold itself."""
    before = read_plan(out) if (out / PLAN).exists() else PlanRecord((), ())
    earlier = {(table.name, row.label): row.runs for table in before.tables for row in table.rows}

    def with_all_seeds(table: str, row: PlannedRow) -> PlannedRow:
        known = earlier.get((table, row.label), ())
        return replace(row, runs=known) if known[: len(row.runs)] == row.runs else row

    runs = {run.name: run for run in before.runs}
    runs |= {run.name: RunRecord(run.name, run.origin, run.start) for run in plan.runs}
    tables = {table.name: table for table in before.tables}
    for table in plan.tables:
        rows = tuple(with_all_seeds(table.name, row) for row in table.rows)
        tables[table.name] = replace(table, rows=rows)
    record = PlanRecord(tuple(runs.values()), tuple(tables.values()))
    write_atomic(out / PLAN, TypeAdapter(PlanRecord).dump_json(record, indent=1, round_trip=True) + b"\n")


def read_plan(out: Path) -> PlanRecord:
    """Content of plan.json, checked: every run that it names is one of its runs."""
    path = out / PLAN
    if not path.is_file():
        raise DataError(f"{out}: no reproduction: plan.json is missing; `argbeam reproduce` makes one")
    with reading(path, "a plan as `argbeam reproduce` writes it is expected"):
        data = path.read_bytes()
    record = parse_json(data, PlanRecord, path, _FIX_PLAN)
    known = {run.name for run in record.runs}
    named = [run.start for run in record.runs if run.start]
    named += [run for table in record.tables for row in table.rows for run in row.runs]
    for name in set(named) - known:
        raise damaged(path, f"{json.dumps(name)} is none of its runs", _FIX_PLAN)
    return record


@dataclass(frozen=True)
class ScoringRow:
    """A line of scores.jsonl: a scoring with a record for each beam."""

    scoring: Json[Scoring]
    records: list[EvaluationRow]


@dataclass(frozen=True)
class RunSummary:
    """A line of runs.jsonl: what the report needs of a run. `recipe` is empty where the run has not begun."""

    name: str
    device: str
    stages: list[StageRow]
    scores: list[ScoringRow]
    recipe: dict[str, Any]
    epoch_seconds: float | None = None  # missing in records of early versions

    @property
    def seconds(self) -> float:
        """Training time, without that of the run it started from."""
        return self.stages[-1].seconds if self.stages else 0.0

    @property
    def by_scoring(self) -> dict[Scoring, list[EvaluationRow]]:
        return {row.scoring: row.records for row in self.scores}


def read_summaries(out: Path, runs: Iterable[str]) -> dict[str, RunSummary]:
    """A summary of each run: from its folder, or from runs.jsonl where its model is elsewhere."""
    path = out / SUMMARIES
    rows = read_rows(path, RunSummary, fix="copy it again from its source") if path.exists() else []
    elsewhere = {row.name: row for row in rows if not is_trained(out / RUNS / row.name)}
    return {name: elsewhere.get(name) or _summary(out / RUNS / name) for name in runs}


def write_summaries(out: Path) -> None:
    """Write runs.jsonl from the run folders; lines of runs whose model is elsewhere stay."""
    found = read_summaries(out, (run.name for run in read_plan(out).runs)).values()
    adapter = TypeAdapter(RunSummary)
    lines = [adapter.dump_json(one, round_trip=True) + b"\n" for one in found if one.stages]
    write_atomic(out / SUMMARIES, b"".join(lines))


def read_scores(run: Path) -> list[ScoringRow]:
    """The scorings that a run folder holds."""
    path = run / SCORES
    fix = "remove it, and `argbeam reproduce` scores the run again"
    return read_rows(path, ScoringRow, fix=fix) if path.exists() else []


def _summary(run: Path) -> RunSummary:
    fix = f"remove {run}, and `argbeam reproduce` makes the run again"
    records = read_run_records(run / RECORDS, fix=fix) if (run / RECORDS).exists() else RunRecords([], [], [])
    return RunSummary(
        run.name,
        records.starts[0].device if records.starts else "-",
        records.stages,
        read_scores(run),
        _portable_recipe(run / RECIPE) if (run / RECIPE).exists() else {},
        records.epoch_seconds,
    )


def _portable_recipe(path: Path) -> dict[str, Any]:
    """The recipe without the folders of this machine: `data.root` is `.`, and `start` the name of a run."""
    recipe = read_recipe_json(path).model_dump(mode="json")
    if "root" in recipe["data"]:
        recipe["data"]["root"] = "."
    return {**recipe, "start": Path(recipe["start"]).name}
