"""The report: its tables by hand, what it refuses, and that its page needs no other file."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text

from argbeam import __version__
from argbeam.errors import ArgbeamError
from argbeam.files import append_record, write_atomic
from argbeam.reports import plots, report
from argbeam.reports.glossary import part_title
from argbeam.reports.plots import Curve, lines_svg
from argbeam.reports.report import diagnostics_table, read_runs, score_tables, settings_table, write_report
from argbeam.settings.recipe_files import parse_recipe, recipe_to_json
from refusals import refusal

CROSS_ENTROPY = {"kind": "cross_entropy"}
BSO = {"kind": "bso", "train_beam": 3}
METRIC = "nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0"


def write_run(
    folder: Path,
    name: str,
    loss: dict[str, Any],
    *,
    seed: int = 1,
    task: str = "word_ordering",
    test: int = 5,
    start: str = "",
) -> Path:
    """A run folder with one stage of two epochs, the second one kept."""
    rates = dict.fromkeys(("encoder", "decoder", "output"), 0.1)
    data = {"kind": "generated", "train": 10, "dev": 5, "test": test}
    stages = {"train": {"epochs": 2, "loss": loss, "optimizer": rates}}
    settings = {"name": name, "seed": seed, "start": start, "task": {"kind": task}, "data": data, "stages": stages}
    folder.mkdir()
    write_atomic(folder / "recipe.json", recipe_to_json(parse_recipe(settings)).encode())
    for epoch in (0, 1):
        append_record(folder / "records.jsonl", epoch_record(epoch, with_violations=loss is BSO))
    stage = {"kind": "stage", "stage": "train", "update": 20, "epochs": 2, "kept_epoch": 1, "seconds": 7.0}
    append_record(folder / "records.jsonl", stage)
    return folder


def write_pair(folder: Path) -> tuple[Path, Path]:
    """A run of cross-entropy and one of BSO."""
    return write_run(folder / "s", "seq2seq <1>", CROSS_ENTROPY), write_run(folder / "b", "BSO", BSO)


def epoch_record(epoch: int, *, with_violations: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": "epoch", "stage": "train", "epoch": epoch, "beam": 0}
    record |= {"loss_per_word": 2.0 - epoch, "gradient_norm": 3.0, "words_per_second": 1234.0}
    record["dev"] = {"value": 10.0 + epoch, "bleu": 10.0 + epoch, "test_beam": 5}
    if with_violations:
        record |= {
            "seconds": 4.0 + epoch,
            "beam": 2 + epoch,
            "violations_per_word": 0.5,
            "violations_by_tenth": [0.1] * 10,
        }
        record |= {"segment_length": 2.5, "gold_on_beam": 0.9, "rival_is_gold_share": 0.1, "rival_ended_share": 0.0}
    return record


def write_score(folder: Path, beam: int, scores: dict[str, float], **changes: Any) -> None:
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    run = {"task": recipe["task"]["kind"], "system": recipe["name"], "seed": recipe["seed"], "train_beam": 0}
    search = {"successors": "unconstrained", "rule": "logprob_sum", "length_power": 0.0, "stop": "best"}
    counts = {"sentences": 5, "unfinished": 1, "dead": 2}
    record = {**run, **search, **counts, "split": "test", "test_beam": beam, "metric": METRIC, "scores": scores}
    append_record(folder / "evaluations.jsonl", {**record, "version": "0.1.0", **changes})


def test_gains_are_over_the_row_that_the_note_names_and_no_score_chooses_it(tmp_path: Path) -> None:
    """At beam 5 seq2seq has 20 by sums, 24 by length, and later 22 with a power of dev: BSO's 25 gains 5, then 3."""
    seq2seq, bso = write_pair(tmp_path)
    write_score(bso, 1, {"bleu": 18.0, "length": 1.0}, rule="last_score")
    write_score(bso, 5, {"bleu": 25.0, "length": 0.98}, rule="last_score")
    write_score(seq2seq, 1, {"bleu": 15.0, "length": 0.9})
    write_score(seq2seq, 5, {"bleu": 20.0, "length": 0.9})
    write_score(seq2seq, 5, {"bleu": 24.0, "length": 0.99}, length_power=1.0)
    bleu, length = score_tables(read_runs([bso, seq2seq]))
    assert bleu.title == "BLEU on the test split, word ordering"
    assert bleu.headers == ["system", "beam 1", "beam 5"]
    assert bleu.rows == [
        ["BSO", "18.00 (+3.00)", "25.00 (+5.00)"],
        ["seq2seq <1>", "15.00", "20.00"],
        ["seq2seq <1>, by length^1", "-", "24.00 (+4.00)"],
    ]
    assert bleu.notes[0] == "Gains are over seq2seq <1>."
    assert length.rows[0] == ["BSO", "1.00", "0.98"]  # a ratio has no gain
    assert all(METRIC in note for note in bleu.notes[1:])
    write_score(seq2seq, 5, {"bleu": 22.0, "length": 0.97}, length_power=0.4, length_power_from="dev")
    bleu, _ = score_tables(read_runs([bso, seq2seq]))
    assert bleu.notes[0] == "Gains are over seq2seq <1>, by length^0.4 (chosen on dev)."
    assert [row[2] for row in bleu.rows] == ["25.00 (+3.00)", "20.00 (-2.00)", "24.00 (+2.00)", "22.00"]


