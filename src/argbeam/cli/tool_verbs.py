"""Verbs around runs: reproduce, report, bench, recipes, settings."""

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from argbeam.cli import faults
from argbeam.cli.options import (
    OptionalRecipe,
    RunFolders,
    Sets,
    file,
    folder,
    number,
    parse_beams,
    parse_rules,
)
from argbeam.cli.verbs import command, options_of, refuse_group, verb


@verb(
    "Run and score what the paper's tables need.",
    example="argbeam reproduce word_ordering --data DATA --out reproduction --seeds 3",
)
def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE...]", help="Tables; none: all.")] = None,
    *,
    data: Annotated[str, file("--data", "Folder of corpora, or `generated`.", metavar="DIR")],
    out: Annotated[Path, folder("--out", "Where runs, records and the report go.")],
    seeds: Annotated[int, number("--seeds", "Runs of each system, with seeds 1, 2, ...", 1)] = 1,
    jobs: Annotated[int, number("--jobs", "Runs side by side; 0: as many as suit the machine.", 0)] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Runs with such names, as '*bso_logprob*.s[12]'; repeatable."),
    ] = None,
    sets: Sets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and do nothing.")] = False,
) -> None:
    """Train and score what the paper's tables need, and compare with them. Resumes after a stop."""
    from argbeam.reports.progress import note
    from argbeam.reproduce.campaign import prepare_campaign, run_campaign, show_plan

    refuse_group("reproduce")
    campaign = prepare_campaign(tables or (), data=data, out=out, seeds=seeds, sets=sets or (), only=only or ())
    for line in campaign.notes:
        note(line)
    if dry_run:
        show_plan(campaign)
        return
    signal = run_campaign(campaign, jobs)
    if signal:
        again: Sequence[Any] = ["reproduce", *(tables or ()), "--data", data, "--out", out, "--seeds", seeds]
        again = [*again, *(["--jobs", jobs] if jobs else []), *options_of(sets)]
        again += [part for pattern in only or () for part in ("--only", pattern)]
        faults.stopped(command(*again), signal, saved=True)


@verb("Write tables and curves of runs as one page.", example="argbeam report demo/seq2seq demo/conbso --out report")
def report(runs: RunFolders, out: Annotated[Path, folder("--out", "Where report.html and report.md go.")]) -> None:
    """Write tables and curves of runs: report.html (a single file) and report.md.

    The folder of a reproduction gives reproduction.html and reproduction.md.
    """
    from argbeam.reports.report import write_report

    folders = list(map(Path, runs))
    if len(folders) == 1 and (folders[0] / "plan.json").is_file():
        from argbeam.reproduce.page import write_page

        written = write_page(folders[0], out)
    else:
        written = write_report(folders, out)
    for page in written:
        print(page)


@verb(
    "Time training steps and decoding on random data.",
    example="argbeam bench --device cpu --batch 16 --vocab 5000 --beams 2,6",
)
def bench(
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda or auto.")] = "auto",
    batch: Annotated[int, number("--batch", "Sentences in a batch.", 1)] = 64,
    source: Annotated[int, number("--source", "Tokens of a source.", 1)] = 24,
    target: Annotated[int, number("--target", "Tokens of a target; ConBSO needs as many as the source.", 1)] = 24,
    vocab: Annotated[int, number("--vocab", "Tokens of the vocabulary.", 8)] = 22822,
    model: Annotated[str, typer.Option(metavar="KIND", help="lstm, transformer or transformer_lm.")] = "lstm",
    layers: Annotated[int, number("--layers", "Layers of the decoder, and of an encoder.", 1)] = 1,
    hidden: Annotated[int, number("--hidden", "Size of hidden states and word vectors.", 1, also="--width")] = 256,
    bf16: Annotated[bool, typer.Option("--bf16", help="Train with products in bf16.")] = False,
    rule: Annotated[str, typer.Option(metavar="RULE,...", help="Score rules of BSO.")] = "last_score",
    beams: Annotated[str, typer.Option(metavar="K,...", help="Train beams.")] = "2,3,4,5,6,11",
    test_beams: Annotated[str, typer.Option(metavar="K,...", help="Beams of decoding.")] = "1,5,10",
    rounds: Annotated[int, number("--rounds", "Timed rounds; a figure is their median.", 2)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="The rows as one JSON list.")] = False,
) -> None:
    """Time training steps and decoding on random data: milliseconds, tokens/s, ratio to cross-entropy, memory.

    With torchrun the processes share the batch.
    """
    from argbeam.bench import BenchShape, show_rows
    from argbeam.bench import bench as rows_of
    from argbeam.reports.progress import counting, note
    from argbeam.runtime.device import choose_device, set_precision
    from argbeam.runtime.group import joined

    chosen = choose_device(device)
    set_precision(chosen, tf32=True)
    shape = BenchShape(batch, source, target, vocab, layers, hidden, model)
    trained, tested = parse_beams(beams, option="--beams"), parse_beams(test_beams, option="--test-beams")
    rules = parse_rules(rule)
    with joined() as group:
        if group.leads:
            note(f"timing {rounds} rounds at {shape}, {chosen.type}; this takes a minute or more")
        with counting("rounds", rounds) if group.leads else nullcontext(lambda count: None) as done:
            timed = rows_of(
                shape,
                device=chosen,
                train_beams=trained,
                test_beams=tested,
                rounds=rounds,
                bf16=bf16,
                rules=rules,
                group=group,
                done=done,
            )
            rows = list(timed)
    if group.leads and as_json:
        print(json.dumps([vars(row) for row in rows]))
    elif group.leads:
        show_rows(rows, shape, chosen)


@verb("List the shipped recipes, or print one.", example="argbeam recipes word_ordering/bso")
def recipes(name: OptionalRecipe = None) -> None:
    """List the shipped recipes, or print one."""
    from argbeam.reports.table import table
    from argbeam.settings.recipe_files import find_recipe, purpose, shipped_recipes

    if name is not None:
        sys.stdout.write(find_recipe(name).read_text(encoding="utf-8"))
    else:
        table(("recipe", "purpose"), [(name, purpose(path)) for name, path in shipped_recipes().items()])


@verb("List every setting with its default and meaning.", example="argbeam settings")
def settings() -> None:
    """List every setting: its key, what is accepted, its default and its meaning."""
    from argbeam.reports.table import table
    from argbeam.settings.listing import describe

    table(("key", "accepted", "default", "meaning"), describe())
