"""Checkpoints: bit-exact, verified, and never lost."""

import errno
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from argbeam.errors import CheckpointError
from argbeam.runs import checkpoint
from argbeam.runs.checkpoint import Latest, latest, load, save
from refusals import refusal


class Killed(BaseException):
    """Stands for the process's end: code that tidies up after an Exception must not see it."""


def name_of(position: int) -> str:
    return f"checkpoint-{position:09d}.safetensors"


def save_simple(folder: Path, position: int, *, keep: int = 2) -> Path:
    return save(folder, position, {"weight": torch.full((3,), float(position))}, {"epoch": position}, keep=keep)


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """The tensor's bytes are random (bool: 0 or 1), so that NaNs with payloads and negative zeros occur."""
    plain = torch.empty(shape, dtype=getattr(torch, name))
    size, values = plain.numel() * plain.element_size(), 2 if name == "bool" else 256
    raw = torch.randint(0, values, (size,), generator=torch.Generator().manual_seed(1))
    tensor = raw.to(torch.uint8).view(plain.dtype).reshape(shape)
    found = load(save(tmp_path, 7, {"tensor": tensor}, {})).tensors["tensor"]
    assert (found.dtype, found.shape, bits(found)) == (tensor.dtype, tensor.shape, bits(tensor))


def test_special_floats_generator_state_views_and_tied_weights_come_back(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(4, 6, generator=generator)
    tensors = {
        "special": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]),
        "rng": generator.get_state(),
        "weight": weight,
        "tied": weight,
        "transposed": weight.T,
        "strided": weight[:, ::2],
        "gradient": torch.nn.Parameter(weight),
    }
    found = load(save(tmp_path, 1, tensors, {})).tensors
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert bits(found[name]) == bits(tensor.detach()), name
    again = torch.Generator()
    again.set_state(found["rng"])
    assert torch.equal(torch.randn(5, generator=again), torch.randn(5, generator=generator))


def test_a_checkpoint_may_hold_no_tensor(tmp_path: Path) -> None:
    found = load(save(tmp_path, 0, {}, {"a": 1}))
    assert (found.tensors, found.meta, found.position, found.path) == ({}, {"a": 1}, 0, tmp_path / name_of(0))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(meta=st.dictionaries(st.text(), plain, max_size=4))
