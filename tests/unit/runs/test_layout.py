"""Run folders: nothing else is taken for one, and nothing is written outside of it."""

from pathlib import Path

import pytest

from argbeam.errors import ArgbeamError
from argbeam.runs.layout import NAMES, check_out, folder_of, is_trained
from argbeam.runs.load import open_run
from argbeam.runs.score import score_run
from argbeam.settings import Recipe
from refusals import refusal
from small_runs import finish, one_epoch


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return one_epoch(tmp_path_factory.mktemp("data"))


def test_a_folder_with_something_else_in_it_is_refused_and_left_as_it_is(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    message = f"{tmp_path}: neither empty nor a run: it holds thesis.tex; --out takes a new folder, or a run"
    assert refusal(finish, recipe, tmp_path, error=ArgbeamError) == message
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_kill_leaves_before_the_recipe_is_written_can_be_trained_into(recipe: Recipe, tmp_path: Path) -> None:
    for name in (".lock", ".recipe.json.tmp"):
        (tmp_path / name).touch()
    (tmp_path / "tensorboard").mkdir()
    finish(recipe, tmp_path)
    assert is_trained(tmp_path)
    (tmp_path / "notes.txt").touch()
    check_out(tmp_path)  # a run may hold notes of its user's


def test_a_folder_inside_a_run_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    finish(recipe, tmp_path / "run")
    message = f"{tmp_path / 'run' / 'a' / 'b'}: inside the run {tmp_path / 'run'}; --out takes a folder outside of it"
    assert refusal(finish, recipe, tmp_path / "run" / "a" / "b", error=ArgbeamError) == message
    assert not (tmp_path / "run" / "a").exists()


def test_a_loop_of_links_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    message = refusal(finish, recipe, tmp_path / "loop" / "x", error=ArgbeamError)
    assert message.startswith(f"cannot write {tmp_path / 'loop' / 'x'}: ")


@pytest.mark.parametrize("before", [(), ("a",), ("a", "a/b"), ("a", "a/b", "a/b/.lock")])
@pytest.mark.parametrize("store", ["true", "false"])
def test_a_failed_start_leaves_nothing_behind(tmp_path: Path, before: tuple[str, ...], store: str) -> None:
    """What was there stays: folders, and the lock file of a run that was killed."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    recipe = one_epoch(data, f"runtime.store={store}")
    (data / "dev.txt").write_bytes(b"not UTF-8: \xff\n")
    for name in before:
        (out / name).touch() if name.endswith(".lock") else (out / name).mkdir()
    assert "not UTF-8" in refusal(finish, recipe, out / "a" / "b")
    left = {path.relative_to(out).as_posix() for path in out.rglob("*")}
    if "a/b" in before:  # the store may be of an earlier start, and is used again
        left = {name for name in left if not name.startswith("a/b/store")}
    assert left == set(before)


@pytest.mark.parametrize("name", NAMES)
def test_a_link_under_any_name_of_a_run_is_refused_and_not_followed(recipe: Recipe, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(outside / "file" if "." in name else outside)
    message = f"{run / name}: a symbolic link; a run writes inside its own folder only"
    assert refusal(finish, recipe, run, error=ArgbeamError) == message
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "mine")]


@pytest.mark.parametrize("name", ["predictions", "evaluations.jsonl"])
def test_evaluation_follows_no_link_either(recipe: Recipe, tmp_path: Path, name: str) -> None:
    finish(recipe, tmp_path / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "run" / name).symlink_to(outside if name == "predictions" else outside / "file")
    said = refusal(score_run, open_run(tmp_path / "run"), "dev", [1], error=ArgbeamError)
    assert f"{name}: a symbolic link" in said
    assert not list(outside.iterdir())


def test_a_link_in_place_of_a_temporary_file_is_not_followed(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".recipe.json.tmp").symlink_to(tmp_path / "mine")
    with pytest.raises((OSError, ArgbeamError)):
        finish(recipe, run)
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_folder_itself_may_be_a_link(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    finish(recipe, tmp_path / "run")
    assert (tmp_path / "disk" / "model").is_dir()


def test_a_checkpoint_belongs_to_the_run_around_it_and_to_no_other_folder(recipe: Recipe, tmp_path: Path) -> None:
    """A file at /tmp/x is not scored into /: it lies in no run."""
    finish(recipe, tmp_path / "run")
    (model,) = (tmp_path / "run" / "model").iterdir()
    assert folder_of(tmp_path / "run") == folder_of(model) == tmp_path / "run"
    alone = tmp_path / "elsewhere" / model.name
    alone.parent.mkdir()
    alone.write_bytes(model.read_bytes())
    message = f"{alone}: lies in no run folder, where scores and predictions are saved"
    assert refusal(lambda: score_run(open_run(alone), "dev", [1]), error=ArgbeamError) == message
    assert list(alone.parent.iterdir()) == [alone]
