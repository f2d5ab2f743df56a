"""Training into a run folder, from the start or from the last checkpoint."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch

from argbeam import __version__
from argbeam.data.example_store import StoredExamples
from argbeam.data.readers.vectors import read_vectors
from argbeam.data.vocabulary import SPECIALS
from argbeam.decoding.batch_decoder import check_lengths, out_of_reach
from argbeam.decoding.length_power import fingerprint
from argbeam.errors import ConfigError, DataError, counted
from argbeam.files import append_record, truncate_records, write_atomic, writing
from argbeam.models import Network, load_weights
from argbeam.models.huggingface.folder import generation_warning
from argbeam.runs import examples, layout
from argbeam.runs.checkpoint import position_of, save_training, task_of
from argbeam.runs.load import Run, network_of, open_trained
from argbeam.runs.resume import look_for_all
from argbeam.runtime import device as devices
from argbeam.runtime.group import ALONE, Group
from argbeam.settings import Recipe
from argbeam.settings.data import beyond_beam
from argbeam.settings.losses import SequenceLoss
from argbeam.settings.models import RANDOM_WEIGHTS, HuggingFaceModelSettings
from argbeam.settings.recipe import Rules, check_search
from argbeam.settings.recipe_files import difference, in_short, recipe_to_json
from argbeam.tasks import Task, constraints
from argbeam.tasks.contract import Item
from argbeam.tasks.translation import NO_POSITIONS
from argbeam.training.events import Event, Notice, Record, Saved
from argbeam.training.loop import Trainer
from argbeam.training.state import Position


def train(
    recipe: Recipe, folder: Path, *, stop_asked: Callable[[], bool] = lambda: False, group: Group = ALONE
) -> Iterator[Event]:
    """Train a recipe into a run folder, or resume the run in it; yields the events of training.

    All processes of the group must see the folder; the first one writes.
    """
    with ExitStack() as held:
        group.first(lambda: layout.check_out(folder))
        group.first(lambda: held.enter_context(_lock(folder)))
        yield from _train(recipe, folder, stop_asked, group)


def _train(recipe: Recipe, folder: Path, stop_asked: Callable[[], bool], group: Group) -> Iterator[Event]:
    found = look_for_all(recipe, folder, group)
    if found.finished:
        group.first(lambda: examples.check_as_far_as_there(recipe, folder, known=found.digests))
    yield from map(Notice, found.notices)
    if found.finished:
        return
    examples.check_files(recipe)
    digests = group.first(lambda: examples.data_digests(recipe))
    if recipe.runtime.threads:
        torch.set_num_threads(recipe.runtime.threads)
    device = devices.choose_device(recipe.runtime.device)
    devices.set_precision(device, tf32=recipe.runtime.tf32)
    examples.check_unchanged(recipe, folder, known=found.digests, found=digests)
    resumed = found.checkpoint
    start = _start(recipe) if recipe.start and resumed is None else None
    task = task_of(recipe, resumed) if resumed else start.task if start else None
    assets = task.assets if task else None
    if start and assets is not None:  # the constraint is this recipe's, not that of the run to start from
        assets = {name: file for name, file in assets.items() if not name.startswith(constraints.ASSET)}
    data = yield from _training_data(recipe, folder, assets, group)
    dev = data.task.read("dev").items
    check_lengths(dev, most=recipe.decode.max_words, where="dev")
    model = build_model(recipe, data.task)
    if resumed is None:
        yield from start_weights(recipe, data.task, model, start)
    trainer = Trainer(
        recipe,
        data.task,
        model.to(device),
        data.examples,
        dev,
        device,
        position=position_of(resumed) if resumed else _start_position(recipe, start),
        resumed=resumed.tensors if resumed else {},
        stop_asked=stop_asked,
        group=group,
    )
    started = _started(trainer, data) | ({"data": digests} if digests else {})
    _record_start(folder, trainer, started, resumed=resumed is not None)
    if resumed:
        yield Notice(f"{folder}: resuming from update {trainer.position.update} ({resumed.path.name})")
    yield from map(Notice, _facts(recipe, data, dev, digests))
    yield from _save_events(folder, trainer, digests)


def _facts(
    recipe: Recipe, data: examples.TrainingData, dev: Sequence[Item], digests: Mapping[str, str]
) -> Iterator[str]:
    """Lines for the user about what is trained on, and about settings that will not do what they say."""
    yield f"{counted(len(data.examples), 'training sentence')}, {counted(len(dev), 'dev sentence')}"
    if data.left_out:
        yield f"left out of training: {data.reasons}"
    if shared := examples.dev_in_training(digests):
        yield f"{', '.join(shared)}: a training file too; scores on it say nothing about new sentences"
    yield from examples.lines_with_tab(recipe)
    if isinstance(recipe.model, HuggingFaceModelSettings) and (warning := generation_warning(recipe.model.path)):
        yield f"model.path = {recipe.model.path}: {warning}"
    if facts := constraints.constraint_facts(data.task):
        yield f"constraint: {constraints.in_words(facts)}"
    yield from out_of_reach(data.task, dev, where="dev")
    words = [word for item in dev for word in item.target if data.task.open_length]
    if unknown := sum(word not in data.task.target for word in words):
        rare = "too rare in the training data (text.min_count), or not in it"
        yield f"dev: {unknown:,} of {counted(len(words), 'target token')} unknown to the model: {rare}"
    for name, stage in recipe.stages.items():
        if narrow := beyond_beam(getattr(recipe.task, "metrics", ()), stage.keep_beam):
            yield f"stages.{name}.keep_beam = {stage.keep_beam} {narrow}"
    name, first = next(iter(recipe.stages.items()))
    plain = getattr(first.loss, "cross_entropy", 0.0) or getattr(first.loss, "cross_entropy_epochs", 0)
    if isinstance(first.loss, SequenceLoss) and not plain and not recipe.start and recipe.model.rules == RANDOM_WEIGHTS:
        yield (
            f"stages.{name}: {first.loss.kind} starts from random weights, from which it hardly learns; put a stage of "
            "cross_entropy before it, or start = RUN"
        )


def _lock(folder: Path) -> AbstractContextManager[None]:
    return layout.lock_folder(folder, doing="training this run", first=layout.RECIPE)


def build_model(recipe: Recipe, task: Task) -> Network:
    """The recipe's model with weights drawn from its seed."""
    model = network_of(recipe, task)
    model.initialise(bound=recipe.model.init, generator=torch.Generator().manual_seed(recipe.seed))
    return model


