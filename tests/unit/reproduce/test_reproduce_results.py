"""Results by hand: means, spreads, gains, tests of significance and the pages made of them."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from argbeam.bench import BenchRow
from argbeam.errors import ArgbeamError
from argbeam.files import append_record, write_atomic
from argbeam.metrics.attachment import AttachmentCounts
from argbeam.metrics.bleu import corpus_bleu
from argbeam.metrics.significance import compare_attachment, compare_bleu, p_text
from argbeam.reports.page import Table
from argbeam.reports.records import LengthScore
from argbeam.reproduce.folder import write_summaries
from argbeam.reproduce.page import gain_table, runs_table, score_table, sentence_length_tables, speed_table, write_page
from argbeam.reproduce.plan import Scoring
from argbeam.reproduce.results import Significance, TableResult, gain, read_results
from argbeam.reproduce.sentences import paired_tests, scores_by_length, sentences_file
from mutations import damaged
from refusals import refusal

METRIC = "nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0"
TEST, DEV = Scoring("test").text, Scoring("dev").text
REFERENCES = ["the cat sat down", "a dog ran home again", "it is so very late", "we go on and on"]
BAD = ["x y z w"] * 4
RECORD = {
    **dict.fromkeys(("task", "split", "successors", "rule", "stop", "version"), "x"),
    **dict.fromkeys(("train_beam", "seed", "sentences", "unfinished", "dead"), 1),
    "length_power": 0.0,
}


def write_run(
    out: Path,
    name: str,
    scores: dict[int, dict[str, float]],
    *,
    scoring: str = TEST,
    metric: str = METRIC,
    outputs: Sequence[str] = (),
    by_length: dict[int, Any] | None = None,
) -> None:
    """A run folder with its records and one scoring; with its outputs at beam 1, if there are any."""
    folder = out / "runs" / name
    if not folder.exists():
        folder.mkdir(parents=True)
        stage = {"kind": "stage", "stage": "bso", "epochs": 2, "kept_epoch": 1, "seconds": 90.0}
        for record in ({"kind": "start", "device": "cpu"}, stage):
            append_record(folder / "records.jsonl", record)
    records = [{**RECORD, "test_beam": beam, "metric": metric, "scores": parts} for beam, parts in scores.items()]
    records = [{**one, "by_length": (by_length or {}).get(one["test_beam"], [])} for one in records]
    append_record(folder / "scores.jsonl", {"scoring": scoring, "records": records, "tried": []})
    if outputs:
        write_sentences(out, name, metric=metric, outputs=outputs, references=REFERENCES)


def write_sentences(out: Path, run: str, **sentences: Any) -> None:
    path = sentences_file(out / "runs" / run, TEST, 1)
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, json.dumps(sentences).encode())


def write_plan(out: Path, tables: list[dict[str, Any]], starts: dict[str, str] | None = None) -> Path:
    """A plan of the tables and of all runs that they name."""
    names = dict.fromkeys(run for table in tables for row in table["rows"] for run in row["runs"])
    starts = starts or {}
    runs = [{"name": name, "origin": "x/y", "start": starts.get(name, "")} for name in [*names, *starts.values()]]
    write_atomic(out / "plan.json", json.dumps({"tables": tables, "runs": runs}).encode())
    return out


def table(name: str, rows: dict[str, list[str]], *, split: str = "test") -> dict[str, Any]:
    scoring = Scoring(split).text
    held = [{"label": label, "runs": runs, "scoring": scoring} for label, runs in rows.items()]
    title = {"name": name, "title": name, "corpus": "small", "split": split}
    return {**title, "references": ["seq2seq"], "rows": held}


def two_seeds(*labels: str) -> dict[str, list[str]]:
    return {label: [f"{label.lower()}.s1", f"{label.lower()}.s2"] for label in labels}


def compared(out: Path, runs: dict[str, tuple[float, list[str]]]) -> TableResult:
    """A table of runs a* (seq2seq) and b* (BSO) with their scores and outputs at beam 1."""
    for run, (score, outputs) in runs.items():
        write_run(out, run, {1: {"bleu": score}}, outputs=outputs)
    rows = {label: [run for run in runs if run[0] == first] for label, first in (("seq2seq", "a"), ("BSO", "b"))}
    return read_results(write_plan(out, [table("costs", rows)])).tables[0]


def bleu(*values: float) -> dict[int, dict[str, float]]:
    return {beam: {"bleu": value, "exact": 0.0} for beam, value in zip((1, 5, 10), values, strict=True)}


def p_value(out: Path, found: TableResult, part: str = "bleu") -> float | None:
    """Of the second row against the first, at beam 1."""
    return Significance(out, [found]).p_value(found.rows[1], found.rows[0], part, 1)


def bleu_p_value(system: list[str], baseline: list[str]) -> float:
    return compare_bleu([(system, baseline)], REFERENCES, metric=METRIC)["bleu"].p_value


def p_of_mean(out: Path, found: TableResult) -> float | None:
    return Significance(out, [found]).p_of_mean(found.rows[1], found.rows[0], "bleu", 1)


def remove_outputs(out: Path) -> None:
    for path in (out / "runs").glob("*/paired/*"):
        path.unlink()


@pytest.fixture
def ordering(tmp_path: Path) -> Path:
    """Two seeds of seq2seq, BSO and ConBSO, of which ConBSO's second is not scored yet."""
    out = tmp_path / "out"
    scores = {"seq2seq.s1": bleu(20.0, 24.0, 25.0), "seq2seq.s2": bleu(22.0, 26.0, 25.0)}
    scores |= {"bso.s1": bleu(21.0, 27.0, 29.0), "bso.s2": bleu(25.0, 27.0, 30.0)}
    scores |= {"conbso.s1": bleu(30.0, 31.0, 32.0), "pretrain": {}}
    for name, values in scores.items():
        write_run(out, name, values)
    return write_plan(out, [table("word_ordering", two_seeds("seq2seq", "BSO", "ConBSO"))], {"bso.s1": "pretrain"})


