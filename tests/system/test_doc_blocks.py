"""Every code block of README and docs runs, or says in its source why not and is checked."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import argbeam.demo
from argbeam.settings.listing import describe
from command import in_process
from doc_blocks import blocks_of, check_argbeam, run_block
from small_runs import finish, tiny_demo

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")])
WITH_BLOCKS = [page for page in PAGES if any(block.language[:1] != "{" for block in blocks_of(page, ROOT))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of a tiny demo in `demo`, trained and not scored."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, recipe in tiny_demo(Path("demo"), seed=1).items():
            finish(recipe, Path("demo") / name)
    return folder


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_every_block_of_the_page_runs_or_says_why_not(
    page: Path, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(demo, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(argbeam.demo, "demo_recipes", tiny_demo)
    names: dict[str, Any] = {"__name__": page.stem}
    # A block that fails is an error of its own; each one that does not say why not has run.
    done = [(block, run_block(block, names, in_process(monkeypatch, capfd), ROOT)) for block in blocks_of(page, ROOT)]
    code = [how for block, how in done if block.language in ("python", "bash") and "not run" not in block.note]
    assert done and set(code) <= {"run"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_sentences_and_tables_have_verbs_options_and_recipes_that_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for command in re.findall(r"`argbeam ([a-z][^`]*)`", text):
        check_argbeam(shlex.split(re.sub(r"\s+", " ", command).partition(" > ")[0]), whole=False)


def test_settings_of_overrides_in_the_documents_exist() -> None:
    known = [re.sub(r"\([a-z0-9_]+\)", "", setting.key) for setting in describe()]
    for page in PAGES:
        for key in re.findall(r"--set\s+'?([a-z][\w.]*)=", page.read_text(encoding="utf-8")):
            named = re.sub(r"^stages\.\w+", "stages.NAME", key)
            assert any(one == named or one.startswith(f"{named}.") for one in known), f"{page.name}: {key}"


def test_every_fence_is_that_of_a_block() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * sum(not block.hidden for block in blocks_of(page, ROOT)), page


@pytest.mark.parametrize(
    "block",
    [
        "```\nargbeam recipes\n```",
        "```bash\nmake demo\n```",
        "```bash\nargbeam recipes demo/nothing\n```",
        "<!-- not run: slow -->\n```bash\nargbeam train demo/bso --out runs/bso --epochs 3\n```",
        "<!-- not run: slow -->\n```bash\nargbeam train demo/bso --out runs/bso --set model.hiden=3\n```",
        "<!-- not run: installs -->\n```bash\npip install 'argbeam[nothing]'\n```",
        "<!-- recipe: demo/bso -->\n```toml\n[model]\nhiden = 3\n```",
        "```python\nassert 1 + 1 == 3\n```",
    ],
)
def test_a_block_that_is_wrong_fails(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n", encoding="utf-8")
    (found,) = blocks_of(page, tmp_path)
    with pytest.raises(Exception):  # noqa: B017 - of whatever finds it
        run_block(found, {}, in_process(monkeypatch, capfd), ROOT)
