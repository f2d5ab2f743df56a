"""What the checkpoints of a run hold, and what is made of it again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from argbeam import __version__
from argbeam.errors import CheckpointError
from argbeam.runs import checkpoint
from argbeam.runs import layout as folders
from argbeam.runtime.group import Group
from argbeam.settings import Recipe
from argbeam.tasks import TASKS, Task
from argbeam.training.events import Saved
from argbeam.training.state import Position


def save(folder: Path, saved: Saved, meta: Mapping[str, Any], task: Task) -> None:
    """A checkpoint of what training saved, with the task's files."""
    assets = {
        f"asset.{name}": torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in task.assets.items()
    }
    state = {**meta, "position": vars(saved.position), "rule": saved.rule, "stop": saved.stop, "version": __version__}
    checkpoint.save(folder, saved.position.update, {**saved.tensors, **assets}, state)


def newest(folder: Path, group: Group) -> checkpoint.Found:
    """The checkpoint that all processes go on from: the first one finds it, the others read that very file."""
    own: list[checkpoint.Found] = []

    def find() -> list[Any]:
        own.append(checkpoint.latest(folder))
        found = own[0].checkpoint
        return ["" if found is None else found.path.name, own[0].rejected]

    name, rejected = group.first(find)
    return own[0] if own else checkpoint.Found(checkpoint.load(folder / name) if name else None, rejected)


def finished_model(folder: Path) -> checkpoint.Checkpoint:
    """The finished model of a run folder."""
    latest = checkpoint.latest(folder / folders.MODEL)
    if latest.checkpoint is not None:
        return latest.checkpoint
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such run folder, and no such checkpoint file")
    if not latest.rejected and not (folder / folders.RECIPE).is_file():
        raise CheckpointError(f"{folder}: not a run: recipe.json is missing; `argbeam train` makes a run")
    reason = latest.rejected[0] if latest.rejected else f"{folder}: holds no finished model"
    raise CheckpointError(f"{reason}; `argbeam train` makes one, and goes on where it was stopped")


def task_of(recipe: Recipe, found: checkpoint.Checkpoint) -> Task:
    """The task that a checkpoint's files make."""
    with reading(found.path):
        return TASKS[recipe.task.kind].load(recipe, _assets(found.tensors))


def position_of(found: checkpoint.Checkpoint) -> Position:
    """Where training goes on; what a position cannot be is an error of the file."""
    with reading(found.path):
        position, plain = Position(**found.meta["position"]), Position()
        for name, value in vars(position).items():
            kinds = (int, float, type(None)) if name == "best_value" else (type(getattr(plain, name)), int)
            if type(value) not in kinds or (name not in ("best_value", "best_epoch") and value < 0):
                raise ValueError(f"position.{name} = {value!r}")
        return position


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A checkpoint that is whole may still lack something, or hold it in a form of another program's making."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path}: not a run's checkpoint: {reason}") from None


def _assets(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    prefix = "asset."
    return {k.removeprefix(prefix): bytes(v.tolist()) for k, v in tensors.items() if k.startswith(prefix)}
