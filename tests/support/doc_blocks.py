"""Code blocks of the documents, in order, with what their source says about running them.

The language of a block says what it is: `python` and `bash` are run, `toml` holds settings, `text` is output or a
drawing, and `{...}` is for Sphinx. A comment of HTML, which no reader sees, may stand before a block:

    <!-- not run: installs packages -->     commands are checked (verb, options, recipe, settings) and not run
    <!-- with: --set model.hidden=8 -->     options added to each `argbeam train`, whose stages then have one epoch
    <!-- recipe: parsing/conbso -->         settings change this recipe; without it they are a whole one
    <!-- test                               Python that is run in its place and not shown
    assert outputs
    -->

`shown` is the text of the last block that readers see, for such Python.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import typer.main

from argbeam.cli.app import app
from argbeam.settings.recipe_files import find_recipe, load_recipe, parse_recipe

_PARTS = re.compile(
    r"^<!-- test\n(?P<hidden>.*?)^-->|"
    r"(?:^<!-- (?P<name>not run|with|recipe): (?P<about>[^\n]*) -->\n+)?"
    r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of a page; `note` is the comment before it, by its first words. `hidden`: no reader sees it."""

    where: str
    language: str
    text: str
    note: dict[str, str]
    hidden: bool

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without comments; a line that ends in a backslash continues."""
        lines = re.sub(r"\\\n", " ", self.text).splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of(page: Path, root: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _PARTS.finditer(text):
        line = text[: found.start()].count("\n") + 1
        note = {found["name"]: found["about"]} if found["name"] else {}
        where, hidden = f"{page.relative_to(root)}:{line}", found["hidden"] is not None
        language, content = ("python", found["hidden"]) if hidden else (found["language"].strip(), found["text"])
        yield Block(where, language, content, note, hidden)


def run_block(block: Block, names: dict[str, Any], argbeam: Callable[..., Any], root: Path) -> str:
    """Run a block, or check it where its source says that it is not run, and say which: "run", "checked" or "shown".

    `names` are those of the page's Python. What fails is an error.
    """
    if not block.hidden:
        names["shown"] = block.text
    if block.language == "python" and "not run" not in block.note:
        lines = "\n" * int(block.where.rpartition(":")[2])  # a traceback names the line of the page
        exec(compile(lines + block.text, block.where, "exec"), names)
        return "run"
    if block.language == "bash":
        for words in block.commands:
            check_command(words, root) if "not run" in block.note else run_command(words, block, argbeam)
        return "checked" if "not run" in block.note else "run"
    if block.language == "toml":
        check_settings(tomllib.loads(block.text), block.note.get("recipe"))
        return "checked"
    assert block.language == "text" or block.language.startswith("{"), f"{block.where}: {block.language!r}"
    return "shown"


def run_command(words: Sequence[str], block: Block, argbeam: Callable[..., Any]) -> None:
    """`argbeam ...`, or `echo TEXT | argbeam ...`."""
    *before, last = _split(words, "|")
    assert last[0] == "argbeam" and [one[0] for one in before] in ([], ["echo"]), f"{block.where}: {shlex.join(words)}"
    stdin = "".join(" ".join(one[1:]) + "\n" for one in before).encode()
    done = argbeam(*last[1:], *_short(last[2], block.note["with"]) if last[1] == "train" else (), stdin=stdin)
    assert done.returncode == 0, f"{block.where}: {done.stderr}"


def _short(recipe: str, options: str) -> list[str]:
    """Options that make a recipe train in a moment."""
    epochs = (("--set", f"stages.{stage}.epochs=1") for stage in load_recipe(find_recipe(recipe)).stages)
    return [*shlex.split(options), *chain.from_iterable(epochs)]


def check_command(words: Sequence[str], root: Path) -> None:
    """A command that is not run: a verb of argbeam with its options, a target of make, extras, a body of a request."""
    if "argbeam" in words and words[0] in ("argbeam", "torchrun", "taskset"):
        check_argbeam([word for word in words[words.index("argbeam") + 1 :] if word != "$shape"])
    elif words[0] == "make":
        assert set(words[1:]) <= set(re.findall(r"^(\w+):", (root / "Makefile").read_text(), re.MULTILINE)), words
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = [extra for word in words for found in re.findall(r"\[(.+)\]", word) for extra in found.split(",")]
        assert set(asked) <= set(extras), words
    elif words[0] == "curl":
        from argbeam.server.app import DecodeBody

        DecodeBody.model_validate(json.loads(words[words.index("-d") + 1]))
    else:
        assert words[0] == "export" or "=" in words[0] or words[0].endswith(("/python", "/argbeam")), words


def check_argbeam(words: Sequence[str], *, whole: bool = True) -> None:
    """The verb and its options exist, and so does the recipe, with these settings; `whole`: none is missing."""
    verb = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    try:
        given = verb.make_context(words[0], list(words[1:])).params
    except Exception as error:
        if whole or type(error).__name__ != "MissingParameter":
            raise
        return
    own = given.get("recipe", "").isupper() or given.get("recipe", "").endswith(".toml")  # a recipe of the reader
    if words[0] == "train" and not own:
        load_recipe(find_recipe(given["recipe"]), given["sets"] or [])


def check_settings(table: dict[str, Any], recipe: str | None) -> None:
    """Settings as a recipe, or as changes of one: a table of another kind replaces the recipe's."""
    if recipe is not None:
        base = tomllib.loads(find_recipe(recipe).read_text(encoding="utf-8"))
        table = _merged(base, table)
    parse_recipe(table)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**base}
    for key, value in changes.items():
        old = base.get(key)
        same = (
            isinstance(old, dict) and isinstance(value, dict) and old.get("kind") == value.get("kind", old.get("kind"))
        )
        merged[key] = _merged(old, value) if same else value
    return merged


def _split(words: Sequence[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        parts.append([]) if word == at else parts[-1].append(word)
    return parts
