"""A run folder: made by training, opened by everything else.

RUN/recipe.json          the resolved recipe
RUN/records.jsonl        what happened, one JSON object a line
RUN/checkpoints/         the two newest states of training
RUN/model/               the finished model: weights, vocabulary, score and stop rule, recipe
RUN/evaluations.jsonl    scores with their signatures
RUN/length_power.jsonl   length powers chosen on dev
RUN/predictions/         decoded splits
RUN/store/               training examples, where the recipe has them on disk
"""

import fcntl
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from argbeam import checkpoint, devices, folders
from argbeam.captured_search import CapturedSearch
from argbeam.config import difference, parse_recipe, read_recipe_json, recipe_from_json, recipe_to_json
from argbeam.errors import ArgbeamError, CheckpointError, ConfigError, DataError
from argbeam.evaluate import Decoded, Decoder, Evaluation, check_lengths, decode_rules, evaluate, length_fault
from argbeam.length_power import choose, fingerprint, keep_power, kept_power
from argbeam.losses import make_loss
from argbeam.models import Network, make_model
from argbeam.parallel import ALONE, Group
from argbeam.readers.vectors import read_vectors
from argbeam.records import append_record, read_records, truncate_records, write_atomic
from argbeam.rules import SCORE_RULES, STOPS, LogprobSum, ScoreRule, Stop
from argbeam.settings import Recipe
from argbeam.store import StoredExamples
from argbeam.tasks import TASKS, Task
from argbeam.tasks.contract import Item, Read
from argbeam.tasks.sources import named_files
from argbeam.trainer import Event, Notice, Position, Progress, Record, Saved, Trainer
from argbeam.trainer.tensors import load_tensors
from argbeam.training_data import TrainingData, build_store, open_store, read_examples, stored_examples
from argbeam.version import __version__

# What may differ between a run's recipe and the one it is resumed with: it does not change what is learnt.
_FREE_TO_CHANGE = (
    "runtime.device",
    "runtime.threads",
    "runtime.checkpoint_every",
    "runtime.store",
    "runtime.not_finite_limit",
    "runtime.tensorboard",
)


@dataclass(frozen=True)
class Run:
    """A trained model with its task, ready to decode."""

    recipe: Recipe
    task: Task
    model: Network
    rule: ScoreRule
    stop: Stop
    device: torch.device
    path: Path
    group: Group = ALONE
    captured: CapturedSearch | None = None

    @property
    def folder(self) -> Path:
        """The run folder, also of a checkpoint file in it."""
        return folders.folder_of(self.path)

    @property
    def refused(self) -> str | None:
        """Why searches are not replayed as CUDA graphs though they were to be; None: they are, or were not to be."""
        return None if self.captured is None else self.captured.graphs.refused

    def decode(self, lines: Iterable[str], *, beam: int = 0) -> list[str]:
        """The best output for each line of input, in order."""
        _need_lines(lines)
        items = [self._item(line, number) for number, line in enumerate(lines, start=1)]
        decoded = self.decoder().decode(items, beam=beam or self.recipe.decode.beam)
        return [
            self.task.text(item, found.hypotheses[0].tokens) if found.hypotheses else ""
            for item, found in zip(items, decoded, strict=True)
        ]

    def search(
        self, lines: Iterable[str], *, beam: int = 0, n_best: int = 1, trace: bool = False
    ) -> Iterator[tuple[str, Decoded]]:
        """Each line with all that the search found for it; reads no further ahead than it must."""
        _need_lines(lines)
        beam = beam or self.recipe.decode.beam
        waiting: deque[str] = deque()

        def items() -> Iterator[Item]:
            for number, line in enumerate(lines, start=1):
                waiting.append(line)
                yield self._item(line, number)

        for decoded in self.decoder().decode(items(), beam=beam, n_best=n_best, trace=trace):
            yield waiting.popleft(), decoded

    def evaluate(self, split: str, *, beam: int) -> Evaluation:
        """Decode a split and score it."""
        items = self.task.read(split).items
        check_lengths(items, most=self.recipe.decode.max_words, where=split)
        return evaluate(self.decoder(), items, beam=beam)

    def decoder(self) -> Decoder:
        size = self.recipe.decode.batch
        return Decoder(self.model, self.task, self.rule, self.stop, self.device, size, self.group, self.captured)

    def signature(self, *, split: str, beam: int, evaluation: Evaluation) -> dict[str, Any]:
        """Everything a number stands on, beside the number."""
        losses = [stage.loss for stage in self.recipe.stages.values()]
        last = losses[-1]
        return {
            "task": self.recipe.task.kind,
            "system": self.recipe.name,
            "split": split,
            "successors": "constrained" if getattr(last, "constrained", False) else "unconstrained",
            "train_beam": getattr(last, "train_beam", 0),
            "test_beam": beam,
            "rule": self.rule.name,
            "length_power": self.rule.length_power if isinstance(self.rule, LogprobSum) else 0.0,
            "length_power_from": "dev" if self.recipe.decode.length_power == "dev" else "recipe",
            "stop": self.stop.name if self.task.open_length else "length",
            "seed": self.recipe.seed,
            "version": __version__,
            "metric": evaluation.score.signature,
            "scores": dict(evaluation.score.parts),
            "sentences": len(evaluation.outputs),
            "unfinished": evaluation.unfinished,
            "dead": evaluation.dead,
        }

    def _item(self, line: str, number: int) -> Item:
        item = self.task.item(line)
        fault = length_fault(item, most=self.recipe.decode.max_words)
        if fault:
            raise DataError(f"line {number}: {fault}")
        return item


