"""The training loop, as a generator of events. It knows no loss and no task by name."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from argbeam.capture import CapturedStepper, EagerStepper, Stepper, TrainStep
from argbeam.captured_search import CapturedSearch
from argbeam.data import BatchPlan, Example, make_batch
from argbeam.errors import ArgbeamError, CheckpointError
from argbeam.evaluate import Decoder, evaluate, perplexity
from argbeam.graphs import CudaRecorder, Graphs, Recorder
from argbeam.losses import Loss, make_loss
from argbeam.models.contract import Network
from argbeam.optim import Adagrad
from argbeam.rules import STOPS, LogprobSum, ScoreRule, Stop
from argbeam.settings import Decode, Recipe, Runtime, Stage
from argbeam.tasks.contract import Item, Task
from argbeam.vocabulary import BOS

# Updates between two looks at the device: each look waits for it.
_LOOK_EVERY = 50
# Epochs are numbered through all stages, so that no two of them share an order.
_STAGE_EPOCHS = 1_000_000
# Seconds after which the end of an epoch is worth a checkpoint, whatever the number of updates.
_SAVE_EPOCH_AFTER = 60.0
# So many updates with a gradient that is not finite end a run: it has diverged.
_NOT_FINITE_LIMIT = 20
# Sums that losses may report, and what a record divides them by.
_PER_SENTENCE = ("reward", "risk", "candidates")
_PER_WORD = ("own_words", "sequence_loss", "cross_entropy")
_DIVERGED = "training has diverged: lower the learning rates of the stage"


@dataclass(frozen=True)
class Progress:
    """Where a stage stands, for a progress bar: `update` of `updates`. Not part of the records: it holds times."""

    stage: str
    epoch: int
    update: int
    updates: int
    loss: float
    violations: float
    words_per_second: float
    beam: int
    seconds_left: float


@dataclass(frozen=True)
class Record:
    """An event to be kept: one JSON line of the run."""

    values: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """Everything that training needs to go on, to be written down before the next event is asked for.

    `rule` and `stop` name how the weights at hand are searched: as the loss that trained them says.
    """

    position: "Position"
    tensors: dict[str, Tensor]
    rule: str
    stop: str


@dataclass(frozen=True)
class Notice:
    """Something a user should know and that is no error."""

    text: str


Event = Progress | Record | Saved | Notice


@dataclass
class Position:
    """How far a run has come. With the tensors of `Saved` this is its whole state: noise depends on the update only."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    update: int = 0
    records: int = 0
    best_value: float | None = None
    best_epoch: int = -1
    seconds: float = 0.0
    epoch_seconds: float = 0.0

    def copy(self) -> "Position":
        return Position(**vars(self))


