"""The command, from outside: what it takes, prints, writes and says when something is wrong."""

import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from argbeam import __version__
from argbeam.cli import app as cli
from argbeam.cli.decode_lines import opened
from argbeam.errors import ConfigError
from argbeam.files import read_records
from argbeam.runtime.group import ALONE
from argbeam.settings.recipe_files import load_recipe, shipped_recipes
from command import BSO, Command, start_child, write_recipe
from refusals import refusal
from small_runs import final_tensors, finish, same_tensors, written_recipe


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the command is called in; it holds one file by two names."""
    (tmp_path / "in").write_text("x y\n")
    (tmp_path / "link").hardlink_to(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_is_what_it_was() -> None:
    """Frozen: a change here is a change for every user, and is made on purpose."""
    commands: Any = typer.main.get_command(cli.app)
    found = {
        verb: [name for parameter in command.params for name in parameter.opts if name != "--help"]
        for verb, command in commands.commands.items()
    }
    expected = {
        "demo": "--out --seed --json",
        "train": "recipe --out --set --data",
        "decode": "run --input --output --beam --n-best --scores --trace --conll --json --set",
        "evaluate": "run --split --beam --against --no-keep --json --set --data",
        "reproduce": "tables --data --out --seeds --jobs --only --set --dry-run",
        "report": "runs --out",
        "inspect": "run --out --split --input --line --gold --gold-line --beam --limit --attention --against "
        "--set --data",
        "bench": "--device --batch --source --target --vocab --model --layers --hidden --width --bf16 --rule "
        "--beams --test-beams --rounds --json",
        "serve": "run --host --port --set",
        "recipes": "name",
        "settings": "",
    }
    assert {verb: " ".join(names) for verb, names in found.items()} == expected


@pytest.mark.parametrize(("verb", "printed"), [("--help", "Usage"), ("recipes", "demo/bso"), ("settings", "model.")])
def test_the_module_prints_without_importing_torch(verb: str, printed: str) -> None:
    code = f"import runpy, sys; sys.argv = ['argbeam', '{verb}']\n"
    code += "try: runpy.run_module('argbeam', run_name='__main__')\n"
    code += "except SystemExit: pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert printed in done.stdout and done.stdout.splitlines()[-1] == "False"


def test_every_verb_has_whole_lines_of_help_and_an_example(argbeam: Command) -> None:
    verbs = argbeam("-h").stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in verbs] == list(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    assert all(line.endswith(".") and not line.endswith("...") for line in verbs)
    for line in verbs:
        verb = line.split()[0]
        done = argbeam(verb, "-h")
        assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith(f"  Example: argbeam {verb}")
        assert argbeam(verb, "--help").stdout == done.stdout
    assert argbeam().stdout == argbeam("--help").stdout


def test_the_sizes_of_bench_are_in_tokens_as_its_rows_are(argbeam: Command) -> None:
    """It times tokens a second."""
    said = argbeam("bench", "-h").stdout
    for option in ("--source", "--target", "--vocab"):
        (line,) = [line for line in said.splitlines() if line.split()[:1] == [option]]
        assert " Tokens of " in line


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("argbeam ev", "evaluate"),
        ("argbeam train demo/bs", "demo/bso"),
        ("argbeam train demo/bso --set model.hid", "model.hidden="),
        ("argbeam evaluate run --split d", "dev"),
        ("argbeam decode run --n", "--n-best"),
    ],
)
def test_a_shell_completes_verbs_options_recipes_and_settings(
    argbeam: Command, monkeypatch: pytest.MonkeyPatch, line: str, offered: str
) -> None:
    words = line.split()
    monkeypatch.setenv("_ARGBEAM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert offered in argbeam().stdout.split()


def test_the_version_is_that_of_the_package(argbeam: Command) -> None:
    done = argbeam("--version")
    assert (done.returncode, done.stdout) == (0, f"argbeam {__version__}\n")


def test_an_unknown_verb_exits_with_2(argbeam: Command) -> None:
    done = argbeam("trian")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "argbeam: error: unknown verb trian; did you mean train?\n"


def test_train_prints_its_stages_and_resuming_a_finished_run_does_nothing(argbeam: Command, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, more=BSO)
    done = argbeam("train", recipe, "--out", tmp_path / "run", "--set", "runtime.tensorboard=true")
    assert done.returncode == 0, done.stderr
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == ["pretrain", "bso"]
    lines = done.stderr.splitlines()
    assert lines[0] == "40 training sentences, 6 dev sentences"
    assert lines[1].startswith("pretrain, epoch 1; loss ") and "dev perplexity" in lines[1]
    (bso,) = [line for line in lines if line.startswith("bso, epoch 1; loss ")]
    assert "violations a token" in bso
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    again = argbeam("train", recipe, "--out", tmp_path / "run")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "training is finished; nothing to do" in again.stderr
    for said in (done.stderr, again.stderr):
        assert said.splitlines()[-1] == f"next: argbeam evaluate {tmp_path / 'run'}"


@pytest.mark.parametrize(("stream", "mode", "paths"), [("stdin", "r", ("-", "link")), ("stdout", "a", ("in", "-"))])
def test_an_input_that_is_a_standard_stream_is_not_written_over(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, stream: str, mode: str, paths: tuple[str, str]
) -> None:
    with (in_folder / "in").open(mode) as standard, monkeypatch.context() as patched:
        patched.setattr(sys, stream, standard)
        assert (
            refusal(opened(ALONE, *paths).__enter__, error=ConfigError)
            == f"--output {paths[1]}: is the input; another file is needed"
        )
    assert (in_folder / "in").read_text() == "x y\n"


def test_recipes_are_listed_with_their_purpose_and_printed_as_they_are(argbeam: Command) -> None:
    lines = argbeam("recipes").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(shipped_recipes())
    assert all(len(line.split()) > 3 for line in lines)
    assert argbeam("recipes", "demo/bso").stdout == shipped_recipes()["demo/bso"].read_text(encoding="utf-8")


def test_settings_lists_every_key(argbeam: Command) -> None:
    from argbeam.settings.listing import describe

    lines = argbeam("settings").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [setting.key for setting in describe()]


@pytest.mark.parametrize("lines", [["b a", "c d e f", "x", "g h i", "y", "b a"], []])
def test_decode_keeps_the_order_and_the_words(argbeam: Command, runs: dict[str, Path], lines: list[str]) -> None:
    """Word ordering's outputs are permutations of their inputs, so each output shows whose it is."""
    done = argbeam("decode", runs["ordering"], stdin="\n".join(lines).encode())
    assert done.returncode == 0, done.stderr
    assert [sorted(line.split()) for line in done.stdout.splitlines()] == [sorted(line.split()) for line in lines]


