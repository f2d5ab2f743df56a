"""Processes that train are killed at any moment; what they leave leads to the same weights."""

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

from argbeam.config import recipe_to_json
from argbeam.records import read_records
from small_runs import (
    BSO,
    PRETRAIN,
    final_tensors,
    finish_apart,
    same_tensors,
    short_text,
    small_recipe,
    timeless_records,
)

pytestmark = pytest.mark.slow
KILLS = 8


def test_runs_killed_at_random_moments_end_with_the_same_weights(tmp_path: Path) -> None:
    """The processes are forked from one that has imported torch, so that it is training that is killed.

    Each lives at most a third of the time that the undisturbed run takes, so every run is killed at least once.
    """
    stages = {"pretrain": {**PRETRAIN, "epochs": 20}, "bso": {**BSO, "epochs": 40}}
    recipe = small_recipe("runtime.checkpoint_every=3", data=short_text(tmp_path), stages=stages)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["argbeam.run", "small_runs"])

    def process_for(folder: Path) -> BaseProcess:
        process = context.Process(target=finish_apart, args=(recipe_to_json(recipe), str(folder)))
        process.start()
        return process

    process_for(tmp_path / "warm").join()  # its time would be that of importing torch
    started = time.monotonic()
    process_for(tmp_path / "whole").join()
    seconds, draw, kills = time.monotonic() - started, random.Random(1), 0
    while kills < KILLS:
        folder = tmp_path / f"after {kills} kills"
        while not list(folder.glob("model/*.safetensors")):
            process = process_for(folder)
            process.join(draw.uniform(0, seconds / 3))
            kills += process.is_alive()
            process.kill()
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL)
        assert same_tensors(final_tensors(folder), final_tensors(tmp_path / "whole"))
        assert timeless_records(folder) == timeless_records(tmp_path / "whole")


def test_a_command_killed_while_it_trains_goes_on_when_started_again(tmp_path: Path) -> None:
    """The whole command, from its start: killed once it has saved, then run to its end."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'name = "small"\n[task]\nkind = "word_ordering"\n'
        f'[data]\nkind = "text"\nroot = "{tmp_path}"\ntrain = ["train.txt"]\ndev = ["dev.txt"]\n'
        "[model]\nhidden = 6\nembedding = 5\n[batch]\nsize = 2\n"
        '[stages.only]\nepochs = 60\nkeep = "last"\nloss = { kind = "cross_entropy" }\n'
        "optimizer = { encoder = 0.05, decoder = 0.05, output = 0.2 }\n"
        '[runtime]\ndevice = "cpu"\ncheckpoint_every = 3\n',
        encoding="utf-8",
    )
    short_text(tmp_path)
    command = [sys.executable, "-m", "argbeam", "train", str(recipe), "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(
        [*command, str(tmp_path / "killed")], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while killed.poll() is None and not list((tmp_path / "killed").glob("checkpoints/*.safetensors")):
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    for name in ("killed", "whole"):
        subprocess.run([*command, str(tmp_path / name)], env=environment, check=True, capture_output=True)
    resumed = [
        r["update"] for r in read_records(tmp_path / "killed" / "records.jsonl").records if r["kind"] == "resume"
    ]
    assert len(resumed) == 1 and resumed[0] % 3 == 0
    assert same_tensors(final_tensors(tmp_path / "killed"), final_tensors(tmp_path / "whole"))
    assert timeless_records(tmp_path / "killed") == timeless_records(tmp_path / "whole")
