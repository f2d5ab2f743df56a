"""The command. Results go to stdout, progress and notices to stderr; errors that a user can fix are one line, exit 2.

Verbs import what they need when they run: torch takes seconds to import, and `argbeam --help` needs none of it.
"""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from argbeam import __version__
from argbeam.cli import faults
from argbeam.cli.options import (
    DataFolder,
    Json,
    OptionalRecipe,
    RecipeName,
    RunFolder,
    RunFolders,
    Sets,
    Split,
    file,
    folder,
    number,
    parse_beams,
    parse_rules,
)
from argbeam.errors import ArgbeamError, ConfigError
from argbeam.settings import MOST_BEAM

Verb = TypeVar("Verb", bound=Callable[..., None])

app = typer.Typer(
    name="argbeam",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _verb(meaning: str, *, example: str) -> Callable[[Verb], Verb]:
    """A verb of the command: its line in the list of verbs, and an example that is not broken over two lines."""
    return app.command(short_help=meaning, epilog=f"\b\nExample: {example}")


def main() -> None:
    """Run the command and exit."""
    sys.exit(faults.exit_code_of(lambda: app(prog_name="argbeam", standalone_mode=False)))


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Train sequence models for the beam search that decodes them."""
    if version:
        print(f"argbeam {__version__}")
        raise typer.Exit


@_verb("Train and compare three systems on a generated corpus.", example="argbeam demo --out demo")
def demo(
    out: Annotated[Path, folder("--out", "Where runs and report go; of another seed: DIR/seedN.")] = Path("demo"),
    seed: Annotated[int, number("--seed", "Seed of weights, batches and dropout.", 0, 2**63 - 1)] = 1,
    as_json: Json = False,
) -> None:
    """Train seq2seq, BSO and ConBSO on a generated corpus, compare them, and write a report. Takes minutes."""
    from argbeam.demo import demo_folder, demo_recipes, run_demo

    _refuse_group("demo")
    own = demo_folder(out, seed)
    signal = run_demo(demo_recipes(own, seed=seed), own, as_json=as_json)
    if signal:
        faults.stopped(_command("demo", "--out", out, "--seed", seed), signal, saved=True)


@_verb(
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
    from argbeam.runs.session import train_run
    from argbeam.runtime.group import joined
    from argbeam.settings.recipe_files import find_recipe, load_recipe

    loaded = load_recipe(find_recipe(recipe), sets or [])
    if data is not None:
        if "root" not in type(loaded.data).model_fields:
            raise ConfigError(f"--data {data}: {recipe} reads no files; its data is {loaded.data.kind}")
        loaded = load_recipe(find_recipe(recipe), [*(sets or []), *_root(data)])
    with joined() as group:
        outcome = train_run(loaded, out, group=group)
    if outcome.signal:
        again = _command("train", recipe, "--out", out, *_options(sets), *(["--data", data] if data else []))
        faults.stopped(again, outcome.signal, saved=outcome.saved)
    for values in outcome.stages:
        print(f"{out}: {stage_line(values)}", flush=True)
    if group.leads:
        has_test = getattr(loaded.data, "test", True) and getattr(loaded.data, "test_source", True)
        note(f"next: {_command('evaluate', out, *([] if has_test else ['--split', 'dev']))}")


@_verb(
    "Decode lines of a file or of stdin, or a treebank.",
    example="argbeam decode demo/conbso --input words.txt --beam 5 --n-best 3 --scores",
)
def decode(
    run: RunFolder,
    source: Annotated[str, file("--input", "Sentences, one a line; -: stdin.")] = "-",
    output: Annotated[str, file("--output", "Where outputs go; -: stdout.")] = "-",
    beam: Annotated[int, number("--beam", "K_te; 0: the recipe's decode.beam.", 0, MOST_BEAM, metavar="K")] = 0,
    n_best: Annotated[int, number("--n-best", "Outputs of a line, at most, best first.", 1, MOST_BEAM)] = 1,
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
    from argbeam.runs.load import open_run
    from argbeam.runtime.group import joined

    if conll:
        check_alone({"--n-best": n_best > 1, "--scores": scores, "--trace": bool(trace), "--json": as_json})
    with joined() as group:
        opened = open_run(Path(run), sets or [], group)
        most = beam or opened.recipe.decode.beam
        if group.leads and n_best > most:
            print(f"argbeam: --n-best {n_best} is above the beam: at most {most} outputs a line", file=sys.stderr)
        if conll:
            counts = parse_file(opened, source, output, beam=beam)
        else:
            counts = decode_file(opened, source, output, DecodeRequest(beam, n_best, scores, as_json), trace)
    if group.leads:
        _report_refusal(opened.capture_failure)
        for notice in counts.notices():
            print(f"argbeam: {notice}", file=sys.stderr)


@_verb(
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
    moved = _root(data)
    with joined() as group:
        opened = open_run(Path(run), [*(sets or []), *moved], group, keep=not no_keep)
        results = score_against(opened, against, split, beams, others_sets=moved, keep=not no_keep)
    if not group.leads:
        return
    _report_refusal(opened.capture_failure)
    if as_json:
        for result in results:
            print(json.dumps(result))
    else:
        show_scores(results)


@_verb(
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
        again: Sequence[Any] = ["reproduce", *(tables or ()), "--data", data, "--out", out, "--seeds", seeds]
        again = [*again, *(["--jobs", jobs] if jobs else []), *_options(sets)]
        faults.stopped(_command(*again), signal, saved=True)


@_verb("Write tables and curves of runs as one page.", example="argbeam report demo/seq2seq demo/conbso --out report")
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


@_verb(
    "Show beams and gold's path in them as one page.",
    example="argbeam inspect demo/conbso --against demo/seq2seq --out inspect",
)
def inspect(
    run: RunFolder,
    out: Annotated[Path, folder("--out", "Where inspect.html and inspect.json go.")] = Path("inspect"),
    split: Annotated[str, typer.Option(metavar="SPLIT", help="train, dev or test.")] = "dev",
    source: Annotated[str | None, file("--input", "Sentences, one a line, instead of a split; -: stdin.")] = None,
    line: Annotated[list[str] | None, typer.Option("--line", metavar="TEXT", help="A sentence; repeatable.")] = None,
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

    A split has gold sequences, and so the training search and gold's path; lines have the plain search alone.
    """
    from argbeam.cli.inspect_page import inspect_to

    _refuse_group("inspect")
    others = [] if against is None else [against]
    chosen = {"--input": source is not None, "--line": bool(line)}
    for path in inspect_to(
        [Path(run), *others],
        out,
        split="" if any(chosen.values()) else split,
        source=source,
        lines=line or [],
        beams=parse_beams(beam),
        limit=limit,
        attention=attention,
        sets=[*(sets or []), *_root(data)],
    ):
        print(path)


@_verb(
    "Time training steps and decoding on random data.",
    example="argbeam bench --device cpu --batch 16 --vocab 5000 --beams 2,6",
)
def bench(
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda or auto.")] = "auto",
    batch: Annotated[int, number("--batch", "Sentences in a batch.", 1)] = 64,
    source: Annotated[int, number("--source", "Words of a source.", 1)] = 24,
    target: Annotated[int, number("--target", "Words of a target; ConBSO needs as many as the source.", 1)] = 24,
    vocab: Annotated[int, number("--vocab", "Words of the vocabulary.", 8)] = 22822,
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


@_verb("Show beams on a live page, and decode over HTTP.", example="argbeam serve demo/conbso --port 8000")
def serve(
    run: RunFolder,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at; 0.0.0.0: all.")] = "127.0.0.1",
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
    _refuse_group("serve")
    opened = open_run(Path(run), sets or [])
    note(f"serving {run} at http://{host}:{port}; Ctrl-C stops")
    answer(opened, host=host, port=port)


@_verb("List the shipped recipes, or print one.", example="argbeam recipes word_ordering/bso")
def recipes(name: OptionalRecipe = None) -> None:
    """List the shipped recipes, or print one."""
    from argbeam.reports.table import table
    from argbeam.settings.recipe_files import find_recipe, purpose, shipped_recipes

    if name is not None:
        sys.stdout.write(find_recipe(name).read_text(encoding="utf-8"))
    else:
        table(("recipe", "purpose"), [(name, purpose(path)) for name, path in shipped_recipes().items()])


@_verb("List every setting with its default and meaning.", example="argbeam settings")
def settings() -> None:
    """List every setting: its key, what is accepted, its default and its meaning."""
    from argbeam.reports.table import table
    from argbeam.settings.listing import describe

    table(("key", "accepted", "default", "meaning"), describe())


def _root(data: str | None) -> list[str]:
    """`--data` as an override."""
    return [] if data is None else [f"data.root={json.dumps(data)}"]


def _options(sets: list[str] | None) -> list[str]:
    """Overrides as options of the command."""
    return [part for override in sets or [] for part in ("--set", override)]


def _report_refusal(reason: str | None) -> None:
    """Report why searches ran more slowly than they might have."""
    if reason is not None:
        slow = "searches cannot be recorded as CUDA graphs and ran one operation at a time"
        print(f"argbeam: {slow}: {reason}", file=sys.stderr)


def _refuse_group(verb: str) -> None:
    if faults.process_name():
        raise ArgbeamError(f"{verb} runs in one process; start it without torchrun")


def _command(*arguments: object) -> str:
    """A command to type."""
    return shlex.join(["argbeam", *map(str, arguments)])
