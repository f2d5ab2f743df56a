"""The command in tests: its result, the command in a forked process, and a recipe that trains in a moment."""

import ctypes
import os
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from argbeam.cli import app as cli

RECIPE = """# A tiny recipe.
name = "tiny"
task = {{ kind = "{task}" }}
data = {{ kind = "generated", types = 200, train = 40, dev = 6, test = 6 }}
model = {{ hidden = 8, embedding = 8 }}
batch = {{ size = 8 }}
decode = {{ length_factor = 1.0 }}
runtime = {{ device = "cpu" }}

[stages.pretrain]
epochs = 1
loss = {{ kind = "cross_entropy" }}
optimizer = {{ encoder = 0.05, decoder = 0.05, output = 0.2 }}
{more}"""
BSO = """
[stages.bso]
epochs = 1
loss = { kind = "bso", train_beam = 3 }
optimizer = { encoder = 0.05, decoder = 0.05, output = 0.1 }
"""

Result = subprocess.CompletedProcess[str]
Command = Callable[..., Result]


def write_recipe(folder: Path, *, task: str = "word_ordering", more: str = "") -> Path:
    path = folder / f"{task}.toml"
    path.write_text(RECIPE.format(task=task, more=more), encoding="utf-8")
    return path


def in_process(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: importing torch anew for each test would take most of the time."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> Result:
        read, write = os.pipe()
        with os.fdopen(write, "wb") as end:
            end.write(stdin)
        monkeypatch.setattr(sys, "argv", ["argbeam", *map(str, arguments)])
        capfd.readouterr()
        with os.fdopen(read, "r") as source, pytest.raises(SystemExit) as exit_:
            monkeypatch.setattr(sys, "stdin", source)
            cli.main()
        out, err = capfd.readouterr()
        code = exit_.value.code
        return subprocess.CompletedProcess(list(arguments), code if isinstance(code, int) else 0, out, err)

    return call


@dataclass(frozen=True)
class Child:
    """The command in a process forked from this one, which has imported torch."""

    pid: int
    out: Path
    err: Path

    def wait_for_line(self, start: str) -> None:
        """Until a line of stderr starts so."""
        while not any(line.startswith(start) for line in self.err.read_text(encoding="utf-8").splitlines()):
            assert os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it has ended"
            time.sleep(0.01)

    def wait(self) -> Result:
        """Its exit code (minus the signal that killed it), stdout and stderr."""
        _, status = os.waitpid(self.pid, 0)
        texts = (path.read_text(encoding="utf-8", errors="surrogateescape") for path in (self.out, self.err))
        return subprocess.CompletedProcess([], os.waitstatus_to_exitcode(status), *texts)


def start_child(folder: Path, *arguments: str | Path, before: Callable[[], object] = lambda: None) -> Child:
    """Start the command; `before` changes its process first. Its stdin is empty."""
    child = Child(0, folder / "child.out", folder / "child.err")
    for path in (child.out, child.err):
        path.write_bytes(b"")
    if pid := os.fork():
        return replace(child, pid=pid)
    code = 1
    try:
        for number, path in enumerate((os.devnull, child.out, child.err)):
            os.dup2(os.open(path, os.O_RDWR), number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, 1) for number, mode in enumerate("rww"))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.argv = ["argbeam", *map(str, arguments)]
        before()
        cli.main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def obey_modes() -> None:
    """Take from root the right to read and write whatever modes say (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)."""
    header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    libc = ctypes.CDLL(None)
    assert libc.capget(header, data) == 0
    words = [word & ~0b110 if place < 3 else word for place, word in enumerate(struct.unpack("6I", data.raw))]
    assert libc.capset(header, struct.pack("6I", *words)) == 0