def load(path: str | Path, *, device: str = "auto", overrides: Sequence[str] = (), group: Group = ALONE) -> Run:
    """Open a finished run, or a checkpoint file of it, with each `key=value` of `overrides` put over its recipe.

    An empty `device` is the recipe's own. A length power to be chosen on dev is chosen now, if it has not been before.
    """
    run = replace(_open(Path(path), device, overrides), group=group)
    chosen_on_dev = run.recipe.decode.length_power == "dev" and run.rule.normalised
    return _with_power_of_dev(run) if chosen_on_dev else run


def _with_power_of_dev(run: Run) -> Run:
    if not run.task.open_length:
        return run  # outputs of one length rank alike whatever the power
    decode, file = run.recipe.decode, run.folder / folders.LENGTH_POWER
    folders.refuse_links(run.folder)
    key = {
        "weights": fingerprint(run.model),
        "beam": decode.beam,
        "stop": run.stop.name,
        "length_factor": decode.length_factor,
        "length_extra": decode.length_extra,
    }
    power = run.group.first(lambda: kept_power(file, key))
    if power is None:
        choice = choose(run.decoder(), run.task.read("dev").items, beam=decode.beam)
        run.group.first(lambda: keep_power(file, key, choice))
        power = choice.power
    return replace(run, rule=LogprobSum(power))


def _open(path: Path, device: str, overrides: Sequence[str] = ()) -> Run:
    found = checkpoint.load(path) if path.is_file() else _finished(path)
    with _reading(found.path):
        recipe = recipe_from_json(found.meta["recipe"], where=str(found.path))
        recipe = parse_recipe(recipe.model_dump(), overrides, where=str(path)) if overrides else recipe
        rule, stop = decode_rules(SCORE_RULES[found.meta["rule"]], STOPS[found.meta["stop"]], recipe.decode)
    task = _task(recipe, found)
    chosen = devices.choose_device(device or recipe.runtime.device)
    model = build_model(recipe, task).to(chosen)
    with _reading(found.path):
        load_tensors(model, {k: v.to(chosen) for k, v in found.tensors.items()}, "model.")
    return Run(recipe, task, model, rule, stop, chosen, path, captured=devices.captured_search(recipe.runtime, chosen))


def train(
    recipe: Recipe, folder: Path, *, stop_asked: Any = lambda: False, group: Group = ALONE
) -> Iterator[Event | Notice]:
    """Train a recipe into a run folder, or go on with the run that is there; yields what happens.

    All processes of the group must see the folder; the first one writes.
    """
    with ExitStack() as held:
        group.first(lambda: folders.check_out(folder))
        group.first(lambda: held.enter_context(_locked(folder)))
        yield from _train(recipe, folder, stop_asked, group)


