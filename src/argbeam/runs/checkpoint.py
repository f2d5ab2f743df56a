"""Checkpoints: one safetensors file each, written at once, with a SHA-256 of its content in its metadata.

A single file means a single rename: a checkpoint and its digest appear together. The metadata holds `argbeam` (the
format), `position`, `meta` (JSON) and `sha256` (of all tensors and of the other metadata, each in the order of names).
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from argbeam import __version__
from argbeam.errors import CheckpointError
from argbeam.files import TEMPORARY, reading, write_atomic, writing
from argbeam.runs.layout import MODEL, RECIPE
from argbeam.settings import Recipe
from argbeam.tasks import TASKS, Task
from argbeam.training.events import Saved
from argbeam.training.state import Position

FORMAT = 2
_FORMAT_0_1 = 1  # of version 0.1: its digest is that of the whole file with zeros in the digest's place

_FILE_NAME = re.compile(r"checkpoint-([0-9]{9,})\.safetensors")
_TENSOR_NAME = re.compile(r"\w[\w./:-]*", re.ASCII)
_ASSET = "asset."


class UnreadableError(CheckpointError):
    """A file that cannot be read: the fault is outside it, and it may hold a good checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file, and its path."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    position: int
    path: Path


@dataclass(frozen=True)
class Latest:
    """The newest good checkpoint of a folder; for each newer file, which is damaged, what is wrong and its name."""

    checkpoint: Checkpoint | None
    rejected: list[str]
    damaged: list[str]


def save_training(
    folder: Path, saved: Saved, recipe: str, task: Task, data: Mapping[str, str], *, keep: int = 2
) -> None:
    """Write a checkpoint of training's state with the recipe (JSON), the task's files and the digests of the data."""
    assets = {
        f"{_ASSET}{name}": torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in task.assets.items()
    }
    meta = {"recipe": recipe, "position": vars(saved.position), "rule": saved.rule, "stop": saved.stop}
    meta |= {"stage": saved.stage, "data": dict(data), "version": __version__}
    save(folder, saved.position.update, {**saved.tensors, **assets}, meta, keep=keep)


def save(folder: Path, position: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, keep: int = 2) -> Path:
    """Write a checkpoint, then remove all but the `keep` newest ones up to it.

    A folder holds one history: a good checkpoint of a later position is an error, and nothing is written. Damaged files
    are to be moved out of the way first, by `set_aside`.
    """
    if position < 0 or keep < 1:
        raise ValueError(f"position {position}, keep {keep}: position starts at 0 and keep at 1")
    for name in tensors:
        _check_tensor_name(name)
    data = _serialise(position, tensors, meta)
    path = folder / f"checkpoint-{position:09d}.safetensors"
    _refuse_later(folder, position)
    with writing(path, "the checkpoints before it are untouched", CheckpointError):
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".checkpoint-*{TEMPORARY}"):
            leftover.unlink()
        write_atomic(path, data)
    for old in [old for number, old in _listed(folder) if number <= position][keep:]:
        with writing(old, "it is old and must be removed; the newest checkpoint is written", CheckpointError):
            old.unlink(missing_ok=True)
    return path


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and verify all of it; a CheckpointError says what is wrong with the file."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: not a plain file; a checkpoint is expected")
    with reading(path, "a checkpoint is expected", UnreadableError):
        data = path.read_bytes()
    metadata = _read_metadata(data, path)
    try:
        tensors = safetensors.torch.load(data)
        if not _is_unaltered(data, tensors, metadata):
            raise CheckpointError(f"{path}: altered: its SHA-256 is not the one it was written with")
        position, meta = int(metadata["position"]), json.loads(metadata["meta"])
        if not isinstance(meta, dict):
            raise ValueError("meta is no table")
        for name in tensors:
            _check_tensor_name(name)
    except (KeyError, ValueError, RuntimeError, RecursionError, SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path}: not a checkpoint of argbeam, or altered: {reason}") from None
    named = _FILE_NAME.fullmatch(path.name)
    if named and int(named[1]) != position:
        raise CheckpointError(f"{path}: holds position {position}; its name must say so")
    return Checkpoint(tensors, meta, position, path)


def latest(folder: Path) -> Latest:
    """The newest good checkpoint of a folder. A file that cannot be read is an error: it may be the newest."""
    rejected: list[str] = []
    damaged: list[str] = []
    for _, path in _listed(folder):
        try:
            return Latest(load(path), rejected, damaged)
        except UnreadableError:
            raise
        except CheckpointError as error:
            rejected.append(str(error))
            damaged.append(path.name)
    return Latest(None, rejected, damaged)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint so that training neither removes nor overwrites it."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
    free = next(name for name in names if not name.exists())
    with writing(path, "it is damaged and must be renamed", CheckpointError):
        path.rename(free)
    return free


