"""Files of strangers run nothing, training talks to nobody, and runs write nowhere but into their folder."""

import gzip
import lzma
import os
import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from argbeam.cli import app as cli
from argbeam.data.tokenizers import SentencePiece
from argbeam.errors import ArgbeamError, ConfigError
from argbeam.reports.report import read_runs, write_report
from argbeam.runs import checkpoint
from argbeam.runs.load import load, open_run
from argbeam.runs.score import score_run
from argbeam.runs.session import train_run
from argbeam.settings.recipe_files import load_recipe, parse_recipe
from generated_files import write_files
from small_runs import BSO, PRETRAIN, file_data, finish, one_epoch, short_text, small_recipe, stop_after, train_until

ROOT = Path(__file__).parents[2]


class Malice:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """Where a pickle that is run would leave a folder. It is a real one: pickle itself falls for it."""
    found = tmp_path / "it ran"
    pickle.loads(pickle.dumps(Malice(found)))
    found.rmdir()
    yield found
    assert not found.exists()


def malicious(mark: Path) -> bytes:
    return pickle.dumps(Malice(mark), protocol=2)


def torch_archive(mark: Path, path: Path) -> bytes:
    """The same as torch.save writes it: a zip archive with a pickle inside."""
    torch.save({"model.x": Malice(mark)}, path)
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.mark.parametrize("packed", ["pickle", "torch"])
@pytest.mark.parametrize("kind", ["text", "conllu", "conllx", "tsv", "parallel"])
@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_no_data_file_is_unpickled(mark: Path, tmp_path: Path, packed: str, kind: str, ending: str) -> None:
    data = malicious(mark) if packed == "pickle" else torch_archive(mark, tmp_path / "x")
    pack: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
    table = file_data(kind, tmp_path)
    for key, names in table.items():
        if isinstance(names, list):
            table[key] = [name + ending for name in names]
            (tmp_path / table[key][0]).write_bytes(pack[ending](data))
    task = {"text": "word_ordering", "conllu": "parsing", "conllx": "parsing"}.get(kind, "translation")
    with pytest.raises(ArgbeamError):
        finish(small_recipe(task=task, data=table), tmp_path / "run")


@pytest.mark.parametrize("name", ["v.vec", "v.txt", "v.bin", "v.bin.gz", "v.vec.xz", "v.pt", "v.pkl", "v.npy"])
def test_no_word_vectors_are_unpickled(mark: Path, tmp_path: Path, name: str) -> None:
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(malicious(mark)))
    with pytest.raises(ArgbeamError):
        finish(small_recipe(f"model.vectors={name}", data=short_text(tmp_path)), tmp_path / "run")


