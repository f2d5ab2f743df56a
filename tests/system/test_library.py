"""argbeam as a library: a trained run is opened and decodes in two lines; the contracts are public."""

from pathlib import Path

import pytest

import argbeam
from small_runs import PRETRAIN, finish, short_text, small_recipe


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of word ordering."""
    folder = tmp_path_factory.mktemp("library")
    finish(small_recipe(data=short_text(folder), stages={"only": PRETRAIN}), folder / "run")
    return folder / "run"


def test_a_run_is_loaded_and_decodes(path: Path) -> None:
    run = argbeam.load(path)
    assert isinstance(run, argbeam.Run)
    found = run.decode(["ba ti ko", "zu lu"], beam=5)
    assert [sorted(line.split()) for line in found] == [["ba", "ko", "ti"], ["lu", "zu"]]
    assert run.decode(["ba ti ko", "zu lu"]) == found  # 5 is the recipe's beam
    assert run.decode(iter(["zu lu"]), beam=5) == found[1:]
    assert argbeam.load(str(path)).decode([]) == []


def test_n_best_comes_best_first_with_what_the_search_saw(path: Path) -> None:
    run = argbeam.load(path)
    ((line, decoded),) = run.search(["ba ti ko"], beam=6, n_best=6, trace=True)
    assert line == "ba ti ko"
    scores = [hypothesis.score for hypothesis in decoded.hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert len({hypothesis.tokens for hypothesis in decoded.hypotheses}) == 6  # all orders of three words
    assert len(decoded.trace) == 3


def test_a_blank_line_has_an_empty_output_in_its_place(path: Path) -> None:
    run = argbeam.load(path)
    assert run.decode([" ", "ba", ""]) == ["", "ba", ""]
    found = [(line, decoded.hypotheses) for line, decoded in run.search(["", "ba"])]
    assert [line for line, _ in found] == ["", "ba"] and found[0][1] == ()


@pytest.mark.parametrize("name", ["Model", "Loss", "Successors", "Choices", "Task", "ScoreRule", "Stop"])
def test_what_can_be_replaced_is_a_public_protocol(name: str) -> None:
    assert getattr(argbeam, name)._is_protocol
    assert name in dir(argbeam)


def test_every_public_name_can_be_imported() -> None:
    assert {"Bso", "load", "make_batch"} <= set(argbeam.__all__)
    for name in argbeam.__all__:
        assert getattr(argbeam, name).__name__ == name


def test_all_public_names_come_with_a_star() -> None:
    names: dict[str, object] = {}
    exec("from argbeam import *", names)
    assert set(argbeam.__all__) <= set(names)


def test_a_run_shows_itself_in_one_line(path: Path) -> None:
    text = repr(argbeam.load(path, device="cpu"))
    assert text.startswith(f"Run({str(path)!r}: ")
    assert text.endswith("weights, rule logprob_sum, cpu)")
    assert "\n" not in text and len(text) < len(str(path)) + 120
