"""The command as a process: closed streams, locales, modes of files, memory, signals. One line each, no traceback."""

import io
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import argbeam.demo  # noqa: F401 - imported once, for all forked processes
from argbeam.settings.recipe_files import shipped_recipes
from command import Child, obey_modes, start_child, write_recipe
from small_runs import finish, one_epoch

CLOSED = "argbeam: error: stdout is closed; results go there: `> FILE` keeps them, `> /dev/null` drops them\n"


@pytest.mark.parametrize(
    ("command", "code", "printed", "said"),
    [
        ("recipes >&-", 2, False, CLOSED),
        ("recipes 2>&-", 0, True, ""),
        ("recipes <&-", 0, True, ""),
        ("recipes zzz >&- 2>&-", 2, False, ""),
        ("trian 2>&-", 2, False, ""),
        ("trian 2>/dev/full", 2, False, ""),
    ],
)
def test_a_closed_stream_is_one_line(command: str, code: int, printed: bool, said: str) -> None:
    """A new interpreter each; without a stderr, nothing but results is on stdout."""
    shell = f'exec "{sys.executable}" -m argbeam {command}'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert names == (list(shipped_recipes()) if printed else [])


@pytest.mark.parametrize("ends", ["exit_code_of(lambda: 130)", "stopped('again', 2, saved=True)"])
def test_an_interrupt_keeps_its_exit_code_where_stderr_cannot_be_written(ends: str) -> None:
    program = f"import sys; from argbeam.cli.faults import exit_code_of, stopped; sys.exit({ends})"
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", program], stderr=full, check=False).returncode == 130


def test_a_closed_stdin_is_needed_by_decode_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    def close() -> None:
        os.close(0)
        sys.stdin = None  # type: ignore[assignment]  # as Python starts then

    done = start_child(tmp_path, "decode", runs["ordering"], before=close).wait()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "argbeam: error: stdin is closed; --input FILE names a file to decode\n"
    (tmp_path / "in").write_text("ira ela\n")
    done = start_child(tmp_path, "decode", runs["ordering"], "--input", tmp_path / "in", before=close).wait()
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["ela", "ira"])