def test_no_file_of_a_run_is_unpickled(mark: Path, tmp_path: Path) -> None:
    """Each file of a run in turn: checkpoints, model, recipe, records, scores, store."""
    recipe = small_recipe("runtime.store=true", data=short_text(tmp_path), stages={"only": PRETRAIN})
    stop_after(recipe, tmp_path / "half", 4)
    finish(recipe, tmp_path / "whole")
    list(score_run(open_run(tmp_path / "whole"), "dev", [1]))
    tried = 0
    for run in ("half", "whole"):
        for path in sorted(path for path in (tmp_path / run).rglob("*") if path.is_file()):
            before, tried = path.read_bytes(), tried + 1
            for data in (malicious(mark), torch_archive(mark, tmp_path / "x")):
                path.write_bytes(data)
                for use in (
                    lambda: load(tmp_path / "whole", device="cpu"),
                    lambda path=path: load(path, device="cpu"),
                    lambda: read_runs([tmp_path / "whole"]),
                    lambda run=run: train_until(recipe, tmp_path / run, 1),
                ):
                    with suppress(ArgbeamError):
                        use()
            path.write_bytes(before)
    assert tried > 12


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> object:
    """What the command ends with."""
    monkeypatch.setattr(sys, "argv", ["argbeam", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def test_no_recipe_and_no_input_is_unpickled(mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(one_epoch(tmp_path), tmp_path / "run")
    bad = tmp_path / "bad.toml"
    bad.write_bytes(malicious(mark))
    with pytest.raises(ConfigError):
        load_recipe(bad)
    with pytest.raises(ArgbeamError):
        SentencePiece(malicious(mark))
    assert exit_code(monkeypatch, "train", bad, "--out", tmp_path / "x") == 2
    assert exit_code(monkeypatch, "decode", bad) == 2
    assert exit_code(monkeypatch, "decode", tmp_path / "run", "--input", bad) == 2


def test_no_verb_opens_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, decoding, scoring and reporting, with every tokenizer, TensorBoard and the store."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was asked for")

    for name in ("socket", "create_connection", "getaddrinfo", "gethostbyname", "socketpair"):
        monkeypatch.setattr(socket, name, refuse)
    write_files(tmp_path, 5, train=8, dev=3, test=2, types=200)
    stages = {"first": {**PRETRAIN, "epochs": 1}, "bso": {**BSO, "epochs": 1}}
    for task, kind, settings in (
        ("word_ordering", "text", ("runtime.tensorboard=true", "runtime.store=true")),
        ("parsing", "conllu", ()),
        ("translation", "parallel", ("text.tokenizer=moses",)),
        ("translation", "tsv", ("text.subwords=60",)),
    ):
        run = tmp_path / f"{task}-{kind}"
        train_run(small_recipe(*settings, task=task, data=file_data(kind, tmp_path), stages=stages), run)
        opened = open_run(run)
        assert len(opened.decode(["a b", "c"])) == 2
        list(score_run(opened, "test", [2]))
    write_report([tmp_path / "parsing-conllu"], tmp_path / "report")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", "a/b", "a\\b", "x.y", "\0", "\u2024\u2024/x"])
def test_a_stage_cannot_be_named_like_a_path(name: str) -> None:
    table = small_recipe().model_dump()
    with pytest.raises(ConfigError, match="a stage's name has letters, digits, - and _ only"):
        parse_recipe({**table, "stages": {name: table["stages"]["bso"]}})


def test_names_that_lead_out_of_the_folder_write_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe's name, a checkpoint's assets and tensors, and a split, which predictions are named after."""
    inside = tmp_path / "a" / "b"
    (inside / "data").mkdir(parents=True)
    finish(one_epoch(inside / "data", "name=../../out"), inside / "run")
    found = checkpoint.latest(inside / "run" / "model").checkpoint
    assert found is not None
    with pytest.raises(ValueError, match=re.escape("tensor name 'asset.../../x': ")):
        checkpoint.save(inside / "run" / "model", 99, {"asset.../../x": found.tensors["asset.vocabulary.json"]}, {})
    meta = {**found.meta, "version": "../../x", "stop": "../../x"}
    path = checkpoint.save(inside / "other", 1, found.tensors, meta)
    with pytest.raises(ArgbeamError, match=re.escape("not a run's checkpoint: '../../x' is missing")):
        load(path, device="cpu")
    list(score_run(open_run(inside / "run"), "dev", [1]))
    assert exit_code(monkeypatch, "evaluate", inside / "run", "--split", "../../test") == 2
    write_report([inside / "run"], inside / "report")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"b"}
    assert {path.name for path in inside.iterdir()} == {"data", "run", "other", "report"}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(name: str, extra: str, seen: set[str]) -> set[str]:
    """The packages that an installed one needs, and those need in turn, on this machine."""
    for line in requires(name) or []:
        requirement = Requirement(line)
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": one}) for one in {extra, "", *requirement.extras}
        )
        if wanted and plain(requirement.name) not in seen:
            seen.add(plain(requirement.name))
            needed(requirement.name, "", seen)
    return seen


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {plain(name): number for name, _, number in (line.partition("==") for line in lines)}


def test_every_dependency_is_pinned_to_a_version() -> None:
    """What `make` installs is fixed by constraints.txt, down to what dependencies depend on."""
    pins = pinned()
    assert all(pins.values())
    ours = needed("argbeam", "dev", set())
    # What a torch build brings along (CUDA's libraries, Triton) follows from its version; Python brings setuptools.
    ours -= {name for name in ours if name.startswith(("nvidia-", "cuda-")) or name in ("triton", "setuptools")}
    assert len(ours) > 40
    assert ours <= set(pins)


def test_every_pin_but_torchs_has_hashes() -> None:
    """`make audit` holds the package index to them. Builds of torch differ by accelerator, and so do their hashes."""
    lock = (ROOT / "constraints.lock").read_text(encoding="utf-8")
    entries = re.findall(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", lock, re.MULTILINE)
    assert {plain(name): number for name, number, _ in entries} == {k: v for k, v in pinned().items() if k != "torch"}
