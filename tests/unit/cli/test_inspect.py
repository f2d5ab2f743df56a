"""`argbeam inspect`: its searches are those of decode, and gold is lost where the beams say so."""

import json
from pathlib import Path
from typing import Any

import pytest

from argbeam.data.batches import make_batch
from argbeam.losses import make_loss
from argbeam.runs.inspect_run import InspectRequest, inspect_runs
from argbeam.runs.load import load
from command import Command
from small_runs import RATES, finish, small_recipe

HOSTILE = "</script><b>x"


def inspected(argbeam: Command, out: Path, *arguments: str | Path, stdin: bytes = b"") -> dict[str, Any]:
    done = argbeam("inspect", *arguments, "--out", out, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(out / "inspect.html"), str(out / "inspect.json")]
    data: dict[str, Any] = json.loads((out / "inspect.json").read_text(encoding="utf-8"))
    return data


def prefixes(data: dict[str, Any], view: dict[str, Any], fates: str) -> list[set[tuple[int, ...]]]:
    """The hypotheses of each step with one of these fates, as tokens."""
    found, rows = [], list[tuple[int, ...]]()
    for parents, tokens, marks in zip(view["parents"], view["tokens"], view["fates"], strict=True):
        rows = [(*(rows[p] if p >= 0 else ()), token) for p, token in zip(parents, tokens, strict=True)]
        found.append({row for row, mark in zip(rows, marks, strict=True) if mark in fates})
    return found


