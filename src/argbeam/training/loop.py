"""The training loop, as a generator of events. It knows no loss and no task by name."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from argbeam.data.batches import BatchPlan, Example, lengths_of, make_batch
from argbeam.decoding.batch_decoder import BatchDecoder, decode_rules
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.errors import ArgbeamError
from argbeam.losses import Loss, make_loss
from argbeam.models import Network, load_weights, output_width
from argbeam.runtime import device as devices
from argbeam.runtime.graph_cache import GraphCache
from argbeam.runtime.group import ALONE, Group
from argbeam.search.score_rules import SCORE_RULES, ScoreRule
from argbeam.search.stop_rules import STOPS, Stop
from argbeam.settings import Recipe, Stage
from argbeam.tasks.contract import Item, Task
from argbeam.training import kept_weights
from argbeam.training.captured_step import CapturedStep, capture_statistics
from argbeam.training.epoch_record import DIVERGED, dev_figures, epoch_figures, replay_warning, score_figures, sum_of
from argbeam.training.events import Doing, Event, Notice, Progress, Record, Saved
from argbeam.training.optimizer import make_optimizer
from argbeam.training.schedule import not_in_force
from argbeam.training.state import Position, model_tensors, restore_stage, stage_tensors, tensors_under
from argbeam.training.step import TrainStep
from argbeam.training.time_left import TimeLeft

# Updates between two reads of the device, each of which waits for it.
_READ_EVERY = 50
# Epochs are numbered through all stages, so that no two of them share an order.
_STAGE_EPOCHS = 1_000_000
# Seconds after which the end of an epoch is saved, whatever the number of updates.
_SAVE_EPOCH_AFTER = 60.0


@dataclass(frozen=True)
class _Stage:
    """A stage in progress. `captured` runs its step as CUDA graphs; None: operation by operation."""

    name: str
    settings: Stage
    loss: Loss
    step: TrainStep
    captured: CapturedStep | None
    decoder: BatchDecoder


@dataclass
class Trainer:
    """The training of a run: `events` yields what happens; `stop_asked` is called after every update.

    All processes of the group train, on their shares, and yield the same events but for times.
    """

    recipe: Recipe
    task: Task
    model: Network
    train: Sequence[Example]
    dev: Sequence[Item]
    device: torch.device
    position: Position = field(default_factory=Position)
    resumed: dict[str, Tensor] = field(default_factory=dict)
    stop_asked: Callable[[], bool] = lambda: False
    group: Group = ALONE

    def __post_init__(self) -> None:
        stages = list(self.recipe.stages.values())
        self.plan = self._plan(stages[min(self.position.stage, len(stages) - 1)])
        self.best: dict[str, Tensor] = {}
        self.stopping = False
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        recorder = devices.make_recorder(self.recipe.runtime, self.device)
        self.captured_search = None if recorder is None else CapturedSearch(recorder)
        self.not_captured: set[str] = set()  # kinds of work whose failed capture was reported
        tokens = int(lengths_of(self.train).target_N.sum())
        self.time_left = TimeLeft([(make_loss(stage.loss, self.task), stage.epochs) for stage in stages], tokens)
        if self.resumed:
            load_weights(self.model, self.resumed, "model.")
            self.best = tensors_under(self.resumed, "best.", self.device)

    def events(self) -> Iterator[Event]:
        """Train from the position to the end, or until a stop is requested: `Saved` with `stopped` is then the last."""
        stages = list(self.recipe.stages.items())
        while self.position.stage < len(stages) and not self.stopping:
            for event in self._train_stage(*stages[self.position.stage]):
                yield event
                if isinstance(event, Record):
                    self.position.records += 1

    def _train_stage(self, name: str, settings: Stage) -> Iterator[Event]:
        stage, position = self._start_stage(name, settings), self.position
        loss, optimizer = stage.loss, stage.step.optimizer
        yield from map(Notice, not_in_force(name, settings, self.plan))
        if position.rule and position.epoch == position.batch == 0:
            yield from self._score_start(stage)
        while position.epoch < settings.epochs and not kept_weights.out_of_patience(settings, loss, position):
            if position.batch == 0 and loss.reset_optimizer and kept_weights.changes(loss, position.epoch):
                optimizer.reset()
            yield from self._train_epoch(stage)
            if self.stopping:
                return
        yield from self._end_stage(stage)

    def _score_start(self, stage: _Stage) -> Iterator[Event]:
        """Score the model that the stage starts from by its own rule: it is a candidate like any epoch."""
        position, started = self.position, time.perf_counter()
        yield Doing(f"{stage.name}: scoring dev with the model it starts from")
        decoder = self._decoder(SCORE_RULES[position.rule], STOPS[position.stop])
        position.start_dev = self._dev_figures(decoder, stage.settings.model_copy(update={"keep": "score"}))
        if kept_weights.start_value(stage.settings, stage.loss.rule, position.start_dev) is not None:
            self.best = self._copy_weights()
        position.seconds += time.perf_counter() - started
        values = {"stage": stage.name, "update": position.update, "rule": position.rule, "stop": position.stop}
        yield Record({"kind": "stage_start", **values, "dev": position.start_dev})

    def _end_stage(self, stage: _Stage) -> Iterator[Event]:
        """Take the weights that the stage keeps, and report it with their dev score."""
        position, settings, loss = self.position, stage.settings, stage.loss
        last = position.stage + 1 == len(self.recipe.stages)
        if last:  # a finished run keeps the state from which more epochs can be trained
            yield self._saved(loss, stage.step)
        if self.best:
            load_weights(self.model, self.best)
        else:
            stage.step.optimizer.swap()
        started, start_kept = time.perf_counter(), kept_weights.keeps_start(settings, loss.rule, position)
        dev = position.start_dev if start_kept else position.best_dev
        if "value" not in dev:
            dev = dev | score_figures(stage.decoder, self.dev, beam=settings.keep_beam)
        position.seconds += time.perf_counter() - started
        updates, statistics = self.plan.updates * position.epoch, self._capture_statistics(stage)
        record = kept_weights.stage_record(stage.name, settings, loss.rule, position, dev, updates=updates)
        yield Record({**record, **statistics})
        if not start_kept:
            position.rule, position.stop, position.trained_by = loss.rule.name, loss.stop.name, position.stage
        position.start_next_stage()
        self.best = {}
        if not last:
            yield self.saved_between_stages()

    def _plan(self, stage: Stage) -> BatchPlan:
        sizes, specials = self.recipe.batch.of_stage(stage).model_dump(), self.task.target.specials
        return BatchPlan(self.train, seed=self.recipe.seed, specials=specials, **sizes)

    def _start_stage(self, name: str, settings: Stage) -> _Stage:
        """With a fresh optimizer; the first stage of a resumed run with the state that was saved."""
        runtime, self.plan = self.recipe.runtime, self._plan(settings)
        width = output_width(
            self.model, make_batch([self.train[0]], specials=self.task.target.specials).to(self.device)
        )
        self.model.dropout = self.recipe.model.dropout if settings.dropout == "model" else settings.dropout
        loss = make_loss(settings.loss, self.task, width=width)
        if loss.weights is not None:
            loss.weights.module.to(self.device)
        optimizer = make_optimizer(self.model, loss, settings, updates_per_epoch=self.plan.updates)
        bf16 = runtime.precision == "bf16"
        step = TrainStep(self.model, optimizer, self.recipe.seed, self.device, bf16=bf16, group=self.group)
        if self.resumed:
            restore_stage(self.resumed, loss, step)
            self.resumed = {}
        recorder = None if "training steps" in self.not_captured else devices.make_recorder(runtime, self.device)
        captured = None if recorder is None else CapturedStep(step, recorder)
        return _Stage(name, settings, loss, step, captured, self._decoder(loss.rule, loss.stop))

    def _decoder(self, rule: ScoreRule, stop: Stop) -> BatchDecoder:
        decode = self.recipe.decode
        rules = decode_rules(rule, stop, decode)
        return BatchDecoder(self.model, self.task, *rules, self.device, decode.batch, self.group, self.captured_search)

    def _train_epoch(self, stage: _Stage) -> Iterator[Event]:
        position, step, step_loss = self.position, stage.step, stage.loss.at(self.position.epoch)
        order = _STAGE_EPOCHS * position.stage + position.epoch
        batches = self.plan.epoch(order, by_length=stage.settings.first_epoch_by_length and position.epoch == 0)
        run_step, pin = stage.captured or step, self.device.type == "cuda"
        start_time = time.perf_counter()
        start_words = sum_of(step.sums.read(), "words")  # of this epoch, before the stop that training resumed from
        self.time_left.seconds(position.stage, position.epoch, start_words)
        yield Doing(f"{stage.name}, epoch {position.epoch + 1} of {stage.settings.epochs}")
        updates = self.plan.updates
        while position.batch < updates:
            parts = batches.of_update(position.batch)
            for number, indices in enumerate(parts, 1):
                batch = self.plan.batch(indices, lambda e: self.task.training_view(e, order), self.group)
                run_step(step_loss, batch.pin() if pin else batch, position.update, last=number == len(parts))
            if stage.captured is not None:
                yield from self._report_failure("training steps", stage.captured.graphs)
            position.batch, position.update = position.batch + 1, position.update + 1
            last = position.batch == updates
            if position.batch % _READ_EVERY == 0 or last:
                sums, elapsed = step.sums.read(), position.add_seconds_since(start_time)
                self._check_finite(step)
                words = sum_of(sums, "words")
                yield Progress(
                    stage=stage.name,
                    epoch=position.epoch,
                    epochs=stage.settings.epochs,
                    update=updates * position.epoch + position.batch,
                    updates=updates * stage.settings.epochs,
                    loss=sum_of(sums, "loss") / max(1.0, words),
                    violations=sum_of(sums, "violations") / max(1.0, words),
                    words_per_second=max(0.0, words - start_words) / max(elapsed, 1e-9),
                    beam=step_loss.beam,
                    seconds_left=self.time_left.seconds(position.stage, position.epoch, words),
                )
                start_time, start_words = time.perf_counter(), words
            self.stopping = self._agreed_to_stop()
            if self.stopping or (self._is_due() and not last):
                position.add_seconds_since(start_time)
                yield self._saved(stage.loss, step)
                if self.stopping:
                    return
                start_time = time.perf_counter()
                start_words = sum_of(step.sums.read(), "words")
        yield from self._end_epoch(stage)
        if self._is_due() or time.perf_counter() - self.saved_when > _SAVE_EPOCH_AFTER:
            yield self._saved(stage.loss, step)

    def _end_epoch(self, stage: _Stage) -> Iterator[Event]:
        """Score the epoch on dev, copy its weights if they are the best so far, and report."""
        position, started, step = self.position, time.perf_counter(), stage.step
        yield Doing(f"{stage.name}, epoch {position.epoch + 1} of {stage.settings.epochs}: scoring dev")
        sums = step.sums.read()
        with step.optimizer.averaged():
            dev = self._dev_figures(stage.decoder, stage.settings)
            better = kept_weights.judge_epoch(stage.settings, stage.loss.rule, position, dev)
            if better:
                self.best = self._copy_weights()
        record = {
            "kind": "epoch",
            "stage": stage.name,
            "epoch": position.epoch,
            "update": position.update,
            "beam": stage.loss.at(position.epoch).beam,
            **epoch_figures(sums),
            "dev": dev,
            "best": better,
            "seconds": round(position.epoch_seconds, 3),
            "words_per_second": round(sum_of(sums, "words") / max(position.epoch_seconds, 1e-9), 1),
            **self._capture_statistics(stage),
        }
        warning = replay_warning(sums)
        step.sums.clear()
        position.seconds += time.perf_counter() - started
        position.epoch, position.batch, position.epoch_seconds = position.epoch + 1, 0, 0.0
        yield Record({**record, "total_seconds": round(position.seconds, 3)})
        if warning is not None:
            yield Notice(f"{stage.name}, epoch {position.epoch}: {warning}")
        if self.captured_search is not None:
            yield from self._report_failure("searches on dev", self.captured_search.graphs)

    def _dev_figures(self, decoder: BatchDecoder, settings: Stage) -> dict[str, Any]:
        size, update = min(rows for rows, _, _ in self.plan.shapes()), self.position.update
        return dev_figures(decoder, self.dev, settings, train_batch=size, update=update)

    def _copy_weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _report_failure(self, work: str, graphs: GraphCache[Any]) -> Iterator[Notice]:
        """A notice, once, that work runs more slowly than it could, and why."""
        if graphs.failure is not None and work not in self.not_captured:
            self.not_captured.add(work)
            yield Notice(f"{work} cannot be recorded as CUDA graphs and run one operation at a time: {graphs.failure}")

    def _capture_statistics(self, stage: _Stage) -> dict[str, Any]:
        return capture_statistics(stage.captured, self.captured_search, self.device)

    def _agreed_to_stop(self) -> bool:
        """Whether a stop was requested of any process. On CUDA several processes ask one another at reads only, where
        the host waits anyway."""
        if self.group.size > 1 and self.device.type == "cuda" and self.position.update % _READ_EVERY:
            return False
        return self.group.any(self.stop_asked())

    def _is_due(self) -> bool:
        return self.position.update - self.saved_at >= self.recipe.runtime.checkpoint_every

    def _saved(self, loss: Loss, step: TrainStep) -> Saved:
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        tensors = model_tensors(self.model, self.best) | stage_tensors(loss, step)
        stage = list(self.recipe.stages)[self.position.stage]
        return Saved(replace(self.position), tensors, loss.rule.name, loss.stop.name, stage, self.stopping)

    def saved_between_stages(self) -> Saved:
        """The weights that the last stage kept, with their own rules."""
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        position, stages = self.position, ["", *self.recipe.stages]
        tensors = model_tensors(self.model, {})
        return Saved(replace(position), tensors, position.rule, position.stop, stages[position.trained_by + 1])

    def _check_finite(self, step: TrainStep) -> None:
        bad = int(step.streak[1])
        if bad >= self.recipe.runtime.not_finite_limit:
            raise ArgbeamError(
                f"update {self.position.update}: {bad} gradients in a row were not finite and were left out; {DIVERGED}"
            )
