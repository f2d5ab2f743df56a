"""Scores by table, system, beam and seed; gains over a reference; and tests of their significance."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import Json

from argbeam.bench import BenchRow
from argbeam.errors import ArgbeamError
from argbeam.files import append_record
from argbeam.metrics.outputs import VERSION
from argbeam.reports.records import EvaluationRow, LengthScore, parse_json, read_rows
from argbeam.reproduce.folder import RUNS, TESTS, TIMING_FILE, RunRecord, RunSummary, read_plan, read_summaries
from argbeam.reproduce.plan import PlannedTable, Scoring
from argbeam.reproduce.sentences import Pair, paired_tests, sentences_file

# The parts of BLEU and attachment scores that tables show and test; others (length, exact matches) are beside them.
_SHOWN = ("bleu", "uas", "las")


@dataclass(frozen=True)
class Summary:
    """Mean over seeds, and the standard deviation of a sample (None for one seed)."""

    mean: float
    spread: float | None
    count: int


def summary(values: Sequence[float]) -> Summary:
    """5, 6 and 10 have mean 7 and spread sqrt((4 + 1 + 9) / 2) = 2.65."""
    return Summary(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class RowResult:
    """The records of a system by seed (counted from 0) and beam; seeds without scores are left out."""

    label: str
    runs: tuple[str, ...]
    scoring: Scoring
    by_seed: dict[int, dict[int, EvaluationRow]]

    def values(self, part: str, beam: int, length: str = "") -> dict[int, float]:
        """A part of the score by seed: of all sentences, or of those of a length (a key of `lengths`)."""
        records = {seed: by_beam[beam] for seed, by_beam in self.by_seed.items() if beam in by_beam}
        if not length:
            return {seed: record.scores[part] for seed, record in records.items() if part in record.scores}
        return {
            seed: one.scores[part]
            for seed, record in records.items()
            for one in record.by_length
            if _length_name(one) == length and part in one.scores
        }

    def lengths(self, beam: int) -> dict[str, int]:
        """The number of sentences of each length, shortest first; it must be the same with every seed."""
        found: dict[str, int] = {}
        seeds = [(seed, records[beam].by_length) for seed, records in self.by_seed.items() if beam in records]
        scored = ((seed, one) for seed, by_length in seeds for one in by_length)
        for seed, one in sorted(scored, key=lambda pair: pair[1].first):
            name = _length_name(one)
            if found.setdefault(name, one.sentences) != one.sentences:
                raise ArgbeamError(
                    f"{self.runs[seed]}: scored on {one.sentences} sentences of {name} words, and another seed on "
                    f"{found[name]}; seeds are scored on the same ones"
                )
        return found


def _length_name(length: LengthScore) -> str:
    if length.last is None:
        return f"{length.first} and more"
    return f"{length.first} to {length.last}" if length.first else f"up to {length.last}"


@dataclass(frozen=True)
class TableResult:
    """A table's scored rows; all its numbers have one metric."""

    planned: PlannedTable
    rows: tuple[RowResult, ...]
    parts: tuple[str, ...]
    beams: tuple[int, ...]
    metric: str

    @property
    def references(self) -> list[RowResult]:
        """The reference rows that have scores."""
        rows = {row.label: row for row in self.rows if row.by_seed}
        return [rows[label] for label in self.planned.references if label in rows]


@dataclass(frozen=True)
class Timing:
    """Content of timing.json."""

    device: str
    shape: dict[str, int | str]
    rows: list[BenchRow]


@dataclass(frozen=True)
class Results:
    """All results of a reproduction; `timing` is None where it was not measured."""

    tables: tuple[TableResult, ...]
    planned: dict[str, RunRecord]
    runs: dict[str, RunSummary]
    timing: Timing | None

    def seconds(self, run: str) -> float:
        """Training time of a run and of the run it started from."""
        start = self.planned[run].start
        return self.runs[run].seconds + (self.runs[start].seconds if start else 0.0)

    def epoch_seconds(self, row: RowResult) -> dict[int, float]:
        """Median training time of an epoch of the last stage, by seed, where records have it."""
        found = {seed: self.runs[row.runs[seed]].epoch_seconds for seed in row.by_seed}
        return {seed: one for seed, one in found.items() if one is not None}


def read_results(out: Path) -> Results:
    """Read a reproduction's folder; runs without scores are left out of the tables."""
    plan = read_plan(out)
    planned = {run.name: run for run in plan.runs}
    runs = read_summaries(out, planned)
    tables = [_table(table, runs) for table in plan.tables]
    path, fix = out / TIMING_FILE, "remove it, and `argbeam reproduce timing` measures again"
    timing = parse_json(path.read_bytes(), Timing, path, fix) if path.exists() else None
    return Results(tuple(one for one in tables if one is not None), planned, runs, timing)


def _table(table: PlannedTable, runs: dict[str, RunSummary]) -> TableResult | None:
    rows = []
    for row in table.rows:
        scored = {seed: runs[run].by_scoring.get(row.scoring) for seed, run in enumerate(row.runs)}
        by_seed = {seed: {one.test_beam: one for one in found} for seed, found in scored.items() if found is not None}
        rows.append(RowResult(row.label, row.runs, row.scoring, by_seed))
    records = [record for row in rows for by_beam in row.by_seed.values() for record in by_beam.values()]
    if not records:
        return None
    metrics = sorted({record.metric for record in records})
    if len(metrics) > 1:
        raise ArgbeamError(
            f"{table.name}: scores of {len(metrics)} metrics, {' and '.join(metrics)}; a table holds one: "
            "reproduce it into another --out"
        )
    every = tuple(records[0].scores)
    parts = every if VERSION in metrics[0] else tuple(part for part in _SHOWN if part in every)
    return TableResult(table, tuple(rows), parts, tuple(sorted({record.test_beam for record in records})), metrics[0])


