"""What the documents say of the code is what the code says."""

import re
from pathlib import Path

import pytest

from argbeam.settings.listing import describe
from argbeam.settings.shipped import shipped_recipes

ROOT = Path(__file__).parents[2]


def test_the_list_of_settings_is_the_one_in_force() -> None:
    """`argbeam settings` in the form of docs/settings.md; where they differ, this is what the page must hold."""
    rows = []
    for setting in describe():
        default = setting.default if setting.default == "required" else f"`{setting.default}`"
        rows.append(f"| `{setting.key}` | {setting.type} | {default} | {setting.meaning} |")
    lines = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")] == rows


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_every_shipped_recipe_is_in_the_readme(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    folder, _, system = name.partition("/")
    assert f"`{name}`" in readme or re.search(rf"`{folder}/\w+`.*`/{system}`", readme)


@pytest.mark.parametrize(
    ("block", "example"), [("class GruSeq2Seq", "own_decoder"), ("class TrieChoices", "own_successors")]
)
def test_the_readmes_code_is_the_code_that_the_tests_run(block: str, example: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(part for part in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if block in part)
    assert shown.strip() in (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")


def test_relative_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