def finished_model(folder: Path) -> Checkpoint:
    """The finished model of a run folder."""
    found = latest(folder / MODEL)
    if found.checkpoint is not None:
        return found.checkpoint
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such run folder, and no such checkpoint file")
    if not found.rejected and not (folder / RECIPE).is_file():
        raise CheckpointError(f"{folder}: not a run: recipe.json is missing; `argbeam train` makes a run")
    reason = found.rejected[0] if found.rejected else f"{folder}: holds no finished model"
    raise CheckpointError(f"{reason}; `argbeam train` makes one, and resumes a run that was stopped")


def task_of(recipe: Recipe, checkpoint: Checkpoint) -> Task:
    """The task made from a checkpoint's assets."""
    found = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(_ASSET)}
    with interpreting(checkpoint.path):
        assets = {name.removeprefix(_ASSET): tensor.numpy().tobytes() for name, tensor in found.items()}
        return TASKS[recipe.task.kind].load(recipe, assets)


def position_of(checkpoint: Checkpoint) -> Position:
    """The position that training resumes from; an impossible one is an error of the file."""
    with interpreting(checkpoint.path):
        position, plain = Position(**checkpoint.meta["position"]), Position()
        for name, value in vars(position).items():
            kinds = (int, float, type(None)) if name == "best_value" else (type(getattr(plain, name)), int)
            may_be_negative = name in ("best_value", "best_epoch", "trained_by") or type(value) in (str, dict)
            if type(value) not in kinds or (not may_be_negative and value < 0):
                raise ValueError(f"position.{name} = {value!r}")
        if position.update and not position.rule and position.epoch == position.batch == 0:
            # Version 0.1 did not save the rules of the weights between stages here.
            rules = {"rule": checkpoint.meta["rule"], "stop": checkpoint.meta["stop"]}
            return replace(position, **rules, trained_by=position.stage - 1)
        return position


@contextmanager
def interpreting(path: Path) -> Iterator[None]:
    """Turn errors of missing or odd content into a CheckpointError: an unaltered file may be of another program."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path}: not a run's checkpoint: {reason}") from None


def _refuse_later(folder: Path, position: int) -> None:
    for number, path in _listed(folder):
        if number <= position:
            return
        try:
            load(path)
        except UnreadableError:
            raise
        except CheckpointError:
            continue
        raise CheckpointError(
            f"{path}: a checkpoint after position {position}; resume from it or choose another folder"
        )


def _listed(folder: Path) -> list[tuple[int, Path]]:
    """Positions and paths of all files with a checkpoint's name, newest first."""
    matches = [(_FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def _check_tensor_name(name: str) -> None:
    if not _TENSOR_NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"tensor name {name!r}: letters, digits and _ . / : - are accepted, without ..")


def _serialise(position: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    # A copy of each: safetensors refuses tensors that share memory, and weights may be tied.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    # Python's JSON holds integers of any size, and infinities: a best score may start at minus infinity.
    text = json.dumps(dict(meta))
    if repr(json.loads(text)) != repr(dict(meta)):  # not by value: NaN differs from itself
        raise TypeError(f"meta {meta}: accepted: str, int, float, bool, None, list, dict with string keys")
    metadata = {"argbeam": str(FORMAT), "position": str(position), "meta": text}
    return safetensors.torch.save(copies, {**metadata, "sha256": _digest(copies, metadata)})


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _is_unaltered(data: bytes, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    digest = metadata["sha256"]
    if metadata["argbeam"] == str(_FORMAT_0_1):
        entry = '"sha256":"%s"'  # quotes inside names and meta are escaped: the first match is the entry itself
        zeroed = data.replace((entry % digest).encode(), (entry % ("0" * 64)).encode(), 1)
        return hashlib.sha256(zeroed).hexdigest() == digest
    return _digest(tensors, {key: value for key, value in metadata.items() if key != "sha256"}) == digest


def _read_metadata(data: bytes, path: Path) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or (len(data) < 8 + length and data[8:9] in (b"{", b"")):
        raise CheckpointError(f"{path}: truncated: {len(data)} bytes, its header ends later")
    try:
        text = data[8 : 8 + length].rstrip(b" ")  # spaces fill the header up, and nothing else
        header = json.loads(text if text.endswith(b"}") else b"")
        metadata = header.pop("__metadata__")
        end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        version = int(metadata["argbeam"])
    except KeyError:
        raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of argbeam") from None
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError):
        raise CheckpointError(f"{path}: not a safetensors file, or altered; a checkpoint is expected") from None
    if version not in (_FORMAT_0_1, FORMAT):
        raise CheckpointError(f"{path}: format {version}; this argbeam reads formats {_FORMAT_0_1} and {FORMAT}")
    if len(data) < end:
        raise CheckpointError(f"{path}: truncated: {len(data)} of {end} bytes")
    return {str(key): str(value) for key, value in metadata.items()}