def test_a_run_whose_name_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "bad\udcff", "one", CROSS_ENTROPY)
    write_score(run, 1, {"bleu": 1.0})
    page, _ = write_report([run], tmp_path / "out")
    assert "bad?" in page.read_text(encoding="utf-8")


def test_scores_of_other_weights_than_the_models_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint, and models before the run was trained further; scores of version 0.1 name no weights. Without a
    model the last score says whose scores are shown."""
    run = write_run(tmp_path / "run", "one", CROSS_ENTROPY)
    write_score(run, 1, {"bleu": 1.0})
    for beam, score, weights in (
        (1, 2.0, "model/b"),
        (5, 3.0, "model/a"),
        (1, 4.0, "checkpoints/b"),
        (5, 5.0, "model/c"),
    ):
        write_score(run, beam, {"bleu": score}, weights=f"{weights}.safetensors")
    (table,) = score_tables(read_runs([run]))
    assert table.rows == [["one", "1.00", "5.00"]]
    (run / "model").mkdir()
    (run / "model" / "b.safetensors").touch()
    (table,) = score_tables(read_runs([run]))
    assert table.rows == [["one", "2.00"]]
    files = write_report([run], tmp_path / "out")
    said = (
        "one: scores of checkpoints/b.safetensors, model/a.safetensors, model/c.safetensors are left out: they are not "
        f"those of its model; argbeam evaluate {run} scores it"
    )
    assert capsys.readouterr().err == f"report: {said}\n"
    assert f"- {said}.\n" in files[1].read_text(encoding="utf-8")


def test_scores_of_different_numbers_of_sentences_are_called_not_comparable(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, name, CROSS_ENTROPY) for name in ("one", "other")]
    for run, sentences in zip(runs, (40, 39), strict=True):
        write_score(run, 5, {"bleu": 1.0}, sentences=sentences)
    (table,) = score_tables(read_runs(runs))
    assert "Not comparable: scored on 39 and 40 sentences; evaluate all runs again." in table.notes
    (table,) = score_tables(read_runs(runs[:1]))
    assert not any("Not comparable" in note for note in table.notes)


def test_scores_on_different_sentences_are_called_not_comparable(tmp_path: Path) -> None:
    """As many sentences of another file; a score of an early version does not say what it is of."""
    runs = [write_run(tmp_path / name, name, CROSS_ENTROPY) for name in ("one", "other", "early")]
    for run, references in zip(runs, ("a", "b", ""), strict=True):
        write_score(run, 5, {"bleu": 1.0}, references=references)
    (table,) = score_tables(read_runs(runs[:2]))
    assert table.notes == ["Not comparable: scored on different sentences; evaluate all runs again."]
    assert table.rows == [["one", "1.00"], ["other", "1.00"]]  # without gains
    (table,) = score_tables(read_runs(runs[1:]))
    assert not any("Not comparable" in note for note in table.notes)


def test_a_length_power_chosen_on_dev_has_a_row_of_its_own(tmp_path: Path) -> None:
    """Also where it is the same as one that was asked for, and where it is 0."""
    runs = [write_run(tmp_path / name, name, CROSS_ENTROPY) for name in ("one", "other")]
    write_score(runs[0], 1, {"bleu": 1.0}, length_power=1.0)
    write_score(runs[0], 1, {"bleu": 2.0}, length_power=1.0, length_power_from="dev")
    write_score(runs[1], 1, {"bleu": 3.0}, length_power_from="recipe")
    write_score(runs[1], 1, {"bleu": 4.0}, length_power_from="dev")
    (table,) = score_tables(read_runs(runs))
    assert [row[0] for row in table.rows] == [
        "one, by length^1",
        "one, by length^1 (chosen on dev)",
        "other",
        "other, by length^0 (chosen on dev)",
    ]


def test_the_newest_evaluation_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "s", "seq2seq", CROSS_ENTROPY)
    for score in (1.0, 2.0):
        write_score(run, 1, {"bleu": score})
    (table,) = score_tables(read_runs([run]))
    assert table.rows == [["seq2seq", "2.00"]]


def test_metrics_are_not_mixed_in_a_table(tmp_path: Path) -> None:
    runs = write_pair(tmp_path)
    for run, metric in zip(runs, (METRIC, "tok:13a"), strict=True):
        write_score(run, 1, {"bleu": 1.0}, metric=metric)
    assert refusal(write_report, runs, tmp_path / "report", error=ArgbeamError) == (
        f"report: word_ordering, test: scores of 2 metrics, {METRIC} and tok:13a; "
        "a table holds one: evaluate all runs again, or report them apart"
    )


def test_tasks_and_test_sets_have_tables_of_their_own(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"A": {}, "B": {"task": "translation"}, "C": {"test": 4}}
    runs = [write_run(tmp_path / name, name, CROSS_ENTROPY, **change) for name, change in changes.items()]
    for run in runs:
        write_score(run, 1, {"bleu": 1.0})
    tables = score_tables(read_runs(runs))
    assert [[row[0] for row in table.rows] for table in tables] == [["A"], ["B"], ["C"]]


def test_labels_tell_runs_apart(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", "BSO", BSO)
    b = write_run(tmp_path / "b", "BSO", BSO, seed=2)
    c = write_run(tmp_path / "c", "BSO", BSO, seed=2)
    assert [run.label for run in read_runs([a])] == ["BSO"]
    assert [run.label for run in read_runs([a, b])] == ["BSO, seed 1", "BSO, seed 2"]
    assert [run.label for run in read_runs([b, c])] == [f"BSO, {b}", f"BSO, {c}"]
    (tmp_path / "link").symlink_to(a)
    for again in (a, tmp_path / "link", tmp_path / "b" / ".." / "a"):
        twice = "is given twice; each run is accepted once"
        assert refusal(read_runs, [b, a, again], error=ArgbeamError) == f"report: {a} {twice}"


def test_the_diagnostics_are_those_of_the_epoch_kept(tmp_path: Path) -> None:
    runs = write_pair(tmp_path)
    write_score(runs[1], 1, {"bleu": 1.0})
    table = diagnostics_table(read_runs(runs))
    assert table.headers == ["", "seq2seq <1>", "BSO"]
    assert table.notes == [f"seq2seq <1>: no scores are there; argbeam evaluate {runs[0]} scores it."]
    found = {name: cells for name, *cells in table.rows}
    assert (found["epoch kept"], found["training beam"]) == (["2 of 2", "2 of 2"], ["-", "3"])
    assert (found["loss per token"], found["violations per token"]) == (["1.000", "1.000"], ["-", "0.500"])
    assert found["unfinished / dead, last evaluation"] == ["-", "1 / 2"]
    assert found["seconds per epoch"] == ["-", "4.5"]  # the median of 4 and 5
    assert "searches that lost gold" not in found  # no run has this figure


def test_a_run_that_kept_what_it_started_from_or_has_no_scores_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = (
        write_run(tmp_path / "b", "BSO", BSO),
        "train did not improve on the model it started from: 1.00 < 2.00",
    )
    stage = {"kind": "stage", "stage": "train", "epochs": 2, "kept_epoch": -1, "seconds": 7.0, "comparison": words}
    append_record(run / "records.jsonl", stage)
    page, _ = write_report([run], tmp_path / "report")
    table = diagnostics_table(read_runs([run]))
    assert table.rows == [["epoch kept", "start, of 2 epochs"], ["seconds per epoch", "4.5"], ["seconds", "7"]]
    unscored = f"BSO: no scores are there; argbeam evaluate {run} scores it"
    assert table.notes == [f"BSO: {words}.", f"{unscored}."]
    assert capsys.readouterr().err == f"report: {unscored}\n"
    assert "train did not improve on the model it started from: 1.00 &lt; 2.00" in page.read_text(encoding="utf-8")


def test_epochs_are_counted_on_from_the_run_that_one_started_from(tmp_path: Path) -> None:
    """Two epochs each. What is gone counts as none, and a folder that starts from itself is counted once."""
    first = write_run(tmp_path / "a", "pretrain", CROSS_ENTROPY)
    second = write_run(tmp_path / "b", "BSO", BSO, start=str(first))
    third = write_run(tmp_path / "c", "more BSO", BSO, start=str(second))
    gone = write_run(tmp_path / "d", "BSO elsewhere", BSO, start=str(tmp_path / "gone"))
    circle = write_run(tmp_path / "e", "circle", BSO, start=str(tmp_path / "e"))
    assert [run.epochs_before for run in read_runs([first, second, third, gone, circle])] == [0, 2, 4, 0, 2]


def test_only_settings_that_differ_are_listed(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", "A", CROSS_ENTROPY), write_run(tmp_path / "b", "B", CROSS_ENTROPY, seed=2)]
    assert settings_table(read_runs(runs)).rows == [["name", '"A"', '"B"'], ["seed", "1", "2"]]


def test_the_page_holds_every_table_and_plot_and_points_nowhere(tmp_path: Path) -> None:
    runs = write_pair(tmp_path)
    for run in runs:
        write_score(run, 5, {"bleu": 20.0})
    page, notes = write_report(runs, tmp_path / "out" / "report")
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/svg+xml;base64,") == 6  # two losses, violations, beam, dev score, violations by tenth
    command = f"argbeam report {runs[0]} {runs[1]} --out {tmp_path / 'out' / 'report'}"
    assert re.search(rf"20\d\d-\d\d-\d\d \d\d:\d\d UTC, argbeam {__version__}: <code>{command}</code>", text)
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "seq2seq &lt;1&gt;" in text and "seq2seq <1>" not in text
    folded = re.findall(r"<details.*?</details>", text, re.DOTALL)
    assert METRIC in "".join(folded) and METRIC not in re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    assert any("<h2>Settings that differ</h2>" in part for part in folded)
    assert "| BSO | 20.00 (+0.00) |" in notes.read_text(encoding="utf-8")


@pytest.mark.parametrize(("last", "halves"), [(6.0, False), (5.9, True)])
def test_an_axis_of_whole_numbers_has_no_fractions(last: float, halves: bool) -> None:
    beams = Curve("BSO", [1, 2, 3, 4, 5], [2.0, 3.0, 4.0, 5.0, last], "#000000")
    marks = re.findall(r">([0-9.]+)</text>", lines_svg("Beam", "epoch", [beams]).decode())
    assert any(float(mark) % 1 for mark in marks) is halves


def test_a_system_has_one_colour_on_all_plots_and_losses_of_two_kinds_share_no_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [*write_pair(tmp_path), *(write_run(tmp_path / str(n), f"more {n}", BSO) for n in range(12))]
    drawn: dict[str, list[Curve]] = {}
    bars: list[dict[str, str]] = []
    monkeypatch.setattr(report, "lines_svg", lambda title, _, curves: drawn.update({title: curves}) or b"")
    monkeypatch.setattr(report, "bars_svg", lambda *_, colours: bars.append(colours) or b"")
    write_report(runs, tmp_path / "report")
    colours = {(curve.label, curve.colour) for curves in drawn.values() for curve in curves} | set(bars[0].items())
    assert len(colours) == len({colour for _, colour in colours}) == len(runs)
    losses = {title: {c.label for c in curves if c.y} for title, curves in drawn.items() if "loss" in title}
    assert losses["Training loss per token, cross-entropy"] == {"seq2seq <1>"}
    assert losses["Training loss per token, BSO"] == {"BSO", *(f"more {n}" for n in range(12))}
    assert "Dev BLEU at beam 5, word ordering" in drawn


def test_dev_scores_of_two_metrics_share_no_axis_and_each_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs whose epochs are chosen by exact matches, beside which BLEU is measured, and by the five best outputs."""
    drawn: dict[str, list[Curve]] = {}
    monkeypatch.setattr(report, "lines_svg", lambda title, _, curves: drawn.update({title: curves}) or b"")
    runs = []
    for name, figures in (("A", {"exact": 4.0, "bleu": 50.0}), ("B", {"top5": 4.0})):
        runs.append(write_run(tmp_path / name, name, CROSS_ENTROPY, task="text2text"))
        dev = {"perplexity": 4.0, "value": 4.0, **figures, "test_beam": 5}
        append_record(runs[-1] / "records.jsonl", {"kind": "epoch", "stage": "train", "epoch": 1, "dev": dev})
    write_report(runs, tmp_path / "report")
    scores = {title: {c.label for c in curves if c.y} for title, curves in drawn.items() if title.startswith("Dev")}
    places = "at beam 5, text2text"
    assert scores == {f"Dev BLEU {places}": {"A", "B"}, f"Dev EXACT {places}": {"A"}, f"Dev TOP5 {places}": {"B"}}


