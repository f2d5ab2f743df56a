"""Results by hand: means, spreads, gains, tests of significance and the pages made of them."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from argbeam.errors import ArgbeamError, DataError
from argbeam.files import append_record, write_atomic
from argbeam.metrics.attachment import AttachmentCounts
from argbeam.metrics.bleu import corpus_bleu
from argbeam.metrics.significance import paired_bootstrap_attachment, paired_bootstrap_bleu
from argbeam.reports.plots import Curve
from argbeam.reproduce.checked import LengthScore
from argbeam.reproduce.length_page import by_length_curves, by_length_plots, by_length_tables, gains_by_length
from argbeam.reproduce.lengths import scores_by_length
from argbeam.reproduce.page import gain_tables, plots, runs_table, score_table, speed_table, write_page
from argbeam.reproduce.pairs import Pair, paired_file, paired_tests
from argbeam.reproduce.plan import Scoring
from argbeam.reproduce.results import Significance, gain, judged_gain, read_results, summary
from mutations import damaged

METRIC = "nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0"
TEST, DEV = Scoring("test").key, Scoring("dev").key
REFERENCES = ["the cat sat down", "a dog ran home again", "it is so very late", "we go on and on"]


def write_run(
    out: Path, name: str, scores: dict[int, dict[str, float]], *, scoring: str = TEST, metric: str = METRIC
) -> None:
    """A run folder with its records and one scoring."""
    folder = out / "runs" / name
    if not folder.exists():
        folder.mkdir(parents=True)
        append_record(folder / "records.jsonl", {"kind": "start", "device": "cpu"})
        for epoch in (0, 1):
            record = {"kind": "epoch", "stage": "bso", "epoch": epoch, "violations_per_word": 0.5 - epoch / 10}
            append_record(folder / "records.jsonl", record)
        stage = {"kind": "stage", "stage": "bso", "epochs": 2, "kept_epoch": 1, "seconds": 90.0}
        append_record(folder / "records.jsonl", stage)
    records = [{"test_beam": beam, "metric": metric, "scores": parts} for beam, parts in scores.items()]
    append_record(folder / "scores.jsonl", {"scoring": scoring, "records": records, "tried": []})


def write_plan(out: Path, tables: list[dict[str, Any]], runs: list[dict[str, str]]) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    plan = {"tables": tables, "runs": runs, "left_out": ["translation/mrt"]}
    write_atomic(out / "plan.json", json.dumps(plan).encode())
    return out


def table(name: str, rows: dict[str, list[str]], *, split: str = "test") -> dict[str, Any]:
    scoring = Scoring(split).key
    return {
        "name": name,
        "title": name,
        "corpus": "small",
        "split": split,
        "references": ["seq2seq"],
        "rows": [{"label": label, "runs": runs, "scoring": scoring} for label, runs in rows.items()],
    }


def bleu(*values: float) -> dict[int, dict[str, float]]:
    return {beam: {"bleu": value, "exact": 0.0} for beam, value in zip((1, 5, 10), values, strict=True)}


@pytest.fixture
def ordering(tmp_path: Path) -> Path:
    """Two seeds of seq2seq, BSO and ConBSO, of which ConBSO's second is not scored yet."""
    out = tmp_path / "out"
    write_run(out, "seq2seq.s1", bleu(20.0, 24.0, 25.0))
    write_run(out, "seq2seq.s2", bleu(22.0, 26.0, 25.0))
    write_run(out, "bso.s1", bleu(21.0, 27.0, 29.0))
    write_run(out, "bso.s2", bleu(25.0, 27.0, 30.0))
    write_run(out, "conbso.s1", bleu(30.0, 31.0, 32.0))
    rows = {label: [f"{name}.s1", f"{name}.s2"] for label, name in [("seq2seq", "seq2seq"), ("BSO", "bso")]}
    rows["ConBSO"] = ["conbso.s1", "conbso.s2"]
    runs = [{"name": name, "origin": "x/y", "start": ""} for names in rows.values() for name in names]
    runs += [{"name": "pretrain", "origin": "x/y", "start": ""}]
    runs[2]["start"] = "pretrain"
    write_run(out, "pretrain", {})
    return write_plan(out, [table("word_ordering", rows)], runs)


