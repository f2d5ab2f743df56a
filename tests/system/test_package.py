"""The package: built from the checkout as a release is, installed elsewhere, and tried there."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from argbeam import __version__
from argbeam.settings.recipe_files import shipped_recipes

ROOT = Path(__file__).parents[2]
LENGTH = ("stages.pretrain.epochs=1", "stages.bso.epochs=1")
BUILD = "import sys; from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"


def build(kind: str, source: Path, out: Path) -> Path:
    """As pip builds it, without a network."""
    command = [sys.executable, "-c", BUILD.format(kind=kind), str(out)]
    done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("package")
    sdist = build("sdist", ROOT, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist, build("wheel", folder / f"argbeam-{__version__}", folder)


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    """Recipes, parts of pages and the mark of types included."""
    with zipfile.ZipFile(built[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src" / "argbeam"
    files = {f"argbeam/{path.relative_to(source)}" for path in source.rglob("*") if path.is_file()}
    assert names == {name for name in files if "__pycache__" not in name}
    assert {"argbeam/py.typed", "argbeam/reports/inspection.js", "argbeam/settings/recipes/demo/bso.toml"} <= names


def test_the_sdist_holds_tests_docs_and_terms(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = "LICENSE CITATION.cff README.md CHANGELOG.md pyproject.toml Makefile constraints.lock docs/commands.md"
    assert (
        set(wanted.split())
        | {"tests/conftest.py", "examples/own_decoder.py", "tools/same_numbers.py", "results/README.md"}
        <= names
    )


def test_the_metadata_are_complete_and_agree_with_the_citation(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        found = HeaderParser().parsestr(archive.read(name).decode())
    assert (found["Version"], found["License-Expression"], found["Author"]) == (
        __version__,
        "MIT",
        "The argbeam developers",
    )
    assert found["Project-URL"] is None and found["Home-page"] is None  # until there is a place to link to
    pythons = {text.rpartition(" ")[2] for text in found.get_all("Classifier", []) if " 3." in text}
    assert pythons == {"3.11", "3.12", "3.13"}
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(.*)\] - (unreleased|20\d\d-\d\d-\d\d)$", changes, re.M)[1] == __version__  # type: ignore[index]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search("^version: (.*)$", citation, re.M)[1] == __version__  # type: ignore[index]


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Installed into a folder of its own: the command lists every recipe, and trains one of them."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(built[1])], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def said(*command: str | Path) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    assert Path(said(sys.executable, "-c", "import argbeam; print(argbeam.__file__)").strip()).is_relative_to(site)
    argbeam = site / "bin" / "argbeam"
    assert said(argbeam, "--version") == f"argbeam {__version__}\n"
    listed = [line.split()[0] for line in said(argbeam, "recipes").splitlines()[1:] if line.strip()]
    assert set(shipped_recipes()) <= set(listed)
    sizes = "data.types=200 data.train=12 data.dev=3 data.test=2 model.hidden=6 model.embedding=5"
    sets = [part for size in [*sizes.split(), *LENGTH, "runtime.device=cpu"] for part in ("--set", size)]
    assert "dev BLEU" in said(argbeam, "train", "demo/conbso", "--out", tmp_path / "run", *sets)
