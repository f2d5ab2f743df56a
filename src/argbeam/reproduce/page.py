"""The report of a reproduction: the paper's tables beside ours, and plots; from records alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from argbeam.reports.page import Page, Plot, Table, write_pages
from argbeam.reports.plots import Curve, bars_png, lines_png
from argbeam.reproduce.checked import TimedStep
from argbeam.reproduce.corpora import GENERATED
from argbeam.reproduce.length_page import by_length_plots, by_length_tables
from argbeam.reproduce.paper import BEAMS, PAPER, PAPER_SPEED
from argbeam.reproduce.results import (
    Gain,
    Results,
    RowResult,
    Significance,
    Summary,
    TableResult,
    gain,
    judged_gain,
    read_results,
    shown,
    summary,
)

_TITLE = "Beam-search optimization: the paper's tables"
_SYSTEMS = {"cross_entropy": "cross-entropy", "bso": "BSO", "conbso": "ConBSO"}


def write_page(folder: Path, out: Path) -> list[Path]:
    """Write reproduction.html and reproduction.md for a reproduction's folder."""
    results = read_results(folder)
    tests = Significance(folder).complete(results.tables)
    tables: list[Table] = []
    for table in results.tables:
        tables.append(score_table(results, table))
        tables += length_tables(table)
        tables += gain_tables(table, tests)
        tables += by_length_tables(table)
    tables += [speed_table(results)] if results.timing else []
    tables.append(runs_table(results))
    return write_pages(Page(_TITLE, [], list(plots(results)), tables), out, "reproduction")


def score_table(results: Results, table: TableResult) -> Table:
    """Systems by beams: the paper's scores where it has the row, then ours with the spread over seeds."""
    paper = PAPER.get(table.name)
    rows = []
    for row in table.rows:
        theirs = paper.rows.get(row.label) if paper else None
        seconds = [results.seconds(row.runs[seed]) for seed in row.by_seed]
        rows.append(
            [
                row.label,
                *(_paper_cell(theirs[BEAMS.index(beam)] if theirs else None) for beam in BEAMS),
                *(_scores_cell([row.summary(part, beam) for part in table.parts]) for beam in table.beams),
                str(len(row.by_seed)),
                f"{summary(seconds).mean / 60:.1f}" if seconds else "-",
            ]
        )
    for label, scores in (paper.rows if paper else {}).items():
        if table.row(label) is None:
            rows.append([label, *map(_paper_cell, scores), *("-" for _ in table.beams), "0", "-"])
    names = "/".join(part.upper() for part in table.parts)
    notes = [f"Paper: {paper.title}."] if paper else ["The paper has no such table."]
    notes += [
        f"Ours: {names} on {table.corpus}, {table.split}; mean over seeds, ± standard deviation of the seeds. "
        "Minutes are of one run, pre-training included; runs went side by side.",
        f"metric {table.metric}",
    ]
    if table.corpus == GENERATED:
        notes.append(
            "Three epochs on a small generated corpus: this shows that all of it runs, nothing of the systems."
        )
    headers = ["system", *(f"paper, beam {beam}" for beam in BEAMS), *(f"beam {beam}" for beam in table.beams)]
    return Table(f"{table.title}, {table.corpus}, {table.split}", [*headers, "seeds", "minutes"], rows, notes)


def length_tables(table: TableResult) -> list[Table]:
    """Output length over reference length, where the length is open: a gain that is only length shows here."""
    rows = [[row.label, *(_scores_cell([row.summary("length", beam)]) for beam in table.beams)] for row in table.rows]
    if not any(row.summary("length", beam) for row in table.rows for beam in table.beams):
        return []
    title = f"{table.title}, {table.corpus}, {table.split}: output length over reference length"
    return [Table(title, ["system", *(f"beam {beam}" for beam in table.beams)], rows, [])]


def gain_tables(table: TableResult, tests: Significance) -> list[Table]:
    """Gains over each reference, the paper's beside ours."""
    return [
        _gain_table(table, reference, tests)
        for label in table.references
        if (reference := table.row(label)) is not None and reference.by_seed
    ]