@example(meta={"big": 2**64 + 1, "tenth": 0.1, "best": -float("inf"), "not a number": float("nan")})
@example(meta={"nested": {"a": [1, {"b": None}]}, "like the header": '"sha256":"' + "0" * 64 + '"'})
def test_meta_comes_back_exactly(meta: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    found = load(save(tmp_path_factory.mktemp("run"), 1, {"sha256": torch.zeros(2)}, meta)).meta
    assert json.dumps(found) == json.dumps(meta)  # tells 1 from 1.0 and True, and NaN is NaN


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"a": {1: 2}}, "accepted: str, int, float, bool, None, list, dict with string keys"),
        ({"a": [0, (1, 2)]}, "accepted: "),
        ({"a": np.float64(0.5)}, "accepted: "),
        ({"a": torch.zeros(1)}, "Tensor is not JSON serializable"),
    ],
)
def test_meta_that_json_would_change_is_refused(meta: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(save, tmp_path, 1, {}, meta, error=TypeError)
    assert latest(tmp_path).checkpoint is None


@pytest.mark.parametrize("name", ["../weight", "a/../b", "", "/root", "a\nb", "ä", "a..b"])
def test_odd_tensor_names_are_refused_on_the_way_out_and_in(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = f"tensor name {name!r}: letters, digits and _ . / : - are accepted, without .."
    assert refusal(save, tmp_path, 1, {name: torch.zeros(1)}, {}, error=ValueError) == expected
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_check_tensor_name", lambda name: None)
        path = save(tmp_path, 1, {name: torch.zeros(1)}, {})
    message = f"{path}: not a checkpoint of argbeam, or altered: {expected}"
    assert refusal(load, path, error=CheckpointError) == message


def test_positions_and_counts_below_their_start_are_refused(tmp_path: Path) -> None:
    assert "position starts at 0" in refusal(save, tmp_path, -1, {}, {}, error=ValueError)
    assert "keep at 1" in refusal(save, tmp_path, 1, {}, {}, keep=0, error=ValueError)


def test_the_newest_are_kept_and_sorted_as_numbers(tmp_path: Path) -> None:
    for position in (1, 2, 999_999_999, 1_000_000_000):
        save_simple(tmp_path, position, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name_of(1_000_000_000), name_of(999_999_999)]
    assert position_of_latest(tmp_path) == 1_000_000_000


def test_an_absent_or_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert latest(folder) == Latest(None, [], [])


def test_leftover_temporary_files_go_with_the_next_save_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / f".{name_of(3)}.tmp").write_bytes(b"half")
    (tmp_path / "records.jsonl").write_text("{}\n")
    save_simple(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name_of(4), "records.jsonl"]


def test_a_good_checkpoint_of_a_later_position_is_never_given_up(tmp_path: Path) -> None:
    later = save_simple(tmp_path, 500)
    message = f"{later}: a checkpoint after position 0; resume from it or choose another folder"
    assert refusal(save_simple, tmp_path, 0, keep=1, error=CheckpointError) == message
    assert [path.name for path in tmp_path.iterdir()] == [name_of(500)]


def test_a_run_goes_on_past_a_bad_checkpoint(tmp_path: Path) -> None:
    """400 good, 500 torn: the run resumes at 400, saves 450 (500 does not crowd it out), then 500 anew."""
    save_simple(tmp_path, 400)
    save_simple(tmp_path, 500).write_bytes(b"torn")
    assert position_of_latest(tmp_path) == 400
    save_simple(tmp_path, 450, keep=1)
    assert position_of_latest(tmp_path) == 450
    save_simple(tmp_path, 500, keep=1)
    assert latest(tmp_path).rejected == []
    assert [path.name for path in tmp_path.iterdir()] == [name_of(500)]


def position_of_latest(folder: Path) -> int:
    found = latest(folder).checkpoint
    assert found is not None
    assert torch.equal(found.tensors["weight"], torch.full((3,), float(found.position)))
    assert found.meta == {"epoch": found.position}
    return found.position


def test_a_truncation_at_every_byte_is_recognised_and_the_one_before_is_used(tmp_path: Path) -> None:
    save_simple(tmp_path, 1)
    newest = save_simple(tmp_path, 2)
    whole = newest.read_bytes()
    for length in range(len(whole)):
        newest.write_bytes(whole[:length])
        found = latest(tmp_path)
        assert found.checkpoint is not None and found.checkpoint.position == 1, length
        (rejected,) = found.rejected
        assert rejected.startswith(f"{newest}: truncated: {length} ") and "\n" not in rejected


# Written by version 0.1: format 1, with the digest of the whole file.
VERSION_0_1 = (
    b'\xd0\0\0\0\0\0\0\0{"__metadata__":{"argbeam":"1","meta":"{\\"epoch\\": 3}","sha256":'
    b'"48f525bdab5c11fff172b6e7d2a326b676d96ef9414eca4d1ad41484b53a2628","position":"3"},'
    b'"weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   \0\0\x80?\0\0\0@'
)


def test_a_checkpoint_of_version_0_1_is_read(tmp_path: Path) -> None:
    (tmp_path / name_of(3)).write_bytes(VERSION_0_1)
    found = load(tmp_path / name_of(3))
    assert (found.tensors["weight"].tolist(), found.meta, found.position) == ([1.0, 2.0], {"epoch": 3}, 3)


@pytest.mark.parametrize("version", ["0.1", "now"])
def test_every_flipped_bit_and_other_white_space_is_recognised(version: str, tmp_path: Path) -> None:
    path = save_simple(tmp_path, 3)
    whole = VERSION_0_1 if version == "0.1" else path.read_bytes()
    for offset, byte in enumerate(whole):
        for other in {*(byte ^ 1 << bit for bit in range(8)), *b"\t\n\r"} - {byte}:
            path.write_bytes(whole[:offset] + bytes([other]) + whole[offset + 1 :])
            said = refusal(load, path, error=CheckpointError)
            assert said.startswith(f"{path}: ") and "\n" not in said


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_cut_out_inserted_and_overwritten_bytes_are_recognised(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    save_simple(folder, 1)
    newest = save_simple(folder, 2)
    whole = newest.read_bytes()
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    altered = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    newest.write_bytes(altered)
    assert position_of_latest(folder) == (2 if altered == whole else 1)


def save_altered(path: Path) -> None:
    path.write_bytes(save_simple(path.parent, 9).read_bytes()[:-1] + b"\x07")


def save_weight(path: Path, metadata: dict[str, str] | None = None) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path, metadata)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (save_altered, "{}: altered: its SHA-256 is not the one it was written with"),
        (save_weight, "{}: a safetensors file, but not a checkpoint of argbeam"),
        (partial(save_weight, metadata={"argbeam": "3"}), "{}: format 3; this argbeam reads formats 1 and 2"),
        (Path.mkdir, "{}: not a plain file; a checkpoint is expected"),
        (lambda path: save_simple(path.parent, 4).rename(path), "{}: holds position 4; its name must say so"),
        (partial(torch.save, {}), "{}: not a safetensors file, or altered; a checkpoint is expected"),
        (lambda path: None, "cannot read {}: No such file or directory; a checkpoint is expected"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_its_reason(
    make: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / name_of(9)
    make(path)
    assert refusal(load, path, error=CheckpointError) == reason.format(path)


def test_a_copy_under_a_name_of_the_users_own_loads(tmp_path: Path) -> None:
    path = save_simple(tmp_path, 4).rename(tmp_path / "best.safetensors")
    assert load(path).position == 4


def count_calls(monkeypatch: pytest.MonkeyPatch, fail_at: int, error: BaseException) -> list[str]:
    """Let the `fail_at`-th call that touches the disk fail halfway; the list returned notes the calls."""
    calls: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            if len(calls) == fail_at:
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise error
            return real(*arguments, **named)

        monkeypatch.setattr(os, name, wrapped)

    for name in ("open", "write", "fsync", "replace", "unlink", "close"):
        wrap(name)
    return calls


def failing_saves(
    folders: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, leftover: bool = False
) -> Iterator[tuple[Path, str, BaseException | None]]:
    """The folder, the failed call and the error of saves whose 1st, 2nd, ... call fails, until one gets through."""
    for fail_at in range(1, 100):
        folder = folders / str(fail_at)
        raised: BaseException | None = None
        save_simple(folder, 1, keep=1)
        if leftover:
            (folder / f".{name_of(2)}.tmp").write_bytes(b"left by an earlier kill")
        with monkeypatch.context() as patch:
            calls = count_calls(patch, fail_at, error)
            try:
                save_simple(folder, 2, keep=1)
            except (Killed, CheckpointError) as caught:
                raised = caught
        assert position_of_latest(folder) == (2 if "replace" in calls[: fail_at - 1] else 1)
        yield folder, calls[fail_at - 1] if raised else "", raised
        if len(calls) < fail_at:
            return
    raise AssertionError("save never got through")


def test_a_kill_at_any_call_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for folder, call, _ in failing_saves(tmp_path, monkeypatch, Killed(), leftover=True):
        seen.add(call)
        assert latest(folder).rejected == []
        save_simple(folder, 3, keep=1)
        assert [path.name for path in folder.iterdir()] == [name_of(3)]
    assert seen == {"open", "write", "fsync", "replace", "unlink", "close", ""}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_error_at_any_call_is_one_line_and_leaves_the_last_good_checkpoint(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, call, error in failing_saves(tmp_path, monkeypatch, OSError(code, os.strerror(code))):
        if error:
            hint = "it is old and must be removed" if call == "unlink" else "the checkpoints"
            assert str(error).startswith(f"cannot write {folder}")
            assert f": {os.strerror(code)}; {hint}" in str(error) and "\n" not in str(error)
        assert not list(folder.glob(".*"))


def keep_saving(folder: Path, start: int, reports: Connection) -> None:
    for position in range(start, start + 100000):
        save(folder, position, {"weight": torch.full((200_000,), float(position))}, {}, keep=1)
        reports.send(position)


@pytest.mark.slow
def test_a_process_killed_while_saving_loses_nothing_it_reported(tmp_path: Path) -> None:
    """SIGKILL at five moments: what the process had reported as saved, or something newer, is whole."""
    start = 0
    for number in range(5):
        reports, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=keep_saving, args=(tmp_path, start, send))
        process.start()
        reported = reports.recv()
        time.sleep(0.05 + 0.017 * number)
        process.kill()
        process.join()
        while reports.poll():
            reported = reports.recv()
        found = latest(tmp_path)
        assert found.checkpoint is not None and found.rejected == []
        assert found.checkpoint.position >= reported
        start = found.checkpoint.position + 1
        assert torch.equal(found.checkpoint.tensors["weight"], torch.full((200_000,), float(start - 1)))