def _train(recipe: Recipe, folder: Path, stop_asked: Any, group: Group) -> Iterator[Event | Notice]:
    group.first(lambda: _check_same(recipe, folder))
    if group.first(lambda: checkpoint.latest(folder / "model").checkpoint is not None):
        yield Notice(f"{folder}: training is finished; nothing to do")
        return
    _check_files(recipe)
    if recipe.runtime.threads:
        torch.set_num_threads(recipe.runtime.threads)
    device = devices.choose_device(recipe.runtime.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if recipe.runtime.tf32 else "highest")
    found = _newest(folder / "checkpoints", group)
    for line in found.rejected:
        yield Notice(f"{line}; left alone, the checkpoint before it is used")
    resumed = found.checkpoint
    start = _open(Path(recipe.start), "cpu") if recipe.start and resumed is None else None
    assets: Mapping[str, bytes] | None = None
    if resumed is not None:
        assets = _task(recipe, resumed).assets
    elif start is not None:
        _check_start(recipe, start)
        assets = start.task.assets
    if recipe.runtime.store:
        stored = list[StoredExamples]()  # the first process's own; the others open what it has found or written
        group.first(lambda: stored.extend(filter(None, [open_store(recipe, folder, assets)])))
        if group.first(lambda: not stored):
            yield Notice(f"{folder / folders.STORE}: writing the training examples there, once")
            group.first(lambda: stored.append(build_store(recipe, folder, assets)))
        data = stored_examples(recipe, stored[0] if stored else StoredExamples(folder / folders.STORE))
    else:
        data = _read_examples(recipe, assets, group)
    task = data.task
    if not data.examples:
        text = recipe.text
        raise DataError(
            f"no training sentence has {text.min_length} to {text.max_length} words; "
            "text.min_length and text.max_length say which are taken"
        )
    dev = task.read("dev")
    check_lengths(dev.items, most=recipe.decode.max_words, where="dev")
    model = build_model(recipe, task)
    if start is not None:
        load_tensors(model, dict(start.model.state_dict()), "")
    elif resumed is None:
        notice = start_vectors(recipe, task, model)
        if notice is not None:
            yield notice
    position = Position() if resumed is None else _position(resumed)
    trainer = Trainer(
        recipe,
        task,
        model.to(device),
        data.examples,
        dev.items,
        device,
        position=position,
        resumed={} if resumed is None else resumed.tensors,
        stop_asked=stop_asked,
        group=group,
    )
    started = _started(recipe, data, model, dev, device, trainer)
    if group.size > 1:
        # Only the make of the device may differ.
        same = {"device": device.type, "recipe": recipe_to_json(recipe), "update": position.update}
        group.agree({**started, **same, "weights": fingerprint(trainer.model)})
    records = folder / "records.jsonl"
    if group.leads:
        with _written(folder):
            if resumed is None:
                write_atomic(folder / "recipe.json", recipe_to_json(recipe).encode())
                records.unlink(missing_ok=True)
                append_record(records, started)
            else:
                _forget_after(records, position.records)
                append_record(records, {"kind": "resume", "update": position.update, "processes": group.size})
    if resumed is not None:
        yield Notice(f"{folder}: going on from update {position.update} ({resumed.path.name})")
    for line in _data_lines(data, dev):
        yield Notice(line)
    meta = {"recipe": recipe_to_json(recipe)}
    for event in trainer.events():
        if isinstance(event, Record) and group.leads:
            with _written(folder):
                append_record(records, event.values)
        if isinstance(event, Saved) and group.leads:
            _save(folder / "checkpoints", event, meta, task)
        yield event
    if trainer.position.stage == len(recipe.stages) and group.leads:
        last = make_loss(list(recipe.stages.values())[-1].loss, task)
        weights = {f"model.{k}": v for k, v in model.state_dict().items()}
        final = Saved(trainer.position.copy(), weights, last.rule.name, last.stop.name)
        _save(folder / "model", final, meta, task)


def build_model(recipe: Recipe, task: Task) -> Network:
    """The recipe's model with weights drawn from its seed."""
    model = make_model(recipe.model, source_vocabulary=len(task.source), target_vocabulary=len(task.target))
    model.initialise(bound=recipe.model.init, generator=torch.Generator().manual_seed(recipe.seed))
    return model


def start_vectors(recipe: Recipe, task: Task, model: Network) -> Notice | None:
    """Start the word vectors of both sides from the recipe's pre-trained ones."""
    settings = recipe.model
    if not settings.vectors:
        return None
    path = _vectors_path(recipe)
    words = set(task.source.index) | set(task.target.index)
    vectors = read_vectors(path, words=words, size=settings.embedding)
    rows = {word: vectors.vectors_FD[row] * settings.vectors_scale for word, row in vectors.rows.items()}
    source, target = (
        {vocabulary.index[word]: row for word, row in rows.items() if word in vocabulary}
        for vocabulary in (task.source, task.target)
    )
    model.set_embeddings(source=source, target=target)
    return Notice(f"{path}: vectors for {vectors.found} of {vectors.asked} words")


def _newest(folder: Path, group: Group) -> checkpoint.Found:
    """The checkpoint that all processes go on from: the first one finds it, the others read that very file."""
    own: list[checkpoint.Found] = []

    def find() -> list[Any]:
        own.append(checkpoint.latest(folder))
        found = own[0].checkpoint
        return ["" if found is None else found.path.name, own[0].rejected]

    name, rejected = group.first(find)
    return own[0] if own else checkpoint.Found(checkpoint.load(folder / name) if name else None, rejected)


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


