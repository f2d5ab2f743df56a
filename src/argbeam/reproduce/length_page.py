"""Gains by sentence length: a table and a plot for every table of test scores, at the middle one of its beams."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from argbeam.reports.page import Plot, Table
from argbeam.reports.plots import Curve, lines_png
from argbeam.reproduce.results import LengthClass, RowResult, Summary, TableResult, gain_by_length, shown, summary

# Of fewer sentences a score says nothing.
_FEWEST = 20


@dataclass(frozen=True)
class LengthGains:
    """Of each length that is worth showing: its sentences, the reference's scores, and each row's gains over them.

    Scores are by part (BLEU, or UAS and LAS); a row has none where its records have no scores by length.
    """

    reference: str
    beam: int
    sentences: dict[LengthClass, int]
    scores: dict[LengthClass, list[Summary]]
    gains: dict[str, dict[LengthClass, list[Summary]]]


def gains_by_length(table: TableResult) -> LengthGains | None:
    """None where the reference has no scores by length, or the table is of dev."""
    reference = table.first_reference
    if reference is None or table.split != "test":
        return None
    beam = table.beams[len(table.beams) // 2]
    sentences = {one: number for one, number in reference.sentences(beam).items() if number >= _FEWEST}
    if not sentences:
        return None
    base = [reference.by_length(part, beam) for part in table.parts]
    return LengthGains(
        reference.label,
        beam,
        sentences,
        {one: [summary(list(part[one].values())) for part in base] for one in sentences},
        {row.label: _gains(row, reference, table.parts, beam) for row in table.rows if row is not reference},
    )


def by_length_tables(table: TableResult) -> list[Table]:
    found = gains_by_length(table)
    if found is None:
        return []
    rows = []
    for row in table.rows:
        cells, sign = (found.scores, "") if row.label == found.reference else (found.gains[row.label], "+")
        seeds = max((one.count for parts in cells.values() for one in parts), default=0)
        figures = (shown(cells[one], sign=sign) if one in cells else "-" for one in found.sentences)
        rows.append([row.label, *figures, str(seeds)])
    numbers = ", ".join(f"{number:,}" for number in found.sentences.values())
    notes = [
        f"Words of the reference, punctuation included. {found.reference}'s row has its scores. Sentences: {numbers}; "
        f"lengths that fewer than {_FEWEST} have are left out."
    ]
    title = f"{table.title}, {table.corpus}, {table.split}: gain over {found.reference} by words, beam {found.beam}"
    return [Table(title, ["system", *map(str, found.sentences), "seeds"], rows, notes)]


def by_length_plots(table: TableResult) -> Iterator[Plot]:
    found = gains_by_length(table)
    curves = by_length_curves(found) if found is not None else []
    if found is not None and curves:
        part = table.parts[0].upper()
        title = f"{table.title}, {table.corpus}: gain over {found.reference}, {part}, beam {found.beam}"
        names = {number: str(one) for number, one in enumerate(found.sentences, start=1)}
        yield Plot(title, lines_png(title, "words", curves, y_label=f"gain, {part}", ticks=names))


def by_length_curves(found: LengthGains) -> list[Curve]:
    """A row's gains in the first part of the score, over the numbers of the lengths, from 1."""
    curves = []
    for label, gains in found.gains.items():
        points = {n: gains[one][0] for n, one in enumerate(found.sentences, start=1) if one in gains}
        spread = tuple(one.spread or 0.0 for one in points.values())
        curves.append(Curve(label, list(points), [one.mean for one in points.values()], spread=spread))
    return curves if any(curve.y for curve in curves) else []


def _gains(row: RowResult, reference: RowResult, parts: Sequence[str], beam: int) -> dict[LengthClass, list[Summary]]:
    by_part = [gain_by_length(row, reference, part, beam) for part in parts]
    shared = [one for one in by_part[0] if all(one in part for part in by_part)]
    return {one: [summary(list(part[one].values())) for part in by_part] for one in shared}
