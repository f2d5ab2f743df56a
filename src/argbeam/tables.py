"""Tables on stdout."""

import sys
from collections.abc import Sequence


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """A table on stdout; drawn on a terminal, aligned plain text elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        drawn = Table(*headers, title=title or None, title_justify="left")
        for row in rows:
            drawn.add_row(*row)
        Console(markup=False, highlight=False).print(drawn)
        return
    if title:
        print(title)
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    for row in [headers, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
