"""Recipes that train in a moment, on generated data or on files of it, and what their runs leave behind."""

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from argbeam.demo import demo_recipes
from argbeam.files import read_records
from argbeam.runs import checkpoint
from argbeam.runs.train import train
from argbeam.runtime.group import ALONE, Group
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import parse_recipe
from argbeam.training.events import Event, Notice, Progress
from argbeam.training.step import TrainStep

RATES = {"encoder": 0.05, "decoder": 0.05, "output": 0.2}
PRETRAIN = {"epochs": 2, "loss": {"kind": "cross_entropy"}, "optimizer": RATES, "keep": "perplexity"}
BSO = {
    "epochs": 3,
    "loss": {"kind": "bso", "train_beam": 3, "epochs_per_beam": 1, "reset_optimizer": True},
    "optimizer": {**RATES, "average": 0.7},
    "keep_beam": 2,
}
ADAMW = {"kind": "adamw", "rate": 0.01, "weight_decay": 0.1, "warmup": 2, "schedule": "cosine", "average": 0.7}
SMOOTHED = {"kind": "cross_entropy", "label_smoothing": 0.1}
GENERATED = {"kind": "generated", "types": 200, "train": 12, "dev": 3, "test": 2}
# Words of a made-up language, for runs whose every update counts: nothing is as quick as short sentences.
SHORT = ("ba ko", "ko ba ti", "ti lu", "lu ko ti ba", "ba ti", "lu ba ko")
TINY_DEMO = [
    "data.types=200",
    "data.train=40",
    "data.dev=6",
    "data.test=6",
    "model.hidden=8",
    "model.embedding=8",
    "runtime.device=cpu",
]
# What differs between two runs that learnt the same.
_TIMES = {"seconds", "total_seconds", "words_per_second"}


def small_recipe(
    *overrides: str,
    task: str = "word_ordering",
    data: dict[str, Any] = GENERATED,
    stages: dict[str, Any] | None = None,
) -> Recipe:
    """By default cross-entropy for two epochs and BSO for three, its beam growing once; with `short_text` an epoch
    has three updates."""
    table = {
        "name": "small",
        "task": {"kind": task},
        "data": data,
        "model": {"hidden": 6, "embedding": 5, "dropout": 0.2},
        "batch": {"size": 2},
        "stages": {"pretrain": PRETRAIN, "bso": BSO} if stages is None else stages,
        "decode": {"length_factor": 1.0},
        "runtime": {"device": "cpu"},
    }
    return parse_recipe(table, overrides)


def short_text(folder: Path) -> dict[str, Any]:
    """The data table of six training sentences and two dev sentences, all of two to four words.

    On this dev split the first epoch of `BSO` is better than the model it starts from, and than the next two.
    """
    (folder / "train.txt").write_text("\n".join(SHORT) + "\n", encoding="utf-8")
    (folder / "dev.txt").write_text("ko ti ba\nti ko lu ba\n", encoding="utf-8")
    return {"kind": "text", "root": str(folder), "train": ["train.txt"], "dev": ["dev.txt"], "test": ["dev.txt"]}


def one_epoch(folder: Path, *overrides: str) -> Recipe:
    """Cross-entropy for one epoch on `short_text`, which is written into the folder."""
    return small_recipe(*overrides, data=short_text(folder), stages={"only": {**PRETRAIN, "epochs": 1}})


def written_recipe(folder: Path, *, epochs: int, every: int) -> Path:
    """A recipe file for the command, with its data beside it: three updates an epoch, a checkpoint `every` so many."""
    short_text(folder)
    path = folder / "recipe.toml"
    path.write_text(
        'name = "small"\n[task]\nkind = "word_ordering"\n'
        f'[data]\nkind = "text"\nroot = "{folder}"\ntrain = ["train.txt"]\ndev = ["dev.txt"]\n'
        "[model]\nhidden = 6\nembedding = 5\n[batch]\nsize = 2\n"
        f'[stages.only]\nepochs = {epochs}\nkeep = "last"\nloss = {{ kind = "cross_entropy" }}\n'
        "optimizer = { encoder = 0.05, decoder = 0.05, output = 0.2 }\n"
        f'[runtime]\ndevice = "cpu"\ncheckpoint_every = {every}\n',
        encoding="utf-8",
    )
    return path


def file_data(kind: str, root: Path, **more: Any) -> dict[str, Any]:
    """The data table of a recipe for the files that `generated_files.write_files` put under `root`."""
    if kind == "parallel":
        sides = {
            f"{split}_{side}": [f"{split}.{ending}"]
            for split in ("train", "dev", "test")
            for side, ending in (("source", "src"), ("target", "tgt"))
        }
        return {"kind": kind, "root": str(root), **sides, **more}
    ending = "txt" if kind == "text" else kind
    files = {split: [f"{split}.{ending}"] for split in ("train", "dev", "test")}
    return {"kind": kind, "root": str(root), **files, **more}


def tiny_demo(out: Path, *, seed: int) -> dict[str, Recipe]:
    """The demo's own recipes, each stage one epoch, with a tiny corpus and model."""
    return {name: with_epochs(recipe, 1) for name, recipe in demo_recipes(out, seed=seed, overrides=TINY_DEMO).items()}


def with_epochs(recipe: Recipe, number: int) -> Recipe:
    """Every stage so many epochs long."""
    stages = {name: stage.model_copy(update={"epochs": number}) for name, stage in recipe.stages.items()}
    return recipe.model_copy(update={"stages": stages})


def finish(recipe: Recipe, folder: Path) -> list[Event]:
    """Train to the end; everything that happened."""
    return list(train(recipe, folder))


def finish_apart(recipe: str, folder: str) -> None:
    """The same in a process of its own, to be killed."""
    from argbeam.settings.recipe_files import recipe_from_json

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    finish(recipe_from_json(recipe), Path(folder))


def train_until(recipe: Recipe, folder: Path, events: int) -> bool:
    """Train for so many events and leave without a word, as a killed process does; whether there were so many."""
    stream = train(recipe, folder)
    assert isinstance(stream, Generator)
    with closing(stream):
        return len(list(islice(stream, events))) == events


def stop_after(recipe: Recipe, folder: Path, updates: int, group: Group = ALONE) -> None:
    """Train, and ask for a stop once so many updates of this call are done."""
    done, plain = 0, TrainStep.__call__

    def counted(*arguments: Any, last: bool) -> None:
        nonlocal done
        plain(*arguments, last=last)
        done += last

    with patch.object(TrainStep, "__call__", counted):
        list(train(recipe, folder, stop_asked=lambda: done >= updates, group=group))


def final_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights and assets of a finished run."""
    found = checkpoint.latest(folder / "model").checkpoint
    assert found is not None, f"{folder} is not finished"
    return found.tensors


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def timeless_records(folder: Path) -> list[dict[str, Any]]:
    """A run's records without times, and without the lines that tell where it was taken up again."""
    return [
        {name: value for name, value in record.items() if name not in _TIMES}
        for record in read_records(folder / "records.jsonl")
        if record["kind"] != "resume"
    ]


def texts(events: Sequence[Event]) -> Iterator[str]:
    """The notices among events."""
    return (event.text for event in events if isinstance(event, Notice))


def progress_of(events: Sequence[Event]) -> list[Progress]:
    return [event for event in events if isinstance(event, Progress)]
