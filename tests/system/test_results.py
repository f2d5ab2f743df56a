"""The tables in `results/` are those of the records beside them."""

import json
from pathlib import Path

import pytest

from argbeam.reproduce.page import write_page

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = [RESULTS / "reproduction", RESULTS / "sums", RESULTS / "constraints"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_tables_in_results_are_made_from_the_records_beside_them(folder: Path, tmp_path: Path) -> None:
    write_page(folder, tmp_path)
    assert (tmp_path / "reproduction.md").read_text() == (folder / "reproduction.md").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_records_in_results_hold_no_path_and_no_output(folder: Path) -> None:
    """They are passed on without the corpora: no folder of a machine, no sentence."""
    names = {"plan.json", "runs.jsonl", "tests.jsonl", "timing.json", "reproduction.md"}
    assert {path.name for path in folder.rglob("*")} <= names
    for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        assert (run["recipe"]["data"]["root"], "/" in run["recipe"]["start"]) == (".", False)
        assert run.keys() - {"epoch_seconds"} == {"name", "device", "stages", "scores", "recipe"}