def test_the_spread_is_that_of_a_sample() -> None:
    """5, 6 and 10: mean 7, deviations -2, -1 and 3, so sqrt((4 + 1 + 9) / 2)."""
    found = summary([5.0, 6.0, 10.0])
    assert found.mean == 7.0 and found.spread is not None
    assert math.isclose(found.spread, math.sqrt(7.0))
    assert summary([4.0]).spread is None


def test_scores_are_means_with_their_spread_beside_the_papers(ordering: Path) -> None:
    """seq2seq at beam 1: (20 + 22) / 2 = 21, sqrt(1 + 1) = 1.41; BSO took 90 s and its pre-training 90 s, one seed of
    two: (180 + 90) / 2 = 135 s = 2.25 minutes."""
    results = read_results(ordering)
    found = score_table(results, results.tables[0])
    assert found.rows == [
        ["seq2seq", "25.20", "29.80", "31.00", "21.00 ± 1.41", "25.00 ± 1.41", "25.00 ± 0.00", "2", "1.5"],
        ["BSO", "28.00", "33.20", "34.30", "23.00 ± 2.83", "27.00 ± 0.00", "29.50 ± 0.71", "2", "2.2"],
        ["ConBSO", "28.60", "34.30", "34.50", "30.00", "31.00", "32.00", "1", "1.5"],
        ["LSTM-LM", "15.40", "-", "26.80", "-", "-", "-", "0", "-"],
    ]
    assert f"metric {METRIC}" in found.notes
    generated = replace(results.tables[0], corpus="generated")
    assert score_table(results, generated).notes[-1].endswith("nothing of the systems.")


def test_gains_are_over_the_reference_of_the_same_seed(ordering: Path) -> None:
    """BSO at beam 1: 21 - 20 = 1 and 25 - 22 = 3, mean 2; the paper's 28.0 - 25.2. ConBSO has the first seed only."""
    (found,) = read_results(ordering).tables
    seq2seq, bso, conbso = found.rows
    assert gain(bso, seq2seq, "bleu", 1) == {0: 1.0, 1: 3.0}
    assert gain(conbso, seq2seq, "bleu", 5) == {0: 7.0}
    (gains,) = gain_tables(found, Significance(ordering).complete([found]))
    assert gains.rows == [
        ["BSO", "+2.80", "+3.40", "+3.30", "+2.00", "+2.00", "+4.50", "2"],
        ["ConBSO", "+3.40", "+4.50", "+3.50", "+10.00", "+7.00", "+7.00", "1"],
    ]


def test_scores_by_length_are_those_of_the_sentences_of_that_length() -> None:
    """Words of the reference decide: 10 are still short, 11 are not, and an output's own length does not matter. No
    sentence here has 21 to 60 words."""
    references = [" ".join(f"w{i}" for i in range(words)) for words in (10, 11, 3, 61, 90)]
    outputs = ["w0 w1 w2 w3 x x x x x x", references[1], " ".join(["w0"] * 40), references[3], "w0"]
    found = scores_by_length({"metric": METRIC, "outputs": outputs, "references": references})
    classes = [(0, 10, [0, 2]), (11, 20, [1]), (61, None, [3, 4])]
    assert [(one.first, one.last, one.sentences) for one in found] == [(a, b, len(c)) for a, b, c in classes]
    for one, (_, _, places) in zip(found, classes, strict=True):
        sides = ([side[i] for i in places] for side in (outputs, references))
        assert one.scores == {"bleu": corpus_bleu(*sides, tokenize="none").score}
    assert found[1].scores["bleu"] == pytest.approx(100.0) != found[0].scores["bleu"]


