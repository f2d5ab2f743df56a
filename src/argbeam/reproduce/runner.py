"""Steps as processes, several side by side: started in order, watched, stopped together, taken up again."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from argbeam.errors import ArgbeamError
from argbeam.reports.progress import note
from argbeam.reproduce.steps import TO_MEND, Folders, Step

_COMMAND = (sys.executable, "-m", "argbeam.reproduce.worker")
_LOOK_EVERY = 0.1
# A step that fails is tried once more: side by side, runs can take each other's memory.
_ATTEMPTS = 2


@dataclass(frozen=True)
class Machine:
    """What steps may use: how many run at once, which CUDA devices they are dealt out to, CPU threads of each."""

    jobs: int
    devices: tuple[str, ...]
    threads: int


@dataclass(frozen=True)
class Outcome:
    """How it ended: the signal that stopped it (0: none), and the steps that failed, each with what it said last."""

    signal: int
    failed: dict[str, str]


@dataclass
class _Running:
    step: Step
    process: subprocess.Popen[bytes]
    device: str
    started: float


@dataclass
class _Board:
    """Where every step stands."""

    waiting: list[Step]
    running: list[_Running] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)


def run_steps(
    steps: Sequence[Step], folders: Folders, machine: Machine, show: Callable[[Sequence[str], int], None]
) -> Outcome:
    """Run all steps; a step whose dependency failed is not started. `show` is told what runs and how many wait."""
    board = _Board(list(steps))
    with _asked_to_stop() as asked:
        try:
            while board.waiting or board.running:
                if asked:
                    _stop(board, asked)
                    break
                _start_ready(board, folders, machine)
                _collect(board, folders)
                _give_up(board)
                show([one.step.name for one in board.running], len(board.waiting))
                if board.waiting or board.running:
                    time.sleep(_LOOK_EVERY)
        finally:
            for one in board.running:
                one.process.kill()
                one.process.wait()
    return Outcome(asked[0] if asked else 0, board.failed)


@contextmanager
def only_process(out: Path) -> Iterator[None]:
    """One process reproduces into a folder at a time."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("w")
    except OSError as error:
        raise ArgbeamError(f"{out}: cannot be written: {error.strerror}; --out takes a folder") from None
    with file:
        if not _lock(file.fileno()):
            raise ArgbeamError(f"{out}: another process is reproducing into this folder")
        yield


def _start_ready(board: _Board, folders: Folders, machine: Machine) -> None:
    known = {step.name for step in board.waiting} | {one.step.name for one in board.running} | set(board.failed)
    for step in list(board.waiting):
        if len(board.running) >= machine.jobs or any(one.step.alone for one in board.running):
            return
        if any(need in known and need not in board.done for need in step.needs) or (step.alone and board.running):
            continue
        # A process of an earlier, killed call may still be saving.
        if step.run and _is_locked(folders.runs / step.run):
            continue
        board.waiting.remove(step)
        board.running.append(_start(step, folders, machine, [one.device for one in board.running]))
        board.attempts[step.name] = board.attempts.get(step.name, 0) + 1
        note(f"{step.name}: started")


def _start(step: Step, folders: Folders, machine: Machine, busy: Sequence[str]) -> _Running:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(machine.threads))
    device = min(machine.devices, key=busy.count, default="")
    if device:
        environment["CUDA_VISIBLE_DEVICES"] = device
    log = folders.log(step.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as written:
        process = subprocess.Popen(
            [*_COMMAND, *step.arguments],
            env=environment,
            stdin=subprocess.PIPE,  # never written to: its end tells the step that nobody waits for it any more
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which tells the others once
        )
    return _Running(step, process, device, time.monotonic())


def _collect(board: _Board, folders: Folders) -> None:
    for one in list(board.running):
        code = one.process.poll()
        if code is None:
            continue
        board.running.remove(one)
        _close(one)
        name, seconds = one.step.name, time.monotonic() - one.started
        if code == 0:
            board.done.add(name)
            note(f"{name}: done in {seconds:.0f} s")
            continue
        said = f"exit code {code}; {_last_line(folders.log(name))}"
        if code != TO_MEND and board.attempts[name] < _ATTEMPTS:
            note(f"{name}: {said}; it will be tried again")
            board.waiting.append(one.step)
        else:
            note(f"{name}: failed: {said}")
            board.failed[name] = said


def _give_up(board: _Board) -> None:
    """Steps that need one that failed have failed with it."""
    for step in list(board.waiting):
        broken = next((need for need in step.needs if need in board.failed), None)
        if broken:
            board.waiting.remove(step)
            board.failed[step.name] = f"needs {broken}"


def _stop(board: _Board, asked: Sequence[int]) -> None:
    """Ask every process to save and end, once; a second signal ends them at once."""
    for one in board.running:
        one.process.terminate()
    while board.running and len(asked) < 2:
        board.running = [one for one in board.running if one.process.poll() is None]
        time.sleep(_LOOK_EVERY)


def _close(one: _Running) -> None:
    assert one.process.stdin is not None
    one.process.stdin.close()


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """The signals that came while steps ran."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        note("argbeam: stopping; runs are saving; a second signal stops at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_locked(run: Path) -> bool:
    path = run / ".lock"
    if not path.exists():
        return False
    with path.open("w") as file:
        return not _lock(file.fileno())


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
