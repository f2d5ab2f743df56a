"""What the documents say of the code is what the code says."""

import itertools
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import argbeam
from argbeam.settings.listing import describe
from argbeam.settings.recipe_files import shipped_recipes
from oracles import Tokens, enumerate_sequences

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]


def test_the_list_of_settings_is_the_one_in_force() -> None:
    """`argbeam settings` in the form of docs/settings.md; where they differ, this is what the page must hold."""
    rows = []
    for setting in describe():
        default = setting.default if setting.default == "required" else f"`{setting.default}`"
        rows.append(f"| `{setting.key}` | {setting.type} | {default} | {setting.meaning} |")
    lines = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")] == rows


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_every_shipped_recipe_is_listed(name: str) -> None:
    page = text_of("docs/commands.md")
    folder, _, system = name.partition("/")
    assert f"`{name}`" in page or re.search(rf"`{folder}/\w+`.*`/{system}`", page)


@pytest.mark.parametrize(
    ("block", "example"),
    [
        ("class GruSeq2Seq", "own_decoder"),
        ("def train", "own_decoder"),
        ("def fine_tune", "hugging_face"),
    ],
)
def test_code_of_examples_in_the_docs_is_the_code_that_the_tests_run(block: str, example: str) -> None:
    pages = ("docs/library.md", "docs/huggingface.md")
    shown = next(part for page in pages for part in python_blocks(page) if block in part)
    assert shown.strip() in text_of(f"examples/{example}.py")


def test_the_successors_in_the_docs_admit_every_order_of_different_tokens() -> None:
    """Three of six tokens may be written: 3! orders, and nothing else."""
    names: dict[str, Any] = {"dataclass": dataclass, "Tensor": Tensor}
    exec(next(part for part in python_blocks("docs/library.md") if "class NoRepeats" in part), names)

    def following(prefix: Tokens) -> list[int]:
        choices = names["NoRepeats"](torch.arange(6)[None] > 2)
        for token in prefix:
            choices = choices.select(torch.tensor([0])).advance(torch.tensor([token]))
        return choices.allowed()[0].nonzero()[:, 0].tolist()

    assert sorted(enumerate_sequences(following, length=3)) == sorted(itertools.permutations(range(3, 6)))


def test_the_readme_has_at_most_a_thousand_words() -> None:
    assert len(text_of("README.md").split()) <= 1000


def test_relative_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_room_is_drawn_and_described() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "argbeam").glob("*/__init__.py")}
    drawn = set(re.findall(r">([a-z]+)</text>", text_of("docs/images/rooms.svg")))
    described = set(re.findall(r"^\| `([a-z]+)` \|", text_of("docs/architecture.md"), re.MULTILINE))
    assert rooms <= drawn and rooms == described


def test_gold_and_rival_have_the_same_colours_in_diagrams_and_on_pages() -> None:
    light = dict(re.findall(r"--(gold|rival): (#\w+)", text_of("src/argbeam/reports/style.css").partition("@media")[0]))
    lanes = re.findall(r'fill="(#\w+)"[^>]*>(gold|rival) lane<', text_of("docs/images/search-and-replay.svg"))
    boxes = re.findall(
        r'stroke="(#\w+)"[^>]*/>\n<text[^>]*></text>\n<text[^>]*>(gold|rival)\b', text_of("docs/images/restarts.svg")
    )
    for drawn in (lanes, boxes):
        assert {name: colour for colour, name in drawn} == light


def test_modules_and_files_named_in_the_docs_exist() -> None:
    """The changelog names old ones too."""
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`(argbeam\.[A-Za-z_.]+)`", text) + re.findall(
            r"from (argbeam\.[a-z_.]+) import", text
        ):
            assert pkgutil.resolve_name(name), f"{page.name}: {name}"
        for path in re.findall(r"`((?:tests|examples|docs|src)/[\w/.-]+\.\w+)", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # of what Sphinx and its extensions will have to change
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Links between pages, code languages, docstrings: whatever Sphinx cannot make sense of is a warning."""
    from sphinx.cmd.build import build_main

    asked = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "doctrees")]
    assert build_main([*asked, str(ROOT / "docs"), str(tmp_path / "site")]) == 0
    assert (tmp_path / "site" / "results" / "measured.html").stat().st_size > 10_000  # a page outside of docs/
    reference = (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    names = re.sub("<[^>]*>", "", reference)
    assert "class argbeam.ScoreRule" in names and "*args" not in names  # a protocol has no arguments to show
    assert re.search(r"Copyright\s+&#169;\s+The argbeam developers", names) and "site.css" in reference


@pytest.mark.parametrize("name", argbeam.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf"^\.\. auto(class|function):: argbeam\.{name}$", text_of("docs/reference.md"), re.MULTILINE)