def test_attachment_by_length_adds_counts_up() -> None:
    """7 and 3 words that are scored, 5 and 1 heads right, 4 and 1 labels: 60 and 50. Punctuation makes a sentence
    longer, also one of nothing else."""
    kept = {"lengths": [8, 31, 3, 2], "counts": [[7, 5, 4], [25, 20, 10], [3, 1, 1], [0, 0, 0]]}
    assert scores_by_length(kept) == [
        LengthScore(0, 10, 3, {"uas": 60.0, "las": 50.0}),
        LengthScore(31, 40, 1, {"uas": 80.0, "las": 40.0}),
    ]


SHORT, FEW, ENOUGH, LONG = [
    {"first": first, "last": last, "sentences": sentences}
    for first, last, sentences in ((0, 10, 1200), (11, 20, 19), (21, 30, 20), (61, None, 70))
]


def write_lengths(out: Path, name: str, classes: list[tuple[dict[str, Any], float, float]]) -> None:
    """A run with scores by length at beam 5, and others at the beams beside it."""
    write_run(out, name, {})
    records = [
        {
            "test_beam": beam,
            "metric": METRIC,
            "scores": {"uas": 1.0, "las": 1.0},
            "by_length": [
                {**one, "scores": {"uas": uas, "las": las} if beam == 5 else {"uas": 0.0, "las": 0.0}}
                for one, uas, las in classes
            ],
        }
        for beam in (1, 5, 10)
    ]
    line = {"scoring": TEST, "records": records, "tried": []}
    write_atomic(out / "runs" / name / "scores.jsonl", f"{json.dumps(line)}\n".encode())


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """ConBSO has one seed, and no long sentence's score. BSO's second seed is of a version without scores by length."""
    out = tmp_path / "lengths"
    write_lengths(out, "seq2seq.s1", [(LONG, 10.0, 5.0), (SHORT, 40.0, 20.0), (FEW, 1.0, 1.0), (ENOUGH, 30.0, 15.0)])
    write_lengths(out, "seq2seq.s2", [(SHORT, 41.0, 21.0), (LONG, 12.0, 6.0), (ENOUGH, 30.0, 15.0)])
    write_lengths(out, "crf.s1", [(SHORT, 42.0, 19.0), (LONG, 9.5, 5.0), (FEW, 2.0, 2.0)])
    write_lengths(out, "crf.s2", [(SHORT, 45.0, 20.0), (LONG, 11.5, 7.0)])
    write_lengths(out, "bso.s1", [(SHORT, 43.0, 23.0)])
    write_lengths(out, "bso.s2", [])
    write_lengths(out, "conbso.s1", [(SHORT, 47.5, 28.0)])
    systems = {"seq2seq": "seq2seq", "CRF": "crf", "BSO": "bso", "ConBSO": "conbso"}
    rows = {label: [f"{name}.s1", f"{name}.s2"] for label, name in systems.items()}
    runs = [{"name": name, "origin": "x/y", "start": ""} for names in rows.values() for name in names]
    return write_plan(out, [table("parsing", rows), table("other", rows, split="dev")], runs)


def test_gains_by_length_are_over_the_reference_of_the_same_seed(lengths: Path) -> None:
    """CRF, short sentences: 42 - 40 = 2 and 45 - 41 = 4, mean 3, spread sqrt(2). The middle of the beams is shown, and
    no score of 19 sentences."""
    results = read_results(lengths)
    (found,) = by_length_tables(results.tables[0])
    assert found.title == "parsing, small, test: gain over seq2seq by words, beam 5"
    assert found.headers == ["system", "up to 10", "21 to 30", "61 and more", "seeds"]
    assert found.rows == [
        ["seq2seq", "40.50/20.50 ± 0.71/0.71", "30.00/15.00 ± 0.00/0.00", "11.00/5.50 ± 1.41/0.71", "2"],
        ["CRF", "+3.00/-1.00 ± 1.41/0.00", "-", "-0.50/+0.50 ± 0.00/0.71", "2"],
        ["BSO", "+3.00/+3.00", "-", "-", "1"],
        ["ConBSO", "+7.50/+8.00", "-", "-", "1"],
    ]
    assert found.notes[0].endswith("Sentences: 1,200, 20, 70; lengths that fewer than 20 have are left out.")
    gains = gains_by_length(results.tables[0])
    assert gains is not None
    assert by_length_curves(gains) == [
        Curve("CRF", [1, 3], [3.0, -0.5], spread=(math.sqrt(2.0), 0.0)),
        Curve("BSO", [1], [3.0], spread=(0.0,)),
        Curve("ConBSO", [1], [7.5], spread=(0.0,)),
    ]


