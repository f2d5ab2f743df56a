"""Processes that train are killed at any moment; what they leave leads to the same weights.

`ARGBEAM_KILLS=50 pytest -s tests/system/test_kill.py` kills more often; docs/reliability.md has its counts.
"""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from argbeam.files import read_records
from argbeam.settings.recipe_files import load_recipe, recipe_to_json
from groups import command, in_group
from small_runs import (
    BSO,
    PRETRAIN,
    final_tensors,
    finish,
    finish_apart,
    same_tensors,
    short_text,
    small_recipe,
    timeless_records,
    written_recipe,
)

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("ARGBEAM_KILLS", "4"))


def test_runs_killed_at_random_moments_end_with_the_same_weights(tmp_path: Path) -> None:
    """The processes are forked from one that has imported torch, so that it is training that is killed.

    Each lives about a third of the time that the undisturbed run takes at most, so every run is killed at least once.
    Every other kill waits for a checkpoint to be written: its temporary file is there.
    """
    stages = {"pretrain": {**PRETRAIN, "epochs": 20}, "bso": {**BSO, "epochs": 40}}
    recipe = small_recipe("runtime.checkpoint_every=3", data=short_text(tmp_path), stages=stages)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["argbeam.runs.session"])

    def process_for(folder: Path) -> BaseProcess:
        process = context.Process(target=finish_apart, args=(recipe_to_json(recipe), str(folder)))
        process.start()
        return process

    warm = context.Process(target=os.getpid)  # the first process waits until torch is imported
    warm.start()
    warm.join()
    started = time.monotonic()
    process_for(tmp_path / "whole").join()
    seconds, draw, kills, torn, runs = time.monotonic() - started, random.Random(1), 0, 0, 0
    while kills < KILLS:
        folder = tmp_path / f"after {kills} kills"
        while not list(folder.glob("model/*.safetensors")):
            process = process_for(folder)
            process.join(draw.uniform(0, seconds / 3))
            while kills % 2 and process.is_alive() and not _half_written(folder):
                pass
            kills += process.is_alive()
            process.kill()
            process.join()
            torn += bool(_half_written(folder))
            assert process.exitcode in (0, -signal.SIGKILL)
        assert same_tensors(final_tensors(folder), final_tensors(tmp_path / "whole"))
        assert timeless_records(folder) == timeless_records(tmp_path / "whole")
        runs += 1
    print(f"{kills} kills of {runs} runs of {seconds:.1f} s, {torn} of them while a checkpoint was written")


def _half_written(folder: Path) -> list[Path]:
    return list(folder.glob("checkpoints/.checkpoint-*"))


def test_a_command_killed_while_it_trains_goes_on_when_started_again(tmp_path: Path) -> None:
    """The whole command, from its start: killed once it has saved, then run to its end."""
    recipe = written_recipe(tmp_path, epochs=30, every=3)
    train = [sys.executable, "-m", "argbeam", "train", str(recipe), "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(
        [*train, str(tmp_path / "killed")], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while killed.poll() is None and not list((tmp_path / "killed").glob("checkpoints/*.safetensors")):
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    subprocess.run([*train, str(tmp_path / "killed")], env=environment, check=True, capture_output=True)
    finish(load_recipe(recipe), tmp_path / "whole")
    resumed = [r["update"] for r in read_records(tmp_path / "killed" / "records.jsonl") if r["kind"] == "resume"]
    assert len(resumed) == 1 and resumed[0] % 3 == 0
    assert same_tensors(final_tensors(tmp_path / "killed"), final_tensors(tmp_path / "whole"))
    assert timeless_records(tmp_path / "killed") == timeless_records(tmp_path / "whole")


def test_torchrun_starts_a_group_again_of_which_one_process_was_killed(tmp_path: Path) -> None:
    """As a user starts it: the other process says why it ends, and the run ends with the weights of one undisturbed."""
    recipe = written_recipe(tmp_path, epochs=30, every=5)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    group = subprocess.Popen(
        [*torchrun, "-m", "argbeam", "train", str(recipe), "--out", str(tmp_path / "killed")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while group.poll() is None and not list((tmp_path / "killed").glob("checkpoints/*.safetensors")):
        time.sleep(0.01)
    ranks = {_rank(int(child)): int(child) for child in _children(group.pid)}
    os.kill(ranks["1"], signal.SIGKILL)
    _, told = group.communicate(timeout=120)
    assert group.returncode == 0, told
    assert "process 0 of 2: process 1 ended unexpectedly" in told
    in_group(2, tmp_path / "logs", command, "train", str(recipe), "--out", str(tmp_path / "whole"))
    (resumed,) = (r for r in read_records(tmp_path / "killed" / "records.jsonl") if r["kind"] == "resume")
    assert resumed["update"] > 0 and resumed["processes"] == 2
    assert same_tensors(final_tensors(tmp_path / "killed"), final_tensors(tmp_path / "whole"))
    assert timeless_records(tmp_path / "killed") == timeless_records(tmp_path / "whole")


def _children(pid: int) -> list[str]:
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def _rank(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((v.partition(b"=")[2].decode() for v in variables if v.startswith(b"RANK=")), "")
