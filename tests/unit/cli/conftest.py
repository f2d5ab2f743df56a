"""The command in this process, and trained runs for it."""

from pathlib import Path

import pytest

from argbeam.settings.recipe_files import load_recipe
from command import BSO, Command, in_process, write_recipe
from small_runs import finish


@pytest.fixture
def argbeam(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: importing torch anew for each test would take most of the time."""

    return in_process(monkeypatch, capfd)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained run of each task, and one more of word ordering trained with BSO."""
    folder = tmp_path_factory.mktemp("runs")
    made = {"ordering": ("word_ordering", ""), "bso": ("word_ordering", BSO)}
    made |= {"parsing": ("parsing", ""), "translation": ("translation", BSO)}
    for name, (task, more) in made.items():
        finish(load_recipe(write_recipe(folder, task=task, more=more)), folder / name)
    return {name: folder / name for name in made}