def test_gains_by_length_stand_on_the_page_for_test_alone(lengths: Path, tmp_path: Path) -> None:
    write_page(lengths, tmp_path / "page")
    text = (tmp_path / "page" / "reproduction.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*by words.*)$", text, re.MULTILINE) == [
        "parsing, small, test: gain over seq2seq by words, beam 5"
    ]
    titles = [plot.title for plot in plots(read_results(lengths)) if "beam 5" in plot.title]
    assert titles == ["parsing, small: gain over seq2seq, UAS, beam 5"]


def test_records_without_scores_by_length_have_no_such_table(ordering: Path) -> None:
    (found,) = read_results(ordering).tables
    assert (by_length_tables(found), list(by_length_plots(found))) == ([], [])


def test_seeds_that_were_scored_on_other_sentences_are_not_put_together(lengths: Path) -> None:
    write_lengths(lengths, "seq2seq.s2", [({**SHORT, "sentences": 1199}, 41.0, 21.0)])
    with pytest.raises(ArgbeamError, match=r"seq2seq.s2: scored on 1199 sentences of up to 10 words, .* on 1200"):
        by_length_tables(read_results(lengths).tables[0])


def write_outputs(out: Path, run: str, outputs: list[str], *, metric: str = METRIC) -> None:
    path = paired_file(out / "runs" / run, TEST, 1)
    path.parent.mkdir(exist_ok=True)
    kept = {"metric": metric, "outputs": outputs, "references": REFERENCES}
    write_atomic(path, json.dumps(kept).encode())


