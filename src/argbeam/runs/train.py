"""Training into a run folder, or going on with the run that is there."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from argbeam import __version__
from argbeam.data.example_store import StoredExamples
from argbeam.data.vocabulary import SPECIALS
from argbeam.decoding.batch_decoder import check_lengths
from argbeam.decoding.length_power import fingerprint
from argbeam.errors import ArgbeamError, ConfigError, DataError
from argbeam.files import append_record, truncate_records, write_atomic
from argbeam.losses import make_loss
from argbeam.models import Network, load_weights
from argbeam.runs import checkpoint
from argbeam.runs import layout as folders
from argbeam.runs.checks import check_files, check_same, check_start
from argbeam.runs.examples import TrainingData, build_store, open_store, read_examples, stored_examples
from argbeam.runs.load import Run, open_trained
from argbeam.runs.model import build_model, start_vectors
from argbeam.runs.saved import newest, position_of, save, task_of
from argbeam.runtime import device as devices
from argbeam.runtime.group import ALONE, Group
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import recipe_to_json
from argbeam.tasks import Task
from argbeam.tasks.contract import SplitItems
from argbeam.training.events import Event, Notice, Record, Saved
from argbeam.training.loop import Trainer
from argbeam.training.state import Position, model_tensors


def train(
    recipe: Recipe, folder: Path, *, stop_asked: Any = lambda: False, group: Group = ALONE
) -> Iterator[Event | Notice]:
    """Train a recipe into a run folder, or go on with the run that is there; yields what happens.

    All processes of the group must see the folder; the first one writes.
    """
    with ExitStack() as held:
        group.first(lambda: folders.check_out(folder))
        group.first(lambda: held.enter_context(folders.lock_folder(folder, doing="training this run")))
        yield from _train(recipe, folder, stop_asked, group)


def _train(recipe: Recipe, folder: Path, stop_asked: Any, group: Group) -> Iterator[Event | Notice]:
    group.first(lambda: check_same(recipe, folder))
    if group.first(lambda: checkpoint.latest(folder / folders.MODEL).checkpoint is not None):
        yield Notice(f"{folder}: training is finished; nothing to do")
        return
    check_files(recipe)
    if recipe.runtime.threads:
        torch.set_num_threads(recipe.runtime.threads)
    device = devices.choose_device(recipe.runtime.device)
    devices.set_precision(device, tf32=recipe.runtime.tf32)
    found = newest(folder / folders.CHECKPOINTS, group)
    for line in found.rejected:
        yield Notice(f"{line}; left alone, the checkpoint before it is used")
    resumed = found.checkpoint
    start = open_trained(Path(recipe.start), "cpu") if recipe.start and resumed is None else None
    assets: Mapping[str, bytes] | None = None
    if resumed is not None:
        assets = task_of(recipe, resumed).assets
    elif start is not None:
        check_start(recipe, start.recipe)
        assets = start.task.assets
    data = yield from _training_data(recipe, folder, assets, group)
    dev = data.task.read("dev")
    check_lengths(dev.items, most=recipe.decode.max_words, where="dev")
    model = build_model(recipe, data.task)
    if resumed is None:
        yield from _start_weights(recipe, data.task, model, start)
    trainer = Trainer(
        recipe,
        data.task,
        model.to(device),
        data.examples,
        dev.items,
        device,
        position=Position() if resumed is None else position_of(resumed),
        resumed={} if resumed is None else resumed.tensors,
        stop_asked=stop_asked,
        group=group,
    )
    _record_start(folder, trainer, _started(trainer, data), resumed=resumed is not None)
    if resumed is not None:
        yield Notice(f"{folder}: going on from update {trainer.position.update} ({resumed.path.name})")
    for line in _data_lines(data, dev):
        yield Notice(line)
    yield from _keep_events(folder, trainer)


def _training_data(
    recipe: Recipe, folder: Path, assets: Mapping[str, bytes] | None, group: Group
) -> Generator[Notice, None, TrainingData]:
    """The examples, in memory or in the run's store, which is written if it is not there."""
    if recipe.runtime.store:
        stored = list[StoredExamples]()  # the first process's own; the others open what it has found or written
        group.first(lambda: stored.extend(filter(None, [open_store(recipe, folder, assets)])))
        if group.first(lambda: not stored):
            yield Notice(f"{folder / folders.STORE}: writing the training examples there, once")
            group.first(lambda: stored.append(build_store(recipe, folder, assets)))
        data = stored_examples(recipe, stored[0] if stored else StoredExamples(folder / folders.STORE))
    else:
        data = _read_examples(recipe, assets, group)
    if not data.examples:
        raise DataError(
            f"no training sentence is left ({_reasons(data)}); text.min_length = {recipe.text.min_length} and "
            f"text.max_length = {recipe.text.max_length} say which lengths are taken"
        )
    if min(len(data.task.source), len(data.task.target)) == len(SPECIALS):
        raise ConfigError(
            f"text.min_count = {recipe.text.min_count}: no word of the training data is there so often; lower it"
        )
    return data


