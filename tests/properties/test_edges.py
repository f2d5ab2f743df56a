"""Inputs at the edge have a defined answer: one word, no line, no way on, a beam wider than there are words."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from argbeam.cli.decode_lines import Counts, DecodeRequest, decode_stream
from argbeam.decoding.batch_decoder import evaluate
from argbeam.runs.load import Run, load
from small_runs import BSO, PRETRAIN, finish, short_text, small_recipe

STAGES = {"first": {**PRETRAIN, "epochs": 1}, "bso": {**BSO, "epochs": 1, "loss": {"kind": "bso", "train_beam": 2}}}
CONSTRAINED = {**STAGES, "bso": {**STAGES["bso"], "loss": {"kind": "bso", "train_beam": 2, "constrained": True}}}


def one_word_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Data tables of sentences of one word, by task."""
    (folder / "t.txt").write_text("ba\nko\nba\n")
    (folder / "t.tsv").write_text("ba\tti\nko\tlu\n")
    (folder / "t.conllu").write_text("".join(f"1\t{word}\t_\tX\t_\t_\t0\troot\t_\t_\n\n" for word in ("ba", "ko")))
    return {
        task: {"kind": kind, "root": str(folder), **{key: [f"t.{ending}"] for key in ("train", "dev", "test")}}
        for task, kind, ending in (
            ("word_ordering", "text", "txt"),
            ("translation", "tsv", "tsv"),
            ("parsing", "conllu", "conllu"),
        )
    }


@pytest.mark.parametrize(
    ("task", "expected"),
    [("word_ordering", ["ba", "never_seen"]), ("parsing", ["ba/0/root", "never_seen/0/root"]), ("translation", None)],
)
def test_sentences_of_one_word_are_trained_on_and_decoded(
    tmp_path: Path, task: str, expected: list[str] | None
) -> None:
    """One word has one order and one tree."""
    stages = STAGES if task == "translation" else CONSTRAINED
    finish(small_recipe(task=task, data=one_word_files(tmp_path)[task], stages=stages), tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    outputs = run.decode(["ba", "never_seen"], beam=3)
    assert len(outputs) == 2 and expected in (None, outputs)
    assert run.evaluate("test", beam=2).dead == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("edges")
    finish(small_recipe(data=short_text(folder), stages=STAGES), folder / "run")
    return load(folder / "run", device="cpu")


def test_an_input_without_lines_has_an_output_without_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").touch()
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("w") as out:
        assert decode_stream(run, source, "in", out, DecodeRequest(beam=2)) == Counts(0, 0, 0)
    assert (tmp_path / "out").read_bytes() == b""
    assert run.decode([]) == [] and list(run.search(iter([]))) == []


def test_a_beam_wider_than_the_vocabulary_and_the_space_holds_every_order_once(run: Run) -> None:
    """Eight words are known, three words have six orders; a beam of 50 has room for all, each with its own score."""
    ((_, found),) = run.search(["ba ko ti"], beam=50, n_best=50)
    orders = [run.task.text(run.task.item("ba ko ti"), h.tokens) for h in found.hypotheses]
    assert sorted(orders) == sorted(" ".join(order) for order in permutations(("ba", "ko", "ti")))
    scores = [h.score for h in found.hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert run.decode(["ba ko ti"], beam=50) == orders[:1]


def test_training_with_a_beam_wider_than_the_vocabulary_is_defined(tmp_path: Path) -> None:
    """Fewer candidates than K: the K-th has no score, so that only the last step can violate the margin."""
    wide = {"kind": "bso", "train_beam": 40, "start_beam": 40}
    stages = {"bso": {**BSO, "epochs": 1, "loss": wide, "keep": "last"}}
    finish(small_recipe(data=short_text(tmp_path), stages=stages), tmp_path / "run")
    weights = load(tmp_path / "run", device="cpu").model.state_dict().values()
    assert all(bool(torch.isfinite(weight).all()) for weight in weights)


def test_a_dead_end_is_counted_marked_and_keeps_its_line(tmp_path: Path) -> None:
    """One-word trees have no actions: two words are shifted, and then nothing can follow."""
    stages = {"first": STAGES["first"]}
    finish(small_recipe(task="parsing", data=one_word_files(tmp_path)["parsing"], stages=stages), tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    (tmp_path / "in").write_text("ba\nba ko\nko\n")
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("w") as out:
        assert decode_stream(run, source, "in", out, DecodeRequest(beam=2)) == Counts(lines=3, unfinished=0, dead=1)
    assert (tmp_path / "out").read_text() == "ba/0/root\nba/0/root ko/1/dep\nko/0/root\n"
    assert [decoded.dead for _, decoded in run.search(["ba", "ba ko", "ko"])] == [False, True, False]
    scored = evaluate(run.decoder(), run.task.read("test").items, beam=2)
    assert (scored.dead, len(scored.outputs)) == (0, 2)