@pytest.mark.parametrize("name", ["bso", "parsing", "translation"])
def test_outputs_are_those_of_decode_and_gold_is_lost_where_no_hypothesis_is_its_prefix(
    name: str, argbeam: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    data = inspected(argbeam, tmp_path, runs[name], "--split", "test", "--beam", "3,1")
    run = load(runs[name], device="cpu")
    lines = [" ".join(item.surface) for item in run.items("test")]
    assert [sentence["source"] for sentence in data["sentences"]] == lines
    assert (data["beam"], data["runs"][0]["with_gold"]) == (3, len(lines))
    lost = {1: 0, 3: 0}
    for sentence, (_, item, decoded) in zip(data["sentences"], run.search_items(lines, beam=3, n_best=3), strict=True):
        (found,) = sentence["runs"]
        outputs = [[run.task.text(item, h.tokens), round(h.score, 3), h.finished] for h in decoded.hypotheses]
        assert found["outputs"] == outputs
        kept = prefixes(data, found["decoding"], "ke")
        gold = tuple(found["gold"])
        on = [t < len(kept) and gold[: t + 1] in kept[t] for t in range(len(gold))]
        assert found["lost"] == (0 if all(on) else on.index(False) + 1)
        assert not found["forbidden"] and len(found["training"]["violation"]) == len(gold)
        lost[3] += found["lost"] > 0
    greedy = run.search_items(lines, beam=1)
    for (_, _, decoded), item in zip(greedy, run.items("test"), strict=True):
        lost[1] += decoded.hypotheses[0].tokens != run.task.example(item, 0).target
    found_lost = data["runs"][0]["lost"]
    assert {int(beam): row["lost"] for beam, row in found_lost.items()} == lost
    assert all(sum(row["by_step"]) == row["lost"] for row in found_lost.values())


def test_two_runs_stand_side_by_side_on_the_same_sentences(
    argbeam: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    arguments = (runs["bso"], "--against", runs["ordering"], "--beam", "2", "--limit", "4")
    data = inspected(argbeam, tmp_path, *arguments)
    assert [run["training"]["own"] for run in data["runs"]] == [True, False]
    assert [len(sentence["runs"]) for sentence in data["sentences"]] == [2] * 4
    done = argbeam("inspect", runs["bso"], "--against", runs["translation"], "--out", tmp_path)
    assert done.returncode == 2 and "its sentences are not those of" in done.stderr


@pytest.mark.parametrize("restarts", [False, True])
def test_the_training_search_of_a_crf_is_that_of_its_loss(restarts: bool, tmp_path: Path) -> None:
    """It has no margin. With restarts all violations shown are those that the loss counts."""
    loss = {"kind": "crf", "train_beam": 2, "restarts": restarts, "constrained": True}
    finish(small_recipe(stages={"only": {"epochs": 1, "loss": loss, "optimizer": RATES, "keep": "last"}}), tmp_path)
    run, request = load(tmp_path, device="cpu"), InspectRequest((2,), split="dev")
    items = request.items(run)
    data = inspect_runs([run], [items], request)
    about = data["runs"][0]["training"]
    policy = "restart" if restarts else "early_update"
    assert (about["policy"], about["margin"], about["beam"], about["own"]) == (policy, 0.0, 2, True)
    if restarts:
        batch = make_batch([run.task.example(item, number) for number, item in enumerate(items)])
        counted = make_loss(run.recipe.stages["only"].loss, run.task).at(0)(run.model, batch, None).sums["violations"]
        views = [sentence["runs"][0]["training"] for sentence in data["sentences"]]
        assert sum(sum(view.get("violation", ())) for view in views) == counted > 0


def test_lines_have_the_plain_search_alone_and_stay_text(
    argbeam: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    by_line = inspected(argbeam, tmp_path / "a", runs["bso"], "--line", HOSTILE, "--line", "a b", "--beam", "2")
    by_file = inspected(
        argbeam, tmp_path / "b", runs["bso"], "--input", "-", "--beam", "2", stdin=b"</script><b>x\n\na b\n"
    )
    assert by_line["sentences"] == by_file["sentences"]
    assert [sentence["source"] for sentence in by_line["sentences"]] == [HOSTILE, "a b"]
    for sentence in by_line["sentences"]:
        (found,) = sentence["runs"]
        assert found["training"] is None and found["gold"] == [] and "gold" not in found["decoding"]
    assert HOSTILE not in (tmp_path / "a" / "inspect.html").read_text(encoding="utf-8")
    done = argbeam("inspect", runs["bso"], "--input", "-", "--out", tmp_path / "c")
    assert (done.returncode, done.stderr) == (
        2,
        "argbeam: error: the input: no sentence to search; one line at least is expected\n",
    )


@pytest.mark.parametrize("name", ["bso", "parsing", "translation"])
def test_lines_with_gold_are_searched_as_the_split_that_they_come_from(
    name: str, argbeam: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = load(runs[name], device="cpu")
    items = [item for item in run.items("test") if item.target]
    golds = [run.task.text(item, run.task.example(item, 0).target) for item in items]
    (tmp_path / "lines").write_text("".join(" ".join(item.surface) + "\n" for item in items), encoding="utf-8")
    (tmp_path / "golds").write_text("".join(f"{gold}\n" for gold in golds), encoding="utf-8")
    files = ("--input", tmp_path / "lines", "--gold", tmp_path / "golds")
    by_file = inspected(argbeam, tmp_path / "a", runs[name], *files, "--beam", "3,1")
    by_split = inspected(argbeam, tmp_path / "b", runs[name], "--split", "test", "--beam", "3,1")
    assert [one["runs"] for one in by_file["sentences"]] == [one["runs"] for one in by_split["sentences"]]
    assert by_file["runs"] == by_split["runs"] and by_file["runs"][0]["with_gold"] == len(items) > 0
    last = (" ".join(items[-1].surface), golds[-1])
    by_line = inspected(argbeam, tmp_path / "c", runs[name], "--line", last[0], "--gold-line", last[1], "--beam", "3")
    found, expected = by_line["sentences"][0], by_file["sentences"][-1]
    assert [found[key] for key in ("source", "gold")] == [expected[key] for key in ("source", "gold")]
    assert found["runs"][0]["lost"] == expected["runs"][0]["lost"]


@pytest.mark.parametrize(
    ("name", "line", "gold", "said"),
    [
        ("bso", "a b", "b a a", "line 1: gold has other words than the sentence: 'a'; the same words are expected"),
        ("parsing", "a b", "a b", "line 1: gold is not a tree of the sentence; its words as word/head/label"),
        ("parsing", "a b", "a/2/x c/0/root", "line 1: gold is not a tree of the sentence"),
        ("parsing", "a b", "a/2/nowhere b/0/root", "line 1: gold has an arc that training does not have: @L_nowhere"),
        ("parsing", "a b", "a/5/x b/0/root", "line 1: word 1: head 5 in a sentence of 2 words"),
    ],
)
def test_gold_that_does_not_fit_its_line_is_one_line(
    name: str, line: str, gold: str, said: str, argbeam: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    done = argbeam("inspect", runs[name], "--line", line, "--gold-line", gold, "--out", tmp_path)
    assert (done.returncode, done.stderr.startswith(f"argbeam: error: {said}")) == (2, True), done.stderr


def test_attention_is_there_where_the_model_has_it_and_adds_up_to_one(
    argbeam: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    data = inspected(argbeam, tmp_path, runs["translation"], "--attention", "--beam", "2")
    for sentence in data["sentences"]:
        (found,) = sentence["runs"]
        assert [data["tokens"][token] for token in found["source"]] == sentence["source"].split()
        for name in ("output", "gold"):
            assert len(found["attention"][name]) == len(found[name])
            for row in found["attention"][name]:
                assert len(row) == len(found["source"]) and abs(sum(row) - 100) <= len(row) / 2
