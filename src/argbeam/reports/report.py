"""Report of runs from their folders: report.html with tables and plots, and report.md."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from argbeam.errors import ArgbeamError, DataError
from argbeam.reports.glossary import part_title, words_table
from argbeam.reports.page import Page, Plot, Table, write_pages
from argbeam.reports.plots import Curve, bars_svg, colours_of, lines_svg
from argbeam.reports.progress import note
from argbeam.reports.records import EpochRow, EvaluationRow, RunRecords, read_rows, read_run_records
from argbeam.reports.table import signature_line
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import leaves, read_recipe_json

# Parts of a score without gains: more is not better.
_NO_GAIN = ("length", "token_error_rate")
_FIX = "was the file edited?"


@dataclass(frozen=True)
class RunData:
    """Content of a run folder. Each run of a report has a `label` of its own.

    `evaluations` are those of its model; `other_weights` names files with other weights that were scored: checkpoints,
    and models that were trained further. `epochs_before` counts the epochs of the runs it started from, as far as their
    folders still exist.
    """

    path: Path
    label: str
    recipe: Recipe
    records: RunRecords
    evaluations: list[EvaluationRow]
    epochs_before: int
    other_weights: list[str] = field(default_factory=list)

    @property
    def kept_epoch(self) -> EpochRow | None:
        """The epoch that the last finished stage kept; None: no stage is finished, or it kept what it started from."""
        if not self.records.stages or self.records.stages[-1].kept_epoch < 0:
            return None
        last = self.records.stages[-1]
        same = [row for row in self.records.epochs if (row.stage, row.epoch) == (last.stage, last.kept_epoch)]
        return same[-1] if same else None


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the report of the runs, in the order given; return its files."""
    runs = read_runs(folders)
    others = [table for table in (diagnostics_table(runs), settings_table(runs), words_table()) if table.rows]
    command = shlex.join(["argbeam", "report", *map(str, folders), "--out", str(out)])
    pages = write_pages(Page("Report", command, score_tables(runs), list(_plots(runs)), others), out, "report")
    for line in left_out_scores(runs):
        note(f"report: {line}")
    return pages


def read_runs(folders: Sequence[Path]) -> list[RunData]:
    """The runs, labelled by name, with the seed or the folder added where names are equal."""
    runs = [_read_run(folder) for folder in folders]
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise ArgbeamError(f"report: {folder} is given twice; each run is accepted once")
    for label in (
        lambda run: run.recipe.name,
        lambda run: f"{run.recipe.name}, seed {run.recipe.seed}",
        lambda run: f"{run.recipe.name}, {run.path}",
    ):
        labels = [label(run) for run in runs]
        if len(set(labels)) == len(runs):
            return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    raise AssertionError("no two runs have one folder")


def _read_run(folder: Path) -> RunData:
    path, records, scores = (folder / name for name in ("recipe.json", "records.jsonl", "evaluations.jsonl"))
    if not path.is_file():
        raise DataError(f"{folder}: no run folder: recipe.json is missing; `argbeam train` makes one")
    recipe = read_recipe_json(path)
    evaluations = read_rows(scores, EvaluationRow, fix=_FIX) if scores.exists() else []
    models = {f"model/{file.name}" for file in folder.glob("model/*.safetensors")}
    models = {"", *(models or {score.weights for score in evaluations[-1:]})}  # "": scores of early versions
    own = [score for score in evaluations if score.weights in models]
    others = sorted({score.weights for score in evaluations} - models)
    found = read_run_records(records, fix=_FIX)
    run = RunData(folder, recipe.name, recipe, found, own, _epochs_before(recipe), others)
    if found.stages and found.stages[-1].kept_epoch >= 0 and run.kept_epoch is None:
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
    """A table for each test set and part of the score: systems by beams, with gains over a row of the first seq2seq."""
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
    rows: dict[tuple[str, float, bool, str, str], SearchRow] = {}
    for run, score in group:
        on_dev = score.length_power_from == "dev"
        label = run.label
        if score.length_power or on_dev:
            label += f", by length^{score.length_power:g}{' (chosen on dev)' if on_dev else ''}"
        if len({other.stop for one, other in group if one is run}) > 1:
            label += f", stop {score.stop}"
        if len({other.limit for one, other in group if one is run}) > 1:
            label += f", length limit {score.limit or 'unknown'}"
        key = (run.label, score.length_power, on_dev, score.stop, score.limit)
        rows.setdefault(key, SearchRow(label, run, {})).by_beam[score.test_beam] = score
    return list(rows.values())