def test_scores_are_means_with_their_spread_beside_the_papers(ordering: Path) -> None:
    """seq2seq at beam 1: (20 + 22) / 2 = 21, of a sample sqrt((1 + 1) / (2 - 1)) = 1.41. BSO took 90 s and its
    pre-training 90 s, one seed of two: (180 + 90) / 2 = 135 s = 2.25 minutes."""
    results = read_results(ordering)
    found = score_table(results, results.tables[0])
    assert found.rows == [
        ["seq2seq", "25.20", "29.80", "31.00", "21.00 ± 1.41", "25.00 ± 1.41", "25.00 ± 0.00", "2", "1.5"],
        ["BSO", "28.00", "33.20", "34.30", "23.00 ± 2.83", "27.00 ± 0.00", "29.50 ± 0.71", "2", "2.2"],
        ["ConBSO", "28.60", "34.30", "34.50", "30.00", "31.00", "32.00", "1", "1.5"],
        ["LSTM-LM", "15.40", "-", "26.80", "-", "-", "-", "0", "-"],
    ]
    assert f"metric {METRIC}" in found.signatures
    planned = replace(results.tables[0].planned, corpus="generated")
    assert (
        score_table(results, replace(results.tables[0], planned=planned)).notes[-1].endswith("nothing of the systems.")
    )


def test_an_epoch_takes_the_median_of_the_last_stage_without_dev(ordering: Path) -> None:
    """BSO, first seed: 9, 3 and 4 s, median 4; the other stage's 50 s do not count. Second: 6 s; mean 5. seq2seq: 2 s
    with the first seed, so that BSO takes 4 / 2 times as long. ConBSO is of a version without it. The summary keeps it
    when the run folders are gone."""
    taken = {"bso.s1": [("first", 50.0), ("bso", 9.0), ("bso", 3.0), ("bso", 4.0)], "bso.s2": [("bso", 6.0)]}
    for run, epochs in (taken | {"seq2seq.s1": [("train", 2.0)]}).items():
        for number, (stage, seconds) in enumerate(epochs):
            epoch = {"kind": "epoch", "stage": stage, "epoch": number, "dev": {}, "seconds": seconds}
            append_record(ordering / "runs" / run / "records.jsonl", epoch)
    write_summaries(ordering)
    shutil.rmtree(ordering / "runs")
    results = read_results(ordering)
    found = score_table(results, results.tables[0])
    assert found.headers[-1] == "seconds per epoch"
    assert [row[-1] for row in found.rows] == ["2.0", "5.0 (2.00)", "-", "-"]


