"""The training loop, as a generator of events. It knows no loss and no task by name."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from argbeam.data.batches import BatchPlan, Example, make_batch
from argbeam.data.vocabulary import BOS
from argbeam.decoding.captured_search import make_captured_search
from argbeam.errors import ArgbeamError
from argbeam.losses import Loss, make_loss
from argbeam.models import Network, load_weights
from argbeam.runtime import device as devices
from argbeam.runtime.group import ALONE, Group
from argbeam.settings import Recipe, Stage
from argbeam.tasks.contract import Item, Task
from argbeam.training.captured_step import CapturedStepper
from argbeam.training.dev import DIVERGED, Dev, is_better, judged_value
from argbeam.training.epoch_record import epoch_figures, number
from argbeam.training.events import Event, Notice, Position, Progress, Record, Saved
from argbeam.training.optimizer import Adagrad
from argbeam.training.state import model_tensors, restore_stage, stage_tensors, tensors_under
from argbeam.training.step import EagerStepper, Stepper, TrainStep

# Updates between two looks at the device: each look waits for it.
_LOOK_EVERY = 50
# How many epochs a running average of the weights goes back at most: 1 / (1 - decay) updates.
_LONGEST_AVERAGE = 4
# Epochs are numbered through all stages, so that no two of them share an order.
_STAGE_EPOCHS = 1_000_000
# Seconds after which the end of an epoch is worth a checkpoint, whatever the number of updates.
_SAVE_EPOCH_AFTER = 60.0


@dataclass
class Trainer:
    """A run's training: `events` yields what happens; `stop_asked` is looked at after every update.

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
        batch = self.recipe.batch
        self.plan = BatchPlan(self.train, batch.size, batch.round_source, batch.round_target, self.recipe.seed)
        self.best: dict[str, Tensor] = {}
        self.stopping = False
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        self.captured = make_captured_search(self.recipe.runtime, self.device)
        self.on_dev = Dev(
            self.model,
            self.task,
            self.dev,
            [self.task.example(item, i) for i, item in enumerate(self.dev)],
            self.recipe.decode,
            batch.size,
            self.device,
            self.group,
            self.captured,
        )
        self.refused: list[str] = []  # what the user was told of steps and searches that cannot be recorded
        if self.resumed:
            load_weights(self.model, self.resumed, "model.")
            self.best = tensors_under(self.resumed, "best.", self.device)

    def events(self) -> Iterator[Event]:
        """Train from the position to the end, or until a stop is requested: `Saved` with `stopped` is then the last."""
        stages = list(self.recipe.stages.items())
        while self.position.stage < len(stages):
            name, stage = stages[self.position.stage]
            for event in self._stage(name, stage):
                yield event
                if isinstance(event, Record):
                    self.position.records += 1
            if self.stopping:
                return

    def _stage(self, name: str, stage: Stage) -> Iterator[Event]:
        loss = make_loss(stage.loss, self.task, width=self._output_width())
        optimizer = self._optimizer(stage, loss)
        stepper = self._stepper(optimizer)
        if self.resumed:
            restore_stage(self.resumed, loss, optimizer, stepper, self.device)
            self.resumed = {}
        position = self.position
        while position.epoch < stage.epochs and not self._out_of_patience(stage, loss):
            if position.batch == 0 and loss.reset_optimizer and _changes(loss, position.epoch):
                optimizer.reset()
            yield from self._epoch(name, stage, loss, stepper, optimizer)
            if self.stopping:
                return
        if self.best:
            load_weights(self.model, self.best, "")
        else:
            optimizer.swap()
        yield Record(
            {
                "kind": "stage",
                "stage": name,
                "update": position.update,
                "epochs": position.epoch,
                "kept_epoch": position.best_epoch if self.best else position.epoch - 1,
                "keep": stage.keep,
                "value": position.best_value,
                "seconds": round(position.seconds, 3),
                **self._capture_figures(stepper),
            }
        )
        position.stage, position.epoch, position.batch = position.stage + 1, 0, 0
        position.best_value, position.best_epoch, self.best = None, -1, {}
        yield self._saved(loss, None, None)

    def _epoch(self, name: str, stage: Stage, loss: Loss, stepper: Stepper, optimizer: Adagrad) -> Iterator[Event]:
        position, step_loss = self.position, loss.at(self.position.epoch)
        order = _STAGE_EPOCHS * position.stage + position.epoch
        batches = self.plan.epoch(order, by_length=stage.first_epoch_by_length and position.epoch == 0)
        pin = self.device.type == "cuda"
        looked, looked_at = position.batch, time.perf_counter()
        words_before = number(stepper.sums.read(), "words")  # of this epoch, before a stop that training went on from
        while position.batch < len(batches):
            batch = self.plan.batch(batches[position.batch], lambda e: self.task.training_view(e, order), self.group)
            stepper(step_loss, batch.pin() if pin else batch, position.update)
            yield from self._refusal("training steps", stepper.refused)
            position.batch, position.update = position.batch + 1, position.update + 1
            last = position.batch == len(batches)
            if position.batch % _LOOK_EVERY == 0 or last:
                sums = stepper.sums.read()
                elapsed = time.perf_counter() - looked_at
                position.seconds += elapsed
                position.epoch_seconds += elapsed
                self._check_finite(stepper)
                done = position.batch - looked
                words = number(sums, "words")
                yield Progress(
                    stage=name,
                    epoch=position.epoch,
                    update=len(batches) * position.epoch + position.batch,
                    updates=len(batches) * stage.epochs,
                    loss=number(sums, "loss") / max(1.0, number(sums, "words")),
                    violations=number(sums, "violations") / max(1.0, number(sums, "words")),
                    words_per_second=max(0.0, words - words_before) / max(elapsed, 1e-9),
                    beam=step_loss.beam,
                    seconds_left=(len(batches) * (stage.epochs - position.epoch) - position.batch)
                    * elapsed
                    / max(1, done),
                )
                looked, looked_at, words_before = position.batch, time.perf_counter(), words
            self.stopping = self._agreed_to_stop()
            if self.stopping or (self._is_due() and not last):
                elapsed = time.perf_counter() - looked_at
                position.seconds, position.epoch_seconds = position.seconds + elapsed, position.epoch_seconds + elapsed
                yield self._saved(loss, optimizer, stepper)
                if self.stopping:
                    return
                looked, looked_at = position.batch, time.perf_counter()
                words_before = number(stepper.sums.read(), "words")
        yield from self._end_epoch(name, stage, loss, stepper, optimizer)
        if self._is_due() or time.perf_counter() - self.saved_when > _SAVE_EPOCH_AFTER:
            yield self._saved(loss, optimizer, stepper)

    def _end_epoch(self, name: str, stage: Stage, loss: Loss, stepper: Stepper, optimizer: Adagrad) -> Iterator[Event]:
        """Score the epoch on dev, keep its weights if they are the best so far, and report."""
        position, started = self.position, time.perf_counter()
        sums = stepper.sums.read()
        with optimizer.averaged():
            dev = self.on_dev.figures(stage, loss, update=position.update)
            value = judged_value(stage, dev)
            better = is_better(stage, value, position.best_value)
            if better:
                position.best_value, position.best_epoch = value, position.epoch
                self.best = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        record = {
            "kind": "epoch",
            "stage": name,
            "epoch": position.epoch,
            "update": position.update,
            "beam": loss.at(position.epoch).beam,
            **epoch_figures(sums),
            "dev": dev,
            "best": better,
            "seconds": round(position.epoch_seconds, 3),
            "words_per_second": round(number(sums, "words") / max(position.epoch_seconds, 1e-9), 1),
            **self._capture_figures(stepper),
        }
        stepper.sums.clear()
        position.seconds += time.perf_counter() - started
        position.epoch, position.batch, position.epoch_seconds = position.epoch + 1, 0, 0.0
        yield Record({**record, "total_seconds": round(position.seconds, 3)})
        yield from self._refusal("searches on dev", None if self.captured is None else self.captured.graphs.refused)

    def _optimizer(self, stage: Stage, loss: Loss) -> Adagrad:
        """A fresh one, as each stage starts with."""
        groups = self.model.modules_by_rate()
        rates = {name: getattr(stage.optimizer, name) for name in ("encoder", "decoder", "output")}
        if loss.weights is not None:
            groups["loss"] = list(loss.weights.module.to(self.device).parameters())
            rates["loss"] = loss.weights.rate
        return Adagrad(
            groups,
            rates=rates,
            max_norm=stage.optimizer.max_norm,
            epsilon=stage.optimizer.epsilon,
            initial=stage.optimizer.initial,
            # An average over more than a few epochs would score the weights that a small corpus started from.
            average=min(stage.optimizer.average, 1 - 1 / (_LONGEST_AVERAGE * len(self.plan))),
        )

    def _stepper(self, optimizer: Adagrad) -> Stepper:
        runtime = self.recipe.runtime
        bf16 = runtime.precision == "bf16"
        step = TrainStep(self.model, optimizer, self.recipe.seed, self.device, bf16=bf16, group=self.group)
        recorder = None if "training steps" in self.refused else devices.make_recorder(runtime, self.device)
        return EagerStepper(step) if recorder is None else CapturedStepper(step, recorder)

    def _refusal(self, what: str, reason: str | None) -> Iterator[Notice]:
        """Tells, once, that something runs more slowly than it might, and why."""
        if reason is not None and what not in self.refused:
            self.refused.append(what)
            yield Notice(f"{what} cannot be recorded as CUDA graphs and run one operation at a time: {reason}")

    def _capture_figures(self, stepper: Stepper) -> dict[str, Any]:
        """What recording has cost since the stage began, searches since the run began; memory at its highest."""
        figures = stepper.figures()
        if self.captured is not None:
            figures |= {f"decode_{name}": value for name, value in self.captured.graphs.figures().items()}
        if self.device.type == "cuda":
            figures["memory_mb"] = round(torch.cuda.max_memory_reserved() / 2**20, 1)
        return figures

    def _output_width(self) -> int:
        """The size of what the model's output layer reads."""
        batch = make_batch([self.train[0]]).to(self.device)
        with torch.no_grad():
            state = self.model.step(self.model.encode(batch, None), torch.full_like(batch.target_length_B, BOS))
            return self.model.output(state).shape[1]

    def _out_of_patience(self, stage: Stage, loss: Loss) -> bool:
        # Asked before each epoch, not after: a run that was killed between two epochs must be asked as well.
        epoch, patience = self.position.epoch, stage.patience
        if not 0 < patience < epoch - self.position.best_epoch:
            return False
        # While the loss changes, as with a growing beam, a worse figure says little: epochs count from the last change.
        return not any(_changes(loss, e) for e in range(epoch - patience + 1, epoch + 1))

    def _agreed_to_stop(self) -> bool:
        """Whether a stop was asked of any process. On CUDA, where hosts run ahead, several ask one another at looks."""
        if self.group.size > 1 and self.device.type == "cuda" and self.position.update % _LOOK_EVERY:
            return False
        return self.group.any(self.stop_asked())

    def _is_due(self) -> bool:
        return self.position.update - self.saved_at >= self.recipe.runtime.checkpoint_every

    def _saved(self, loss: Loss, optimizer: Adagrad | None, stepper: Stepper | None) -> Saved:
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        tensors = model_tensors(self.model, self.best)
        if optimizer is not None and stepper is not None:
            tensors |= stage_tensors(loss, optimizer, stepper)
        return Saved(self.position.copy(), tensors, loss.rule.name, loss.stop.name, self.stopping)

    def _check_finite(self, stepper: Stepper) -> None:
        bad = int(stepper.streak[1])
        if bad >= self.recipe.runtime.not_finite_limit:
            raise ArgbeamError(
                f"update {self.position.update}: {bad} gradients in a row were not finite and were left out; {DIVERGED}"
            )


def _changes(loss: Loss, epoch: int) -> bool:
    """Whether the loss is another one in this epoch of a stage than in the one before."""
    return epoch > 0 and loss.at(epoch) != loss.at(epoch - 1)
