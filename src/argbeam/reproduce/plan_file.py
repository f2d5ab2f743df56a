"""plan.json: what a report needs of the plans that were made for a folder."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from argbeam.errors import DataError
from argbeam.files import write_atomic
from argbeam.reproduce.checked import damaged, parsed
from argbeam.reproduce.plan import Plan, PlannedRow, PlannedTable

_MENDED = "remove it, and `argbeam reproduce` plans again and keeps the runs"


@dataclass(frozen=True)
class RunRecord:
    """A planned run: its name, the recipe it is made from, and the run it starts from (empty: none)."""

    name: str
    origin: str
    start: str


@dataclass(frozen=True)
class PlanRecord:
    """The runs and tables of all plans, and rows that the newest has no recipe for."""

    runs: tuple[RunRecord, ...]
    tables: tuple[PlannedTable, ...]
    left_out: tuple[str, ...]


def plan_record(plan: Plan) -> PlanRecord:
    """What is kept of a plan."""
    runs = tuple(RunRecord(run.name, run.origin, run.start) for run in plan.runs)
    return PlanRecord(runs, plan.tables, plan.left_out)


def merged_record(before: PlanRecord | None, record: PlanRecord) -> PlanRecord:
    """A plan's record with the tables, seeds and runs of earlier calls that it does not hold itself."""
    if before is None:
        return record
    runs = {run.name: run for run in (*before.runs, *record.runs)}
    tables = {table.name: table for table in before.tables}
    tables |= {table.name: _with_seeds_of(tables.get(table.name), table) for table in record.tables}
    return PlanRecord(tuple(runs.values()), tuple(tables.values()), record.left_out)


def _with_seeds_of(before: PlannedTable | None, table: PlannedTable) -> PlannedTable:
    """The table with all seeds of its rows, where an earlier call had more of them."""
    known = {row.label: row.runs for row in before.rows} if before is not None else {}

    def runs(row: PlannedRow) -> tuple[str, ...]:
        earlier = known.get(row.label, ())
        return earlier if earlier[: len(row.runs)] == row.runs else row.runs

    return replace(table, rows=tuple(replace(row, runs=runs(row)) for row in table.rows))


def write_plan(path: Path, record: PlanRecord) -> None:
    """Put the record on the disk."""
    write_atomic(path, (json.dumps(asdict(record), indent=1) + "\n").encode())


def read_plan(path: Path) -> PlanRecord:
    """The record that `write_plan` wrote; a file that is none is an error of one line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror}; a plan as `argbeam reproduce` writes it is expected"
        ) from None
    record = parsed(data, PlanRecord, path, _MENDED)
    known = {run.name for run in record.runs}
    named = [run.start for run in record.runs if run.start]
    named += [run for table in record.tables for row in table.rows for run in row.runs]
    unknown = [name for name in named if name not in known]
    if unknown:
        raise damaged(path, f"{json.dumps(unknown[0])} is none of its runs", _MENDED)
    return record