def _gain_table(table: TableResult, reference: RowResult, tests: Significance) -> Table:
    paper = PAPER.get(table.name)
    base = paper.rows.get(reference.label) if paper else None
    rows = []
    for row in table.rows:
        if row is reference:
            continue
        theirs = paper.rows.get(row.label) if paper else None
        cells = []
        for number in range(len(BEAMS)):
            a, b = (theirs[number], base[number]) if theirs and base else (None, None)
            cells.append("/".join(f"{x - y:+.2f}" for x, y in zip(a, b, strict=True)) if a and b else "-")
        for beam in table.beams:
            found = [judged_gain(row, reference, part, beam, tests) for part in table.parts]
            known = [one for one in found if one is not None]
            gains = "/".join(f"{one.summary.mean:+.2f}" for one in known)
            cells.append(f"{gains}{_chance(known)}" if known else "-")
        rows.append([row.label, *cells, str(len(row.by_seed.keys() & reference.by_seed.keys()))])
    headers = ["system", *(f"paper, beam {beam}" for beam in BEAMS), *(f"beam {beam}" for beam in table.beams)]
    headers.append("seeds")
    notes = [
        "Mean over the seeds that both have of the gain over the reference of the same seed; p is the largest of the "
        "seeds' paired bootstrap tests, and not given where seeds gain in different directions. It is made as "
        "sacreBLEU makes it, which counts one tail: about half the p of a two-sided test."
    ]
    signatures = tests.signatures(table, reference)
    notes += [f"p ({part}): {signature}" for part in table.parts for signature in signatures.get(part, ())]
    return Table(f"{table.title}, {table.corpus}, {table.split}: gain over {reference.label}", headers, rows, notes)


def _chance(gains: Sequence[Gain]) -> str:
    values = [f"{one.p_value:.3f}" if one.p_value is not None else "-" for one in gains]
    return "" if set(values) == {"-"} else f" (p {'/'.join(values)})"


