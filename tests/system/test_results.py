"""The tables in `results/` are those of the records beside them."""

import json
from pathlib import Path

from argbeam.reproduce.page import write_page

REPRODUCTION = Path(__file__).parents[2] / "results" / "reproduction"


def test_the_tables_in_results_are_made_from_the_records_beside_them(tmp_path: Path) -> None:
    write_page(REPRODUCTION, tmp_path)
    assert (tmp_path / "reproduction.md").read_text() == (REPRODUCTION / "reproduction.md").read_text()


def test_records_in_results_hold_no_path_and_no_output() -> None:
    """They are passed on without the corpora: no folder of a machine, no sentence."""
    names = {"plan.json", "runs.jsonl", "tests.jsonl", "timing.json", "reproduction.md"}
    assert {path.name for path in REPRODUCTION.rglob("*")} == names
    for line in (REPRODUCTION / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        assert (run["recipe"]["data"]["root"], "/" in run["recipe"]["start"]) == (".", False)
        assert run.keys() == {"name", "device", "stages", "scores", "recipe"}