def test_gains_are_over_the_reference_of_the_same_seed(ordering: Path) -> None:
    """BSO at beam 1: 21 - 20 = 1 and 25 - 22 = 3, mean 2; the paper's 28.0 - 25.2. ConBSO has the first seed only."""
    (found,) = read_results(ordering).tables
    seq2seq, bso, conbso = found.rows
    assert gain(bso, seq2seq, "bleu", 1) == {0: 1.0, 1: 3.0}
    assert gain(conbso, seq2seq, "bleu", 5) == {0: 7.0}
    assert gain_table(found, seq2seq, Significance(ordering, [found])).rows == [
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
    sentences = {"lengths": [8, 31, 3, 2], "counts": [[7, 5, 4], [25, 20, 10], [3, 1, 1], [0, 0, 0]]}
    assert scores_by_length(sentences) == [
        LengthScore(0, 10, 3, {"uas": 60.0, "las": 50.0}),
        LengthScore(31, 40, 1, {"uas": 80.0, "las": 40.0}),
    ]


SHORT, FEW, ENOUGH, LONG = [
    {"first": first, "last": last, "sentences": sentences}
    for first, last, sentences in ((0, 10, 1200), (11, 20, 19), (21, 30, 20), (61, None, 70))
]


def write_lengths(out: Path, name: str, *classes: tuple[dict[str, Any], float, float]) -> None:
    """A run with scores by length at beam 5, and others at the beams beside it."""
    by_length = {
        beam: [{**one, "scores": {"uas": uas * (beam == 5), "las": las}} for one, uas, las in classes]
        for beam in (1, 5, 10)
    }
    write_run(out, name, {beam: {"uas": 1.0, "las": 1.0} for beam in by_length}, by_length=by_length)


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """ConBSO has one seed, and no long sentence's score. BSO's second seed is of a version without scores by length."""
    out = tmp_path / "lengths"
    write_lengths(out, "seq2seq.s1", (LONG, 10.0, 5.0), (SHORT, 40.0, 20.0), (FEW, 1.0, 1.0), (ENOUGH, 30.0, 15.0))
    write_lengths(out, "seq2seq.s2", (SHORT, 41.0, 21.0), (LONG, 12.0, 6.0), (ENOUGH, 30.0, 15.0))
    write_lengths(out, "crf.s1", (SHORT, 42.0, 19.0), (LONG, 9.5, 5.0), (FEW, 2.0, 2.0))
    write_lengths(out, "crf.s2", (SHORT, 45.0, 20.0), (LONG, 11.5, 7.0))
    for name, classes in (("bso.s1", [(SHORT, 43.0, 23.0)]), ("bso.s2", []), ("conbso.s1", [(SHORT, 47.5, 28.0)])):
        write_lengths(out, name, *classes)
    rows = two_seeds("seq2seq", "CRF", "BSO", "ConBSO")
    return write_plan(out, [table("parsing", rows), table("other", rows, split="dev")])


def test_gains_by_length_are_over_the_reference_of_the_same_seed(lengths: Path, tmp_path: Path) -> None:
    """CRF, short sentences: 42 - 40 = 2 and 45 - 41 = 4, mean 3, spread sqrt(2). The middle of the beams is shown, no
    score of 19 sentences, and test alone."""
    results = read_results(lengths)
    (found,) = sentence_length_tables(results.tables[0])
    assert found.title == "Gain in UAS/LAS over seq2seq, by number of words, beam 5, on the test split, parsing, small"
    assert found.headers == ["system", "up to 10", "21 to 30", "61 and more", "seeds"]
    assert found.rows == [
        ["seq2seq", "40.50/20.50 ± 0.71/0.71", "30.00/15.00 ± 0.00/0.00", "11.00/5.50 ± 1.41/0.71", "2"],
        ["CRF", "+3.00/-1.00 ± 1.41/0.00", "-", "-0.50/+0.50 ± 0.00/0.71", "2"],
        ["BSO", "+3.00/+3.00", "-", "-", "1"],
        ["ConBSO", "+7.50/+8.00", "-", "-", "1"],
    ]
    assert found.notes[0].endswith("Sentences: 1,200, 20, 70; lengths that fewer than 20 have are left out.")
    write_page(lengths, tmp_path / "page")
    text = (tmp_path / "page" / "reproduction.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*by number of words.*)$", text, re.MULTILINE) == [found.title]


def test_seeds_that_were_scored_on_other_sentences_are_not_put_together(lengths: Path) -> None:
    write_lengths(lengths, "seq2seq.s2", ({**SHORT, "sentences": 1199}, 41.0, 21.0))
    with pytest.raises(ArgbeamError, match=r"seq2seq.s2: scored on 1199 sentences of up to 10 words, .* on 1200"):
        sentence_length_tables(read_results(lengths).tables[0])


def test_the_p_value_is_the_largest_of_the_seeds_and_outlives_the_outputs(tmp_path: Path) -> None:
    fair = [*REFERENCES[:2], "it is", "we go"]
    expected = [bleu_p_value(REFERENCES, baseline) for baseline in (BAD, fair)]
    assert expected[0] != expected[1]
    runs = {"a.s1": (1.0, BAD), "b.s1": (2.0, REFERENCES), "a.s2": (1.0, fair), "b.s2": (2.0, REFERENCES)}
    found = compared(tmp_path, runs)
    assert p_value(tmp_path, found) == max(expected)
    remove_outputs(tmp_path)
    assert p_value(tmp_path, found) == max(expected)
    tests = tmp_path / "tests.jsonl"
    lines = [json.loads(line) for line in tests.read_text(encoding="utf-8").splitlines()][:2]
    assert [line["key"][1][0] for line in lines] == ["b.s1", "b.s2"]
    # Early versions wrote the key as text, and had no test of the mean.
    earlier = [json.dumps({**line, "key": json.dumps(line["key"])}) for line in lines]
    tests.write_text("".join(f"{line}\n" for line in earlier), encoding="utf-8")
    assert p_value(tmp_path, found) == max(expected)
    assert p_of_mean(tmp_path, found) is None


# Two seeds, each with one sentence that only BSO has right.
FAIR, GOOD, OTHER = [*REFERENCES[:2], "it is", "we go"], [*REFERENCES[:3], "we go"], ["x", *REFERENCES[1:]]
SEEDS = {"a.s1": (1.0, FAIR), "b.s1": (2.0, GOOD), "a.s2": (1.0, OTHER), "b.s2": (2.5, REFERENCES)}
PAIRS = [(GOOD, FAIR), (REFERENCES, OTHER)]


def test_the_mean_gain_is_tested_beside_the_seeds_tests_of_an_old_file_and_kept(tmp_path: Path) -> None:
    """The test names the runs of all seeds. It is added to a file that has those of one seed each."""
    found, tests = compared(tmp_path, SEEDS), tmp_path / "tests.jsonl"
    expected = compare_bleu(PAIRS, REFERENCES, metric=METRIC)["bleu"]
    assert expected.p_value < min(bleu_p_value(*pair) for pair in PAIRS)
    assert p_of_mean(tmp_path, found) == expected.p_value
    *old, new = tests.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(old) == 2
    assert [(system[0], reference[0]) for _, system, reference in json.loads(new)["key"]] == [
        ("b.s1", "a.s1"),
        ("b.s2", "a.s2"),
    ]
    tests.write_text("".join(old), encoding="utf-8")
    assert p_of_mean(tmp_path, found) == expected.p_value
    assert tests.read_text(encoding="utf-8") == "".join([*old, new])
    remove_outputs(tmp_path)
    assert p_of_mean(tmp_path, found) == expected.p_value
    turned = replace(found, rows=found.rows[::-1])
    assert p_of_mean(tmp_path, turned) == expected.p_value
    # Another score of one run: what is kept is not of it.
    shutil.rmtree(tmp_path / "runs")
    assert p_of_mean(tmp_path, compared(tmp_path, {**SEEDS, "b.s2": (2.4, [])})) is None


def test_the_mean_over_one_seed_has_no_test_of_its_own(tmp_path: Path) -> None:
    found = compared(tmp_path, {"a": (1.0, FAIR), "b": (2.0, GOOD)})
    assert p_value(tmp_path, found) == bleu_p_value(GOOD, FAIR)
    assert p_of_mean(tmp_path, found) is None
    assert len((tmp_path / "tests.jsonl").read_text(encoding="utf-8").splitlines()) == 1


def test_gains_show_the_test_of_the_mean_and_without_it_what_they_showed(tmp_path: Path) -> None:
    """1 and 1.5 gained: 1.25. With a loss of 1 in the second seed it is 0, and no p of the seeds is given."""
    mean = p_text(compare_bleu(PAIRS, REFERENCES, metric=METRIC)["bleu"].p_value)
    each = p_text(max(bleu_p_value(*pair) for pair in PAIRS))
    runs, tests = tmp_path / "runs", tmp_path / "tests.jsonl"

    def shown(second: float) -> Table:
        found = compared(tmp_path, {**SEEDS, "b.s2": (second, REFERENCES)})
        return gain_table(found, found.rows[0], Significance(tmp_path, [found]))

    both = shown(2.5)
    assert [row[-2:] for row in both.rows] == [[f"+1.25 (p of mean {mean}, each seed {each})", "2"]]
    assert len(both.notes) == 2 and both.notes[1].startswith("Where p of mean stands, ")
    assert [line.split("|")[-1] for line in both.signatures] == ["tails:2", "runs:2"]
    old = tests.read_text(encoding="utf-8").splitlines(keepends=True)[:2]
    shutil.rmtree(runs)
    assert shown(0.0).rows[0][-2] == f"+0.00 (p of mean {mean})"
    tests.write_text("".join(old), encoding="utf-8")
    shutil.rmtree(runs)
    found = compared(tmp_path, SEEDS)
    remove_outputs(tmp_path)
    only = gain_table(found, found.rows[0], Significance(tmp_path, [found]))
    assert only.rows[0][-2] == f"+1.25 (p {each})"
    assert (only.notes, only.signatures) == (both.notes[:1], both.signatures[:1])


def test_seeds_that_were_scored_on_other_texts_have_no_mean(tmp_path: Path) -> None:
    found = compared(tmp_path, SEEDS)
    for run in ("a.s2", "b.s2"):
        write_sentences(tmp_path, run, metric=METRIC, outputs=BAD, references=BAD)
    first, other = (sentences_file(tmp_path / "runs" / run, TEST, 1) for run in ("b.s1", "b.s2"))
    message = f"{first} and {other}: scored on other sentences; the same ones are needed"
    assert refusal(Significance, tmp_path, [found]) == message


def test_many_tests_on_all_cores_are_the_same_tests_in_the_same_order(tmp_path: Path) -> None:
    """Ten tests go to a pool of processes, two of them of a mean; one by one they do not."""
    for number, outputs in enumerate((BAD, REFERENCES, [*REFERENCES[:3], "x"])):
        sentences = {"metric": METRIC, "outputs": outputs, "references": REFERENCES}
        write_atomic(tmp_path / f"{number}", json.dumps(sentences).encode())
    pairs = [(tmp_path / f"{n % 3}", tmp_path / f"{(n + 1) % 3}") for n in range(12)]
    wanted = [pairs[:2], pairs[2:4], *([pair] for pair in pairs[4:])]
    assert list(paired_tests(wanted)) == [tests for one in wanted for tests in paired_tests([one])]


def test_a_run_that_is_made_again_is_tested_again(tmp_path: Path) -> None:
    """First BSO's outputs are the references; made again they are seq2seq's own, and nothing is gained any more."""
    p_values = []
    for made in ((21.0, REFERENCES), (20.0, BAD)):
        p_values.append(p_value(tmp_path, compared(tmp_path, {"a": (20.0, BAD), "b": made})))
        shutil.rmtree(tmp_path / "runs")
    assert p_values == [bleu_p_value(outputs, BAD) for outputs in (REFERENCES, BAD)]
    assert p_values[0] != p_values[1]


def test_each_table_says_how_its_own_tests_were_made(tmp_path: Path) -> None:
    """One table is scored as it is tokenised, the other by sacreBLEU's tokenizer 13a."""
    tables = []
    for name in ("none", "13a"):
        for run, outputs in (("a", BAD), ("b", REFERENCES)):
            metric = METRIC.replace("tok:none", f"tok:{name}")
            write_run(tmp_path, f"{run}.{name}", bleu(1.0, 2.0, 3.0), metric=metric, outputs=outputs)
        tables.append(table(name, {"seq2seq": [f"a.{name}"], "BSO": [f"b.{name}"]}))
    results = read_results(write_plan(tmp_path, tables))
    tests = Significance(tmp_path, results.tables)
    for one in results.tables:
        gains = gain_table(one, one.rows[0], tests)
        (signature,) = [line for line in gains.signatures if line.startswith("p (bleu): ")]
        assert f"|tok:{one.planned.name}|" in signature


def test_there_is_no_p_value_where_seeds_gain_in_different_directions(tmp_path: Path) -> None:
    scores = {"a.s1": 20.0, "a.s2": 20.0, "b.s1": 21.0, "b.s2": 18.0}
    found = compared(tmp_path, {name: (score, REFERENCES) for name, score in scores.items()})
    assert gain(found.rows[1], found.rows[0], "bleu", 1) == {0: 1.0, 1: -2.0}
    assert p_value(tmp_path, found) is None


def test_attachment_is_tested_by_the_sentences_counts(tmp_path: Path) -> None:
    counts = {"a": [[4, 1, 1], [5, 3, 2], [3, 1, 0]], "b": [[4, 4, 2], [5, 4, 2], [3, 2, 0]]}
    for name, held in counts.items():
        write_run(tmp_path, name, {1: {"uas": 50.0, "las": 40.0}})
        write_sentences(tmp_path, name, metric="m", punctuation="upos", counts=held)
    write_plan(tmp_path, [table("parsing", {"seq2seq": ["a"], "BSO": ["b"]})])
    (found,) = read_results(tmp_path).tables
    assert found.parts == ("uas", "las")
    ours, theirs = ([AttachmentCounts(*one) for one in counts[name]] for name in ("b", "a"))
    for part, expected in compare_attachment([(ours, theirs)], punctuation="upos").items():
        assert p_value(tmp_path, found, part) == expected.p_value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not JSON at line 1, column 1"),
        ('{"counts": [[4, 1]], "metric": "m", "punctuation": "upos"}', "counts.0.2 is missing"),
        ('{"outputs": [1], "references": ["x"], "metric": "m"}', "outputs.0 is a whole number, accepted: a string"),
        ('{"outputs": ["x", "y"], "references": ["x"], "metric": "m"}', "2 outputs and 1 references"),
    ],
)
def test_a_damaged_file_of_sentences_is_an_error_of_one_line(content: str, reason: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, {1: {"bleu": 50.0}})
        write_sentences(tmp_path, name, metric=METRIC, outputs=["x"], references=["x"])
    write_plan(tmp_path, [table("costs", {"seq2seq": ["a"], "BSO": ["b"]})])
    (path,) = (tmp_path / "runs" / "b" / "paired").iterdir()
    path.write_text(content)
    fix = "remove it, and the test is left out, or remove its run, which `argbeam reproduce` then makes again"
    assert refusal(write_page, tmp_path, tmp_path) == f"{path}: damaged: {reason}; {fix}"


