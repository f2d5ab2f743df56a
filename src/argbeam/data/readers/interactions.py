"""Sequences of items, and the codes of each item."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from argbeam.data.readers.text import read_lines
from argbeam.data.vocabulary import SPECIALS
from argbeam.errors import DataError, counted

Codes = tuple[str, ...]


@dataclass(frozen=True)
class ItemSequence:
    """The items of one user in the order of time; `where` is their file and line."""

    items: tuple[str, ...]
    where: str = ""


def read_items(paths: Sequence[Path]) -> dict[str, Codes]:
    """The codes of each item, in the order of the files: `name TAB code code ...`, as many codes for each."""
    items: dict[str, Codes] = {}
    first = ""
    for path, line, text in read_lines(paths):
        where, fields = f"{path}:{line}", text.split("\t")
        if len(fields) != 2 or not fields[0].strip() or not fields[1].split():
            raise DataError(
                f"{where}: no item and codes in {counted(len(fields), 'column')}; `name TAB code code` is expected"
            )
        name, codes = fields[0].strip(), tuple(fields[1].split())
        if len(name.split()) > 1:
            raise DataError(f"{where}: a space in the name of item {name!r}; sequences separate items by spaces")
        if special := next((code for code in codes if code in SPECIALS), ""):
            raise DataError(f"{where}: the code {special!r} is that of a special token; another spelling is expected")
        if name in items:
            raise DataError(f"{where}: item {name!r} for the second time; each item has one line")
        if items and len(codes) != len(items[first]):
            raise DataError(f"{where}: {len(codes)} codes; item {first!r} has {len(items[first])}, and so must all")
        first = first or name
        items[name] = codes
    return items


def read_sequences(paths: Sequence[Path], items: Mapping[str, Codes]) -> Iterator[ItemSequence]:
    """The sequences of files, each of known items."""
    for path, line, text in read_lines(paths):
        sequence = tuple(text.split())
        for name in sequence:
            if name not in items:
                raise DataError(f"{path}:{line}: item {name!r} has no codes; data.items lists {len(items):,} items")
        yield ItemSequence(sequence, f"{path}:{line}")
