"""Sphinx's settings: `make docs` builds the site from these pages, the docstrings and `results/`."""

import re
from pathlib import Path
from typing import Any

import argbeam

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "argbeam"
author = copyright = "The argbeam developers"
version = release = argbeam.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
highlight_language = "none"  # of blocks that name none: commands and their output
html_theme = "furo"
html_title = f"argbeam {version}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

# Pages that lie outside of docs/: where each one is, and the page that shows it.
OUTSIDE = {
    "results/measured": ROOT / "results" / "README.md",
    "changelog": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?!https?:|mailto:|#)[^)#\s]+)(#[^)\s]*)?\)")


def show_outside_pages(app: Any, page: str, source: list[str]) -> None:
    """A stub shows the file that `OUTSIDE` names, and links follow: what is not on the site is named, not linked."""
    path = OUTSIDE.get(page, DOCS / f"{page}.md")
    text = path.read_text(encoding="utf-8") if page in OUTSIDE else source[0]
    pages = {shown.resolve(): DOCS / f"{name}.md" for name, shown in OUTSIDE.items()}

    def follow(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        found = (path.parent / target).resolve()
        found = pages.get(found, found)
        if found.is_relative_to(DOCS) and found.suffix == ".md":
            back = "../" * page.count("/")
            return f"[{label}]({back}{found.relative_to(DOCS)}{anchor})"
        return f"{label} (`{found.relative_to(ROOT)}`)" if found.is_relative_to(ROOT) else label

    source[0] = LINK.sub(follow, text)


def docstring_as_rst(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with code in single backticks: the same in reStructuredText."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]+`)", line)
        lines[number] = "".join(
            f"`{part}`" if part.startswith("`") else re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", part) for part in parts
        )


def protocol_without_arguments(
    app: Any, what: str, name: str, thing: Any, options: Any, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Nobody calls a protocol: its constructor's `(*args, **kwargs)` says nothing."""
    return ("", returned) if getattr(thing, "_is_protocol", False) else (arguments, returned)


def setup(app: Any) -> None:
    app.connect("source-read", show_outside_pages)
    app.connect("autodoc-process-docstring", docstring_as_rst)
    app.connect("autodoc-process-signature", protocol_without_arguments)