@pytest.mark.parametrize(("name", "pack"), [("in", bytes), ("in.gz", gzip.compress), ("in.xz", lzma.compress)])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_decode_reads_and_writes_files(
    argbeam: Command, runs: dict[str, Path], tmp_path: Path, name: str, pack: Callable[[bytes], bytes], encoding: str
) -> None:
    """Plain or compressed, and without a byte order mark."""
    (tmp_path / name).write_bytes(pack("ä b\r\nc d\n".encode(encoding)))
    done = argbeam("decode", runs["ordering"], "--input", tmp_path / name, "--output", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "")
    written = (tmp_path / "out").read_text(encoding="utf-8")
    assert [sorted(line.split()) for line in written.splitlines()] == [["b", "ä"], ["c", "d"]]
    assert written == argbeam("decode", runs["ordering"], stdin="ä b\nc d\n".encode()).stdout


def test_decode_and_evaluate_say_why_searches_were_not_recorded(
    argbeam: Command, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from argbeam.decoding.captured_search import CapturedSearch
    from argbeam.runs import load
    from argbeam.runtime import device as devices
    from tape import TapeRecorder

    captured = CapturedSearch(TapeRecorder())
    captured.graphs.fail(RuntimeError("a copy from the host\nand more"))
    monkeypatch.setattr(devices, "make_recorder", lambda runtime, device: TapeRecorder())
    monkeypatch.setattr(load, "CapturedSearch", lambda recorder: captured)
    said = "argbeam: searches cannot be recorded as CUDA graphs and ran one operation at a time: RuntimeError: a copy"
    for arguments in (("decode", runs["ordering"]), ("evaluate", runs["ordering"], "--beam", "1")):
        done = argbeam(*arguments, stdin=b"ira ela\n")
        assert (done.returncode, done.stderr) == (0, f"{said} from the host\n")


def test_the_lines_before_one_that_is_refused_are_decoded(argbeam: Command, runs: dict[str, Path]) -> None:
    for bad, fault in (
        (b"y\xff", "not UTF-8 at byte 2 of the line (0xff); text files are UTF-8"),
        (b"y\0", "NUL at byte 2 of the line; text files hold none"),
        (b"y " * 2001, "2,001 words; decode.max_words = 2000 is the most that is decoded"),
    ):
        done = argbeam("decode", runs["ordering"], stdin=b"x\nz\n" + bad + b"\nw\n")
        assert (done.returncode, done.stdout) == (2, "x\nz\n")
        assert done.stderr == f"argbeam: error: stdin:3: {fault}\n"
        last = argbeam("decode", runs["ordering"], stdin=b"x\nz\n" + bad)  # without its line end
        assert (last.returncode, last.stdout, last.stderr) == (2, "x\nz\n", done.stderr)


def test_a_word_of_a_million_letters_is_a_word(argbeam: Command, runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 1_000_000 + b" y\n")
    done = argbeam("decode", runs["ordering"], "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert sorted(map(len, (tmp_path / "out").read_text().split())) == [1, 1_000_000]


@pytest.mark.parametrize("name", ["ordering", "parsing", "translation"])
def test_a_blank_line_gives_an_empty_output_in_its_place(argbeam: Command, runs: dict[str, Path], name: str) -> None:
    words = argbeam("decode", runs[name], stdin=b"ira ela\n").stdout
    done = argbeam("decode", runs[name], stdin=b"\nira ela\n \t\nira ela\n\n")
    assert (done.returncode, done.stdout) == (0, f"\n{words}\n{words}\n")
    assert "unfinished" not in done.stderr or "of 5 lines" in done.stderr
    columns = argbeam("decode", runs[name], "--n-best", "2", "--scores", stdin=b"\nira\n\n").stdout.splitlines()
    assert (columns[0], columns[-1]) == ("1\t0\t", "3\t0\t")
    answers = argbeam("decode", runs[name], "--json", stdin=b"\nira\n").stdout.splitlines()
    assert json.loads(answers[0]) == {"input": "", "outputs": [], "dead": False}


def test_unknown_words_are_counted(argbeam: Command, runs: dict[str, Path]) -> None:
    said = "argbeam: {} of {} words are unknown: rare in the training data, or not in it\n"
    assert argbeam("decode", runs["ordering"], stdin=b"v w x y z\n").stderr == said.format(5, 5)
    one = said.replace(" are ", " is ").format(1, 4)
    assert argbeam("decode", runs["ordering"], stdin=b"ira .\n\nx ira\n").stderr == one
    assert argbeam("decode", runs["ordering"], stdin=b"ira .\n").stderr == ""


def test_lines_with_a_tab_are_counted(argbeam: Command, runs: dict[str, Path]) -> None:
    said = "argbeam: 2 lines with a tab: all columns were decoded as one sentence\n"
    assert argbeam("decode", runs["ordering"], stdin=b"ira\t.\nira .\n.\tira\n").stderr == said


def test_evaluate_can_leave_a_run_as_it_is(argbeam: Command, runs: dict[str, Path], tmp_path: Path) -> None:
    """Neither its scores nor the length power that dev decides are saved; the numbers are the same."""
    files = ("predictions", "evaluations.jsonl", "length_power.jsonl")
    asked = ("evaluate", runs["translation"], "--beam", "2", "--split", "dev", "--json")
    shutil.copytree(runs["translation"], tmp_path / "copy")
    paths = [path for run in (runs["translation"], tmp_path / "copy") for path in (run, *run.rglob("*"))]
    before = {path: path.stat().st_mtime_ns for path in paths}
    found = argbeam(*asked, "--no-keep", "--against", tmp_path / "copy")
    assert found.returncode == 0, found.stderr
    assert {path: path.stat().st_mtime_ns for path in paths} == before
    record = json.loads(found.stdout)
    record.pop("against")
    assert record == json.loads(argbeam(*asked).stdout)
    assert any((runs["translation"] / name).exists() for name in files)


def test_the_signature_tells_the_constraint_of_training_from_that_of_decoding(
    argbeam: Command, runs: dict[str, Path]
) -> None:
    for name, constraints in (
        ("ordering", "trained:unconstrained|decoded:constrained"),
        ("translation", "trained:unconstrained|decoded:unconstrained"),
    ):
        done = argbeam("evaluate", runs[name], "--beam", "1", "--no-keep")
        assert f"|{constraints}|" in done.stdout.splitlines()[-1]


def test_decode_and_evaluate_take_the_threads_of_the_recipe(
    argbeam: Command, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model takes one thread: its operations are shorter than the wait of threads for one another."""
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for verb, *options in (("decode",), ("evaluate", "--beam", "1", "--no-keep")):
        argbeam(verb, runs["ordering"], *options, "--set", "runtime.threads=3")
        argbeam(verb, runs["ordering"], *options)
    assert chosen == [3, 1, 3, 1]


def test_n_best_and_scores_are_columns_best_first(argbeam: Command, runs: dict[str, Path]) -> None:
    done = argbeam("decode", runs["ordering"], "--n-best", "3", "--scores", "--beam", "4", stdin=b"ira . ela\nira\n")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2"]  # one word has one order
    scores = [float(row[1]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    assert len({row[2] for row in rows[:3]}) == 3
    assert done.stderr == ""
    done = argbeam("decode", runs["ordering"], "--n-best", "3", "--beam", "2", stdin=b"ira . ela\n")
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == "argbeam: --n-best 3 is above the beam: at most 2 outputs a line\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_line(argbeam: Command, runs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("in", "in.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"x y\n") if name.endswith("gz") else b"x y\n")
        for option in ("--output", "--trace"):
            done = argbeam("decode", runs["ordering"], "--input", tmp_path / name, option, "/dev/full")
            assert done.stderr == "argbeam: error: cannot write /dev/full: No space left on device\n"
            assert done.returncode == 2
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "argbeam", "recipes"]
        told = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert told.stderr == b"argbeam: error: cannot write stdout: No space left on device\n"
    assert told.returncode == 2


def test_a_treebank_file_is_parsed(argbeam: Command, runs: dict[str, Path]) -> None:
    row = "# one\n1\tira\t_\tNOUN\t_\t_\t{}\t_\tx=y\n\n"
    done = argbeam("decode", runs["parsing"], "--conll", stdin=row.format("_\t_").encode())
    assert (done.stdout, done.stderr) == (row.format("0\troot"), "")
    done = argbeam("decode", runs["parsing"], "--conll", stdin=b"1-2" + b"\t_" * 9 + b"\n\n")
    assert done.stdout == "1-2" + "\t_" * 9 + "\n\n", "generated data is read as CoNLL-U"


def test_json_and_trace_say_the_same(argbeam: Command, runs: dict[str, Path], tmp_path: Path) -> None:
    """The trace's best last successor, read back through the parents, is the output."""
    trace = tmp_path / "trace"
    done = argbeam("decode", runs["ordering"], "--json", "--trace", trace, stdin=b"ira . ela\n")
    found = json.loads(done.stdout)
    assert set(found) == {"input", "outputs", "dead"}
    assert (found["input"], found["dead"]) == ("ira . ela", False)
    (output,) = found["outputs"]
    assert set(output) == {"text", "tokens", "rank", "finished"}
    traced = json.loads(trace.read_text(encoding="utf-8"))
    assert (traced["line"], traced["input"], len(traced["steps"])) == (1, "ira . ela", 3)
    words, place = [], 0
    for step in reversed(traced["steps"]):
        words.append(step["tokens"][place])
        place = step["parents"][place]
    assert words[::-1] == output["tokens"]
    assert traced["steps"][-1]["ranks"][0] == output["rank"]


def test_a_length_power_given_or_chosen_on_dev_is_told_with_the_scores(argbeam: Command, runs: dict[str, Path]) -> None:
    """All powers rank outputs of one length alike: the smallest is taken."""
    done = argbeam("evaluate", runs["ordering"], "--beam", "1", "--json", "--set", "decode.length_power=1.0")
    assert json.loads(done.stdout)["length_power"] == 1.0
    assert (runs["ordering"] / "predictions" / "test.beam1.power1.txt").is_file()  # beside those of plain sums
    chosen = ("--beam", "2", "--set", "decode.length_power=dev")
    found = json.loads(argbeam("evaluate", runs["ordering"], *chosen, "--json").stdout)
    assert (found["length_power"], found["length_power_from"]) == (0.0, "dev")
    assert "|length_power:0.0(dev)|" in argbeam("evaluate", runs["ordering"], *chosen).stdout
    done = argbeam("decode", runs["ordering"], *chosen, stdin=b"ira . ela\n")
    assert sorted(done.stdout.split()) == [".", "ela", "ira"]


def test_unfinished_outputs_are_counted(argbeam: Command, runs: dict[str, Path]) -> None:
    """A limit of one word leaves no room for the end symbol."""
    limit = ("--set", "decode.length_factor=0.0", "--set", "decode.length_extra=1")
    done = argbeam("decode", runs["translation"], *limit, "--beam", "1", stdin=b"ira ela\nela\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    unfinished = sum(bool(line) for line in done.stdout.splitlines())
    expected = f"argbeam: of 2 lines {unfinished} unfinished (the length limit was met) and 0 at a dead end\n"
    assert done.stderr == (expected if unfinished else "")


@pytest.mark.parametrize("name", ["ordering", "bso", "parsing", "translation"])
def test_evaluate_keeps_scores_and_predictions(argbeam: Command, runs: dict[str, Path], name: str) -> None:
    done = argbeam("evaluate", runs[name], "--beam", "1,3", "--split", "dev", "--json")
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["test_beam"] for record in printed] == [1, 3]
    assert read_records(runs[name] / "evaluations.jsonl")[-2:] == printed
    for beam in (1, 3):
        lines = (runs[name] / "predictions" / f"dev.beam{beam}.txt").read_text(encoding="utf-8").splitlines()
        assert len(lines) == 6
    table = argbeam("evaluate", runs[name], "--beam", "1,3", "--split", "dev").stdout.splitlines()
    assert table[1].split()[0] == "beam"
    assert [row.split()[0] for row in table[2:4]] == ["1", "3"]
    first = next(iter(printed[0]["scores"].values()))
    assert table[2].split()[1] == f"{first:.2f}"
    assert printed[0]["metric"] in table[4]


def test_a_run_does_not_differ_from_its_copy(argbeam: Command, runs: dict[str, Path], tmp_path: Path) -> None:
    for name, parts in (("ordering", ["bleu"]), ("parsing", ["uas", "las"])):
        copy = shutil.copytree(runs[name], tmp_path / name)
        done = argbeam("evaluate", runs[name], "--beam", "2", "--against", copy, "--json")
        against = json.loads(done.stdout)["against"]
        assert against["p_values"] == dict.fromkeys(parts, 1.0)
    done = argbeam("evaluate", runs["ordering"], "--beam", "2", "--against", runs["bso"])
    assert "p (bleu)" in done.stdout.splitlines()[1]


def test_a_run_is_tested_against_itself_only_with_another_search(
    argbeam: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(runs["ordering"])
    asked = ("evaluate", runs["ordering"], "--beam", "2", "--no-keep", "--json", "--against", tmp_path / "link")
    refused = f"--against {tmp_path / 'link'}: the same run; accepted: another one, or --set decode.KEY=VALUE"
    for more in ((), ("--set", "runtime.device=cpu")):
        done = argbeam(*asked, *more)
        assert (done.returncode, done.stderr) == (2, f"argbeam: error: {refused}\n")
    done = argbeam(*asked, "--set", "decode.length_power=0.5")
    found = json.loads(done.stdout)
    assert found["length_power"] == 0.5 and "bleu" in found["against"]["p_values"]


def test_data_that_has_moved_is_found_again_for_both_runs(argbeam: Command, tmp_path: Path) -> None:
    """Trained on files that are elsewhere now: scored there as before, and not without being told."""
    before, now, run = tmp_path / "before", tmp_path / "now", tmp_path / "run"
    before.mkdir()
    recipe = written_recipe(before, epochs=1, every=100)
    finish(load_recipe(recipe), run)
    options = ("evaluate", run, "--beam", "2", "--split", "dev", "--json")
    scored = argbeam(*options)
    before.rename(now)
    moved = f"{before / 'dev.txt'}: no such file; data.dev names it; --data DIR says where the data is now"
    assert argbeam(*options).stderr == f"argbeam: error: {moved}\n"
    done = argbeam(*options, "--data", now, "--against", shutil.copytree(run, tmp_path / "copy"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("against")["scores"] == found["scores"]
    assert found == json.loads(scored.stdout)
    again = argbeam("train", now / recipe.name, "--data", now, "--out", run)
    assert again.stderr.splitlines()[-1].startswith(f"next: argbeam evaluate {run} ")
    assert again.stderr.endswith(f" --data {now}\n")


def test_a_dry_run_prints_the_plan_and_makes_nothing(argbeam: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = argbeam("reproduce", "costs", "timing", "--data", "generated", "--out", out, "--seeds", "2", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"7 runs under {out / 'runs'}"  # two costs and their pre-training, twice; the timing
    assert lines[-1] == "costs: Translation by cost, generated, dev: cost 0/1; cost 1-SB"
    assert "costs: generated" in done.stderr and not out.exists()


def test_report_of_a_reproduction_is_its_page(argbeam: Command, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"tables": [], "runs": [], "left_out": []}', encoding="utf-8")
    done = argbeam("report", tmp_path, "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "page" / f"reproduction.{end}") for end in ("html", "md")]


@pytest.mark.parametrize("verb", ["report", "reproduce"])
def test_a_damaged_plan_of_a_reproduction_is_one_line(argbeam: Command, tmp_path: Path, verb: str) -> None:
    """A report would show it; a second call would add its tables to it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "plan.json").write_bytes(b'{"tables": [], "runs": [], "le')
    again = ("costs", "--data", "generated", "--out", out) if verb == "reproduce" else (out, "--out", tmp_path / "page")
    done = argbeam(verb, *again)
    assert (done.returncode, done.stdout) == (2, "")
    *_, said = done.stderr.splitlines()
    assert said.startswith(f"argbeam: error: {out / 'plan.json'}: damaged: ") and "Traceback" not in done.stderr


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, "-m", "argbeam", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, **pipes)


@pytest.mark.slow
def test_a_run_stopped_twice_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """Bit for bit, on the CPU, against a run that nothing disturbed."""
    recipe = write_recipe(tmp_path, more=BSO.replace("epochs = 1", "epochs = 5"))
    arguments = ("train", recipe, "--out", tmp_path / "stopped")
    for number, after in ((signal.SIGINT, "bso, epoch 1;"), (signal.SIGTERM, "bso, epoch 3;")):
        stopped = start_child(tmp_path, *arguments)
        stopped.wait_for_line(after)
        os.kill(stopped.pid, number)
        result = stopped.wait()
        assert result.returncode == 128 + number, result.stderr
        assert result.stderr.splitlines(keepends=True)[-2:] == [
            "argbeam: stopping after this update; a second signal stops at once\n",
            f"argbeam: stopped and saved; to resume: argbeam train {recipe} --out {tmp_path / 'stopped'}\n",
        ]
    assert not (tmp_path / "stopped" / "model").exists()
    last = start_child(tmp_path, *arguments).wait()
    assert last.returncode == 0, last.stderr
    assert "resuming from update" in last.stderr
    finish(load_recipe(recipe), tmp_path / "whole")
    assert same_tensors(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "stopped"))


@pytest.mark.slow
def test_a_pipe_is_answered_line_by_line_and_may_be_closed(runs: dict[str, Path]) -> None:
    with start("decode", runs["ordering"]) as process:
        assert process.stdin and process.stdout and process.stderr
        for line in (b"a b\n", b"c\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert sorted(process.stdout.readline().split()) == sorted(line.split())
        process.stdout.close()
        process.stdin.write(b"d\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1
