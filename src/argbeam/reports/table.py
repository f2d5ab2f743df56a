"""Tables on stdout."""

import sys
from collections.abc import Sequence
from typing import Any


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table: drawn on a terminal, aligned plain text elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        drawn = Table(*headers, title=title or None, title_justify="left")
        for row in rows:
            drawn.add_row(*row)
        Console(markup=False, emoji=False, highlight=False).print(drawn)
        return
    if title:
        print(title)
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in [headers, *rows]:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def signature_line(record: dict[str, Any]) -> str:
    """The settings behind a score, as a line."""
    names = ("task", "split", "sentences", "trained", "decoded", "train_beam", "rule", "length_power", "stop")
    # Records of early versions do not say how outputs were decoded: under the constraint of the task, if it has one.
    decoded = record.get("decoded") or ("unconstrained" if record["task"] == "translation" else "constrained")
    shown = {**record, "trained": record["successors"], "decoded": decoded}
    if record.get("length_power_from") == "dev":  # missing in records of early versions
        shown["length_power"] = f"{record['length_power']}(dev)"
    limit = ("limit",) if record.get("limit") else ()  # the same; empty in tasks of fixed length
    parts = [f"{name}:{shown[name]}" for name in (*names, *limit, "seed", "version")]
    return f"{'|'.join(parts)} metric {record['metric']}"