def test_results_are_utf_8_in_every_locale(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("ä Ж 猫\n", encoding="utf-8")

    def latin_1() -> None:
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(encoding="latin-1")

    done = start_child(tmp_path, "decode", runs["ordering"], "--input", tmp_path / "in", before=latin_1).wait()
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(["ä", "Ж", "猫"])


@pytest.fixture
def closed_to_all(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Take all rights to a path away until the test is over."""
    modes: dict[Path, int] = {}

    def close(path: Path, mode: int = 0) -> Path:
        modes[path] = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        return path

    yield close
    for path, mode in modes.items():
        path.chmod(mode)


def test_what_may_not_be_read_or_written_is_one_line(tmp_path: Path, closed_to_all: Callable[..., Path]) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    finish(one_epoch(data), run)
    recipe = write_recipe(tmp_path)
    (tmp_path / "mine").mkdir()
    denied = "Permission denied"
    cases: list[tuple[Path, int, tuple[str | Path, ...], str]] = [
        (run / "model", 0, ("decode", run), f"{run / 'model'}: {denied}"),
        (run, 0, ("decode", run), f"{run / 'model'}: {denied}"),
        (data, 0, ("evaluate", run), f"cannot read {data / 'dev.txt'}: {denied}"),
        (data / "dev.txt", 0, ("evaluate", run), f"cannot read {data / 'dev.txt'}: {denied}; a file is expected"),
        (run, 0o555, ("evaluate", run), f"cannot write {run}: it is read-only for you; evaluate saves its results"),
        (tmp_path / "mine", 0o555, ("train", recipe, "--out", tmp_path / "mine" / "x"), f"cannot write {tmp_path}"),
        (tmp_path / "mine", 0, ("train", recipe, "--out", tmp_path / "mine" / "x"), f"cannot write {tmp_path}"),
        (tmp_path / "mine", 0o555, ("demo", "--out", tmp_path / "mine" / "x"), f"cannot write {tmp_path}"),
        (tmp_path / "mine", 0, ("demo", "--out", tmp_path / "mine"), f"cannot write {tmp_path}"),
        (recipe, 0, ("train", recipe, "--out", tmp_path / "x"), f"cannot read {recipe}: {denied}; a TOML file is"),
    ]
    for path, mode, arguments, said in cases:
        closed_to_all(path, mode)
        done = start_child(tmp_path, *arguments, before=obey_modes).wait()
        path.chmod(0o755)
        assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (2, 1, ""), done
        assert done.stderr.startswith(f"argbeam: error: {said}"), done.stderr
    closed_to_all(run, 0o555)
    done = start_child(tmp_path, "evaluate", run, "--split", "dev", "--no-keep", before=obey_modes).wait()
    assert done.returncode == 0, done.stderr


def limited() -> None:
    """A quarter of a GiB more than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 28)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def test_no_memory_is_one_line(tmp_path: Path) -> None:
    """Python's own, for a recipe of 4 GiB, and torch's."""
    recipe, huge = write_recipe(tmp_path), tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(4 << 30)
    for arguments in (
        ("train", huge, "--out", tmp_path / "run"),
        ("train", recipe, "--out", tmp_path / "run", "--set", "model.hidden=20000"),
    ):
        done = start_child(tmp_path, *arguments, before=limited).wait()
        assert done.stderr.startswith("argbeam: error: out of memory; "), done
        assert (done.returncode, done.stderr.count("\n"), (tmp_path / "run").exists()) == (2, 1, False)


def ends_within(seconds: float, child: Child, number: int) -> tuple[int, str]:
    """Send the signal; exit code and stderr."""
    sent = time.monotonic()
    os.kill(child.pid, number)
    done = child.wait()
    assert time.monotonic() - sent < seconds
    return done.returncode, done.stderr


def wait_for(fact: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_training_data_is_read_ends_the_command_and_leaves_nothing(number: int, tmp_path: Path) -> None:
    """Ten million sentences take a minute to read. A second, and four for a busy machine."""
    one_epoch(tmp_path)
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    text = write_recipe(tmp_path).read_text(encoding="utf-8")
    data = f'data = {{ kind = "text", root = "{tmp_path}", train = ["train.txt"], dev = ["dev.txt"] }}'
    recipe.write_text("\n".join(data if line.startswith("data") else line for line in text.splitlines()))
    (tmp_path / "train.txt").write_bytes(b"a b\n" * 10_000_000)
    child = start_child(tmp_path, "train", recipe, "--out", run)
    wait_for((run / ".lock").exists)
    time.sleep(0.2)
    code, said = ends_within(5, child, number)
    again = f"argbeam train {recipe} --out {run}"
    assert (code, said) == (128 + number, f"argbeam: stopped before the first update; to start again: {again}\n")
    assert not run.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_pipe_without_a_writer_is_told_and_a_signal_ends_the_wait(
    number: int, runs: dict[str, Path], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    child = start_child(tmp_path, "decode", runs["ordering"], "--input", tmp_path / "pipe")
    wait_for(lambda: b"waiting" in child.err.read_bytes())
    code, said = ends_within(5, child, number)
    waiting = f"argbeam: {tmp_path / 'pipe'}: a pipe; waiting for a process that writes to it\n"
    expected = (130, f"{waiting}argbeam: interrupted\n") if number == signal.SIGINT else (-number, waiting)
    assert (code, said) == expected


def test_at_a_terminal_decode_says_what_it_waits_for(runs: dict[str, Path], tmp_path: Path) -> None:
    main, terminal = os.openpty()

    def attach() -> None:
        os.dup2(terminal, 0)

    child = start_child(tmp_path, "decode", runs["ordering"], before=attach)
    os.write(main, b"zzz yyy\n\x04")
    done = child.wait()
    assert done.returncode == 0 and sorted(done.stdout.split()) == ["yyy", "zzz"]
    first, second = done.stderr.splitlines()
    assert first == "argbeam: one sentence a line; Ctrl-D ends the input"
    assert second == "argbeam: 2 of 2 words are unknown: rare in the training data, or not in it"
