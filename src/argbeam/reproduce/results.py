"""What a reproduction's folder says: scores by table, system, beam and seed; gains, and what chance makes of them."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argbeam.errors import ArgbeamError, DataError
from argbeam.files import append_record, read_records
from argbeam.reproduce.checked import RunLine, StageLine, TestLine, Timing, check, parsed
from argbeam.reproduce.pairs import Pair, paired_file, paired_tests
from argbeam.reproduce.plan import PlannedTable
from argbeam.reproduce.plan_file import RunRecord, read_plan
from argbeam.reproduce.scores import read_scores
from argbeam.reproduce.steps import Folders

# The parts of a score that tables show and test; the others (length, exact matches) stand beside them.
_SHOWN = ("bleu", "uas", "las")


@dataclass(frozen=True)
class Summary:
    """Numbers of several seeds: their mean, and the standard deviation of a sample (None for one seed)."""

    mean: float
    spread: float | None
    count: int


def summary(values: Sequence[float]) -> Summary:
    """5, 6 and 10 have mean 7 and spread sqrt((4 + 1 + 9) / 2) = 2.65."""
    return Summary(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def shown(parts: Sequence[Summary], *, sign: str = "") -> str:
    """`81.24/74.70 ± 0.48/0.44`; with `sign` "+", gains."""
    spread = "/".join(f"{one.spread:.2f}" for one in parts if one.spread is not None)
    return "/".join(f"{one.mean:{sign}.2f}" for one in parts) + (f" ± {spread}" if spread else "")


@dataclass(frozen=True)
class LengthClass:
    """Sentences of `first` to `last` words; None: and longer."""

    first: int
    last: int | None

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.first} and more"
        return f"{self.first} to {self.last}" if self.first else f"up to {self.last}"


@dataclass(frozen=True)
class RowResult:
    """A system's records by seed (counted from 0) and beam; seeds that are not scored yet are not there."""

    label: str
    runs: tuple[str, ...]
    scoring: str
    by_seed: dict[int, dict[int, dict[str, Any]]]

    def values(self, part: str, beam: int) -> dict[int, float]:
        """A part of the score by seed."""
        return {
            seed: records[beam]["scores"][part]
            for seed, records in self.by_seed.items()
            if beam in records and part in records[beam]["scores"]
        }

    def summary(self, part: str, beam: int) -> Summary | None:
        values = list(self.values(part, beam).values())
        return summary(values) if values else None

    def by_length(self, part: str, beam: int) -> dict[LengthClass, dict[int, float]]:
        """A part of the score by length of sentence and seed."""
        found: dict[LengthClass, dict[int, float]] = {}
        for seed, named, one in self._lengths(beam):
            if part in one["scores"]:
                found.setdefault(named, {})[seed] = one["scores"][part]
        return found

    def sentences(self, beam: int) -> dict[LengthClass, int]:
        """How many sentences of each length there are, shortest first: as many with every seed."""
        found: dict[LengthClass, int] = {}
        for seed, named, one in self._lengths(beam):
            if found.setdefault(named, one["sentences"]) != one["sentences"]:
                raise ArgbeamError(
                    f"{self.runs[seed]}: scored on {one['sentences']} sentences of {named} words, and another seed on "
                    f"{found[named]}; seeds are scored on the same ones"
                )
        return dict(sorted(found.items(), key=lambda item: item[0].first))

    def _lengths(self, beam: int) -> Iterator[tuple[int, LengthClass, dict[str, Any]]]:
        for seed, records in self.by_seed.items():
            for one in records[beam].get("by_length", ()) if beam in records else ():
                yield seed, LengthClass(one["first"], one["last"]), one


@dataclass(frozen=True)
class TableResult:
    """A table's rows so far as they are scored. All of its numbers have one metric."""

    name: str
    title: str
    corpus: str
    split: str
    references: tuple[str, ...]
    rows: tuple[RowResult, ...]
    parts: tuple[str, ...]
    beams: tuple[int, ...]
    metric: str

    def row(self, label: str) -> RowResult | None:
        return next((row for row in self.rows if row.label == label), None)

    @property
    def first_reference(self) -> RowResult | None:
        """The first of the references that has scores."""
        return next((row for label in self.references if (row := self.row(label)) and row.by_seed), None)