def test_metrics_are_not_mixed_in_a_table(tmp_path: Path) -> None:
    for name, metric in (("a", METRIC), ("b", "tok:13a")):
        write_run(tmp_path, name, {1: {"bleu": 1.0}}, metric=metric)
    write_plan(tmp_path, [table("costs", {"seq2seq": ["a"], "BSO": ["b"]})])
    message = f"costs: scores of 2 metrics, {METRIC} and tok:13a; a table holds one: reproduce it into another --out"
    assert refusal(read_results, tmp_path, error=ArgbeamError) == message


def test_a_scoring_counts_for_its_own_table_only(tmp_path: Path) -> None:
    """Dev scores of a run are not shown where test's are wanted."""
    write_run(tmp_path, "a", {1: {"bleu": 1.0}}, scoring=DEV)
    write_plan(tmp_path, [table("x", {"seq2seq": ["a"]}), table("y", {"seq2seq": ["a"]}, split="dev")])
    assert [found.planned.name for found in read_results(tmp_path).tables] == ["y"]


STEPS = [
    BenchRow("cross_entropy", 0, 2.0, 0.1, 900.0, 1.0, 0.0, 0.0),
    BenchRow("bso", 2, 6.0, 0.1, 300.0, 3.0, 0.0, 0.0),
    BenchRow("conbso", 2, 4.0, 0.1, 450.0, 2.0, 0.0, 0.0),
    BenchRow("decode_last_score", 5, 4.0, 0.1, 1.0, None, 0.0, 0.0),
]
TIMING = json.dumps({"device": "cpu", "shape": {"batch": 2}, "rows": [asdict(step) for step in STEPS]}).encode()


