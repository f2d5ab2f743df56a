"""Tables on stdout."""

import sys
from collections.abc import Sequence
from typing import Any


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


def signature_line(record: dict[str, Any]) -> str:
    """All that a number stands on, in a line."""
    names = ("task", "split", "sentences", "successors", "train_beam", "rule", "length_power", "stop", "seed")
    shown = dict(record)
    if record.get("length_power_from") == "dev":  # records of runs from before the choice have no such field
        shown["length_power"] = f"{record['length_power']}(dev)"
    parts = [f"{name}:{shown[name]}" for name in (*names, "version")]
    return f"{'|'.join(parts)} metric {record['metric']}"