def test_the_p_value_is_the_largest_of_the_seeds_and_outlives_the_outputs(ordering: Path) -> None:
    good, fair, bad = REFERENCES, [*REFERENCES[:2], "it is", "we go"], ["x y z w"] * 4
    for run, outputs in (("seq2seq.s1", bad), ("bso.s1", good), ("seq2seq.s2", fair), ("bso.s2", good)):
        write_outputs(ordering, run, outputs)
    pairs = ((good, bad), (good, fair))
    expected = [paired_bootstrap_bleu(a, b, REFERENCES, tokenize="none").p_value for a, b in pairs]
    assert expected[0] != expected[1]
    (found,) = read_results(ordering).tables
    seq2seq, bso, _ = found.rows
    tested = judged_gain(bso, seq2seq, "bleu", 1, Significance(ordering).complete([found]))
    assert tested is not None and tested.p_value == max(expected)
    for path in (ordering / "runs").glob("*/paired/*"):
        path.unlink()
    again = judged_gain(bso, seq2seq, "bleu", 1, Significance(ordering).complete([found]))
    assert again == tested
    assert len((ordering / "tests.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_many_tests_on_all_cores_are_the_same_tests_in_the_same_order(tmp_path: Path) -> None:
    """Ten pairs go to a pool of processes; one by one they do not."""
    outputs = [["the cat sat down"] * 4, REFERENCES, [*REFERENCES[:3], "x"]]
    for number, lines in enumerate(outputs):
        write_atomic(
            tmp_path / f"{number}",
            json.dumps({"metric": METRIC, "outputs": lines, "references": REFERENCES}).encode(),
        )
    pairs = [Pair(f"{n}", tmp_path / f"{n % 3}", tmp_path / f"{(n + 1) % 3}") for n in range(10)]
    assert list(paired_tests(pairs)) == [record for pair in pairs for record in paired_tests([pair])]


def test_a_run_that_is_made_again_is_tested_again(ordering: Path) -> None:
    """First BSO's outputs are the references; made again they are seq2seq's own, and nothing is gained any more."""
    write_outputs(ordering, "seq2seq.s1", ["x y z w"] * 4)
    p_values = []
    for score, outputs in ((21.0, REFERENCES), (20.0, ["x y z w"] * 4)):
        shutil.rmtree(ordering / "runs" / "bso.s1")
        write_run(ordering, "bso.s1", bleu(score, 27.0, 29.0))
        write_outputs(ordering, "bso.s1", outputs)
        (found,) = read_results(ordering).tables
        tests = Significance(ordering).complete([found])
        p_values.append(tests.p_value(found.rows[1], found.rows[0], 0, 1, "bleu"))
    assert p_values == [
        paired_bootstrap_bleu(outputs, ["x y z w"] * 4, REFERENCES, tokenize="none").p_value
        for outputs in (REFERENCES, ["x y z w"] * 4)
    ]
    assert p_values[0] != p_values[1]


def test_each_table_says_how_its_own_tests_were_made(tmp_path: Path) -> None:
    """One table is scored as it is tokenised, the other by sacreBLEU's tokenizer 13a."""
    tables, runs = [], []
    for name, tokenizer in (("first", "none"), ("second", "13a")):
        metric = METRIC.replace("tok:none", f"tok:{tokenizer}")
        rows = {label: [f"{name}-{label}.s1"] for label in ("seq2seq", "BSO")}
        for (run,), outputs in zip(rows.values(), (["x y z w"] * 4, REFERENCES), strict=True):
            write_run(tmp_path, run, bleu(1.0, 2.0, 3.0), metric=metric)
            write_outputs(tmp_path, run, outputs, metric=metric)
            runs.append({"name": run, "origin": "x/y", "start": ""})
        tables.append(table(name, rows))
    results = read_results(write_plan(tmp_path, tables, runs))
    tests = Significance(tmp_path).complete(results.tables)
    for one, tokenizer in zip(results.tables, ("none", "13a"), strict=True):
        (gains,) = gain_tables(one, tests)
        (signature,) = [note for note in gains.notes if note.startswith("p (bleu): ")]
        assert f"|tok:{tokenizer}|" in signature


def test_there_is_no_p_value_where_seeds_gain_in_different_directions(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, score in (("a.s1", 20.0), ("a.s2", 20.0), ("b.s1", 21.0), ("b.s2", 18.0)):
        write_run(out, name, {1: {"bleu": score}})
        write_outputs(out, name, REFERENCES)
    runs = [{"name": name, "origin": "x", "start": ""} for name in ("a.s1", "a.s2", "b.s1", "b.s2")]
    write_plan(out, [table("costs", {"seq2seq": ["a.s1", "a.s2"], "BSO": ["b.s1", "b.s2"]})], runs)
    (found,) = read_results(out).tables
    tested = judged_gain(found.rows[1], found.rows[0], "bleu", 1, Significance(out).complete([found]))
    assert tested is not None and tested.summary.mean == -0.5 and tested.p_value is None


def test_attachment_is_tested_by_the_sentences_counts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    counts = {"a": [[4, 1, 1], [5, 3, 2], [3, 1, 0]], "b": [[4, 4, 2], [5, 4, 2], [3, 2, 0]]}
    for name, held in counts.items():
        write_run(out, name, {1: {"uas": 50.0, "las": 40.0}})
        path = paired_file(out / "runs" / name, TEST, 1)
        path.parent.mkdir()
        write_atomic(path, json.dumps({"metric": "m", "punctuation": "upos", "counts": held}).encode())
    runs = [{"name": name, "origin": "x", "start": ""} for name in counts]
    write_plan(out, [table("parsing", {"seq2seq": ["a"], "BSO": ["b"]})], runs)
    (found,) = read_results(out).tables
    assert found.parts == ("uas", "las")
    for part in found.parts:
        expected = paired_bootstrap_attachment(
            [AttachmentCounts(*one) for one in counts["b"]],
            [AttachmentCounts(*one) for one in counts["a"]],
            labelled=part == "las",
            punctuation="upos",
        )
        tested = judged_gain(found.rows[1], found.rows[0], part, 1, Significance(out).complete([found]))
        assert tested is not None and tested.p_value == expected.p_value


def test_metrics_are_not_mixed_in_a_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_run(out, "a", {1: {"bleu": 1.0}})
    write_run(out, "b", {1: {"bleu": 1.0}}, metric="tok:13a")
    runs = [{"name": name, "origin": "x/y", "start": ""} for name in ("a", "b")]
    write_plan(out, [table("costs", {"seq2seq": ["a"], "BSO": ["b"]})], runs)
    with pytest.raises(ArgbeamError) as error:
        read_results(out)
    assert str(error.value) == (
        f"costs: scores of 2 metrics, {METRIC} and tok:13a; a table holds one: reproduce it into another --out"
    )


def test_a_scoring_counts_for_its_own_table_only(tmp_path: Path) -> None:
    """Dev scores of a run are not shown where test's are wanted."""
    out = tmp_path / "out"
    write_run(out, "a", {1: {"bleu": 1.0}}, scoring=DEV)
    rows = {"seq2seq": ["a"]}
    write_plan(out, [table("x", rows), table("y", rows, split="dev")], [{"name": "a", "origin": "x", "start": ""}])
    assert [found.name for found in read_results(out).tables] == ["y"]


def test_speeds_compare_by_their_ratios(tmp_path: Path) -> None:
    """The paper's 13,038 tokens/s are 6.57 times its 1,985 at K_tr 2."""
    out = write_plan(tmp_path / "out", [], [])
    rows = [
        {"system": "cross_entropy", "beam": 0, "tokens_per_s": 900.0, "ms": 2.0, "ratio": 1.0},
        {"system": "bso", "beam": 2, "tokens_per_s": 300.0, "ms": 6.0, "ratio": 3.0},
        {"system": "conbso", "beam": 2, "tokens_per_s": 450.0, "ms": 4.0, "ratio": 2.0},
        {"system": "decode_last_score", "beam": 5, "tokens_per_s": 1.0, "ms": 4.0, "ratio": None},
    ]
    write_atomic(out / "timing.json", json.dumps({"device": "cpu", "shape": {"batch": 2}, "rows": rows}).encode())
    assert speed_table(read_results(out)).rows == [
        ["cross-entropy", "13,038", "1.00", "900", "2.00", "1.00"],
        ["BSO, K_tr 2", "1,985", "6.57", "300", "6.00", "3.00"],
        ["ConBSO, K_tr 2", "-", "-", "450", "4.00", "2.00"],
    ]


def test_runs_are_listed_with_their_time(ordering: Path) -> None:
    """Six of the seven runs are trained, 90 s each: 9.0 minutes. Three of them and the pre-training are the first
    seed's, two the second's."""
    found = runs_table(read_results(ordering))
    assert found.notes[0] == "Training took 9.0 minutes, as the sum over runs; seed by seed 6.0, 3.0."
    assert found.rows[2] == ["bso.s1", "x/y", "pretrain", "2 of 2", "90", "cpu"]
    assert found.rows[5] == ["conbso.s2", "x/y", "-", "-", "-", "-"]
    assert "translation/mrt" in found.notes[1]


def test_the_page_needs_no_other_file(ordering: Path, tmp_path: Path) -> None:
    page, notes = write_page(ordering, tmp_path / "page")
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 2  # gains, violations
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert METRIC in text and "21.00 ± 1.41" in text
    assert "| BSO | +2.80 | +3.40 | +3.30 | +2.00 | +2.00 | +4.50 |" in notes.read_text(encoding="utf-8")


def test_a_folder_without_a_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        write_page(tmp_path, tmp_path)
    assert str(error.value) == f"{tmp_path}: no reproduction: plan.json is missing; `argbeam reproduce` makes one"


RUN = {"name": "a", "origin": "x/y", "start": ""}
BROKEN_PLANS: dict[str, tuple[Any, str]] = {
    "empty": (b"", "Invalid JSON: EOF while parsing a value at line 1 column 0"),
    "torn": (b'{"runs": [', "Invalid JSON: EOF while parsing a list at line 1 column 10"),
    "a list": ([], "Input should be an object"),
    "without tables": ({"runs": [], "left_out": []}, "tables: Field required"),
    "a run without a name": (
        {"runs": [RUN, {"origin": "x/y", "start": ""}], "tables": [], "left_out": []},
        "runs.1.name: Field required",
    ),
    "a number for a name": (
        {"runs": [{**RUN, "name": 5}], "tables": [], "left_out": []},
        "runs.0.name: Input should be a valid string",
    ),
    "a start that is no run": (
        {"runs": [{**RUN, "start": "pre\ntrain"}], "tables": [], "left_out": []},
        '"pre\\ntrain" is none of its runs',
    ),
    "a row of no run": (
        {"runs": [RUN], "tables": [table("costs", {"BSO": ["a", "b"]})], "left_out": []},
        '"b" is none of its runs',
    ),
}


@pytest.mark.parametrize("broken", BROKEN_PLANS)
def test_a_damaged_plan_is_an_error_of_one_line(broken: str, tmp_path: Path) -> None:
    content, reason = BROKEN_PLANS[broken]
    path = tmp_path / "plan.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(DataError) as error:
        write_page(tmp_path, tmp_path)
    mended = "remove it, and `argbeam reproduce` plans again and keeps the runs"
    assert str(error.value) == f"{path}: damaged: {reason}; {mended}"


def test_a_plan_with_any_damage_is_shown_or_refused_in_one_line(ordering: Path) -> None:
    path, shown = ordering / "plan.json", 0
    whole = path.read_bytes()
    for number in range(300):
        path.write_bytes(damaged(whole, Random(f"plan:{number}")))
        try:
            results = read_results(ordering)
        except DataError as error:
            assert str(error).isprintable() and str(error).startswith(f"{path}: damaged: "), number
            continue
        for one in results.tables:
            assert len(score_table(results, one).rows) >= len(one.rows)
        assert len(runs_table(results).rows) == len(results.runs)
        shown += 1
    assert 6 < shown < 294, "the damage is of the right size"


@pytest.mark.parametrize(
    ("name", "least"),
    [("runs/bso.s1/scores.jsonl", 6), ("runs/bso.s1/records.jsonl", 6), ("tests.jsonl", 6), ("timing.json", 2)],
)
def test_other_files_with_any_damage_are_shown_or_refused_in_one_line(name: str, least: int, ordering: Path) -> None:
    """A last line without its end counts as torn and is left out, so that many accidents go unnoticed."""
    write_outputs(ordering, "seq2seq.s1", ["x y z w"] * 4)
    write_outputs(ordering, "bso.s1", REFERENCES)
    steps = [{"system": "bso", "beam": 2, "ms": 6.0, "tokens_per_s": 300.0, "ratio": 3.0}]
    timing = {"device": "cpu", "shape": {"batch": 2}, "rows": steps}
    write_atomic(ordering / "timing.json", json.dumps(timing).encode())
    write_page(ordering, ordering / "page")
    path, shown = ordering / name, 0
    whole = path.read_bytes()
    for number in range(150):
        path.write_bytes(damaged(whole, Random(f"{name}:{number}")))
        try:
            results = read_results(ordering)
            tests = Significance(ordering).complete(results.tables)
            for one in results.tables:
                assert len(gain_tables(one, tests)) <= 1
            assert speed_table(results).rows is not None
            assert len(runs_table(results).rows) == len(results.runs)
        except ArgbeamError as error:
            assert str(error).isprintable(), number
            assert str(path) in str(error) or "a table holds one" in str(error), number
            continue
        shown += 1
    assert least < shown < 150 - least, "the damage is of the right size"
