"""Report of runs from their folders: report.html with tables and plots, and report.md."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from argbeam.errors import ArgbeamError, DataError
from argbeam.reports.page import Page, Plot, Table, write_pages
from argbeam.reports.plots import Curve, bars_png, lines_png
from argbeam.reports.records import EpochRow, EvaluationRow, RunRecords, read_rows, read_run_records
from argbeam.reports.table import signature_line
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import leaves, read_recipe_json

# Parts of a score without gains: more is not better.
_NO_GAIN = ("length",)
_FIX = "was the file edited?"


@dataclass(frozen=True)
class RunData:
    """Content of a run folder. Each run of a report has a `label` of its own.

    `epochs_before` counts the epochs of the runs it started from, as far as their folders still exist.
    """

    path: Path
    label: str
    recipe: Recipe
    records: RunRecords
    evaluations: list[EvaluationRow]
    epochs_before: int

    @property
    def kept_epoch(self) -> EpochRow | None:
        """The epoch that the last finished stage kept."""
        if not self.records.stages:
            return None
        last = self.records.stages[-1]
        same = [row for row in self.records.epochs if (row.stage, row.epoch) == (last.stage, last.kept_epoch)]
        return same[-1] if same else None


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the report of the runs, in the order given; return its files."""
    runs = read_runs(folders)
    others = [diagnostics_table(runs), settings_table(runs)]
    return write_pages(Page("Report", score_tables(runs), list(_plots(runs)), others), out, "report")


def read_runs(folders: Sequence[Path]) -> list[RunData]:
    """The runs, labelled by name, with the seed or the folder added where names are equal."""
    runs = [_read_run(folder) for folder in folders]
    for label in (
        lambda run: run.recipe.name,
        lambda run: f"{run.recipe.name}, seed {run.recipe.seed}",
        lambda run: f"{run.recipe.name}, {run.path}",
    ):
        labels = [label(run) for run in runs]
        if len(set(labels)) == len(runs):
            return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    raise ArgbeamError("report: a run is given twice; each folder is accepted once")


def _read_run(folder: Path) -> RunData:
    path, records, scores = (folder / name for name in ("recipe.json", "records.jsonl", "evaluations.jsonl"))
    if not path.is_file():
        raise DataError(f"{folder}: no run folder: recipe.json is missing; `argbeam train` makes one")
    recipe = read_recipe_json(path)
    evaluations = read_rows(scores, EvaluationRow, fix=_FIX) if scores.exists() else []
    found = read_run_records(records, fix=_FIX)
    run = RunData(folder, recipe.name, recipe, found, evaluations, _epochs_before(recipe))
    if found.stages and run.kept_epoch is None:
        raise DataError(f"{records}: no record of the epoch that the last stage kept; {_FIX}")
    return run


def _epochs_before(recipe: Recipe) -> int:
    epochs, seen = 0, {""}
    while recipe.start not in seen:
        seen.add(recipe.start)
        folder = Path(recipe.start)
        try:
            epochs += len(read_run_records(folder / "records.jsonl", fix=_FIX).epochs)
            recipe = read_recipe_json(folder / "recipe.json")
        except ArgbeamError:  # the folder is gone or damaged
            break
    return epochs


@dataclass(frozen=True)
class SearchRow:
    """A row of a score table: one way to search one run, with its last evaluation at each beam."""

    label: str
    run: RunData
    by_beam: dict[int, EvaluationRow]


def score_tables(runs: Sequence[RunData]) -> list[Table]:
    """A table for each test set and part of the score: systems by beams, with gains over the first seq2seq."""
    groups: dict[str, list[tuple[RunData, EvaluationRow]]] = {}
    for run in runs:
        for score in run.evaluations:
            groups.setdefault(_test_set(run.recipe, score.split), []).append((run, score))
    tables = []
    for group in groups.values():
        first = group[0][1]
        metrics = sorted({score.metric for _, score in group})
        if len(metrics) > 1:
            raise ArgbeamError(
                f"report: {first.task}, {first.split}: scores of {len(metrics)} metrics, "
                f"{' and '.join(metrics)}; a table holds one: evaluate all runs again, or report them apart"
            )
        for run, score in group:
            if score.scores.keys() != first.scores.keys():
                raise DataError(f"{run.path / 'evaluations.jsonl'}: scores other than {', '.join(first.scores)}")
        rows = _search_rows(group)
        tables += [_score_table(rows, part, first) for part in first.scores]
    return tables


def _test_set(recipe: Recipe, split: str) -> str:
    """Key of a scored split: the task and the sentences, whatever folder the files lie in."""
    data = recipe.data.model_dump()
    kept = {key: value for key, value in data.items() if key in ("kind", "seed", "types") or key.startswith(split)}
    return json.dumps([recipe.task.model_dump(), split, kept])


def _search_rows(group: Sequence[tuple[RunData, EvaluationRow]]) -> list[SearchRow]:
    rows: dict[tuple[str, float, bool, str], SearchRow] = {}
    for run, score in group:
        on_dev = score.length_power_from == "dev"
        label = run.label
        if score.length_power or on_dev:
            label += f", by length^{score.length_power:g}{' (chosen on dev)' if on_dev else ''}"
        if len({other.stop for one, other in group if one is run}) > 1:
            label += f", stop {score.stop}"
        key = (run.label, score.length_power, on_dev, score.stop)
        rows.setdefault(key, SearchRow(label, run, {})).by_beam[score.test_beam] = score
    return list(rows.values())


