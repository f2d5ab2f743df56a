"""Verbs that make a run or work with one: demo, train, decode, evaluate, inspect, serve."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from argbeam.cli import faults
from argbeam.cli.options import (
    DataFolder,
    Host,
    Json,
    RecipeName,
    RunFolder,
    Sets,
    Split,
    beam_size,
    file,
    folder,
    number,
    parse_beams,
)
from argbeam.cli.verbs import command, keys_of, options_of, refuse_group, report_refusal, root_of, verb
from argbeam.errors import ConfigError


@verb("Train and compare three systems on a generated corpus.", example="argbeam demo --out demo")
def demo(
    out: Annotated[Path, folder("--out", "Where runs and report go; of another seed: DIR/seedN.")] = Path("demo"),
    seed: Annotated[int, number("--seed", "Seed of weights, batches and dropout.", 0, 2**63 - 1)] = 1,
    as_json: Json = False,
) -> None:
    """Train seq2seq, BSO and ConBSO on a generated corpus, compare them, and write a report. Takes minutes."""
    from argbeam.demo import demo_folder, demo_recipes, run_demo

    refuse_group("demo")
    own = demo_folder(out, seed)
    signal = run_demo(demo_recipes(own, seed=seed), own, as_json=as_json)
    if signal:
        faults.stopped(command("demo", "--out", out, "--seed", seed), signal, saved=True)


@verb(
    "Train a recipe into a run folder, or resume a run.",
    example="argbeam train word_ordering/conbso --data DATA --out runs/conbso",
)
def train(
    recipe: RecipeName,
    out: Annotated[Path, folder("--out", "The run folder.", metavar="RUN")],
    sets: Sets = None,
    data: DataFolder = None,
) -> None:
    """Train a recipe into a run folder, or resume a run that was stopped. With torchrun, in several processes."""
    from argbeam.reports.progress import note, stage_line
    from argbeam.runs.layout import RECIPE
    from argbeam.runs.session import train_run
    from argbeam.runtime.group import joined
    from argbeam.settings.recipe_files import find_recipe, load_recipe, read_recipe_json

    loaded = load_recipe(find_recipe(recipe), sets or [])
    if data is not None:
        if "root" not in type(loaded.data).model_fields:
            raise ConfigError(f"--data {data}: {recipe} reads no files; its data is {loaded.data.kind}")
        loaded = load_recipe(find_recipe(recipe), [*(sets or []), *root_of(data)])
    with joined() as group:
        outcome = train_run(loaded, out, group=group)
    if outcome.signal:
        again = command("train", recipe, "--out", out, *options_of(sets), *(["--data", data] if data else []))
        faults.stopped(again, outcome.signal, saved=outcome.saved)
    for values in outcome.stages:
        print(f"{out}: {stage_line(values)}", flush=True)
    if group.leads:
        has_test = getattr(loaded.data, "test", True) and getattr(loaded.data, "test_source", True)
        split = [] if has_test else ["--split", "dev"]
        # A finished run keeps the place of the data that it was trained on.
        moved = data is not None and read_recipe_json(out / RECIPE).data != loaded.data
        note(f"next: {command('evaluate', out, *split, *(['--data', data] if moved else []))}")


@verb(
    "Decode lines of a file or of stdin, or a treebank.",
    example="argbeam decode demo/conbso --input words.txt --beam 5 --n-best 3 --scores",
)
def decode(
    run: RunFolder,
    source: Annotated[str, file("--input", "Sentences, one a line; -: stdin.")] = "-",
    output: Annotated[str, file("--output", "Where outputs go; -: stdout.")] = "-",
    beam: Annotated[int, beam_size("--beam", "K_te; 0: the recipe's decode.beam.", 0, metavar="K")] = 0,
    n_best: Annotated[int, beam_size("--n-best", "Outputs of a line, at most, best first.", 1)] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Each output's score before it.")] = False,
    trace: Annotated[str | None, file("--trace", "The beam at every step, as JSON lines.")] = None,
    conll: Annotated[bool, typer.Option("--conll", help="Parse a treebank file: fill in heads and labels.")] = False,
    as_json: Json = False,
    sets: Sets = None,
) -> None:
    """Decode sentences in input order; a blank line gives an empty output.

    With --n-best, each output starts with the number of its line. With --conll, input and output are CoNLL-U, or
    CoNLL-X if the run was trained on it; only FORM is read.
    """
    from argbeam.cli.decode_lines import DecodeRequest, decode_file
    from argbeam.cli.decode_treebank import check_alone, parse_file
    from argbeam.runs.load import above_beam, open_run
    from argbeam.runtime.group import joined

    if conll:
        check_alone({"--n-best": n_best > 1, "--scores": scores, "--trace": bool(trace), "--json": as_json})
    with joined() as group:
        opened = open_run(Path(run), sets or [], group)
        above = above_beam("--n-best", n_best, beam or opened.recipe.decode.beam)
        if group.leads and above:
            print(f"argbeam: {above}", file=sys.stderr)
        if conll:
            counts = parse_file(opened, source, output, beam=beam)
        else:
            counts = decode_file(opened, source, output, DecodeRequest(beam, n_best, scores, as_json), trace)
    if group.leads:
        report_refusal(opened.capture_failure)
        for notice in counts.notices():
            print(f"argbeam: {notice}", file=sys.stderr)


@verb(
    "Score a run on dev or test, and test it against another run.",
    example="argbeam evaluate demo/conbso --beam 1,5,10 --against demo/seq2seq",
)
def evaluate(
    run: RunFolder,
    split: Split = "test",
    beam: Annotated[str, typer.Option(metavar="K,...", help="Test beams.")] = "1,5,10",
    against: Annotated[Path | None, folder("--against", "Test for a difference to this run.", metavar="RUN")] = None,
    no_keep: Annotated[bool, typer.Option("--no-keep", help="Write nothing into the run folders.")] = False,
    as_json: Json = False,
    sets: Sets = None,
    data: DataFolder = None,
) -> None:
    """Score a run on a split; save predictions and scores in its folder."""
    from argbeam.runs.load import open_run
    from argbeam.runs.score import score_against, show_scores
    from argbeam.runtime.group import joined

    beams = parse_beams(beam)
    if split not in ("dev", "test"):
        raise ConfigError(f"--split {split}: accepted: dev, test")
    # With another search a run may differ from itself: overrides are not for the run of --against.
    searched = any(key.startswith("decode.") for key in keys_of(sets))
    if against is not None and os.path.realpath(against) == os.path.realpath(run) and not searched:
        raise ConfigError(f"--against {against}: the same run; accepted: another one, or --set decode.KEY=VALUE")
    moved = root_of(data)
    with joined() as group:
        opened = open_run(Path(run), [*(sets or []), *moved], group, keep=not no_keep)
        if "decode.beam" in keys_of(sets) and opened.recipe.decode.length_power != "dev":
            raise ConfigError(
                f"--set decode.beam={opened.recipe.decode.beam}: evaluate decodes with the beams of --beam"
            )
        results = score_against(opened, against, split, beams, others_sets=moved, keep=not no_keep)
    if not group.leads:
        return
    report_refusal(opened.capture_failure)
    if as_json:
        for result in results:
            print(json.dumps(result))
    else:
        show_scores(results)


@verb(
    "Show beams and gold's path in them as one page.",
    example="argbeam inspect demo/conbso --against demo/seq2seq --out inspect",
)
def inspect(
    run: RunFolder,
    out: Annotated[Path, folder("--out", "Where inspect.html and inspect.json go.")] = Path("inspect"),
    split: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="train, dev or test; dev unless lines are given.")
    ] = None,
    source: Annotated[str | None, file("--input", "Sentences, one a line, instead of a split; -: stdin.")] = None,
    line: Annotated[list[str] | None, typer.Option("--line", metavar="TEXT", help="A sentence; repeatable.")] = None,
    gold: Annotated[str | None, file("--gold", "Right outputs of the sentences, one a line.")] = None,
    gold_line: Annotated[
        list[str] | None, typer.Option("--gold-line", metavar="TEXT", help="The right output of a --line; repeatable.")
    ] = None,
    beam: Annotated[str, typer.Option(metavar="K,...", help="Beams of the summary; the widest is drawn.")] = "1,5,10",
    limit: Annotated[int, number("--limit", "Sentences at most, from the first.", 1)] = 1000,
    attention: Annotated[
        bool, typer.Option("--attention", help="Attention weights, where the model has some.")
    ] = False,
    against: Annotated[Path | None, folder("--against", "Show this run beside it.", metavar="RUN")] = None,
    sets: Sets = None,
    data: DataFolder = None,
) -> None:
    """Search sentences and write what every step of the searches knew: a page (a single file) and its JSON.

    A split has gold outputs, and so the training search and gold's path. Lines have them with --gold or --gold-line:
    the right output in the form that decode writes.
    """
    from argbeam.cli.inspect_page import inspect_to

    refuse_group("inspect")
    others = [] if against is None else [against]
    for path in inspect_to(
        [Path(run), *others],
        out,
        split=split,
        source=source,
        lines=line or [],
        gold=gold,
        golds=gold_line or [],
        beams=parse_beams(beam),
        limit=limit,
        attention=attention,
        sets=[*(sets or []), *root_of(data)],
    ):
        print(path)


@verb("Show beams on a live page, and decode over HTTP.", example="argbeam serve demo/conbso --port 8000")
def serve(
    run: RunFolder,
    host: Host = "127.0.0.1",
    port: Annotated[int, number("--port", "Port to listen at.", 1, 65535)] = 8000,
    sets: Sets = None,
) -> None:
    """Show beams on a live page, and answer POST /decode {"lines": [...], "beam": K, "n_best": N}, until it is stopped.

    Only programs of this machine reach it, unless --host asks for more.
    """
    from argbeam.reports.progress import note
    from argbeam.runs.load import open_run

    try:
        from argbeam.server.app import serve as answer
    except ModuleNotFoundError as error:
        raise ConfigError(f"serve needs {error.name}; install it with: pip install 'argbeam[serve]'") from None
    refuse_group("serve")
    opened = open_run(Path(run), sets or [])
    name = f"[{host}]" if ":" in host else host
    told = partial(note, f"serving {run} at http://{name}:{port}; Ctrl-C stops")
    answer(opened, host=host, port=port, listens=told)
