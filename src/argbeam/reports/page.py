"""Tables and plots as pages: HTML that needs no other file, and Markdown."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from argbeam.errors import ArgbeamError
from argbeam.files import write_atomic


@dataclass(frozen=True)
class Table:
    """A table with the signatures that its numbers stand on."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    notes: list[str]


@dataclass(frozen=True)
class Plot:
    title: str
    png: bytes


def write_pages(pages: Mapping[str, str], out: Path) -> list[Path]:
    """Write pages by name into a folder; return their files."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            write_atomic(out / name, text.encode())
    except OSError as error:
        raise ArgbeamError(f"{out}: cannot be written: {error.strerror}; --out takes a folder") from None
    return [out / name for name in pages]


def markdown_page(title: str, tables: Sequence[Table]) -> str:
    """A page of tables."""
    parts = [f"# {title}\n"]
    for table in tables:
        lines = [table.headers, ["---"] * len(table.headers), *table.rows]
        cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        parts.append(f"## {table.title}\n")
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n")
        parts += [f"- {note}" for note in table.notes] + ([""] if table.notes else [])
    return "\n".join(parts)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1100px;
  margin: 2em auto; padding: 0 1em }
h1, h2 { font-weight: 600 }
h2 { font-size: 1.1em; margin: 2em 0 .5em }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3em .9em .3em 0; border-bottom: 1px solid #ddd }
th { color: #555; font-weight: 600 }
.note { color: #666; font-size: 12px; margin: .2em 0; overflow-wrap: anywhere }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1em; margin-top: 2em }
img { max-width: 100% }
"""


def html_page(title: str, parts: Sequence[str]) -> str:
    """A page of parts that are HTML already."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>argbeam: {html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{html.escape(title)}</h1>\n{body}\n</html>\n"
    )


def html_figures(plots: Sequence[Plot]) -> str:
    """Plots side by side, inside the page."""
    images = [
        f'<img alt="{html.escape(plot.title)}" src="data:image/png;base64,{base64.b64encode(plot.png).decode()}">'
        for plot in plots
    ]
    return '<div class="plots">\n' + "\n".join(images) + "\n</div>"


def html_table(table: Table) -> str:
    """A table with its title and notes."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join([row(table.headers, "th"), *(row(cells, "td") for cells in table.rows)])
    notes = "".join(f'\n<p class="note">{html.escape(note)}</p>' for note in table.notes)
    return f'<h2>{html.escape(table.title)}</h2>\n<div class="wide"><table>\n{body}\n</table></div>{notes}'