def _save(folder: Path, saved: Saved, meta: Mapping[str, Any], task: Task) -> None:
    assets = {
        f"asset.{name}": torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in task.assets.items()
    }
    state = {**meta, "position": vars(saved.position), "rule": saved.rule, "stop": saved.stop, "version": __version__}
    checkpoint.save(folder, saved.position.update, {**saved.tensors, **assets}, state)


def _finished(folder: Path) -> checkpoint.Checkpoint:
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A checkpoint that is whole may still lack something, or hold it in a form of another program's making."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path}: not a run's checkpoint: {reason}") from None


def _task(recipe: Recipe, found: checkpoint.Checkpoint) -> Task:
    """The task that a checkpoint's files make."""
    with _reading(found.path):
        return TASKS[recipe.task.kind].load(recipe, _assets(found.tensors))


def _assets(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    prefix = "asset."
    return {k.removeprefix(prefix): bytes(v.tolist()) for k, v in tensors.items() if k.startswith(prefix)}


def _position(found: checkpoint.Checkpoint) -> Position:
    """Where training goes on; what a position cannot be is an error of the file."""
    with _reading(found.path):
        position, plain = Position(**found.meta["position"]), Position()
        for name, value in vars(position).items():
            kinds = (int, float, type(None)) if name == "best_value" else (type(getattr(plain, name)), int)
            if type(value) not in kinds or (name not in ("best_value", "best_epoch") and value < 0):
                raise ValueError(f"position.{name} = {value!r}")
        return position


def _check_files(recipe: Recipe) -> None:
    """Every file that the recipe names must be there before training starts, the test files too: hours may pass."""
    named = named_files(recipe.data)
    named += [("model.vectors", _vectors_path(recipe))] if recipe.model.vectors else []
    for key, path in named:
        if not path.exists():
            raise DataError(f"{path}: no such file; {key} names it")


def _vectors_path(recipe: Recipe) -> Path:
    return Path(getattr(recipe.data, "root", ".")) / recipe.model.vectors


def _need_lines(lines: Iterable[str]) -> None:
    if isinstance(lines, str):
        raise TypeError("lines is one string, whose characters would be decoded one by one; a list of lines is needed")


def _check_same(recipe: Recipe, folder: Path) -> None:
    path = folder / "recipe.json"
    if not path.exists():
        return
    before = read_recipe_json(path)
    changed = [line for line in difference(before, recipe) if not line.startswith(_FREE_TO_CHANGE)]
    if changed:
        raise ConfigError(f"{folder}: the run there has another recipe: {'; '.join(changed)}; choose another --out")


def _check_start(recipe: Recipe, start: Run) -> None:
    changed = [line for line in difference(start.recipe, recipe) if line.startswith(("task.", "model.", "text."))]
    changed = [line for line in changed if not line.startswith(("model.dropout", "model.vectors"))]
    if changed:
        raise ConfigError(f"start = {recipe.start}: that run differs in {'; '.join(changed)}")


def _forget_after(records: Path, count: int) -> None:
    """Drop what was recorded after the checkpoint that training goes on from: it will be recorded again."""
    seen = 0

    def keep(record: Mapping[str, Any]) -> bool:
        nonlocal seen
        seen += record.get("kind") in ("epoch", "stage")
        return seen <= count

    truncate_records(records, keep)


def _started(
    recipe: Recipe,
    data: TrainingData,
    model: Network,
    dev: Read,
    device: torch.device,
    trainer: Trainer,
) -> dict[str, Any]:
    return {
        "kind": "start",
        "name": recipe.name,
        "version": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "processes": trainer.group.size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "source_vocabulary": len(data.task.source),
        "target_vocabulary": len(data.task.target),
        "train_sentences": len(data.examples),
        "dev_sentences": len(dev.items),
        "left_out": data.left_out,
        "shapes": len(trainer.plan.shapes()),
    }


def _data_lines(data: TrainingData, dev: Read) -> Sequence[str]:
    lines = [f"{len(data.examples):,} training sentences, {len(dev.items):,} dev sentences"]
    if data.left_out:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(data.left_out.items()))
        lines.append(f"left out of training: {reasons}")
    return lines


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgbeamError(
            f"{folder}: cannot be written: {error.strerror}; mended, training goes on from its last checkpoint"
        ) from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process trains a run at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / folders.LOCK).open("w")
    except OSError as error:
        raise ArgbeamError(f"{folder}: cannot be written: {error.strerror}; --out takes a folder") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArgbeamError(f"{folder}: another process is training this run") from None
        yield


__all__ = ["Notice", "Progress", "Run", "load", "read_records", "train"]