def _read_examples(recipe: Recipe, assets: Mapping[str, bytes] | None, group: Group) -> TrainingData:
    """Read by each process; where the task must be fitted first, the first process does that for all."""
    if assets is not None:
        return read_examples(recipe, assets)
    own: list[TrainingData] = []

    def fit() -> dict[str, str]:
        own.append(read_examples(recipe, None))
        # Any byte is a character of Latin-1, and JSON holds characters.
        return {name: data.decode("latin-1") for name, data in own[0].task.assets.items()} if group.size > 1 else {}

    shared = group.first(fit)
    return own[0] if own else read_examples(recipe, {name: text.encode("latin-1") for name, text in shared.items()})


def _start_weights(recipe: Recipe, task: Task, model: Network, start: Run | None) -> Iterator[Notice]:
    """Of the run that this one starts from, or the recipe's word vectors; the rest stays as drawn."""
    if start is not None:
        load_weights(model, dict(start.model.state_dict()), "")
        return
    notice = start_vectors(recipe, task, model)
    if notice is not None:
        yield notice


def _record_start(folder: Path, trainer: Trainer, started: Mapping[str, Any], *, resumed: bool) -> None:
    """Write down that training starts or goes on, after all processes have agreed on what they train."""
    recipe, group, position = trainer.recipe, trainer.group, trainer.position
    if group.size > 1:
        # Only the make of the device may differ.
        same = {"device": trainer.device.type, "recipe": recipe_to_json(recipe), "update": position.update}
        group.agree({**started, **same, "weights": fingerprint(trainer.model)})
    if not group.leads:
        return
    records = folder / folders.RECORDS
    with _written(folder):
        if resumed:
            _forget_after(records, position.records)
            append_record(records, {"kind": "resume", "update": position.update, "processes": group.size})
        else:
            write_atomic(folder / folders.RECIPE, recipe_to_json(recipe).encode())
            records.unlink(missing_ok=True)
            append_record(records, started)


def _keep_events(folder: Path, trainer: Trainer) -> Iterator[Event]:
    """Train; the first process keeps records, checkpoints and at the end the model."""
    recipe, task, leads = trainer.recipe, trainer.task, trainer.group.leads
    meta = {"recipe": recipe_to_json(recipe)}
    for event in trainer.events():
        if isinstance(event, Record) and leads:
            with _written(folder):
                append_record(folder / folders.RECORDS, event.values)
        if isinstance(event, Saved) and leads:
            save(folder / folders.CHECKPOINTS, event, meta, task)
        yield event
    if not trainer.stopping and leads:
        last = make_loss(list(recipe.stages.values())[-1].loss, task)
        weights = model_tensors(trainer.model, {})
        final = Saved(replace(trainer.position), weights, last.rule.name, last.stop.name)
        save(folder / folders.MODEL, final, meta, task)


def _started(trainer: Trainer, data: TrainingData) -> dict[str, Any]:
    return {
        "kind": "start",
        "name": trainer.recipe.name,
        "version": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if trainer.device.type == "cuda" else "cpu",
        "processes": trainer.group.size,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "source_vocabulary": len(data.task.source),
        "target_vocabulary": len(data.task.target),
        "train_sentences": len(data.examples),
        "dev_sentences": len(trainer.dev),
        "left_out": data.left_out,
        "shapes": len(trainer.plan.shapes()),
    }


def _data_lines(data: TrainingData, dev: SplitItems) -> Sequence[str]:
    lines = [f"{len(data.examples):,} training sentences, {len(dev.items):,} dev sentences"]
    if data.left_out:
        lines.append(f"left out of training: {_reasons(data)}")
    return lines


def _reasons(data: TrainingData) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(data.left_out.items()))


def _forget_after(records: Path, count: int) -> None:
    """Drop what was recorded after the checkpoint that training goes on from: it will be recorded again."""
    seen = 0

    def keep(record: Mapping[str, Any]) -> bool:
        nonlocal seen
        seen += record.get("kind") in ("epoch", "stage")
        return seen <= count

    truncate_records(records, keep)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgbeamError(
            f"{folder}: cannot be written: {error.strerror}; mended, training goes on from its last checkpoint"
        ) from None
