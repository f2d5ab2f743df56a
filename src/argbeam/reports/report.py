"""Tables and plots of runs, from what their folders hold: report.html, which needs no other file, and report.md."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from argbeam.errors import ArgbeamError, DataError
from argbeam.files import read_records
from argbeam.reports.page import Plot, Table, html_figures, html_page, html_table, markdown_page, write_pages
from argbeam.reports.plots import Curve, bars_png, lines_png
from argbeam.reports.table import signature_line
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import read_recipe_json

# Parts of a score where more is not better: a table shows no gain for them.
_NO_GAIN = ("length",)


@dataclass(frozen=True)
class RunData:
    """What a run folder says of itself. `label` is its name in tables, unlike that of any other run; `before` are the
    epochs of the run that it started from, so far as that is still there."""

    path: Path
    label: str
    recipe: Recipe
    epochs: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    before: int

    @property
    def is_cross_entropy(self) -> bool:
        return list(self.recipe.stages.values())[-1].loss.kind == "cross_entropy"


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the report of the runs, in the order given; return its files."""
    runs = read_runs(folders)
    scores, others = score_tables(runs), [diagnostics_table(runs), settings_table(runs)]
    body = [*map(html_table, scores), html_figures(list(_plots(runs))), *map(html_table, others)]
    pages = {"report.html": html_page("Report", body), "report.md": markdown_page("Report", [*scores, *others])}
    return write_pages(pages, out)


def read_runs(folders: Sequence[Path]) -> list[RunData]:
    """The runs with labels of their own: name, then seed, then folder, as far as needed."""
    runs = [_read_run(folder) for folder in folders]
    for label in (
        lambda run: run.recipe.name,
        lambda run: f"{run.recipe.name}, seed {run.recipe.seed}",
        lambda run: f"{run.recipe.name}, {run.path}",
    ):
        labels = [label(run) for run in runs]
        if len(set(labels)) == len(runs):
            break
    else:
        raise ArgbeamError("report: a run is given twice; each folder is accepted once")
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _read_run(folder: Path) -> RunData:
    path = folder / "recipe.json"
    if not path.is_file():
        raise DataError(f"{folder}: no run folder: recipe.json is missing; `argbeam train` makes one")
    recipe = read_recipe_json(path)
    scores = folder / "evaluations.jsonl"
    epochs, stages = (_records(folder / "records.jsonl", keys, kind) for kind, keys in _KEYS.items())
    evaluations = _records(scores, _EVALUATION_KEYS) if scores.exists() else []
    run = RunData(folder, recipe.name, recipe, epochs, stages, evaluations, _epochs_before(recipe))
    if stages and not any(_is_kept(epoch, stages[-1]) for epoch in epochs):
        raise DataError(f"{folder / 'records.jsonl'}: no record of the epoch that its last stage kept")
    return run


_NUMBER = (int, float)
# What records must hold to be reported, by their kind.
_KEYS: dict[str, dict[str, Any]] = {
    "epoch": {"stage": str, "epoch": int, "dev": dict},
    "stage": {"stage": str, "kept_epoch": int, "epochs": int, "seconds": _NUMBER},
}
_EVALUATION_KEYS: dict[str, Any] = {
    **dict.fromkeys(("task", "split", "metric", "successors", "rule", "stop", "version"), str),
    **dict.fromkeys(("test_beam", "train_beam", "sentences", "seed", "unfinished", "dead"), int),
    "length_power": _NUMBER,
    "scores": dict,
}


def _records(path: Path, keys: dict[str, Any], kind: str = "") -> list[dict[str, Any]]:
    """The records of a kind (of a file that has one kind only, all), each with the keys that a report needs."""
    found = []
    for line, record in enumerate(read_records(path).records, 1):
        if kind and record.get("kind") != kind:
            continue
        for key, types in keys.items():
            if not isinstance(record.get(key), types):
                raise DataError(f"{path}:{line}: {key} is missing or of another type; was the file edited?")
        found.append(record)
    return found


def _epochs_before(recipe: Recipe) -> int:
    epochs, seen = 0, {""}
    while recipe.start not in seen:
        seen.add(recipe.start)
        folder = Path(recipe.start)
        try:
            epochs += len(_records(folder / "records.jsonl", _KEYS["epoch"], "epoch"))
            recipe = read_recipe_json(folder / "recipe.json")
        except ArgbeamError:  # it is not there any more, or is not what it was
            break
    return epochs


def _is_kept(epoch: dict[str, Any], stage: dict[str, Any]) -> bool:
    return bool(epoch["stage"] == stage["stage"] and epoch["epoch"] == stage["kept_epoch"])


@dataclass(frozen=True)
class _Row:
    """One way of searching one run: what was scored last at each beam."""

    label: str
    run: RunData
    by_beam: dict[int, dict[str, Any]]


def score_tables(runs: Sequence[RunData]) -> list[Table]:
    """A table for each test set and part of the score: systems by beams, with gains over the first seq2seq."""
    groups: dict[str, list[tuple[RunData, dict[str, Any]]]] = {}
    for run in runs:
        for record in run.evaluations:
            groups.setdefault(_test_set(run.recipe, record["split"]), []).append((run, record))
    tables = []
    for group in groups.values():
        first = group[0][1]
        metrics = sorted({record["metric"] for _, record in group})
        if len(metrics) > 1:
            raise ArgbeamError(
                f"report: {first['task']}, {first['split']}: scores of {len(metrics)} metrics, "
                f"{' and '.join(metrics)}; a table holds one: evaluate all runs again, or report them apart"
            )
        rows = _rows(group)
        for run, record in group:
            if record["scores"].keys() != first["scores"].keys() or not _all_numbers(record["scores"].values()):
                raise DataError(f"{run.path / 'evaluations.jsonl'}: scores other than {', '.join(first['scores'])}")
        tables += [_score_table(rows, part, first) for part in first["scores"]]
    return tables


