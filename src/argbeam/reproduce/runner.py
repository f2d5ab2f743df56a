"""Steps as processes, several side by side: started in order, retried, and stopped together."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

from argbeam.files import writing
from argbeam.reports.progress import note
from argbeam.runs.layout import is_locked
from argbeam.runtime.signals import stop_signals

WRONG_INPUT = 2
"""Exit code of a step that would fail again: its recipe, data, checkpoint or device is wrong."""

_COMMAND = (sys.executable, "-m", "argbeam.reproduce.worker")
_POLL_SECONDS = 0.1
# A failed step is tried once more: runs side by side can take each other's memory.
_ATTEMPTS = 2
# Eight runs keep an H200 busy. Most of them take up to 5 GiB, but parsing's CRF takes 12.
_JOBS_ON_A_GPU, _MEMORY_OF_A_JOB = 8, 10 * 2**30


@dataclass(frozen=True)
class CampaignStep:
    """A process on a run folder, started when the steps in `needs` are done. `alone`: nothing runs beside it."""

    name: str
    arguments: tuple[str, ...]
    folder: Path | None = None
    needs: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class Machine:
    """Resources for steps: how many run at once, their CUDA devices, and the CPU threads of each."""

    jobs: int
    devices: tuple[str, ...]
    threads: int


@dataclass(frozen=True)
class StepsOutcome:
    """The signal that stopped the steps (0: none), and the failed steps with their last line of output."""

    signal: int
    failed: dict[str, str]


@dataclass
class _Running:
    step: CampaignStep
    process: subprocess.Popen[bytes]
    device: str
    started: float


@dataclass
class _Board:
    """The state of all steps: `waiting` in the order of the list, those to be tried again last."""

    waiting: list[CampaignStep]
    order: TopologicalSorter[str]
    ready: set[str]
    running: list[_Running] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)


ShowSteps = Callable[[Sequence[str], int], None]
"""Called with the names of the running steps and the number of waiting ones."""


def find_machine(jobs: int) -> Machine:
    """The resources for `jobs` steps at once; 0: several for each CUDA device, or one for each core."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = tuple(visible.split(",")[:count]) if visible else tuple(map(str, range(count)))
    cores = len(os.sched_getaffinity(0))
    if not jobs and devices:
        smallest = min(torch.cuda.get_device_properties(number).total_memory for number in range(count))
        jobs = max(1, min(_JOBS_ON_A_GPU, smallest // _MEMORY_OF_A_JOB)) * len(devices)
    jobs = jobs or cores
    return Machine(jobs, devices, max(1, cores // jobs))


def run_steps(steps: Sequence[CampaignStep], logs: Path, machine: Machine, show: ShowSteps) -> StepsOutcome:
    """Run all steps, those first in the list first. A step whose dependency failed is not started."""
    order = TopologicalSorter({step.name: step.needs for step in steps})
    order.prepare()
    board = _Board(list(steps), order, set(order.get_ready()))
    with stop_signals(lambda: note("argbeam: stopping; runs are saving; a second signal stops at once")) as signals:
        try:
            while board.waiting or board.running:
                if signals:
                    _stop(board, signals)
                    break
                _start_ready(board, logs, machine)
                _collect(board, logs)
                show([one.step.name for one in board.running], len(board.waiting))
                if board.waiting or board.running:
                    time.sleep(_POLL_SECONDS)
        finally:
            for one in board.running:
                one.process.kill()
                one.process.wait()
    return StepsOutcome(signals[0] if signals else 0, board.failed)


def _start_ready(board: _Board, logs: Path, machine: Machine) -> None:
    for step in list(board.waiting):
        if len(board.running) >= machine.jobs or any(one.step.alone for one in board.running):
            return
        if step.name not in board.ready or (step.alone and board.running):
            continue
        # A process of an earlier, killed command may still be saving.
        if step.folder is not None and is_locked(step.folder):
            continue
        board.waiting.remove(step)
        board.running.append(_start(step, logs, machine, [one.device for one in board.running]))
        board.attempts[step.name] += 1
        note(f"{step.name}: started")


def _start(step: CampaignStep, logs: Path, machine: Machine, busy: Sequence[str]) -> _Running:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(machine.threads))
    device = min(machine.devices, key=busy.count, default="")
    if device:
        environment["CUDA_VISIBLE_DEVICES"] = device
    with writing(logs, "the same command resumes"):
        logs.mkdir(parents=True, exist_ok=True)
        opened = _log(logs, step.name).open("ab")
    with opened as log:
        process = subprocess.Popen(
            [*_COMMAND, *step.arguments],
            env=environment,
            stdin=subprocess.PIPE,  # never written to: it closes when this process ends, and the step then stops
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops the others once
        )
    return _Running(step, process, device, time.monotonic())


def _collect(board: _Board, logs: Path) -> None:
    """Take ended processes off the board: done, to be tried again, or failed with all that need them."""
    for one in list(board.running):
        code = one.process.poll()
        if code is None:
            continue
        board.running.remove(one)
        assert one.process.stdin is not None
        one.process.stdin.close()
        name, seconds = one.step.name, time.monotonic() - one.started
        if code == 0:
            board.order.done(name)
            board.ready.update(board.order.get_ready())
            note(f"{name}: done in {seconds:.0f} s")
            continue
        reason = f"exit code {code}; {_last_line(_log(logs, name))}"
        if code != WRONG_INPUT and board.attempts[name] < _ATTEMPTS:
            note(f"{name}: {reason}; it will be tried again")
            board.waiting.append(one.step)
        else:
            note(f"{name}: failed: {reason}")
            board.failed[name] = reason
            _drop_dependants(board)


def _drop_dependants(board: _Board) -> None:
    """Count steps that need a failed one as failed too, and those that need them."""
    while dropped := [step for step in board.waiting if not board.failed.keys().isdisjoint(step.needs)]:
        for step in dropped:
            board.waiting.remove(step)
            broken = next(need for need in step.needs if need in board.failed)
            board.failed[step.name] = f"needs {broken}"


def _stop(board: _Board, signals: Sequence[int]) -> None:
    """Ask every process to save and end; a second signal ends them at once."""
    for one in board.running:
        one.process.terminate()
    while board.running and len(signals) < 2:
        board.running = [one for one in board.running if one.process.poll() is None]
        time.sleep(_POLL_SECONDS)


def _log(logs: Path, step: str) -> Path:
    return logs / f"{step}.log"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