def _score_table(rows: Sequence[SearchRow], part: str, first: EvaluationRow) -> Table:
    beams = sorted({beam for row in rows for beam in row.by_beam})
    last_loss = [(row.run, list(row.run.recipe.stages.values())[-1].loss.kind) for row in rows]
    reference = next((run for run, kind in last_loss if kind == "cross_entropy"), None)
    # A gain is over the best of the reference's own searches, so that longer outputs alone are no gain.
    best: dict[int, float] = {}
    for row in (row for row in rows if row.run is reference and part not in _NO_GAIN):
        for beam, score in row.by_beam.items():
            best[beam] = max(score.scores[part], best.get(beam, score.scores[part]))

    def cell(row: SearchRow, beam: int) -> str:
        if beam not in row.by_beam:
            return "-"
        value = row.by_beam[beam].scores[part]
        gain = f" ({value - best[beam]:+.2f})" if beam in best and row.run is not reference else ""
        return f"{value:.2f}{gain}"

    notes = [f"Gains are over {reference.label}."] if reference and part not in _NO_GAIN else []
    notes += [f"{row.label}: {signature_line(vars(list(row.by_beam.values())[-1]))}" for row in rows]
    return Table(
        f"{part}, {first.task}, {first.split}",
        ["system", *(f"beam {beam}" for beam in beams)],
        [[row.label, *(cell(row, beam) for beam in beams)] for row in rows],
        notes,
    )


def diagnostics_table(runs: Sequence[RunData]) -> Table:
    """Figures of each run's last stage at the epoch it kept."""
    columns = {
        "train beam": ("beam", "d"),
        "loss/word": ("loss_per_word", ".3f"),
        "violations/word": ("violations_per_word", ".3f"),
        "words up to a violation": ("segment_length", ".2f"),
        "stopped early": ("stopped_early_share", ".3f"),
        "gold on the final beam": ("gold_on_beam", ".3f"),
        "rival is gold": ("rival_is_gold_share", ".3f"),
        "rival ended": ("rival_ended_share", ".3f"),
        "gradient norm": ("gradient_norm", ".2f"),
        "words/s": ("words_per_second", ",.0f"),
    }
    rows = []
    for run in runs:
        kept = run.kept_epoch
        if kept is None:
            rows.append([run.label, f"{len(run.records.epochs)} so far", *("-" for _ in columns), "-", "-"])
            continue
        stage = run.records.stages[-1]
        figures = [(getattr(kept, name), form) for name, form in columns.values()]
        cells = ["-" if figure is None else format(figure, form) for figure, form in figures]
        ends = f"{run.evaluations[-1].unfinished} / {run.evaluations[-1].dead}" if run.evaluations else "-"
        rows.append([run.label, f"{stage.kept_epoch + 1} of {stage.epochs}", *cells, f"{stage.seconds:,.0f}", ends])
    headers = ["run", "epoch kept", *columns, "seconds", "unfinished / dead (last evaluation)"]
    return Table("Training, last stage, at the epoch kept", headers, rows, [])


def settings_table(runs: Sequence[RunData]) -> Table:
    """The settings that differ between the recipes."""
    by_run = {run.label: dict(leaves(run.recipe.model_dump())) for run in runs}
    keys = dict.fromkeys(key for settings in by_run.values() for key in settings)
    cells = {key: [json.dumps(s[key], ensure_ascii=False) if key in s else "" for s in by_run.values()] for key in keys}
    rows = [[key, *values] for key, values in cells.items() if len(set(values)) > 1]
    return Table("Settings that differ", ["setting", *by_run], rows, [])


def _plots(runs: Sequence[RunData]) -> Iterator[Plot]:
    yield from _epoch_plot("Training loss per word", runs, "loss_per_word")
    yield from _epoch_plot("Violations per word", runs, "violations_per_word")
    yield from _epoch_plot("Training beam", runs, "beam")
    for task in dict.fromkeys(run.recipe.task.kind for run in runs):
        same = [run for run in runs if run.recipe.task.kind == task]
        yield from _epoch_plot(f"Dev score, {task}", same, "dev.value")
    last = {run.label: run.records.epochs[-1].violations_by_tenth for run in runs if run.records.epochs}
    if tenths := {label: violations for label, violations in last.items() if violations}:
        title = "Violations per word by tenth of the sentence, last epoch"
        yield Plot(title, bars_png(title, "tenth", tenths))


def _epoch_plot(title: str, runs: Sequence[RunData], figure: str) -> Iterator[Plot]:
    """A curve for each run; epochs are counted through all stages, after those of the runs it started from."""
    curves = []
    for run in runs:
        values = enumerate(map(attrgetter(figure), run.records.epochs), run.epochs_before + 1)
        points = {epoch: float(value) for epoch, value in values if value is not None}
        curves.append(Curve(run.label, list(points), list(points.values())))
    if any(curve.y for curve in curves):
        yield Plot(title, lines_png(title, "epoch", curves))