def gain(row: RowResult, reference: RowResult, part: str, beam: int, length: str = "") -> dict[int, float]:
    """The gain over the reference of the same seed, for each seed that both have."""
    ours, theirs = row.values(part, beam, length), reference.values(part, beam, length)
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


class TestedRun(NamedTuple):
    """One side of a test. The scores belong to it: a run that is made again is tested again."""

    run: str
    scoring: Json[Scoring]
    scores: dict[str, float]

    def __hash__(self) -> int:
        return hash((self.run, self.scoring))


class SeedKey(NamedTuple):
    """A pair of runs at a beam."""

    beam: int
    system: TestedRun
    reference: TestedRun


TestKey = tuple[SeedKey, ...]
"""The seeds of a test: one, or all whose mean gain is tested."""


@dataclass(frozen=True)
class SignificanceRow:
    """A line of tests.jsonl. A test of one seed has its key alone; early versions wrote it as text."""

    key: SeedKey | TestKey | Json[SeedKey]
    p: dict[str, float]
    signatures: dict[str, str]


class Significance:
    """Paired bootstrap tests, each made once: tests.jsonl keeps them when the outputs are gone."""

    def __init__(self, out: Path, tables: Sequence[TableResult]) -> None:
        """Read the tests of a folder, and make those that the tables lack where the outputs are still there."""
        path, fix = out / TESTS, "remove it, and tests are made again where outputs are there"
        rows = read_rows(path, SignificanceRow, fix=fix) if path.exists() else []
        self._tests = {(row.key,) if isinstance(row.key, SeedKey) else row.key: row for row in rows}
        wanted = (key for table in tables for reference in table.references for key in _keys(table, reference))
        missing: dict[TestKey, list[Pair]] = {}
        for key in wanted:
            if self._test(key) is None and _turned(key) not in missing:
                missing[key] = [_files(out, seed) for seed in key]
        made = {key: files for key, files in missing.items() if all(path.exists() for pair in files for path in pair)}
        for key, tests in zip(made, paired_tests(list(made.values())), strict=True):
            p = {part: test.p_value for part, test in tests.items()}
            signatures = {part: test.signature for part, test in tests.items()}
            self._tests[key] = SignificanceRow(key, p, signatures)
            seeds = [(one.beam, *((run.run, run.scoring.text, run.scores) for run in one[1:])) for one in key]
            append_record(path, {"key": seeds if len(seeds) > 1 else seeds[0], "p": p, "signatures": signatures})

    def _test(self, key: TestKey) -> SignificanceRow | None:
        """The test of a key: it is the same one whichever of the two is the system."""
        return self._tests.get(key) or self._tests.get(_turned(key))

    def p_value(self, row: RowResult, reference: RowResult, part: str, beam: int) -> float | None:
        """The largest p of the seeds' tests; None where one is missing or seeds gain in different directions."""
        gains = gain(row, reference, part, beam)
        tests = [self._test(_key(row, reference, [seed], beam)) for seed in gains]
        found = [test.p[part] for test in tests if test is not None and part in test.p]
        one_way = all(one >= 0 for one in gains.values()) or all(one <= 0 for one in gains.values())
        return max(found) if found and one_way and len(found) == len(gains) else None

    def p_of_mean(self, row: RowResult, reference: RowResult, part: str, beam: int) -> float | None:
        """The p of the mean gain over several seeds; None where it was not tested."""
        seeds = gain(row, reference, part, beam)
        test = self._test(_key(row, reference, seeds, beam)) if len(seeds) > 1 else None
        return test.p.get(part) if test is not None else None

    def signatures(self, table: TableResult, reference: RowResult, part: str) -> list[str]:
        """How the tests of a table's gains over a reference were made."""
        tests = [self._test(key) for key in _keys(table, reference)]
        return list(dict.fromkeys(test.signatures[part] for test in tests if test and part in test.signatures))


def _keys(table: TableResult, reference: RowResult) -> Iterator[TestKey]:
    """All tests of a table against a reference: of each row and seed that both have, at every beam, and of the mean."""
    for row in table.rows:
        for beam in table.beams if row is not reference else ():
            seeds = [
                seed for seed in row.by_seed if beam in row.by_seed[seed] and beam in reference.by_seed.get(seed, {})
            ]
            yield from (_key(row, reference, [seed], beam) for seed in seeds)
            if len(seeds) > 1:
                yield _key(row, reference, seeds, beam)


def _key(row: RowResult, reference: RowResult, seeds: Iterable[int], beam: int) -> TestKey:
    def tested(one: RowResult, seed: int) -> TestedRun:
        return TestedRun(one.runs[seed], one.scoring, one.by_seed[seed][beam].scores)

    return tuple(SeedKey(beam, tested(row, seed), tested(reference, seed)) for seed in seeds)


def _turned(key: TestKey) -> TestKey:
    return tuple(SeedKey(beam, theirs, ours) for beam, ours, theirs in key)


def _files(out: Path, key: SeedKey) -> Pair:
    ours, theirs = (sentences_file(out / RUNS / side.run, side.scoring.text, key.beam) for side in key[1:])
    return ours, theirs
