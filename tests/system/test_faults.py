"""Disks that are full: training ends with one line, the last good checkpoint stays, and with room it goes on."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from argbeam.errors import ArgbeamError
from argbeam.runs import checkpoint
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import recipe_from_json, recipe_to_json
from groups import end_group, said, start_group
from small_runs import PRETRAIN, final_tensors, finish, same_tensors, short_text, small_recipe, timeless_records

pytestmark = pytest.mark.slow


def recipe_in(folder: Path) -> Recipe:
    stages = {"only": {**PRETRAIN, "epochs": 12}}
    return small_recipe("runtime.checkpoint_every=2", data=short_text(folder), stages=stages)


def write_at_most(recipe: str, folder: str, size: int) -> None:
    """Train where no file can be larger than so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    finish(recipe_from_json(recipe), Path(folder))


def test_a_checkpoint_too_large_for_the_disk_is_one_line(tmp_path: Path) -> None:
    """A checkpoint has several thousand bytes: the start of training fits, its first checkpoint does not."""
    recipe, run = recipe_in(tmp_path), tmp_path / "run"
    (process,) = start_group(1, tmp_path / "logs", write_at_most, recipe_to_json(recipe), str(run), 4096)
    assert end_group([process]) == [1]
    assert said(tmp_path / "logs", 0).splitlines()[-1] == (
        "argbeam.errors.CheckpointError: "
        f"cannot write {run}/checkpoints/checkpoint-000000002.safetensors: File too large; "
        "the checkpoints before it are untouched"
    )
    assert checkpoint.latest(run / "checkpoints") == checkpoint.Latest(None, [], [])
    assert not list(run.glob("checkpoints/.*"))
    finish(recipe, run)
    finish(recipe, tmp_path / "whole")
    assert same_tensors(final_tensors(run), final_tensors(tmp_path / "whole"))


def on_small_disk(disk: Path, data: Path) -> None:
    """Train on a full disk, again and again with 4 kilobytes more to write, until training ends well."""
    recipe, run, filler = recipe_in(data), disk / "run", disk / "filler"
    finish(recipe, data / "whole")
    faults, with_checkpoint, done = 0, 0, False
    while not done:
        free = os.statvfs(disk)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 4096 * faults))
        before = checkpoint.latest(run / "checkpoints").checkpoint
        try:
            finish(recipe, run)
            done = True
        except ArgbeamError as error:
            assert str(error).startswith("cannot write ") and "No space left on device; " in str(error), error
            after = checkpoint.latest(run / "checkpoints")
            assert after.rejected == []
            assert before is None or (after.checkpoint is not None and after.checkpoint.position >= before.position)
            faults, with_checkpoint = faults + 1, with_checkpoint + (before is not None)
        filler.unlink()
    assert same_tensors(final_tensors(run), final_tensors(data / "whole"))
    assert timeless_records(run) == timeless_records(data / "whole")
    print(f"{faults} faults, {with_checkpoint} of them with a checkpoint to lose")


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    """A disk of its own, in a mount namespace of its own, where the system allows that."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0"'
    if subprocess.run([*mounted, mount, str(disk)], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    program = "import sys; from pathlib import Path; from test_faults import on_small_disk; "
    program += "on_small_disk(Path(sys.argv[1]), Path(sys.argv[2]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    words = [f'{mount} && exec "$@"', str(disk), sys.executable, "-c", program, str(disk), str(tmp_path)]
    done = subprocess.run([*mounted, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    faults, *_, with_checkpoint = (int(word) for word in done.stdout.split() if word.isdigit())
    assert faults > with_checkpoint > 1
