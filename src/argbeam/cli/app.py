"""The command. Results go to stdout, progress and notices to stderr; errors that a user can fix are one line, exit 2.

Verbs import what they need when they run: torch takes seconds to import, and `argbeam --help` needs none of it.
"""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from argbeam import __version__
from argbeam.errors import NO_ROOM, ArgbeamError, ConfigError, ToldError

app = typer.Typer(
    name="argbeam", add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)

Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Results as JSON, an object a line.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a checkpoint file.")]


def main() -> None:
    """Run the command and exit."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except ToldError:
        sys.exit(2)
    except ArgbeamError as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader has left, as `head` does.
        _drop_buffered()
        sys.exit(1)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _drop_buffered()
        _fail(f"cannot write stdout: {error.strerror}")


def _fail(error: str) -> NoReturn:
    print(f"argbeam: error: {_process()}{error}", file=sys.stderr)
    sys.exit(2)


def _drop_buffered() -> None:
    """Send what stdout still buffers nowhere, or Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Train sequence models for the beam search that decodes them."""
    if version:
        print(f"argbeam {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the runs and the report go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and dropout.")] = 1,
    as_json: Json = False,
) -> None:
    """Train seq2seq, BSO and ConBSO on a generated corpus, compare them, and write a report. Takes minutes."""
    from argbeam.demo import demo_recipes, run_demo

    _refuse_group("demo")
    signal = run_demo(demo_recipes(out, seed=seed), out, as_json=as_json)
    if signal:
        _stopped(["demo", "--out", out, "--seed", seed], signal)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file or a shipped recipe's name.")],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder.")],
    sets: Sets = None,
    data: Annotated[str, typer.Option(metavar="DIR", help="Folder of the data: data.root.")] = "",
) -> None:
    """Train a recipe into a run folder, or resume a run that was stopped. With torchrun, in several processes."""
    from argbeam.reports.progress import stage_line
    from argbeam.runs.session import train_run
    from argbeam.runtime.group import joined
    from argbeam.settings.recipe_files import find_recipe, load_recipe

    loaded = load_recipe(find_recipe(recipe), sets or [])
    if data:
        if "root" not in type(loaded.data).model_fields:
            raise ConfigError(f"--data {data}: {recipe} reads no files; its data is {loaded.data.kind}")
        loaded = load_recipe(find_recipe(recipe), [*(sets or []), _root(data)])
    with joined() as group:
        outcome = train_run(loaded, out, group=group)
    if outcome.signal:
        _stopped(["train", recipe, "--out", out, *_options(sets), *(["--data", data] if data else [])], outcome.signal)
    for values in outcome.stages:
        print(f"{out}: {stage_line(values)}")


@app.command()
def decode(
    run: RunFolder,
    source: Annotated[str, typer.Option("--input", metavar="FILE", help="Sentences, one a line; -: stdin.")] = "-",
    output: Annotated[str, typer.Option(metavar="FILE", help="Where outputs go; -: stdout.")] = "-",
    beam: Annotated[int, typer.Option(min=0, help="K_te; 0: the recipe's decode.beam.")] = 0,
    n_best: Annotated[int, typer.Option(min=1, help="Outputs for each line, at most, in the search's order.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Each output's score before it.")] = False,
    trace: Annotated[str, typer.Option(metavar="FILE", help="The beam at every step, as JSON lines.")] = "",
    conll: Annotated[bool, typer.Option("--conll", help="Parse a treebank file: fill in heads and labels.")] = False,
    as_json: Json = False,
    sets: Sets = None,
) -> None:
    """Decode sentences in input order. With --n-best, each output starts with the number of its line.

    With --conll, input and output are CoNLL-U, or CoNLL-X if the run was trained on it. Only FORM is read.
    """
    from argbeam.cli.decode_lines import DecodeRequest, check_sizes, decode_file
    from argbeam.cli.decode_treebank import check_alone, parse_file
    from argbeam.runs.load import open_run
    from argbeam.runtime.group import joined

    check_sizes(beam, n_best)
    if conll:
        check_alone({"--n-best": n_best > 1, "--scores": scores, "--trace": bool(trace), "--json": as_json})
    with joined() as group:
        opened = open_run(run, sets or [], group)
        if conll:
            counts = parse_file(opened, source, output, beam=beam)
        else:
            counts = decode_file(opened, source, output, DecodeRequest(beam, n_best, scores, as_json), trace)
    if group.leads:
        _report_refusal(opened.capture_failure)
        if counts.notice:
            print(f"argbeam: {counts.notice}", file=sys.stderr)


@app.command()
def evaluate(
    run: RunFolder,
    split: Annotated[str, typer.Option(help="dev or test.")] = "test",
    beam: Annotated[str, typer.Option(metavar="K,...", help="Test beams.")] = "1,5,10",
    against: Annotated[Path | None, typer.Option(metavar="RUN", help="Test for a difference to this run.")] = None,
    as_json: Json = False,
    sets: Sets = None,
    data: Annotated[str, typer.Option(metavar="DIR", help="Where the data of the runs is now: data.root.")] = "",
) -> None:
    """Score a run on a split; save predictions and scores in its folder."""
    from argbeam.runs.load import open_run
    from argbeam.runs.score import score_against, show_scores
    from argbeam.runtime.group import joined

    beams = parse_beams(beam)
    if split not in ("dev", "test"):
        raise ConfigError(f"--split {split}: accepted: dev, test")
    moved = [_root(data)] if data else []
    with joined() as group:
        opened = open_run(run, [*(sets or []), *moved], group)
        results = score_against(opened, against, split, beams, others_sets=moved)
    if not group.leads:
        return
    _report_refusal(opened.capture_failure)
    if as_json:
        for result in results:
            print(json.dumps(result))
    else:
        show_scores(results)


@app.command()
def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE...]", help="Tables; none: all.")] = None,
    *,
    data: Annotated[str, typer.Option(metavar="DIR", help="Folder of corpora, or `generated`.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs, records and the report go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each system, with seeds 1, 2, ...")] = 1,
    jobs: Annotated[int, typer.Option(min=0, help="Runs side by side; 0: as many as suit the machine.")] = 0,
    sets: Sets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and do nothing.")] = False,
) -> None:
    """Train and score what the paper's tables need, and compare with them. Resumes after a stop."""
    from argbeam.reports.progress import note
    from argbeam.reproduce.campaign import prepare_campaign, run_campaign, show_plan

    _refuse_group("reproduce")
    campaign = prepare_campaign(tables or (), data=data, out=out, seeds=seeds, sets=sets or ())
    for line in campaign.notes:
        note(line)
    if dry_run:
        show_plan(campaign)
        return
    signal = run_campaign(campaign, jobs)
    if signal:
        again = ["reproduce", *(tables or ()), "--data", data, "--out", out, "--seeds", seeds]
        _stopped([*again, *(["--jobs", jobs] if jobs else []), *_options(sets)], signal)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; the first is the reference.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where report.html and report.md go.")],
) -> None:
    """Write tables and curves of runs: report.html (a single file) and report.md.

    The folder of a reproduction gives reproduction.html and reproduction.md.
    """
    from argbeam.reports.report import write_report

    if len(runs) == 1 and (runs[0] / "plan.json").is_file():
        from argbeam.reproduce.page import write_page

        written = write_page(runs[0], out)
    else:
        written = write_report(runs, out)
    for path in written:
        print(path)


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Sentences in a batch.")] = 64,
    source: Annotated[int, typer.Option(min=1, help="Words of a source.")] = 24,
    target: Annotated[int, typer.Option(min=1, help="Words of a target; ConBSO needs as many as the source.")] = 24,
    vocab: Annotated[int, typer.Option(min=8, help="Words of the vocabulary.")] = 22822,
    layers: Annotated[int, typer.Option(min=1, help="LSTM layers.")] = 1,
    hidden: Annotated[int, typer.Option(min=1, help="Size of hidden states and word vectors.")] = 256,
    beams: Annotated[str, typer.Option(metavar="K,...", help="Train beams.")] = "2,3,4,5,6,11",
    test_beams: Annotated[str, typer.Option(metavar="K,...", help="Beams of decoding.")] = "1,5,10",
    rounds: Annotated[int, typer.Option(min=2, help="Timed rounds; a figure is their median.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="The rows as one JSON list.")] = False,
) -> None:
    """Time training steps and decoding on random data: milliseconds, tokens/s, ratio to cross-entropy, memory.

    With torchrun the processes share the batch.
    """
    from argbeam.bench import BenchShape, show_rows
    from argbeam.bench import bench as rows_of
    from argbeam.reports.progress import note
    from argbeam.runtime.device import choose_device, set_precision
    from argbeam.runtime.group import joined

    chosen = choose_device(device)
    set_precision(chosen, tf32=True)
    shape = BenchShape(batch, source, target, vocab, layers, hidden)
    trained, tested = parse_beams(beams, option="--beams"), parse_beams(test_beams, option="--test-beams")
    with joined() as group:
        if group.leads:
            note(f"timing {rounds} rounds at {shape}, {chosen.type}; this takes a minute or more")
        rows = list(rows_of(shape, device=chosen, train_beams=trained, test_beams=tested, rounds=rounds, group=group))
    if group.leads and as_json:
        print(json.dumps([vars(row) for row in rows]))
    elif group.leads:
        show_rows(rows, shape, chosen)


@app.command()
def recipes(name: Annotated[str, typer.Argument(metavar="[NAME]", help="Print this recipe.")] = "") -> None:
    """List the shipped recipes, or print one."""
    from argbeam.reports.table import table
    from argbeam.settings.recipe_files import find_recipe, purpose, shipped_recipes

    if name:
        sys.stdout.write(find_recipe(name).read_text(encoding="utf-8"))
    else:
        table(("recipe", "purpose"), [(name, purpose(path)) for name, path in shipped_recipes().items()])


@app.command()
def settings() -> None:
    """List every setting: its key, what is accepted, its default and its meaning."""
    from argbeam.reports.table import table
    from argbeam.settings.listing import describe

    table(("key", "accepted", "default", "meaning"), describe())


def parse_beams(text: str, *, option: str = "--beam") -> list[int]:
    """`1,5,10` as numbers; `option` is where they were given."""
    from argbeam.settings import MOST_BEAM

    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,8}", part) and 0 < int(part) <= MOST_BEAM for part in parts):
        raise ConfigError(f"{option} {text}: accepted: whole numbers from 1 to {MOST_BEAM}, such as 1,5,10")
    return list(dict.fromkeys(int(part) for part in parts))