def _score_table(rows: Sequence[SearchRow], part: str, first: EvaluationRow) -> Table:
    beams = sorted({beam for row in rows for beam in row.by_beam})
    scores = [score for row in rows for score in row.by_beam.values()]
    sizes = sorted({score.sentences for score in scores})
    differ = len(sizes) > 1 or len({score.references for score in scores} - {""}) > 1
    reference = None if differ or part in _NO_GAIN else _reference(rows)

    def cell(row: SearchRow, beam: int) -> str:
        if beam not in row.by_beam:
            return "-"
        value = row.by_beam[beam].scores[part]
        over = reference.by_beam.get(beam) if reference and row is not reference else None
        return f"{value:.2f} ({value - over.scores[part]:+.2f})" if over else f"{value:.2f}"

    notes = [f"Gains are over {reference.label}."] if reference else []
    if differ:
        on = f"{' and '.join(map(str, sizes))} sentences" if len(sizes) > 1 else "different sentences"
        notes.append(f"Not comparable: scored on {on}; evaluate all runs again.")
    signatures = [f"{row.label}: {signature_line(vars(list(row.by_beam.values())[-1]))}" for row in rows]
    return Table(
        f"{part_title(part)} on the {first.split} split, {first.task.replace('_', ' ')}",
        ["system", *(f"beam {beam}" for beam in beams)],
        [[row.label, *(cell(row, beam) for beam in beams)] for row in rows],
        notes,
        signatures,
    )


def _reference(rows: Sequence[SearchRow]) -> SearchRow | None:
    """The row that gains are over: the first run of cross-entropy, with its length power of dev if it has one.

    Scores do not choose it: the best row on test is no baseline.
    """
    losses = [(row, list(row.run.recipe.stages.values())[-1].loss.kind) for row in rows]
    first = next((row for row, kind in losses if kind == "cross_entropy"), None)
    own = [row for row in rows if first is not None and row.run is first.run]
    return next((row for row in own if all(one.length_power_from == "dev" for one in row.by_beam.values())), first)


def diagnostics_table(runs: Sequence[RunData]) -> Table:
    """Figures of each run's last stage at the epoch it kept, a column a run."""
    figures = {
        "training beam": ("beam", "d"),
        "loss per token": ("loss_per_word", ".3f"),
        "violations per token": ("violations_per_word", ".3f"),
        "tokens up to a violation": ("segment_length", ".2f"),
        "searches that lost gold": ("stopped_early_share", ".3f"),
        "gold on the final beam": ("gold_on_beam", ".3f"),
        "rival is gold": ("rival_is_gold_share", ".3f"),
        "rival ended": ("rival_ended_share", ".3f"),
        "gradient norm": ("gradient_norm", ".2f"),
        "tokens per second": ("words_per_second", ",.0f"),
    }
    columns = []
    for run in runs:
        last, kept = run.records.stages[-1] if run.records.stages else None, run.kept_epoch
        cells = [last.kept if last else f"{len(run.records.epochs)} so far"]
        for name, form in figures.values():
            figure = getattr(kept, name) if kept else None
            figure = None if name == "beam" and not figure else figure  # 0: training without a search
            cells.append("-" if figure is None else format(figure, form))
        cells.append("-" if run.records.epoch_seconds is None else f"{run.records.epoch_seconds:.1f}")
        cells.append(f"{last.seconds:,.0f}" if last else "-")
        ends = f"{run.evaluations[-1].unfinished} / {run.evaluations[-1].dead}" if run.evaluations else "-"
        columns.append([*cells, ends])
    names = ["epoch kept", *figures, "seconds per epoch", "seconds", "unfinished / dead, last evaluation"]
    rows = [[name, *cells] for name, *cells in zip(names, *columns, strict=True)]
    used = [row for row in rows if set(row[1:]) != {"-"}]
    notes = [f"{run.label}: {stage.comparison}." for run in runs for stage in run.records.stages if stage.comparison]
    notes += [f"{line}." for line in left_out_scores(runs)]
    return Table("Training, last stage, at the epoch kept", ["", *(run.label for run in runs)], used, notes)