@pytest.mark.parametrize("ends", [(1.0, 2.0, 3.0), (1.0, 1.0, 1.001, 9.0), (-5.0, *[2.0] * 15)])
def test_lines_are_named_at_their_ends_and_names_cover_neither_axes_nor_each_other(ends: tuple[float, ...]) -> None:
    figure, axes = plots._figure("Dev BLEU at beam 5, word ordering", "epoch", "")
    curves = [Curve(f"system {number}", [1, 2], [0.0, end], "#0072B2") for number, end in enumerate(ends)]
    for curve in curves:
        axes.plot(curve.x, curve.y)
    plots._name_ends(figure, axes, curves)
    text = plots._svg(figure).decode()
    assert all(curve.label in text for curve in curves) and not figure.legends
    boxes = [Text.get_window_extent(name) for name in axes.texts]
    assert len(boxes) == len(ends) and all(box.y1 <= figure.bbox.y1 for box in boxes)
    assert not any(box.overlaps(axes.get_window_extent()) for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_names_that_would_overlap_move_up_and_then_down_below_the_top() -> None:
    """1 apart below 2: up to [1, 2, 3], down to [0, 1, 2]. Names that are apart stay."""
    assert plots._spread([1.0, 1.0, 2.0], 1.0, 2.0) == [0.0, 1.0, 2.0]
    assert plots._spread([0.0, 2.0, 4.0], 1.0, 5.0) == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("part", "title"),
    [
        ("bleu", "BLEU"),
        ("exact", "Exact matches in percent"),
        ("ndcg10", "NDCG@10"),
        ("hit1", "Hit@1"),
        ("top5", "References among the 5 best in percent"),
        ("of_a_plugin", "of_a_plugin"),
    ],
)
def test_parts_of_scores_have_titles_in_words(part: str, title: str) -> None:
    assert part_title(part) == title