def start_weights(recipe: Recipe, task: Task, model: Network, start: Run | None) -> Iterator[Notice]:
    """Copy the weights of the run that `start` names, or the recipe's pre-trained word vectors, into the model."""
    settings = recipe.model
    if start is not None:
        load_weights(model, dict(start.model.state_dict()), "")
        if settings.vectors and settings.vectors != start.recipe.model.vectors:
            yield Notice(
                f"model.vectors = {settings.vectors}: not read; word vectors are those of start = {recipe.start}"
            )
    elif settings.vectors:
        path = examples.vectors_path(recipe)
        words = set(task.source.index) | set(task.target.index)
        vectors = read_vectors(path, words=words, size=settings.embedding)
        rows = {word: vectors.vectors_FD[row] * settings.vectors_scale for word, row in vectors.rows.items()}
        source, target = (
            {vocabulary.index[word]: row for word, row in rows.items() if word in vocabulary}
            for vocabulary in (task.source, task.target)
        )
        model.set_embeddings(source=source, target=target)
        yield Notice(f"{path}: vectors for {vectors.found} of {vectors.asked} words")


def _start(recipe: Recipe) -> Run:
    """The run that `start` names; it must read the same text with the same network."""
    run = open_trained(Path(recipe.start), "cpu")
    changed = [line for line in difference(run.recipe, recipe) if line.startswith(("task.", "model.", "text."))]
    changed = [line for line in changed if not line.startswith(("model.dropout", "model.vectors", "task.constraint"))]
    if changed:
        raise ConfigError(f"start = {recipe.start}: that run differs in {in_short(changed)}")
    try:
        check_search(recipe.decode, Rules(run.rule.name, run.stop.name, f"with {run.rule.name}, its rule"))
    except ValueError as error:
        raise ConfigError(f"start = {recipe.start}: {error}") from None
    return run


def _start_position(recipe: Recipe, start: Run | None) -> Position:
    """The position before the first update, with the rules of the weights to start from."""
    if start is not None:
        return Position(rule=start.rule.name, stop=start.stop.name, start_search=start.trained_search)
    rule, stop = recipe.model.rules
    return Position(rule=rule, stop=stop)