@dataclass
class Trainer:
    """A run's training: `events` yields what happens; `stop_asked` is looked at after every update."""

    recipe: Recipe
    task: Task
    model: Network
    train: Sequence[Example]
    dev: Sequence[Item]
    device: torch.device
    position: Position = field(default_factory=Position)
    resumed: dict[str, Tensor] = field(default_factory=dict)
    stop_asked: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        batch = self.recipe.batch
        self.plan = BatchPlan(self.train, batch.size, batch.round_source, batch.round_target, self.recipe.seed)
        self.dev_examples = [self.task.example(item, i) for i, item in enumerate(self.dev)]
        self.best: dict[str, Tensor] = {}
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        self.captured = captured_search(self.recipe.runtime, self.device)
        self.refused: list[str] = []  # what the user was told of steps and searches that cannot be recorded
        if self.resumed:
            load_tensors(self.model, self.resumed, "model.")
            self.best = tensors_under(self.resumed, "best.", self.device)

    def events(self) -> Iterator[Event]:
        """Train from the position on to the end, or until a stop is asked for (the last event is then `Saved`)."""
        stages = list(self.recipe.stages.items())
        while self.position.stage < len(stages):
            name, stage = stages[self.position.stage]
            for event in self._stage(name, stage):
                yield event
                if isinstance(event, Record):
                    self.position.records += 1
            if self.position.stage < len(stages) and stages[self.position.stage][0] == name:
                return  # a stop was asked for

    def _stage(self, name: str, stage: Stage) -> Iterator[Event]:
        loss = make_loss(stage.loss, self.task, width=self._output_width())
        groups = self.model.modules_by_rate()
        rates = {name: getattr(stage.optimizer, name) for name in ("encoder", "decoder", "output")}
        if loss.weights is not None:
            groups["loss"] = list(loss.weights.module.to(self.device).parameters())
            rates["loss"] = loss.weights.rate
        optimizer = Adagrad(
            groups,
            rates=rates,
            max_norm=stage.optimizer.max_norm,
            epsilon=stage.optimizer.epsilon,
            initial=stage.optimizer.initial,
            average=stage.optimizer.average,
        )
        stepper = self._stepper(optimizer)
        if self.resumed:
            # A checkpoint between stages holds no optimizer: each stage starts with a fresh one.
            for total, saved in zip(optimizer.sums, _numbered(self.resumed, "optimizer."), strict=False):
                total.copy_(saved)
            for average, saved in zip(optimizer.averages, _numbered(self.resumed, "average."), strict=False):
                average.copy_(saved)
            own = tensors_under(self.resumed, "loss.", self.device)
            if loss.weights is not None and own:
                load_tensors(loss.weights.module, own, "")
            stepper.sums.values.update(tensors_under(self.resumed, "sums.", self.device))
            self.resumed = {}
        position = self.position
        while position.epoch < stage.epochs and not self._out_of_patience(stage):
            step_loss = loss.at(position.epoch)
            grew = position.epoch > 0 and step_loss != loss.at(position.epoch - 1)
            if position.batch == 0 and grew and loss.reset_optimizer:
                optimizer.reset()
            yield from self._epoch(name, stage, loss, stepper, optimizer)
            if self.stop_asked() and position.batch > 0:
                return
        if self.best:
            load_tensors(self.model, self.best, "")
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
        number = _STAGE_EPOCHS * position.stage + position.epoch
        batches = self.plan.epoch(number, by_length=stage.first_epoch_by_length and position.epoch == 0)
        pin = self.device.type == "cuda"
        looked, looked_at = position.batch, time.perf_counter()
        words_before = _number(stepper.sums.read(), "words")  # of this epoch, before a stop that training went on from
        while position.batch < len(batches):
            batch = self.plan.batch(batches[position.batch], lambda e: self.task.training_view(e, number))
            stepper(step_loss, batch.pin() if pin else batch, position.update)
            yield from self._refusal("training steps", stepper.refused)
            position.batch, position.update = position.batch + 1, position.update + 1
            last = position.batch == len(batches)
            if position.batch % _LOOK_EVERY == 0 or last:
                sums = stepper.sums.read()
                elapsed = time.perf_counter() - looked_at
                position.seconds += elapsed
                position.epoch_seconds += elapsed
                self._check_finite(sums)
                done = position.batch - looked
                words = _number(sums, "words")
                yield Progress(
                    stage=name,
                    epoch=position.epoch,
                    update=len(batches) * position.epoch + position.batch,
                    updates=len(batches) * stage.epochs,
                    loss=_number(sums, "loss") / max(1.0, _number(sums, "words")),
                    violations=_number(sums, "violations") / max(1.0, _number(sums, "words")),
                    words_per_second=max(0.0, words - words_before) / max(elapsed, 1e-9),
                    beam=step_loss.beam,
                    seconds_left=(len(batches) * (stage.epochs - position.epoch) - position.batch)
                    * elapsed
                    / max(1, done),
                )
                looked, looked_at, words_before = position.batch, time.perf_counter(), words
            if self.stop_asked() or (self._is_due() and not last):
                elapsed = time.perf_counter() - looked_at
                position.seconds, position.epoch_seconds = position.seconds + elapsed, position.epoch_seconds + elapsed
                yield self._saved(loss, optimizer, stepper)
                if self.stop_asked():
                    return
                looked, looked_at = position.batch, time.perf_counter()
                words_before = _number(stepper.sums.read(), "words")
        yield from self._end_epoch(name, stage, loss, stepper, optimizer)
        if self._is_due() or time.perf_counter() - self.saved_when > _SAVE_EPOCH_AFTER:
            yield self._saved(loss, optimizer, stepper)

    def _end_epoch(self, name: str, stage: Stage, loss: Loss, stepper: Stepper, optimizer: Adagrad) -> Iterator[Event]:
        """Score the epoch on dev, keep its weights if they are the best so far, and report."""
        position, started = self.position, time.perf_counter()
        sums = stepper.sums.read()
        with optimizer.averaged():
            dev = self._dev(stage, loss)
            value = {"perplexity": dev.get("perplexity"), "score": dev.get("value"), "last": None}[stage.keep]
            better = value is not None and (
                position.best_value is None
                or (value < position.best_value if stage.keep == "perplexity" else value > position.best_value)
            )
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
            "words_per_second": round(_number(sums, "words") / max(position.epoch_seconds, 1e-9), 1),
            **self._capture_figures(stepper),
        }
        stepper.sums.clear()
        position.seconds += time.perf_counter() - started
        position.epoch, position.batch, position.epoch_seconds = position.epoch + 1, 0, 0.0
        yield Record({**record, "total_seconds": round(position.seconds, 3)})
        yield from self._refusal("searches on dev", None if self.captured is None else self.captured.graphs.refused)

    def _dev(self, stage: Stage, loss: Loss) -> dict[str, Any]:
        decode = self.recipe.decode
        figures: dict[str, Any] = {}
        if loss.rule.normalised or stage.keep == "perplexity":
            # What fits in memory in training fits here: every word of the vocabulary is scored at every step.
            size = min(decode.batch, self.recipe.batch.size)
            figures["perplexity"] = perplexity(self.model, self.dev_examples, batch=size, device=self.device)
            figures["without_gold"] = sum(not example.target for example in self.dev_examples)
            if math.isnan(figures["perplexity"]):
                raise ArgbeamError(f"update {self.position.update}: the dev perplexity is not a number; {_DIVERGED}")
        if stage.keep == "score":
            rule, stop = decode_rules(loss.rule, loss.stop, decode)
            decoder = Decoder(self.model, self.task, rule, stop, self.device, decode.batch, captured=self.captured)
            found = evaluate(decoder, self.dev, beam=stage.keep_beam)
            figures |= {
                "value": found.score.value,
                **found.score.parts,
                "test_beam": stage.keep_beam,
                "unfinished": found.unfinished,
                "dead": found.dead,
                "signature": found.score.signature,
            }
        return figures

    def _stepper(self, optimizer: Adagrad) -> Stepper:
        runtime = self.recipe.runtime
        step = TrainStep(self.model, optimizer, self.recipe.seed, self.device, bf16=runtime.precision == "bf16")
        recorder = None if "training steps" in self.refused else make_recorder(runtime, self.device)
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

    def _out_of_patience(self, stage: Stage) -> bool:
        # Asked before each epoch, not after: a run that was killed between two epochs must be asked as well.
        epochs_without = self.position.epoch - 1 - self.position.best_epoch
        return 0 < stage.patience <= epochs_without

    def _is_due(self) -> bool:
        return self.position.update - self.saved_at >= self.recipe.runtime.checkpoint_every

    def _saved(self, loss: Loss, optimizer: Adagrad | None, stepper: Stepper | None) -> Saved:
        self.saved_at, self.saved_when = self.position.update, time.perf_counter()
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        if optimizer is not None:
            tensors |= {f"optimizer.{i}": v for i, v in enumerate(optimizer.sums)}
            tensors |= {f"average.{i}": v for i, v in enumerate(optimizer.averages)}
            if loss.weights is not None:
                tensors |= {f"loss.{k}": v for k, v in loss.weights.module.state_dict().items()}
        if stepper is not None:
            tensors |= {f"sums.{k}": v for k, v in stepper.sums.values.items()}
        return Saved(self.position.copy(), tensors, loss.rule.name, loss.stop.name)

    def _check_finite(self, sums: dict[str, Any]) -> None:
        bad = _number(sums, "not_finite")
        if bad > _NOT_FINITE_LIMIT:
            raise ArgbeamError(
                f"update {self.position.update}: {bad:.0f} gradients of this epoch were not finite and were left out; "
                f"{_DIVERGED}"
            )