def left_out_scores(runs: Sequence[RunData]) -> list[str]:
    """A line for each run that is in no table of scores, or of which other weights than its model's were scored too."""
    lines = []
    for run in runs:
        found = "" if run.evaluations else "no scores are there"
        if run.other_weights:
            found = f"scores of {', '.join(run.other_weights)} are left out: they are not those of its model"
        if found:
            lines.append(f"{run.label}: {found}; argbeam evaluate {run.path} scores it")
    return lines


def settings_table(runs: Sequence[RunData]) -> Table:
    """The settings that differ between the recipes."""
    by_run = {run.label: dict(leaves(run.recipe.model_dump())) for run in runs}
    keys = dict.fromkeys(key for settings in by_run.values() for key in settings)
    cells = {key: [json.dumps(s[key], ensure_ascii=False) if key in s else "" for s in by_run.values()] for key in keys}
    rows = [[key, *values] for key, values in cells.items() if len(set(values)) > 1]
    return Table("Settings that differ", ["setting", *by_run], rows, [], folded=True)


def _plots(runs: Sequence[RunData]) -> Iterator[Plot]:
    """A system has one colour on all plots. Losses of different kinds are apart, and scores of different metrics."""
    colours = colours_of(run.label for run in runs)
    for kind in dict.fromkeys(_loss_kind(run, row) for run in runs for row in run.records.epochs):
        yield from _epoch_plot(f"Training loss per token, {kind}", runs, colours, "loss_per_word", kind=kind)
    yield from _epoch_plot("Violations per token in training", runs, colours, "violations_per_word")
    searching = [run for run in runs if any(row.beam for row in run.records.epochs)]
    yield from _epoch_plot("Beam of the training search", searching, colours, "beam")
    scored = [(run, row.dev) for run in runs for row in run.records.epochs if row.dev.value is not None]
    for task, metric, beam in dict.fromkeys((run.recipe.task.kind, dev.metric, dev.test_beam) for run, dev in scored):
        same = [run for run in runs if run.recipe.task.kind == task]
        title = f"Dev {metric}{f' at beam {beam}' if beam else ''}, {task.replace('_', ' ')}"
        yield from _epoch_plot(title, same, colours, "dev.value", measured=(metric, beam))
    last = {run.label: run.records.epochs[-1].violations_by_tenth for run in runs if run.records.epochs}
    if tenths := {label: violations for label, violations in last.items() if violations}:
        title = "Violations per token by place in the sentence, last epoch"
        yield Plot(title, bars_svg(title, "tenth of the sentence", tenths, colours=colours))


def _epoch_plot(
    title: str,
    runs: Sequence[RunData],
    colours: Mapping[str, str],
    figure: str,
    *,
    kind: str = "",
    measured: tuple[str, int | None] | None = None,
) -> Iterator[Plot]:
    """A curve for each run; epochs are counted through all stages, after those of the runs it started from.

    Only epochs with a loss of this `kind`, and whose dev score was `measured` so.
    """
    curves = []
    for run in runs:
        points = {}
        for epoch, row in enumerate(run.records.epochs, run.epochs_before + 1):
            value = attrgetter(figure)(row)
            fits = not kind or _loss_kind(run, row) == kind
            if value is not None and fits and measured in (None, (row.dev.metric, row.dev.test_beam)):
                points[epoch] = float(value)
        curves.append(Curve(run.label, list(points), list(points.values()), colours[run.label]))
    if any(curve.y for curve in curves):
        yield Plot(title, lines_svg(title, "epoch, through all stages", curves))


def _loss_kind(run: RunData, row: EpochRow) -> str:
    """What the loss of an epoch is, so that only losses of one kind share an axis."""
    stage = run.recipe.stages.get(row.stage)
    if stage is None:
        return "unknown loss"
    share = getattr(stage.loss, "cross_entropy", 0.0)
    kind = {"bso": "BSO", "crf": "CRF", "mixer": "MIXER", "mrt": "MRT"}.get(stage.loss.kind, stage.loss.kind)
    return kind.replace("_", "-") + (f" with {share:g} of cross-entropy" if share else "")
