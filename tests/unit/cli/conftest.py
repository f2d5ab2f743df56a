"""The command in this process, and trained runs for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from argbeam.cli import app as cli
from argbeam.settings.recipe_files import load_recipe
from command import BSO, Command, Result, write_recipe
from small_runs import finish


@pytest.fixture
def argbeam(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: importing torch anew for each test would take most of the time."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> Result:
        read, write = os.pipe()
        with os.fdopen(write, "wb") as end:
            end.write(stdin)
        monkeypatch.setattr(sys, "argv", ["argbeam", *map(str, arguments)])
        capfd.readouterr()
        with os.fdopen(read, "r") as source, pytest.raises(SystemExit) as exit_:
            monkeypatch.setattr(sys, "stdin", source)
            cli.main()
        out, err = capfd.readouterr()
        code = exit_.value.code
        return subprocess.CompletedProcess(list(arguments), code if isinstance(code, int) else 0, out, err)

    return call


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained run of each task, and one more of word ordering trained with BSO."""
    folder = tmp_path_factory.mktemp("runs")
    made = {"ordering": ("word_ordering", ""), "bso": ("word_ordering", BSO)}
    made |= {"parsing": ("parsing", ""), "translation": ("translation", BSO)}
    for name, (task, more) in made.items():
        finish(load_recipe(write_recipe(folder, task=task, more=more)), folder / name)
    return {name: folder / name for name in made}
