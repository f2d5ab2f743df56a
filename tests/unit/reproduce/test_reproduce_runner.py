"""Steps side by side: their order, what fails and is tried again, and how they stop. The steps are small scripts."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from argbeam.errors import ArgbeamError, CheckpointError, ConfigError, DataError, DeviceError, MemoryShortError
from argbeam.files import writing
from argbeam.reproduce import runner, worker
from argbeam.reproduce.campaign import seconds_left
from argbeam.reproduce.runner import WRONG_INPUT, CampaignStep, Machine, StepsOutcome, run_steps
from argbeam.reproduce.worker import exit_code

# Says what it does in a file; `fail` fails, `mend` for a reason that stays, `once` the first time; `wait` waits for a
# signal or its parent's end.
SCRIPT = """
import os, signal, sys, threading, time
journal, name, how = sys.argv[1:4]
def say(what):
    with open(journal, "a") as file:
        file.write(f"{what} {name}\\n")
def stop(*_):
    say("saved")
    os._exit(143)
def parent():
    os.read(0, 1)
    stop()
signal.signal(signal.SIGTERM, stop)
say("began")
if how == "wait":
    threading.Thread(target=parent, daemon=True).start()
    time.sleep(30)
time.sleep(0.05)
again = os.path.exists(journal + name)
open(journal + name, "w").close()
if how in ("fail", "mend") or (how == "once" and not again):
    print("no", name, "today")
    sys.exit(2 if how == "mend" else 3)
say(f"ended{os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
"""
ONE, TWO = Machine(1, (), 1), Machine(2, (), 1)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(runner, "_COMMAND", (sys.executable, "-S", str(script)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def step(out: Path, name: str, *, how: str = "", needs: Sequence[str] = (), alone: bool = False) -> CampaignStep:
    return CampaignStep(name, (str(out / "journal"), name, how), out / "runs" / name, tuple(needs), alone)


def journal(out: Path) -> list[str]:
    path = out / "journal"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def run(steps: list[CampaignStep], out: Path, machine: Machine) -> StepsOutcome:
    return run_steps(steps, out / "logs", machine, lambda running, waiting: None)


def test_dependants_wait_and_one_job_is_one_at_a_time(out: Path) -> None:
    steps = [step(out, "b", needs=["a"]), step(out, "a"), step(out, "c", needs=["a", "b"])]
    assert run(steps, out, ONE) == StepsOutcome(0, {})
    assert journal(out) == ["began a", "ended a", "began b", "ended b", "began c", "ended c"]


def test_a_step_alone_has_nothing_beside_it(out: Path) -> None:
    run([step(out, "a"), step(out, "b"), step(out, "t", alone=True)], out, TWO)
    lines = journal(out)
    assert lines[-2:] == ["began t", "ended t"]
    assert sorted(lines[:4]) == ["began a", "began b", "ended a", "ended b"]


def test_jobs_are_dealt_out_to_the_devices(out: Path) -> None:
    run([step(out, "a"), step(out, "b")], out, Machine(2, ("5", "7"), 1))
    assert {line.split()[0] for line in journal(out) if line.startswith("ended")} == {"ended5", "ended7"}


def test_a_failure_is_tried_again_and_then_told_with_its_last_words(out: Path) -> None:
    failing = [step(out, "a", how="fail"), step(out, "b", needs=["a"])]
    outcome = run([*failing, step(out, "c", how="once"), step(out, "d", needs=["c"])], out, ONE)
    assert outcome.failed == {"a": "exit code 3; no a today", "b": "needs a"}
    lines = journal(out)
    assert lines.count("began a") == 2 and "began b" not in lines
    assert lines.count("began c") == 2 and lines[-1] == "ended d"


def test_what_a_user_has_to_mend_is_not_tried_again(out: Path) -> None:
    outcome = run([step(out, "a", how="mend"), step(out, "b")], out, ONE)
    assert outcome.failed == {"a": "exit code 2; no a today"}
    assert journal(out) == ["began a", "began b", "ended b"]


def test_memory_and_disks_may_be_free_the_next_time() -> None:
    assert exit_code(MemoryShortError("out of memory with 64 sentences, and in halves too")) not in (0, WRONG_INPUT)
    for number, passes in ((errno.ENOSPC, True), (errno.ENOENT, False)):
        with pytest.raises(CheckpointError) as full, writing("x", "the ones before it are untouched", CheckpointError):
            raise OSError(number, "as the system says")
        assert (exit_code(full.value) == 1) == passes


def test_memory_that_a_step_lacks_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch's allocator of the CPU has no error of its own; another RuntimeError is ours, and shows its traceback."""
    raised = iter([RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError("a bug")])
    monkeypatch.setattr(worker, "_run", lambda _: (_ for _ in ()).throw(next(raised)))
    monkeypatch.setattr(worker, "_stop_with_parent", lambda: None)
    monkeypatch.setattr("sys.argv", ["worker", "run"])
    with pytest.raises(SystemExit) as ended:
        worker.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("argbeam: error: out of memory; a smaller batch ")
    with pytest.raises(RuntimeError, match="a bug"):
        worker.main()


def test_a_recipes_mistake_is_there_the_next_time_too() -> None:
    """A training that diverges is an ArgbeamError of no kind of its own."""
    kinds = (ArgbeamError, ConfigError, DataError, CheckpointError, DeviceError)
    assert {exit_code(error("x")) for error in kinds} == {WRONG_INPUT}


def test_a_signal_lets_every_step_save(out: Path) -> None:
    steps = [step(out, name, how="wait") for name in ("a", "b", "c")]

    def interrupt() -> None:
        while len(journal(out)) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    outcome = run(steps, out, TWO)
    thread.join()
    assert outcome.signal == signal.SIGTERM
    assert sorted(journal(out)) == ["began a", "began b", "saved a", "saved b"]


def test_a_run_that_another_process_still_holds_is_waited_for(out: Path) -> None:
    """An orphan of a killed call holds the run's lock while it saves."""
    lock = out / "runs" / "a" / ".lock"
    lock.parent.mkdir(parents=True)
    hold = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(0.6)\nopen(sys.argv[2], 'a').write('let go\\n')\n"
    )
    command = [sys.executable, "-S", "-c", hold, str(lock), str(out / "journal")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        run([step(out, "a")], out, ONE)
    assert journal(out) == ["let go", "began a", "ended a"]


def test_the_rest_takes_as_long_as_the_speed_so_far_says() -> None:
    """30 in 60 s, so 60 in 120 s; and nothing is known before anything is done."""
    assert seconds_left(elapsed=60.0, before=10.0, now=40.0, total=100) == 120.0
    assert seconds_left(elapsed=60.0, before=10.0, now=10.0, total=100) is None
