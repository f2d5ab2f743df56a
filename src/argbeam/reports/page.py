"""Pages of tables and plots: HTML in a single file, and Markdown without plots, date and command."""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from argbeam import __version__
from argbeam.files import write_atomic, writing


@dataclass(frozen=True)
class Table:
    """A table; its notes give the signatures of its numbers."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    notes: list[str]


@dataclass(frozen=True)
class Plot:
    title: str
    png: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Page:
    """Content of a page, from top to bottom. `command` is the one that writes it again."""

    title: str
    command: str
    tables_above: list[Table]
    plots: list[Plot]
    tables_below: list[Table]


def write_pages(page: Page, out: Path, name: str) -> list[Path]:
    """Write NAME.html and NAME.md into the folder `out`; return both paths."""
    from jinja2 import Template

    source = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    template = Template(source, autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, argbeam {__version__}"
    texts = {f"{name}.html": template.render(made=made, **vars(page)), f"{name}.md": _markdown(page)}
    with writing(out, "--out takes a folder"):
        out.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_atomic(out / file, text.encode())
    return [out / file for file in texts]


def _markdown(page: Page) -> str:
    parts = [f"# {page.title}\n"]
    for table in [*page.tables_above, *page.tables_below]:
        lines = [table.headers, ["---"] * len(table.headers), *table.rows]
        cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        parts.append(f"## {table.title}\n")
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n")
        parts += [f"- {note}" for note in table.notes] + ([""] if table.notes else [])
    return "\n".join(parts)
