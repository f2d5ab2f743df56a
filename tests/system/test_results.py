"""What `results/` shows is what its records say."""

import json
from pathlib import Path

from argbeam.reproduce.page import write_page

REPRODUCTION = Path(__file__).parents[2] / "results" / "reproduction"


def test_the_tables_in_results_are_made_from_the_records_beside_them(tmp_path: Path) -> None:
    write_page(REPRODUCTION, tmp_path)
    assert (tmp_path / "reproduction.md").read_text() == (REPRODUCTION / "reproduction.md").read_text()


def test_records_in_results_hold_no_path_and_no_output() -> None:
    """They are passed on without the corpora: no folder of a machine, no sentence."""
    files = [path for path in REPRODUCTION.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        "plan.json",
        "tests.jsonl",
        "timing.json",
        "reproduction.md",
        "reproduction.html",
        "recipe.json",
        "records.jsonl",
        "scores.jsonl",
    }
    for path in REPRODUCTION.glob("runs/*/recipe.json"):
        recipe = json.loads(path.read_text(encoding="utf-8"))
        assert (recipe["data"]["root"], "/" in recipe["start"]) == (".", False)
