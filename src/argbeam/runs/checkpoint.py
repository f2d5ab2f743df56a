"""Checkpoints: one safetensors file each, written at once, with a SHA-256 of itself in its header.

A single file means a single rename: there is no moment at which a checkpoint is there and its digest is not.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from argbeam.errors import CheckpointError
from argbeam.files import TEMPORARY, write_atomic

FORMAT = 1

_FILE_NAME = re.compile(r"checkpoint-([0-9]{9,})\.safetensors")
_TENSOR_NAME = re.compile(r"\w[\w./:-]*", re.ASCII)
# The digest is that of the file with zeros in the digest's place.
_NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Checkpoint:
    """What `save` was given, and where it was found."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    position: int
    path: Path


@dataclass(frozen=True)
class Found:
    """The newest good checkpoint, and one line for each newer file that is not good."""

    checkpoint: Checkpoint | None
    rejected: list[str]


def save(folder: Path, position: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, keep: int = 2) -> Path:
    """Write a checkpoint, and once it is on the disk drop all but the `keep` newest ones up to it.

    A folder holds one history: a good checkpoint of a later position is an error, and nothing is written.
    A bad one is left for the run to overwrite when it comes to that position again.
    """
    if position < 0 or keep < 1:
        raise ValueError(f"position {position}, keep {keep}: position starts at 0 and keep at 1")
    for name in tensors:
        _check_tensor_name(name)
    _check_plain(meta, "meta")
    data = _serialise(position, tensors, meta)
    path = folder / f"checkpoint-{position:09d}.safetensors"
    _refuse_later(folder, position)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".checkpoint-*{TEMPORARY}"):
            leftover.unlink()
        write_atomic(path, data)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror}; the checkpoints before it are untouched"
        ) from None
    _drop([old for number, old in _listed(folder) if number <= position][keep:])
    return path


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check all of it; a CheckpointError says what is wrong with the file."""
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: not a plain file; a checkpoint is expected")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}; a checkpoint is expected") from None
    marks = _read_marks(data, path)
    _check_digest(data, marks, path)
    try:
        position, meta = int(marks["position"]), json.loads(marks["meta"])
        if not isinstance(meta, dict):
            raise ValueError("its meta is no table")
        tensors = safetensors.torch.load(data)
    except (KeyError, ValueError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of argbeam: {_line(error)}") from None
    named = _FILE_NAME.fullmatch(path.name)
    if named and int(named[1]) != position:
        raise CheckpointError(f"{path}: holds position {position}; its name must say so")
    try:
        for name in tensors:
            _check_tensor_name(name)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return Checkpoint(tensors, meta, position, path)


def latest(folder: Path) -> Found:
    """The newest checkpoint of a folder that is good; bad ones on the way to it are named and passed over."""
    rejected: list[str] = []
    for _, path in _listed(folder):
        try:
            return Found(load(path), rejected)
        except CheckpointError as error:
            rejected.append(str(error))
    return Found(None, rejected)


def _refuse_later(folder: Path, position: int) -> None:
    for number, path in _listed(folder):
        if number <= position:
            return
        try:
            load(path)
        except CheckpointError:
            continue
        raise CheckpointError(
            f"{path}: a checkpoint after position {position}; resume from it or choose another folder"
        )


def _drop(paths: list[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{path}: old, and cannot be removed: {error.strerror}; the newest checkpoint is written"
            ) from None


def _listed(folder: Path) -> list[tuple[int, Path]]:
    """Positions and paths of what is named as a checkpoint, newest first."""
    if not folder.is_dir():
        return []
    matches = [(_FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def _check_tensor_name(name: str) -> None:
    if not _TENSOR_NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"tensor name {name!r}: letters, digits and _ . / : - are accepted, without ..")


def _check_plain(value: Any, where: str) -> None:
    """JSON would change tuples, keys that are no strings and numbers of other libraries without a word."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if type(key) is not str:
                raise TypeError(f"{where}: key {key!r} is a {type(key).__name__}; keys must be strings")
            _check_plain(inner, f"{where}.{key}")
    elif type(value) is list:
        for index, inner in enumerate(value):
            _check_plain(inner, f"{where}[{index}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"{where} is a {type(value).__name__}; accepted: str, int, float, bool, None, list, dict")


def _serialise(position: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    # A copy of each: safetensors refuses tensors that share memory, and weights may be tied.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    # Python's JSON keeps integers of any size, and infinities: a best score may start at minus infinity.
    marks = {
        "argbeam": str(FORMAT),
        "position": str(position),
        "meta": json.dumps(dict(meta)),
        "sha256": _NO_DIGEST,
    }
    data = bytearray(safetensors.torch.save(copies, marks))
    start = _digest_start(data, _NO_DIGEST)
    data[start : start + 64] = hashlib.sha256(data).hexdigest().encode()
    return bytes(data)


def _digest_start(data: bytes | bytearray, digest: str) -> int:
    """Where the digest stands, or -1. Quotes inside names and meta are escaped, so no other place fits."""
    before = b'"sha256":"'
    found = data.find(before + digest.encode() + b'"', 8, 8 + int.from_bytes(data[:8], "little"))
    return found + len(before) if found >= 0 else -1


def _read_marks(data: bytes, path: Path) -> dict[str, str]:
    """Our part of the header."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or (len(data) < 8 + length and data[8:9] in (b"{", b"")):
        raise CheckpointError(f"{path}: truncated: {len(data)} bytes, its header ends later")
    try:
        header = json.loads(data[8 : 8 + length])
        marks = header.pop("__metadata__")
        end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        version = int(marks["argbeam"])
    except KeyError:
        raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of argbeam") from None
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError):
        raise CheckpointError(f"{path}: not a safetensors file, or altered; a checkpoint is expected") from None
    if version != FORMAT:
        raise CheckpointError(f"{path}: format {version}; this argbeam reads format {FORMAT}")
    if len(data) < end:
        raise CheckpointError(f"{path}: truncated: {len(data)} of {end} bytes")
    return {str(key): str(value) for key, value in marks.items()}


def _check_digest(data: bytes, marks: Mapping[str, str], path: Path) -> None:
    digest = marks.get("sha256", "")
    start = _digest_start(data, digest) if len(digest) == 64 and digest.isascii() else -1
    if start >= 0:
        hashed = hashlib.sha256(data[:start])
        hashed.update(_NO_DIGEST.encode())
        hashed.update(memoryview(data)[start + 64 :])
        if hashed.hexdigest() == digest:
            return
    raise CheckpointError(f"{path}: altered: its SHA-256 is not the one it was written with")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
