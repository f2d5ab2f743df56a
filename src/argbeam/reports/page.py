"""Pages of tables and plots: HTML in a single file, and Markdown without plots, date and command."""

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from argbeam import __version__
from argbeam.files import write_atomic, writing

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    """A table with notes; `signatures` say what its numbers depend on, and are folded away on the page.

    `folded`: so is the table itself.
    """

    title: str
    headers: list[str]
    rows: list[list[str]]
    notes: list[str]
    signatures: list[str] = field(default_factory=list)
    folded: bool = False


@dataclass(frozen=True)
class Plot:
    title: str
    svg: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.svg).decode()


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

    source, style = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.html", "style.css"))
    template = Template(source, autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, argbeam {__version__}"
    texts = {
        f"{name}.html": template.render(made=made, style=style, **vars(page)),
        f"{name}.md": _markdown(page),
    }
    with writing(out, "--out takes a folder"):
        out.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_atomic(out / file, text.encode(errors="replace"))  # names of files may be any bytes
    return [out / file for file in texts]


def _markdown(page: Page) -> str:
    parts = [f"# {page.title}\n"]
    for table in [*page.tables_above, *page.tables_below]:
        lines = [table.headers, ["---"] * len(table.headers), *table.rows]
        cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        parts.append(f"## {table.title}\n")
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n")
        notes = [*table.notes, *table.signatures]
        parts += [f"- {note}" for note in notes] + ([""] if notes else [])
    return "\n".join(parts)