@dataclass(frozen=True)
class RunResult:
    """What a run's records say. `seconds` is the time of its training, without that of the run it started from."""

    name: str
    origin: str
    start: str
    started: dict[str, Any]
    epochs: list[dict[str, Any]]
    stages: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        return float(self.stages[-1]["seconds"]) if self.stages else 0.0


@dataclass(frozen=True)
class Results:
    """All of a reproduction's folder; `timing` is None where it was not asked for or is not done."""

    folder: Path
    tables: tuple[TableResult, ...]
    runs: dict[str, RunResult]
    timing: Timing | None
    left_out: tuple[str, ...]

    def seconds(self, run: str) -> float:
        """A run's training time with that of the run it started from."""
        start = self.runs[run].start
        return self.runs[run].seconds + (self.runs[start].seconds if start else 0.0)


@dataclass(frozen=True)
class Gain:
    """The mean gain over a reference, seed by seed, and the largest p-value of the seeds' paired tests.

    There is none where a test is missing, nor where seeds gain in different directions.
    """

    summary: Summary
    p_value: float | None


@dataclass
class Significance:
    """Paired bootstrap tests, each made once: they are kept in the folder, and outlive the outputs they are made of."""

    folder: Path
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "tests.jsonl"

    def complete(self, tables: Sequence[TableResult]) -> "Significance":
        """Read the tests that are there, and make those that the tables' gains lack, so far as outputs are there."""
        for record in read_records(self.path).records if self.path.exists() else []:
            check(record, TestLine, self.path, "remove it, and tests are made again where outputs are there")
            self._learn(record)
        pairs = dict.fromkeys(pair for table in tables for pair in self._missing(table))
        for record in paired_tests(list(pairs)):
            append_record(self.path, record)
            self._learn(record)
        return self

    def p_value(self, row: RowResult, other: RowResult, seed: int, beam: int, part: str) -> float | None:
        """None where there is no such test."""
        test = self.known.get(_key(row, other, seed, beam))
        return test["p"].get(part) if test else None

    def signatures(self, table: TableResult, reference: RowResult) -> dict[str, list[str]]:
        """How the tests of a table's gains over a reference were made, by the part of the score they test."""
        found: dict[str, list[str]] = {}
        for row, seed, beam in self._pairs(table, reference):
            test = self.known.get(_key(row, reference, seed, beam), {"signatures": {}})
            for part, signature in test["signatures"].items():
                if signature not in found.setdefault(part, []):
                    found[part].append(signature)
        return found

    def _missing(self, table: TableResult) -> Iterator[Pair]:
        runs = Folders(self.folder).runs
        for reference in (found for label in table.references if (found := table.row(label)) is not None):
            for row, seed, beam in self._pairs(table, reference):
                ours = paired_file(runs / row.runs[seed], row.scoring, beam)
                theirs = paired_file(runs / reference.runs[seed], reference.scoring, beam)
                key = _key(row, reference, seed, beam)
                if key not in self.known and ours.exists() and theirs.exists():
                    yield Pair(key, ours, theirs)

    @staticmethod
    def _pairs(table: TableResult, reference: RowResult) -> Iterator[tuple[RowResult, int, int]]:
        """What can be tested against the reference: rows with seeds that it has as well, at every beam."""
        for row in (row for row in table.rows if row is not reference):
            yield from ((row, seed, beam) for seed in row.by_seed if seed in reference.by_seed for beam in table.beams)

    def _learn(self, record: dict[str, Any]) -> None:
        self.known[record["key"]] = record


def _key(row: RowResult, other: RowResult, seed: int, beam: int) -> str:
    """What was tested, with its scores: a run that is made again is tested again."""
    return json.dumps([beam, *(_side(one, seed, beam) for one in (row, other))])


