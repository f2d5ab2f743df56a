"""Run folders: the names in one, its lock, and checks that nothing else is taken for one or written through a link."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from argbeam.errors import ArgbeamError
from argbeam.files import TEMPORARY, writing

RECIPE, RECORDS, EVALUATIONS = "recipe.json", "records.jsonl", "evaluations.jsonl"
CHECKPOINTS, MODEL, PREDICTIONS, STORE, CURVES = "checkpoints", "model", "predictions", "store", "tensorboard"
LOCK, LENGTH_POWER = ".lock", "length_power.jsonl"
# Everything that a run writes, except hidden temporary files that a kill may leave.
NAMES = (RECIPE, RECORDS, EVALUATIONS, CHECKPOINTS, MODEL, PREDICTIONS, STORE, CURVES, LOCK, LENGTH_POWER)


def check_out(folder: Path) -> None:
    """Refuse to train into a folder that is neither empty nor a run, before anything is written there."""
    with writing(folder, "--out takes a folder"):
        refuse_links(folder)
        refuse_inside_run(folder)
        if not (folder / RECIPE).exists():
            refuse_foreign(folder, lambda name: name in NAMES, known="a run")


def refuse_foreign(folder: Path, is_own: Callable[[str], bool], *, known: str) -> None:
    """Refuse a file, and a folder that holds something whose name is not `is_own`; `known` is what it may hold."""
    if not folder.is_dir():
        if folder.exists():
            raise ArgbeamError(f"{folder}: a file; --out takes a new folder, or {known}")
        return
    names = (path.name for path in folder.iterdir())
    foreign = sorted(name for name in names if not is_own(name) and not (name[0] == "." and name.endswith(TEMPORARY)))
    if foreign:
        found = f"neither empty nor {known}: it holds {foreign[0]}"
        raise ArgbeamError(f"{folder}: {found}; --out takes a new folder, or {known}")


def refuse_inside_run(folder: Path) -> None:
    """Refuse a folder inside of a run: what a run holds is the run's own."""
    try:
        parents = folder.resolve().parents
    except RuntimeError:
        raise ArgbeamError(f"cannot write {folder}: a loop of symbolic links; --out takes a folder") from None
    for parent in parents:
        if (parent / RECIPE).is_file() and (parent / RECORDS).is_file():
            raise ArgbeamError(f"{folder}: inside the run {parent}; --out takes a folder outside of it")


@contextmanager
def lock_folder(folder: Path, *, doing: str, first: str = "") -> Iterator[None]:
    """Make the folder and hold its lock; an error where another process is `doing` the same.

    The system releases the lock of a killed process. The lock file stays, unless the work ends before its `first` file
    is there: then everything that was made here is removed.
    """
    lock = FileLock(folder / LOCK, thread_local=False)
    with writing(folder, "--out takes a folder"):
        new = [path for path in (folder / LOCK, folder, *folder.parents) if not path.exists()]
    with writing(folder, "--out takes a folder"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise ArgbeamError(f"{folder}: another process is {doing}") from None
    try:
        yield
    finally:
        if first and not (folder / first).exists():
            _remove(folder, new)
        lock.release()


def _remove(folder: Path, new: Sequence[Path]) -> None:
    """Remove what a start that failed has made: `new`, and what a run writes before its recipe."""
    if folder in new:
        for name in (STORE, CURVES):
            shutil.rmtree(folder / name, ignore_errors=True)
    for path in new:
        with suppress(OSError):  # not empty: it holds something else
            path.unlink() if path.name == LOCK else path.rmdir()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder's lock."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, blocking=False):
            return False
    except Timeout:
        return True


def is_trained(folder: Path) -> bool:
    """Whether the folder holds a finished model, not yet verified."""
    return any((folder / MODEL).glob("*.safetensors"))


def refuse_links(folder: Path) -> None:
    """Refuse symbolic links under a run's names. The folder itself may be a link: the user asked for that one."""
    for name in NAMES:
        if (folder / name).is_symlink():
            raise ArgbeamError(f"{folder / name}: a symbolic link; a run writes inside its own folder only")


def folder_of(path: Path) -> Path:
    """The run folder of a run folder, or of a checkpoint file in `checkpoints` or `model`."""
    if path.is_dir():
        return path
    inside = path.absolute().parent
    if inside.name not in (CHECKPOINTS, MODEL) or not (inside.parent / RECIPE).is_file():
        raise ArgbeamError(f"{path}: lies in no run folder, where scores and predictions are saved")
    return inside.parent
