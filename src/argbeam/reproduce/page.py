"""The report of a reproduction: the paper's tables beside ours, and plots; from records alone."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from argbeam.metrics.significance import p_text
from argbeam.reports.glossary import part_title
from argbeam.reports.page import Page, Plot, Table, write_pages
from argbeam.reports.plots import Curve, colours_of, lines_svg
from argbeam.reproduce.corpora import GENERATED
from argbeam.reproduce.folder import PAGE
from argbeam.reproduce.paper import BEAMS, PAPER, PAPER_SPEED, Scores
from argbeam.reproduce.results import (
    Results,
    RowResult,
    Significance,
    Summary,
    TableResult,
    gain,
    read_results,
    summary,
)

_TITLE = "Beam-search optimization: measured tables"
_SYSTEMS = {"cross_entropy": "cross-entropy", "bso": "BSO", "conbso": "ConBSO"}
_CORPORA = {
    "ptb": "Penn Treebank",
    "ud-english": "UD English",
    "iwslt14": "IWSLT 2014",
    "multi30k": "Multi30k",
    "tatoeba": "Tatoeba",
    "nl-rx-turk": "NL-RX-Turk",
    "anselm": "Anselm",
    "uspto-50k": "USPTO-50k",
    "office": "Amazon Office",
    "beauty": "Amazon Beauty",
    GENERATED: "a generated corpus",
}
# A score of fewer sentences says nothing.
_FEWEST_OF_A_LENGTH = 20
_OF_MEAN = "p of mean"


def write_page(folder: Path, out: Path) -> list[Path]:
    """Write reproduction.html and reproduction.md for a reproduction's folder."""
    results = read_results(folder)
    tests = Significance(folder, results.tables)
    tables: list[Table] = []
    for table in results.tables:
        tables.append(score_table(results, table))
        tables += output_length_tables(table)
        tables += [gain_table(table, reference, tests) for reference in table.references]
        tables += sentence_length_tables(table)
    tables += [speed_table(results)] if results.timing else []
    tables.append(runs_table(results))
    return write_pages(
        Page(_TITLE, f"argbeam report {folder} --out {out}", [], list(plots(results)), tables), out, PAGE
    )


def score_table(results: Results, table: TableResult) -> Table:
    """Systems by beams: the paper's scores where it has the row, then ours with the spread over seeds."""
    paper = PAPER.get(table.planned.name)
    rows = []
    for row in table.rows:
        seconds = [results.seconds(row.runs[seed]) for seed in row.by_seed]
        minutes = f"{summary(seconds).mean / 60:.1f}" if seconds else "-"
        ours = [_cell(_summaries(table.parts, row, beam)) for beam in table.beams]
        times = [str(len(row.by_seed)), minutes, _epoch_cell(results, table, row)]
        rows.append([row.label, *map(_paper_cell, _paper_row(table, row.label)), *ours, *times])
    shown = {row.label for row in table.rows}
    for label, scores in paper.rows.items() if paper else ():
        if label not in shown:
            rows.append([label, *map(_paper_cell, scores), *("-" for _ in table.beams), "0", "-", "-"])
    notes = [
        f"Paper: {paper.title}." if paper else "The paper has no such table.",
        "Ours: mean over seeds, ± standard deviation of the seeds. Minutes are of one run, pre-training included; runs "
        "went side by side.",
    ]
    if table.planned.corpus == GENERATED:
        notes.append(
            "Three epochs on a small generated corpus: this shows that all of it runs, nothing of the systems."
        )
    columns = [*_headers(table), "seeds", "minutes", "seconds per epoch"]
    if all(row[-1] == "-" for row in rows):  # of runs of early versions
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    else:
        over = "".join(f", and in brackets over {first.label}'s of the same seed" for first in table.references[:1])
        notes.insert(2, f"Seconds per epoch are the median of the last stage's epochs, training without dev{over}.")
    return Table(_heading(table, _metric(table)), columns, rows, notes, [f"metric {table.metric}"])