def speed_table(results: Results) -> Table:
    """Training speed by train beam, as times of cross-entropy's: machines differ, so only ratios compare."""
    assert results.timing is not None
    rows = []
    for row in results.timing.rows:
        if row.ratio is None:
            continue
        beam = row.beam
        known = beam in PAPER_SPEED and row.system in ("bso", "cross_entropy")
        rows.append(
            [
                f"{_SYSTEMS.get(row.system, row.system)}{f', K_tr {beam}' if beam else ''}",
                f"{PAPER_SPEED[beam]:,}" if known else "-",
                f"{PAPER_SPEED[0] / PAPER_SPEED[beam]:.2f}" if known else "-",
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
    """Every run: how long it took and which epoch it kept."""
    rows = []
    for run in results.runs.values():
        last = run.stages[-1] if run.stages else None
        kept = f"{last['kept_epoch'] + 1} of {last['epochs']}" if last else "-"
        figures = [f"{run.seconds:,.0f}" if last else "-", str(run.started.get("device", "-"))]
        rows.append([run.name, run.origin, run.start or "-", kept, *figures])
    total = sum(run.seconds for run in results.runs.values())
    by_seed = ", ".join(f"{seconds / 60:,.1f}" for seconds in _seconds_by_seed(results))
    notes = [f"Training took {total / 60:,.1f} minutes, as the sum over runs; seed by seed {by_seed}."]
    if results.left_out:
        notes.append(f"Without a recipe, and so not here: {', '.join(results.left_out)}.")
    return Table("Runs", ["run", "recipe", "started from", "epoch kept", "seconds", "device"], rows, notes)


def _seconds_by_seed(results: Results) -> list[float]:
    """What a seed's runs took, the runs that they started from with them."""
    names: dict[int, set[str]] = {}
    for row in (row for table in results.tables for row in table.rows):
        for seed, run in enumerate(row.runs):
            names.setdefault(seed, set()).update({run, results.runs[run].start} - {""})
    return [sum(results.runs[name].seconds for name in names[seed]) for seed in sorted(names)]


def plots(results: Results) -> Iterator[Plot]:
    """Gains by test beam (and train beam) and by sentence length, lengths by stop rule, violations, speed by K_tr."""
    for table in results.tables:
        yield from _lengths(table) if table.name == "stops" else _gains(table)
        yield from by_length_plots(table)
    yield from _violations(results)
    yield from _speed(results)


def _gains(table: TableResult) -> Iterator[Plot]:
    reference = table.first_reference
    if reference is None:
        return
    paper = PAPER.get(table.name)
    base = paper.rows.get(reference.label) if paper else None
    part, curves = table.parts[0], []
    for row in table.rows:
        found = {beam: list(gain(row, reference, part, beam).values()) for beam in table.beams}
        points = {beam: summary(values) for beam, values in found.items() if values}
        if row is reference or not points:
            continue
        curves.append(_curve(row.label, points))
        theirs = paper.rows.get(row.label) if paper else None
        if theirs and base:
            pairs = [(beam, a, b) for beam, a, b in zip(BEAMS, theirs, base, strict=True) if a and b]
            curves.append(
                Curve(f"{row.label}, paper", [x for x, _, _ in pairs], [a[0] - b[0] for _, a, b in pairs], dashed=True)
            )
    if curves:
        title = f"{table.title}, {table.corpus}: gain over {reference.label}, {part.upper()}"
        yield Plot(title, lines_png(title, "test beam K_te", curves, y_label=f"gain, {part.upper()}", ticks=BEAMS))


def _lengths(table: TableResult) -> Iterator[Plot]:
    bars = {
        row.label: [found.mean if (found := row.summary("length", beam)) else 0.0 for beam in table.beams]
        for row in table.rows
        if row.by_seed
    }
    title = f"Output length over reference length, {table.corpus}, {table.split}"
    places = [str(beam) for beam in table.beams]
    yield Plot(title, bars_png(title, "test beam", bars, y_label="length ratio", places=places))


def _violations(results: Results) -> Iterator[Plot]:
    """Of the first seed: one curve a system, one plot a table."""
    for table in results.tables:
        curves, seen = [], set()
        for row in table.rows:
            run = results.runs[row.runs[0]]
            points = [
                (number, epoch["violations_per_word"])
                for number, epoch in enumerate(run.epochs, start=1)
                if "violations_per_word" in epoch
            ]
            if points and run.name not in seen:
                curves.append(Curve(row.label, [x for x, _ in points], [y for _, y in points]))
                seen.add(run.name)
        if curves:
            title = f"{table.title}, {table.corpus}: violations per word"
            yield Plot(title, lines_png(title, "epoch", curves, y_label="violations"))


def _speed(results: Results) -> Iterator[Plot]:
    if results.timing is None:
        return
    beams = [beam for beam in PAPER_SPEED if beam]
    curves = [
        _ratios(results.timing.rows, "bso"),
        Curve("BSO, paper", beams, [PAPER_SPEED[0] / PAPER_SPEED[beam] for beam in beams], dashed=True),
        _ratios(results.timing.rows, "conbso"),
    ]
    title = "Time of a training step, in times of cross-entropy's"
    yield Plot(title, lines_png(title, "train beam K_tr", curves, y_label="times"))


def _ratios(rows: Sequence[TimedStep], system: str) -> Curve:
    ours = {row.beam: row.ratio for row in rows if row.system == system and row.ratio is not None}
    return Curve(_SYSTEMS[system], list(ours), list(ours.values()))


def _curve(label: str, points: dict[int, Summary]) -> Curve:
    spread = tuple(one.spread or 0.0 for one in points.values()) if any(p.spread for p in points.values()) else ()
    return Curve(label, list(points), [one.mean for one in points.values()], spread=spread)


def _paper_cell(scores: Sequence[float] | None) -> str:
    return "/".join(f"{score:.2f}" for score in scores) if scores else "-"


def _scores_cell(found: Sequence[Summary | None]) -> str:
    known = [one for one in found if one is not None]
    return shown(known) if known else "-"