def _training_data(
    recipe: Recipe, folder: Path, assets: examples.Assets | None, group: Group
) -> Generator[Event, None, examples.TrainingData]:
    """The examples, in memory or in the run's store; the first process fits the task or writes the store for all."""
    if recipe.runtime.store:
        stored = examples.open_store(recipe, folder, assets) if group.leads else None
        if group.first(lambda: stored is None):
            yield Notice(f"{folder / layout.STORE}: writing the training examples there, once")
            group.first(lambda: examples.build_store(recipe, folder, assets))
        data = examples.stored_examples(recipe, stored or StoredExamples(folder / layout.STORE))
    else:
        if assets is None and group.size > 1:
            # JSON holds characters, and any byte is a character of Latin-1.
            fitted = group.first(
                lambda: {name: file.decode("latin-1") for name, file in examples.fit_task(recipe).assets.items()}
            )
            assets = {name: text.encode("latin-1") for name, text in fitted.items()}
        data = yield from examples.read_examples(recipe, assets)
    text = recipe.text
    if not data.examples:
        raise DataError(f"no training sentence is left ({data.reasons}); {_accepted(recipe, data.left_out)}")
    if min(len(data.task.source), len(data.task.target)) == len(SPECIALS):
        raise ConfigError(
            f"text.min_count = {text.min_count}: no word of the training data occurs so often; lower text.min_count"
        )
    return data


def _accepted(recipe: Recipe, left_out: Mapping[str, int]) -> str:
    """The sentences that training takes, by the reasons for which others were left out."""
    text = recipe.text
    lengths = f"text.min_length = {text.min_length} and text.max_length = {text.max_length} say which lengths are taken"
    said = {
        "too short": lengths,
        "too long": lengths,
        "forbidden by the constraint": "task.constraint says which targets are valid",
        "non-projective": "trees without crossing arcs are taken",
        "sequences too short": "sequences of four items at least are taken",
        NO_POSITIONS: "pairs that fit into the positions of model.path are taken",
    }
    return "; ".join(dict.fromkeys(said[reason] for reason in sorted(left_out)))


def _record_start(folder: Path, trainer: Trainer, started: Mapping[str, Any], *, resumed: bool) -> None:
    """Record that training starts or resumes, once all processes agree on what they train."""
    recipe, group, position = trainer.recipe, trainer.group, trainer.position
    if group.size > 1:
        # Only the model of the device may differ.
        same = {"device": trainer.device.type, "recipe": recipe_to_json(recipe), "update": position.update}
        group.agree({**started, **same, "weights": fingerprint(trainer.model)})
    if not group.leads:
        return
    records = folder / layout.RECORDS
    with _writing(folder):
        write_atomic(folder / layout.RECIPE, recipe_to_json(recipe).encode())
        if resumed:
            _drop_after(records, position.records)
            append_record(records, {"kind": "resume", "update": position.update, "processes": group.size})
        else:
            records.unlink(missing_ok=True)
            append_record(records, started)


def _save_events(folder: Path, trainer: Trainer, digests: Mapping[str, str]) -> Iterator[Event]:
    """Train; the first process writes records, checkpoints and at the end the model."""
    recipe, task, leads = trainer.recipe, trainer.task, trainer.group.leads
    recipe_json = recipe_to_json(recipe)
    for event in trainer.events():
        if isinstance(event, Record) and leads:
            with _writing(folder):
                append_record(folder / layout.RECORDS, event.values)
        if isinstance(event, Saved) and leads:
            save_training(folder / layout.CHECKPOINTS, event, recipe_json, task, digests)
        yield event
    if not trainer.stopping and leads:
        save_training(folder / layout.MODEL, trainer.saved_between_stages(), recipe_json, task, digests, keep=1)


def _started(trainer: Trainer, data: examples.TrainingData) -> dict[str, Any]:
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
        "constraint": dict(constraints.constraint_facts(data.task)),
        "shapes": len(trainer.plan.shapes()),
    }


def _drop_after(records: Path, count: int) -> None:
    """Drop the records after the checkpoint that training resumes from: they will be recorded again."""
    seen = 0

    def keep(record: Mapping[str, Any]) -> bool:
        nonlocal seen
        seen += record.get("kind") not in ("start", "resume")
        return seen <= count

    truncate_records(records, keep)


def _writing(folder: Path) -> AbstractContextManager[None]:
    return writing(folder, "fix this and run the same command; training resumes from the last checkpoint")