def _epoch_cell(results: Results, table: TableResult, row: RowResult) -> str:
    """`17.8 (1.45)`: the mean over seeds, and how many times that of the first reference with the same seeds."""
    first = next(iter(table.references), row)
    seconds, reference = results.epoch_seconds(row), results.epoch_seconds(first)
    if not seconds:
        return "-"
    # Seeds may have run at other times, beside other runs.
    times = [one / reference[seed] for seed, one in seconds.items() if reference.get(seed)]
    ratio = f" ({statistics.mean(times):.2f})" if times and row is not first else ""
    return f"{statistics.mean(seconds.values()):.1f}{ratio}"


def output_length_tables(table: TableResult) -> list[Table]:
    """Output length over reference length, where the length is open: a gain that is only length shows here."""
    rows = [[row.label, *(_cell(_summaries(["length"], row, beam)) for beam in table.beams)] for row in table.rows]
    headers = ["system", *(f"beam {beam}" for beam in table.beams)]
    named = Table(_heading(table, part_title("length")), headers, rows, [])
    return [named] if any(cell != "-" for row in rows for cell in row[1:]) else []


def gain_table(table: TableResult, reference: RowResult, tests: Significance) -> Table:
    """Gains over a reference, the paper's beside ours."""
    rows = []
    for row in table.rows:
        if row is reference:
            continue
        cells = ["/".join(f"{one:+.2f}" for one in found) or "-" for found in _paper_gains(table, row, reference)]
        for beam in table.beams:
            gains = _cell(_summaries(table.parts, row, beam, over=reference), sign="+", spread=False)
            both = [[p(row, reference, part, beam) for part in table.parts] for p in (tests.p_of_mean, tests.p_value)]
            cells.append(gains + _chance(*both))
        rows.append([row.label, *cells, str(len(row.by_seed.keys() & reference.by_seed.keys()))])
    notes = [
        "Mean over the seeds that both have of the gain over the reference of the same seed; p is the largest of the "
        "seeds' paired bootstrap tests, and not given where seeds gain in different directions. It is two-tailed where "
        "its signature says tails:2; tests of version 0.1 count one tail: about half as much."
    ]
    if any(_OF_MEAN in cell for row in rows for cell in row):
        notes.append(
            f"Where {_OF_MEAN} stands, the mean itself has such a test, whose samples hold the same sentences for all "
            "seeds; the largest of the seeds' tests comes after it, as each seed. No test is of other seeds than these."
        )
    signatures = [f"p ({part}): {one}" for part in table.parts for one in tests.signatures(table, reference, part)]
    title = _heading(table, f"Gain in {_metric(table)} over {reference.label},")
    return Table(title, [*_headers(table), "seeds"], rows, notes, signatures)