def test_speeds_compare_by_their_ratios(tmp_path: Path) -> None:
    """The paper's 13,038 tokens/s are 6.57 times its 1,985 at K_tr 2."""
    write_plan(tmp_path, [])
    write_atomic(tmp_path / "timing.json", TIMING)
    assert speed_table(read_results(tmp_path)).rows == [
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


def test_the_page_needs_no_other_file_and_no_run_folder(ordering: Path, tmp_path: Path) -> None:
    page, notes = write_page(ordering, tmp_path / "page")
    text, tables = page.read_text(encoding="utf-8"), notes.read_text(encoding="utf-8")
    assert text.count("data:image/svg+xml;base64,") == 1  # gains
    assert "by number of words" not in tables  # the records have no scores by length
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert METRIC in text and "21.00 ± 1.41" in text
    assert "| BSO | +2.80 | +3.40 | +3.30 | +2.00 | +2.00 | +4.50 |" in tables
    write_summaries(ordering)
    shutil.rmtree(ordering / "runs")
    _, again = write_page(ordering, tmp_path / "again")
    assert again.read_text(encoding="utf-8") == tables


def test_a_folder_without_a_plan_is_an_error(tmp_path: Path) -> None:
    missing = "no reproduction: plan.json is missing; `argbeam reproduce` makes one"
    assert refusal(write_page, tmp_path, tmp_path) == f"{tmp_path}: {missing}"


RUN = {"name": "a", "origin": "x/y", "start": ""}
NOTHING: dict[str, Any] = {"runs": [RUN], "tables": []}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not JSON at line 1, column 0"),
        ('{"runs": [', "not JSON at line 1, column 10"),
        ("[]", "the whole is a list, accepted: a table"),
        ({"runs": []}, "tables is missing"),
        ({**NOTHING, "runs": [RUN, {"origin": "x/y", "start": ""}]}, "runs.1.name is missing"),
        ({**NOTHING, "runs": [{**RUN, "name": 5}]}, "runs.0.name is a whole number, accepted: a string"),
        ({**NOTHING, "runs": [{**RUN, "start": "pre\ntrain"}]}, '"pre\\ntrain" is none of its runs'),
        ({**NOTHING, "tables": [table("costs", {"BSO": ["a", "b"]})]}, '"b" is none of its runs'),
    ],
)
def test_a_damaged_plan_is_an_error_of_one_line(content: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    fix = "remove it, and `argbeam reproduce` plans again and keeps the runs"
    assert refusal(write_page, tmp_path, tmp_path) == f"{path}: damaged: {reason}; {fix}"


OF_A_RUN = [f"runs/bso.s1/{name}.jsonl" for name in ("scores", "records")]


@pytest.mark.parametrize("name", ["plan.json", "runs.jsonl", *OF_A_RUN, "tests.jsonl", "timing.json"])
def test_files_with_any_damage_are_shown_or_refused_in_one_line(name: str, ordering: Path) -> None:
    """A last line without its end counts as torn and is left out, so that many accidents go unnoticed."""
    outputs = {"seq2seq.s1": BAD, "bso.s1": REFERENCES, "seq2seq.s2": BAD, "bso.s2": REFERENCES}
    for run, texts in outputs.items():
        write_sentences(ordering, run, metric=METRIC, outputs=texts, references=REFERENCES)
    write_atomic(ordering / "timing.json", TIMING)
    Significance(ordering, read_results(ordering).tables)
    if name == "runs.jsonl":
        write_summaries(ordering)
    path, shown = ordering / name, 0
    whole = path.read_bytes()
    for number in range(60):
        path.write_bytes(damaged(whole, Random(f"{name}:{number}")))
        try:
            results = read_results(ordering)
            tests = Significance(ordering, results.tables)
            for one in results.tables:
                assert len(score_table(results, one).rows) >= len(one.rows)
                assert all(gain_table(one, reference, tests).rows for reference in one.references)
            assert speed_table(results).rows is not None
            assert len(runs_table(results).rows) == len(results.runs)
            shown += 1
        except ArgbeamError as error:
            assert str(error).isprintable(), number
            assert str(path) in str(error) or "a table holds one" in str(error), number
    least = 0 if name == "timing.json" else 2
    assert least < shown < 60 - least, "the damage is of the right size"