def make_recorder(runtime: Runtime, device: torch.device) -> Recorder | None:
    """CUDA graphs, where there is CUDA and the recipe wants them; None: nothing is to be recorded."""
    return CudaRecorder() if device.type == "cuda" and runtime.capture else None


def captured_search(runtime: Runtime, device: torch.device) -> CapturedSearch | None:
    """Searches by what is recorded; None: one operation at a time."""
    recorder = make_recorder(runtime, device)
    return None if recorder is None else CapturedSearch(Graphs(recorder))


def decode_rules(rule: ScoreRule, stop: Stop, decode: Decode) -> tuple[ScoreRule, Stop]:
    """How a model is searched that was trained for this rule and stop: so, but for what the recipe says otherwise.

    A length power that is still to be chosen is 0: epochs are compared by plain sums.
    """
    power = 0.0 if decode.length_power == "dev" else decode.length_power
    rule = LogprobSum(power) if rule.normalised else rule
    return rule, stop if decode.stop == "auto" else STOPS[decode.stop]


def epoch_figures(sums: dict[str, Any]) -> dict[str, Any]:
    """What a record says of an epoch, from its sums."""
    words, sentences = max(1.0, _number(sums, "words")), max(1.0, _number(sums, "sentences"))
    updates = max(1.0, _number(sums, "updates"))
    figures: dict[str, Any] = {
        "sentences": sentences,
        "words": words,
        "loss_per_word": _number(sums, "loss") / words,
        "gradient_norm": _number(sums, "norm") / updates,
        "not_finite": _number(sums, "not_finite"),
    }
    if "violations" in sums:
        violations = _number(sums, "violations")
        figures |= {
            "violations_per_word": violations / words,
            "violations_by_tenth": [
                v / max(1.0, w) for v, w in zip(sums["violations_by_tenth"], sums["words_by_tenth"], strict=True)
            ],
            "rival_is_gold_share": _number(sums, "rival_is_gold") / max(1.0, violations),
            "rival_ended_share": _number(sums, "rival_ended") / max(1.0, violations),
            "segment_length": _number(sums, "segment_words") / max(1.0, violations),
            "gold_on_beam": _number(sums, "gold_on_beam") / sentences,
        }
    if "stopped_early" in sums:
        figures |= {
            "stopped_early_share": _number(sums, "stopped_early") / sentences,
            "stop_step": _number(sums, "stop_words") / sentences,
        }
    # Of losses that train on outputs of their own, by the words or sentences they are counted over.
    figures |= {f"{name}_per_sentence": _number(sums, name) / sentences for name in _PER_SENTENCE if name in sums}
    figures |= {f"{name}_per_word": _number(sums, name) / words for name in _PER_WORD if name in sums}
    if "baseline_error" in sums:
        figures["baseline_error"] = _number(sums, "baseline_error") / max(1.0, _number(sums, "own_words"))
    return figures


def load_tensors(model: Network | nn.Module, tensors: dict[str, Tensor], prefix: str) -> None:
    """Put weights into a module, in place: captured steps hold on to its memory."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            found = tensors[prefix + name]
            # Copying would spread a smaller tensor over a larger one, and round one of another kind.
            if (found.shape, found.dtype) != (value.shape, value.dtype):
                kinds = [f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in (found, value)]
                raise CheckpointError(f"{prefix}{name} is {kinds[0]}; the model of the recipe has {kinds[1]}")
            value.copy_(found)


def tensors_under(tensors: dict[str, Tensor], prefix: str, device: torch.device) -> dict[str, Tensor]:
    """Copies of the tensors whose name starts with a prefix, without it."""
    return {k.removeprefix(prefix): v.to(device, copy=True) for k, v in tensors.items() if k.startswith(prefix)}


def _numbered(tensors: dict[str, Tensor], prefix: str) -> list[Tensor]:
    return [tensors[f"{prefix}{i}"] for i in range(sum(name.startswith(prefix) for name in tensors))]


def _number(sums: dict[str, Any], name: str) -> float:
    return float(sums.get(name, 0.0))