def sentence_length_tables(table: TableResult) -> list[Table]:
    """Gains by sentence length, for test at the middle beam; the first reference's row has its scores."""
    if not table.references or table.planned.split != "test":
        return []
    reference, beam = table.references[0], table.beams[(len(table.beams) - 1) // 2]
    lengths = {one: count for one, count in reference.lengths(beam).items() if count >= _FEWEST_OF_A_LENGTH}
    rows = []
    for row in table.rows:
        over, sign = (None, "") if row is reference else (reference, "+")
        found = [_summaries(table.parts, row, beam, over=over, length=length) for length in lengths]
        seeds = max((one.count for known in found for one in known), default=0)
        rows.append([row.label, *(_cell(known, sign=sign) for known in found), str(seeds)])
    counts = ", ".join(f"{count:,}" for count in lengths.values())
    notes = [
        f"Words of the reference, punctuation included. {reference.label}'s row has its scores. Sentences: {counts}; "
        f"lengths that fewer than {_FEWEST_OF_A_LENGTH} have are left out."
    ]
    title = _heading(table, f"Gain in {_metric(table)} over {reference.label}, by number of words, beam {beam},")
    return [Table(title, ["system", *lengths, "seeds"], rows, notes)] if lengths else []


def speed_table(results: Results) -> Table:
    """Training speed by train beam, as times of cross-entropy's: machines differ, so only ratios compare."""
    assert results.timing is not None
    rows = []
    for row in results.timing.rows:
        if row.ratio is None:
            continue
        paper = PAPER_SPEED.get(row.beam) if row.system in ("bso", "cross_entropy") else None
        rows.append(
            [
                f"{_SYSTEMS.get(row.system, row.system)}{f', K_tr {row.beam}' if row.beam else ''}",
                f"{paper:,}" if paper else "-",
                f"{PAPER_SPEED[0] / paper:.2f}" if paper else "-",
                f"{row.tokens_per_s:,.0f}",
                f"{row.ms:.2f}",
                f"{row.ratio:.2f}",
            ]
        )
    shape = ", ".join(f"{name} {size}" for name, size in results.timing.shape.items())
    headers = ["system", "paper, tokens/s (GTX 970)", "paper, times seq2seq", "tokens/s", "ms a step"]
    title = f"Training speed by train beam, {results.timing.device}"
    return Table(title, [*headers, "times cross-entropy"], rows, [f"Random words; {shape}. Source and target tokens."])


def runs_table(results: Results) -> Table:
    """Every run: its time and the epoch it kept."""
    rows = []
    for run in results.runs.values():
        planned, last = results.planned[run.name], run.stages[-1] if run.stages else None
        figures = [last.kept, f"{run.seconds:,.0f}"] if last else ["-", "-"]
        rows.append([run.name, planned.origin, planned.start or "-", *figures, run.device])
    by_seed: dict[int, set[str]] = {}
    for row in (row for table in results.tables for row in table.rows):
        for seed, name in enumerate(row.runs):
            by_seed.setdefault(seed, set()).update({name, results.planned[name].start} - {""})
    minutes = {seed: sum(results.runs[name].seconds for name in by_seed[seed]) / 60 for seed in sorted(by_seed)}
    total = sum(run.seconds for run in results.runs.values()) / 60
    seeds = ", ".join(f"{one:,.1f}" for one in minutes.values())
    notes = [f"Training took {total:,.1f} minutes, as the sum over runs; seed by seed {seeds}."]
    headers = ["run", "recipe", "started from", "epoch kept", "seconds", "device"]
    return Table("Runs", headers, rows, notes, folded=True)


def plots(results: Results) -> Iterator[Plot]:
    """Gains over the first reference by test beam, and the time of a training step by train beam."""
    rows = [row.label for table in results.tables for row in table.rows]
    colours = colours_of([*_SYSTEMS.values(), *rows])
    for table in results.tables:
        curves = list(_gain_curves(table, colours))
        if curves:
            part = part_title(table.parts[0])
            title = _heading(table, f"Gain in {part} over {table.references[0].label},")
            x_label = "test beam" + (", dashed: the paper's gains" if any(curve.dashed for curve in curves) else "")
            yield Plot(title, lines_svg(title, x_label, curves, y_label=f"gain in {part}", ticks=table.beams))
    if results.timing is not None:
        beams = [beam for beam in PAPER_SPEED if beam]
        ours = {
            system: {row.beam: row.ratio for row in results.timing.rows if row.system == system and row.ratio}
            for system in ("bso", "conbso")
        }
        bso, conbso = (
            Curve(_SYSTEMS[name], list(found), list(found.values()), colours[_SYSTEMS[name]])
            for name, found in ours.items()
        )
        speeds = [PAPER_SPEED[0] / PAPER_SPEED[beam] for beam in beams]
        paper = Curve("BSO, paper", beams, speeds, colours["BSO"], dashed=True)
        title = "Time of a training step, in times of cross-entropy's"
        x_label = "train beam, dashed: the paper's times"
        yield Plot(title, lines_svg(title, x_label, [bso, paper, conbso], y_label="times"))


def _gain_curves(table: TableResult, colours: Mapping[str, str]) -> Iterator[Curve]:
    """A row's gains in the first part of the score, and the paper's after it."""
    for reference in table.references[:1]:
        for row in (row for row in table.rows if row is not reference):
            parts = table.parts[:1]
            points = {beam: one for beam in table.beams for one in _summaries(parts, row, beam, over=reference)}
            if not points:
                continue
            spreads = tuple(one.spread or 0.0 for one in points.values())
            means = [one.mean for one in points.values()]
            colour = colours[row.label]
            yield Curve(row.label, list(points), means, colour, spread=spreads if any(spreads) else ())
            gains = zip(_paper_beams(table), _paper_gains(table, row, reference), strict=True)
            paper = {beam: parts[0] for beam, parts in gains if parts}
            if paper:
                yield Curve(f"{row.label}, paper", list(paper), list(paper.values()), colour, dashed=True)


def _heading(table: TableResult, figures: str) -> str:
    """A title in words: "BLEU on the test split, word ordering, UD English"."""
    title, corpus = table.planned.title, _CORPORA.get(table.planned.corpus, table.planned.corpus)
    names = [title[0].lower() + title[1:], *([corpus] if corpus.split()[-1] not in title else [])]
    return f"{figures} on the {table.planned.split} split, {', '.join(names)}"


def _metric(table: TableResult) -> str:
    return "/".join(map(part_title, table.parts))


def _headers(table: TableResult) -> list[str]:
    paper = (f"paper, beam {beam}" for beam in _paper_beams(table))
    return ["system", *paper, *(f"beam {beam}" for beam in table.beams)]


def _paper_beams(table: TableResult) -> Sequence[int]:
    """The paper's beams; none where it has no such table."""
    return BEAMS if table.planned.name in PAPER else ()


def _paper_row(table: TableResult, label: str) -> Sequence[Scores | None]:
    paper = PAPER.get(table.planned.name)
    return paper.rows.get(label, (None,) * len(BEAMS)) if paper else ()


def _paper_gains(table: TableResult, row: RowResult, reference: RowResult) -> list[list[float]]:
    """The paper's gain at each of its beams, by part of the score; empty where it has none."""
    pairs = zip(_paper_row(table, row.label), _paper_row(table, reference.label), strict=True)
    return [[a - b for a, b in zip(ours, theirs, strict=True)] if ours and theirs else [] for ours, theirs in pairs]


def _paper_cell(scores: Scores | None) -> str:
    return "/".join(f"{score:.2f}" for score in scores) if scores else "-"


def _summaries(
    parts: Sequence[str], row: RowResult, beam: int, *, over: RowResult | None = None, length: str = ""
) -> list[Summary]:
    """Each known part of a row's score, or of its gain over another row."""
    found = [gain(row, over, part, beam, length) if over else row.values(part, beam, length) for part in parts]
    return [summary(list(values.values())) for values in found if values]


def _cell(known: Sequence[Summary], *, sign: str = "", spread: bool = True) -> str:
    """`81.24/74.70 ± 0.48/0.44`; with `sign` "+", gains."""
    means = "/".join(f"{one.mean:{sign}.2f}" for one in known)
    spreads = "/".join(f"{one.spread:.2f}" for one in known if spread and one.spread is not None)
    return (means + (f" ± {spreads}" if spreads else "")) or "-"


def _chance(of_mean: Sequence[float | None], of_seeds: Sequence[float | None]) -> str:
    """` (p of mean 0.021, each seed 0.410)`, or ` (p 0.410)` where the mean is not tested."""
    named = ((_OF_MEAN, of_mean), ("p" if set(of_mean) <= {None} else "each seed", of_seeds))
    shown = [
        f"{name} {'/'.join('-' if one is None else p_text(one) for one in p_values)}"
        for name, p_values in named
        if not set(p_values) <= {None}
    ]
    return f" ({', '.join(shown)})" if shown else ""