def _side(row: RowResult, seed: int, beam: int) -> list[Any]:
    record = row.by_seed[seed].get(beam)
    return [row.runs[seed], row.scoring, record["scores"] if record else None]


def read_results(folder: Path) -> Results:
    """Read what is there; runs that are not trained or scored yet are left out of the tables."""
    folders = Folders(folder)
    if not folders.plan.is_file():
        raise DataError(f"{folder}: no reproduction: plan.json is missing; `argbeam reproduce` makes one")
    plan = read_plan(folders.plan)
    runs = {run.name: _run(folders.runs / run.name, run) for run in plan.runs}
    tables = (_table(folders.runs, table) for table in plan.tables)
    timing = _timing(folders.timing) if folders.timing.exists() else None
    found = tuple(table for table in tables if table is not None)
    return Results(folder, found, runs, timing, plan.left_out)


def _timing(path: Path) -> Timing:
    return parsed(path.read_bytes(), Timing, path, "remove it, and `argbeam reproduce timing` measures again")


def gain(row: RowResult, reference: RowResult, part: str, beam: int) -> dict[int, float]:
    """By how much a row is ahead of the reference of the same seed, for each seed that both have."""
    ours, theirs = row.values(part, beam), reference.values(part, beam)
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def gain_by_length(row: RowResult, reference: RowResult, part: str, beam: int) -> dict[LengthClass, dict[int, float]]:
    """The same in sentences of each length that both have."""
    ours, theirs = row.by_length(part, beam), reference.by_length(part, beam)
    found = {
        one: {seed: ours[one][seed] - theirs[one][seed] for seed in ours[one] if seed in theirs[one]}
        for one in theirs
        if one in ours
    }
    return {one: gains for one, gains in found.items() if gains}


def judged_gain(row: RowResult, reference: RowResult, part: str, beam: int, tests: Significance) -> Gain | None:
    gains = gain(row, reference, part, beam)
    if not gains:
        return None
    found = [tests.p_value(row, reference, seed, beam, part) for seed in gains]
    known = [p for p in found if p is not None]
    one_way = all(value >= 0 for value in gains.values()) or all(value <= 0 for value in gains.values())
    return Gain(summary(list(gains.values())), max(known) if one_way and len(known) == len(found) else None)


def _table(runs: Path, table: PlannedTable) -> TableResult | None:
    rows = []
    for row in table.rows:
        by_seed = {}
        for seed, run in enumerate(row.runs):
            records = read_scores(runs / run).get(row.scoring)
            if records is not None:
                by_seed[seed] = {record["test_beam"]: record for record in records}
        rows.append(RowResult(row.label, row.runs, row.scoring, by_seed))
    records = [record for row in rows for by_beam in row.by_seed.values() for record in by_beam.values()]
    if not records:
        return None
    metrics = sorted({record["metric"] for record in records})
    if len(metrics) > 1:
        raise ArgbeamError(
            f"{table.name}: scores of {len(metrics)} metrics, {' and '.join(metrics)}; a table holds one: "
            "reproduce it into another --out"
        )
    return TableResult(
        table.name,
        table.title,
        table.corpus,
        table.split,
        table.references,
        tuple(rows),
        parts=tuple(part for part in _SHOWN if part in records[0]["scores"]),
        beams=tuple(sorted({record["test_beam"] for record in records})),
        metric=metrics[0],
    )


def _run(folder: Path, planned: RunRecord) -> RunResult:
    path = folder / "records.jsonl"
    records = read_records(path).records if path.exists() else []
    by_kind: dict[str, list[dict[str, Any]]] = {"start": [], "epoch": [], "stage": []}
    for record in records:
        kind = StageLine if record.get("kind") == "stage" else RunLine
        check(record, kind, path, f"remove {folder}, and `argbeam reproduce` makes the run again")
        by_kind.setdefault(record["kind"], []).append(record)
    return RunResult(
        planned.name,
        planned.origin,
        planned.start,
        started=by_kind["start"][0] if by_kind["start"] else {},
        epochs=by_kind["epoch"],
        stages=by_kind["stage"],
    )