def _root(data: str) -> str:
    """`--data` as an override."""
    return f"data.root={json.dumps(data)}"


def _options(sets: list[str] | None) -> list[str]:
    """Overrides as options of the command."""
    return [part for override in sets or [] for part in ("--set", override)]


def _report_refusal(reason: str | None) -> None:
    """Report why searches ran more slowly than they might have."""
    if reason is not None:
        slow = "searches cannot be recorded as CUDA graphs and ran one operation at a time"
        print(f"argbeam: {slow}: {reason}", file=sys.stderr)


def _process() -> str:
    """`process 1 of 2: ` if torchrun started this process with others, else nothing."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "" if size == "1" else f"process {os.environ.get('RANK', '0')} of {size}: "


def _refuse_group(verb: str) -> None:
    if _process():
        raise ArgbeamError(f"{verb} runs in one process; start it without torchrun")


def _stopped(again: list[Any], signal: int) -> NoReturn:
    """Report how to resume, and exit as a shell reports a signal: 130 for SIGINT, 143 for SIGTERM."""
    if not _process():
        command = shlex.join(["argbeam", *map(str, again)])
        print(f"argbeam: stopped and saved; to resume: {command}", file=sys.stderr)
    elif os.environ.get("RANK", "0") == "0":
        print("argbeam: stopped and saved; to resume: the same command", file=sys.stderr)
    raise typer.Exit(128 + signal)
