"""The training loop, as a generator of events. It knows no loss and no task by name."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from argbeam.data.batches import BatchPlan, Example, make_batch
from argbeam.data.vocabulary import BOS
from argbeam.decoding.batch_decoder import BatchDecoder, decode_rules
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.errors import ArgbeamError
from argbeam.losses import Loss, make_loss
from argbeam.models import Network, load_weights
from argbeam.runtime import device as devices
from argbeam.runtime.graph_cache import GraphCache
from argbeam.runtime.group import ALONE, Group
from argbeam.settings import Recipe, Stage
from argbeam.tasks.contract import Item, Task
from argbeam.training.captured_step import CapturedStep
from argbeam.training.epoch_record import DIVERGED, dev_figures, epoch_figures, is_better, judged_value, sum_of
from argbeam.training.events import Event, Notice, Progress, Record, Saved
from argbeam.training.optimizer import make_optimizer
from argbeam.training.state import Position, model_tensors, restore_stage, stage_tensors, tensors_under
from argbeam.training.step import TrainStep

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
        while position.epoch < settings.epochs and not self._out_of_patience(stage):
            if position.batch == 0 and loss.reset_optimizer and _changes(loss, position.epoch):
                optimizer.reset()
            yield from self._train_epoch(stage)
            if self.stopping:
                return
        last = position.stage + 1 == len(self.recipe.stages)
        if last:  # a finished run keeps the state from which more epochs can be trained
            yield self._saved(loss, stage.step)
        if self.best:
            load_weights(self.model, self.best)
        else:
            optimizer.swap()
        yield Record(
            {
                "kind": "stage",
                "stage": name,
                "update": position.update,
                "epochs": position.epoch,
                "kept_epoch": position.best_epoch if self.best else position.epoch - 1,
                "keep": settings.keep,
                "value": position.best_value,
                "seconds": round(position.seconds, 3),
                **self._capture_statistics(stage),
            }
        )
        position.stage, position.epoch, position.batch = position.stage + 1, 0, 0
        position.best_value, position.best_epoch, self.best = None, -1, {}
        if not last:
            yield self._saved(loss, None)

    def _plan(self, stage: Stage) -> BatchPlan:
        return BatchPlan(self.train, seed=self.recipe.seed, **self.recipe.batch.of_stage(stage).model_dump())

    def _start_stage(self, name: str, settings: Stage) -> _Stage:
        """With a fresh optimizer; the first stage of a resumed run with the state that was saved."""
        runtime, self.plan = self.recipe.runtime, self._plan(settings)
        loss = make_loss(settings.loss, self.task, width=self._output_width())
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
        decode = self.recipe.decode
        rule, stop = decode_rules(loss.rule, loss.stop, decode)
        decoder = BatchDecoder(
            self.model, self.task, rule, stop, self.device, decode.batch, self.group, self.captured_search
        )
        return _Stage(name, settings, loss, step, captured, decoder)

    def _train_epoch(self, stage: _Stage) -> Iterator[Event]:
        position, step, step_loss = self.position, stage.step, stage.loss.at(self.position.epoch)
        order = _STAGE_EPOCHS * position.stage + position.epoch
        batches = self.plan.epoch(order, by_length=stage.settings.first_epoch_by_length and position.epoch == 0)
        run_step, pin = stage.captured or step, self.device.type == "cuda"
        start_batch, start_time = position.batch, time.perf_counter()
        start_words = sum_of(step.sums.read(), "words")  # of this epoch, before the stop that training resumed from
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
                sums, elapsed = step.sums.read(), self._add_seconds_since(start_time)
                self._check_finite(step)
                words = sum_of(sums, "words")
                updates_left = updates * (stage.settings.epochs - position.epoch) - position.batch
                yield Progress(
                    stage=stage.name,
                    epoch=position.epoch,
                    update=updates * position.epoch + position.batch,
                    updates=updates * stage.settings.epochs,
                    loss=sum_of(sums, "loss") / max(1.0, words),
                    violations=sum_of(sums, "violations") / max(1.0, words),
                    words_per_second=max(0.0, words - start_words) / max(elapsed, 1e-9),
                    beam=step_loss.beam,
                    seconds_left=updates_left * elapsed / max(1, position.batch - start_batch),
                )
                start_batch, start_time, start_words = position.batch, time.perf_counter(), words
            self.stopping = self._agreed_to_stop()
            if self.stopping or (self._is_due() and not last):
                self._add_seconds_since(start_time)
                yield self._saved(stage.loss, step)
                if self.stopping:
                    return
                start_batch, start_time = position.batch, time.perf_counter()
                start_words = sum_of(step.sums.read(), "words")
        yield from self._end_epoch(stage)
        if self._is_due() or time.perf_counter() - self.saved_when > _SAVE_EPOCH_AFTER:
            yield self._saved(stage.loss, step)

    def _end_epoch(self, stage: _Stage) -> Iterator[Event]:
        """Score the epoch on dev, copy its weights if they are the best so far, and report."""
        position, started, step = self.position, time.perf_counter(), stage.step
        sums = step.sums.read()
        with step.optimizer.averaged():
            size = min(rows for rows, _, _ in self.plan.shapes())
            dev = dev_figures(stage.decoder, self.dev, stage.settings, train_batch=size, update=position.update)
            value = judged_value(stage.settings, dev)
            better = is_better(stage.settings, value, position.best_value)
            if better:
                position.best_value, position.best_epoch = value, position.epoch
                self.best = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
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
        step.sums.clear()
        position.seconds += time.perf_counter() - started
        position.epoch, position.batch, position.epoch_seconds = position.epoch + 1, 0, 0.0
        yield Record({**record, "total_seconds": round(position.seconds, 3)})
        if self.captured_search is not None:
            yield from self._report_failure("searches on dev", self.captured_search.graphs)

    def _report_failure(self, work: str, graphs: GraphCache[Any]) -> Iterator[Notice]:
        """A notice, once, that work runs more slowly than it could, and why."""
        if graphs.failure is not None and work not in self.not_captured:
            self.not_captured.add(work)
            yield Notice(f"{work} cannot be recorded as CUDA graphs and run one operation at a time: {graphs.failure}")

    def _capture_statistics(self, stage: _Stage) -> dict[str, Any]:
        """Of steps since the stage began, of searches since the run began; and the most memory ever in use."""
        statistics = {} if stage.captured is None else stage.captured.graphs.statistics()
        if self.captured_search is not None:
            searches = self.captured_search.graphs.statistics()
            statistics |= {f"decode_{name}": value for name, value in searches.items()}
        if self.device.type == "cuda":
            statistics["memory_mb"] = round(torch.cuda.max_memory_reserved() / 2**20, 1)
        return statistics

    def _output_width(self) -> int:
        """The width of the output layer's input."""
        batch = make_batch([self.train[0]]).to(self.device)
        with torch.no_grad():
            state = self.model.step(self.model.encode(batch, None), torch.full_like(batch.target_length_B, BOS))
            return self.model.output(state).shape[1]

    def _out_of_patience(self, stage: _Stage) -> bool:
        # Before each epoch, not after: a run that was killed between two epochs is checked as well.
        epoch, patience = self.position.epoch, stage.settings.patience
        if not 0 < patience < epoch - self.position.best_epoch:
            return False
        # While the loss changes, as with a growing beam, a worse figure says little: epochs count from the last change.
        return not any(_changes(stage.loss, e) for e in range(epoch - patience + 1, epoch + 1))

    def _agreed_to_stop(self) -> bool:
        """Whether a stop was requested of any process. On CUDA several processes ask one another at reads only, where
        the host waits anyway."""
        if self.group.size > 1 and self.device.type == "cuda" and self.position.update % _READ_EVERY:
            return False
        return self.group.any(self.stop_asked())

    def _add_seconds_since(self, start: float) -> float:
        elapsed = time.perf_counter() - start
        self.position.seconds += elapsed
        self.position.epoch_seconds += elapsed
        return elapsed

    def _is_due(self) -> bool:
        return self.position.update - self.saved_at >= self.recipe.runtime.checkpoint_every

    def _saved(self, loss: Loss, step: TrainStep | None) -> Saved:
        """`step` is None between stages."""
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        tensors = model_tensors(self.model, self.best) | ({} if step is None else stage_tensors(loss, step))
        return Saved(replace(self.position), tensors, loss.rule.name, loss.stop.name, self.stopping)

    def _check_finite(self, step: TrainStep) -> None:
        bad = int(step.streak[1])
        if bad >= self.recipe.runtime.not_finite_limit:
            raise ArgbeamError(
                f"update {self.position.update}: {bad} gradients in a row were not finite and were left out; {DIVERGED}"
            )


def _changes(loss: Loss, epoch: int) -> bool:
    """Whether the loss of this epoch differs from that of the epoch before."""
    return epoch > 0 and loss.at(epoch) != loss.at(epoch - 1)