@pytest.mark.parametrize("lines", [2, 9])
def test_a_legend_covers_no_part_of_the_axes(lines: int) -> None:
    figure, axes = plots._figure("Dev BLEU at beam 5, word ordering", "epoch", "")
    for number in range(lines):
        axes.plot([1, 2], [number, 0], label=f"system number {number}")
    plots._legend(figure, axes)
    plots._svg(figure)
    (legend,) = figure.legends
    assert axes.get_legend() is None
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_the_page_of_one_run_has_no_table_of_differences(tmp_path: Path) -> None:
    page, _ = write_report([write_run(tmp_path / "s", "seq2seq", CROSS_ENTROPY)], tmp_path / "report")
    assert "Settings that differ" not in page.read_text(encoding="utf-8")


def test_a_run_that_is_not_finished_can_be_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "s", "seq2seq", CROSS_ENTROPY)
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "records.jsonl").write_text(lines[0], encoding="utf-8")
    page, _ = write_report([run], tmp_path / "report")
    assert "1 so far" in page.read_text(encoding="utf-8")


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    missing = "no run folder: recipe.json is missing; `argbeam train` makes one"
    assert refusal(write_report, [tmp_path], tmp_path / "report") == f"{tmp_path}: {missing}"


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "s", "seq2seq", CROSS_ENTROPY)
    (tmp_path / "file").touch()
    with pytest.raises(ArgbeamError, match=r"^cannot write .*file/report: .*; --out takes a folder$"):
        write_report([run], tmp_path / "file" / "report")