def _all_numbers(values: Iterable[Any]) -> bool:
    return all(type(value) in _NUMBER for value in values)


def _test_set(recipe: Recipe, split: str) -> str:
    """What makes two scored splits the same one: the task and the sentences, wherever their files lie."""
    data = recipe.data.model_dump()
    kept = {key: value for key, value in data.items() if key in ("kind", "seed", "types") or key.startswith(split)}
    return json.dumps([recipe.task.model_dump(), split, kept])


def _rows(group: Sequence[tuple[RunData, dict[str, Any]]]) -> list[_Row]:
    rows: dict[tuple[str, float, bool, str], _Row] = {}
    for run, record in group:
        on_dev = record.get("length_power_from") == "dev"
        key = (run.label, record["length_power"], on_dev, record["stop"])
        label = run.label
        if record["length_power"] or on_dev:
            label += f", by length^{record['length_power']:g}{' (chosen on dev)' if on_dev else ''}"
        stops = {r["stop"] for one, r in group if one is run}
        label = label if len(stops) == 1 else f"{label}, stop {record['stop']}"
        rows.setdefault(key, _Row(label, run, {})).by_beam[record["test_beam"]] = record
    return list(rows.values())


def _score_table(rows: Sequence[_Row], part: str, first: dict[str, Any]) -> Table:
    beams = sorted({beam for row in rows for beam in row.by_beam})
    reference = next((row.run for row in rows if row.run.is_cross_entropy), None)
    # Against the better of the reference's own searches: a gain that is only length must show as none.
    bar = {
        beam: max(r.by_beam[beam]["scores"][part] for r in rows if r.run is reference and beam in r.by_beam)
        for beam in beams
        if any(r.run is reference and beam in r.by_beam for r in rows)
    }

    def cell(row: _Row, beam: int) -> str:
        if beam not in row.by_beam:
            return "-"
        value = row.by_beam[beam]["scores"][part]
        gain = f" ({value - bar[beam]:+.2f})" if beam in bar and row.run is not reference else ""
        return f"{value:.2f}{'' if part in _NO_GAIN else gain}"

    notes = [f"Gains are over {reference.label}."] if reference and part not in _NO_GAIN else []
    notes += [f"{row.label}: {signature_line(list(row.by_beam.values())[-1])}" for row in rows]
    return Table(
        f"{part}, {first['task']}, {first['split']}",
        ["system", *(f"beam {beam}" for beam in beams)],
        [[row.label, *(cell(row, beam) for beam in beams)] for row in rows],
        notes,
    )


def diagnostics_table(runs: Sequence[RunData]) -> Table:
    """How each run's last stage went, at the epoch it kept."""
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
        if not run.stages:
            rows.append([run.label, f"{len(run.epochs)} so far", *("-" for _ in columns), "-", "-"])
            continue
        stage = run.stages[-1]
        kept = [epoch for epoch in run.epochs if _is_kept(epoch, stage)][-1]
        figures = [
            format(kept[key], form) if isinstance(kept.get(key), _NUMBER) else "-" for key, form in columns.values()
        ]
        last = run.evaluations[-1] if run.evaluations else None
        ends = f"{last['unfinished']} / {last['dead']}" if last else "-"
        rows.append(
            [run.label, f"{stage['kept_epoch'] + 1} of {stage['epochs']}", *figures, f"{stage['seconds']:,.0f}", ends]
        )
    headers = ["run", "epoch kept", *columns, "seconds", "unfinished / dead (last evaluation)"]
    return Table("Training, last stage, at the epoch kept", headers, rows, [])


def settings_table(runs: Sequence[RunData]) -> Table:
    """The settings that are not the same in all recipes."""
    flat = {run.label: dict(_flat(run.recipe.model_dump())) for run in runs}
    keys = list(dict.fromkeys(key for settings in flat.values() for key in settings))
    rows = [[key, *(settings.get(key, "") for settings in flat.values())] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", ["setting", *flat], rows, [])


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, json.dumps(value, ensure_ascii=False)


def _plots(runs: Sequence[RunData]) -> Iterator[Plot]:
    curves = {
        "Training loss per word": "loss_per_word",
        "Violations per word": "violations_per_word",
        "Training beam": "beam",
    }
    for title, key in curves.items():
        found = [_curve(run, [r.get(key) for r in run.epochs]) for run in runs]
        if any(curve.y for curve in found):
            yield Plot(title, lines_png(title, "epoch", found))
    for task in dict.fromkeys(run.recipe.task.kind for run in runs):
        chosen = [run for run in runs if run.recipe.task.kind == task]
        found = [_curve(run, [r["dev"].get("value") for r in run.epochs]) for run in chosen]
        if any(curve.y for curve in found):
            title = f"Dev score, {task}"
            yield Plot(title, lines_png(title, "epoch", found))
    tenths = {run.label: run.epochs[-1]["violations_by_tenth"] for run in runs if _has_tenths(run)}
    if tenths:
        title = "Violations per word by tenth of the sentence, last epoch"
        yield Plot(title, bars_png(title, "tenth", tenths))


def _has_tenths(run: RunData) -> bool:
    tenths = run.epochs[-1].get("violations_by_tenth") if run.epochs else None
    return isinstance(tenths, list) and _all_numbers(tenths)


def _curve(run: RunData, values: Sequence[Any]) -> Curve:
    """The epochs that have the figure, numbered through the stages and on from the run that this one started from."""
    points = [(number, value) for number, value in enumerate(values, run.before + 1) if type(value) in _NUMBER]
    return Curve(run.label, [x for x, _ in points], [float(y) for _, y in points])
