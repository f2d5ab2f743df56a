"""Captured steps do what eager steps do, whatever records them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from argbeam.data.batches import Batch, BatchPlan, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.errors import ArgbeamError
from argbeam.losses.bso import Bso
from argbeam.losses.contract import Loss, LossOutput, StepLoss
from argbeam.losses.crf import Crf
from argbeam.losses.cross_entropy import CrossEntropy, PruningWeights
from argbeam.losses.mixed import Mixed
from argbeam.losses.mixer import Baseline, Mixer
from argbeam.losses.mrt import Mrt, Sampled, Searched
from argbeam.losses.scheduled_sampling import Linear, ScheduledSampling
from argbeam.models import LstmSeq2Seq, make_model
from argbeam.models.contract import Model, Network
from argbeam.models.noise import Noise
from argbeam.runtime import device as devices
from argbeam.runtime.graph_cache import CudaRecorder
from argbeam.runtime.group import ALONE, Group
from argbeam.search.gold import EarlyUpdate, MaxViolation
from argbeam.search.score_rules import LogprobSum, ScoreSum
from argbeam.search.successors import Permutation, Unconstrained
from argbeam.settings import ConvModel, LstmLmModel, LstmModel, TransformerLmModel, TransformerModel
from argbeam.settings import Model as ModelSettings
from argbeam.training.captured_step import CapturedStep
from argbeam.training.optimizer import Adagrad, AdamW
from argbeam.training.schedule import RateSchedule, cosine
from argbeam.training.step import Sums, TrainStep
from small_runs import same_tensors
from tape import TapeRecorder, as_on_a_device

VOCABULARY = 9
CPU = torch.device("cpu")
LSTM = LstmModel(layers=2, hidden=5, embedding=4, dropout=0.3)
TRANSFORMER = TransformerModel(layers=2, hidden=8, heads=2, feed_forward=7, dropout=0.3)
KINDS: dict[str, ModelSettings] = {
    "lstm": LSTM,
    "lstm_lm": LstmLmModel(layers=2, hidden=5, embedding=4, dropout=0.3),
    "conv": ConvModel(layers=2, hidden=5, embedding=4, dropout=0.3),
    "transformer": TRANSFORMER,
    "transformer_lm": TransformerLmModel(layers=2, hidden=8, heads=2, feed_forward=7, positions="rotary"),
}
ANYTHING = Unconstrained(VOCABULARY, end_symbol=True)
FREE = Unconstrained(VOCABULARY, end_symbol=False)
CONBSO = Bso(Permutation(), 3, open_length=False, epochs_per_beam=1)
LOSSES: dict[str, Loss] = {
    "cross-entropy": CrossEntropy(),
    "smoothed": CrossEntropy(label_smoothing=0.1),
    "bso": replace(CONBSO, successors=FREE),
    "conbso": CONBSO,
    "early update": replace(CONBSO, policy=EarlyUpdate),
    "maximum violation": replace(CONBSO, policy=MaxViolation, rule=ScoreSum()),
    "crf": Crf(Permutation(), 3, open_length=False, epochs_per_beam=1),
    "crf with restarts": Crf(Permutation(), 3, open_length=False, epochs_per_beam=1, restarts=True),
    "bear": CrossEntropy(valid=Permutation(), pruning=PruningWeights(2, 0.5, 1.0)),
    "scheduled sampling": ScheduledSampling(ANYTHING, Linear(0.3)),
    "mixer": Mixer(ANYTHING, Baseline(5), cross_entropy_epochs=1, epochs_per_border=1),
    "mrt": Mrt(ANYTHING, Sampled(3), alpha=0.5),
    "mrt beam": Mrt(ANYTHING, Searched(3), alpha=0.5, include_gold=False),
    "mixed": Mixed(replace(CONBSO, successors=FREE, rule=LogprobSum(), margin_per_token=0.1), 0.3, 0.1),
}


@dataclass
class StandInGraph:
    """Does again, when replayed, what was asked for while it was recorded."""

    work: Callable[[], None] | None = None
    replays: int = 0

    def replay(self) -> None:
        assert self.work is not None
        self.replays += 1
        self.work()


@dataclass
class StandInRecorder:
    """While a graph is open, work is written down in it and not done: so does a CUDA stream.

    The recording of number `fails_at` fails: when it is `opened`, when work is `written`, or when it is `closed`.
    """

    graphs: list[StandInGraph] = field(default_factory=list)
    open: StandInGraph | None = None
    fails_at: int = 0
    when: str = ""

    def check(self, when: str) -> None:
        if when == self.when and len(self.graphs) == self.fails_at:
            raise RuntimeError(f"not while recording ({when})\nand more of it")

    def start_over(self) -> None:
        pass  # there is no pool of memory

    @contextmanager
    def record(self) -> Iterator[StandInGraph]:
        self.graphs.append(StandInGraph())
        self.check("opened")
        self.open = self.graphs[-1]
        try:
            yield self.open
        finally:
            self.open = None
        self.check("closed")


@dataclass
class RecordableStep(TrainStep):
    """A training step that a `StandInRecorder` can record."""

    recorder: StandInRecorder = field(default_factory=StandInRecorder)
    eager: int = 0

    def __call__(self, loss: StepLoss, batch: Batch, update: Tensor, *, last: bool = True) -> None:
        if self.recorder.open is None:
            self.eager += 1
            super().__call__(loss, batch, update, last=last)
        else:
            self.recorder.check("written")
            self.recorder.open.work = partial(super().__call__, loss, batch, update, last=last)


class NothingForTheHost(TorchDispatchMode):
    """Refuses operations whose result is a number on the host, or a shape that depends on values."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func).removeprefix("aten.").split(".")[0]
        indexed_by_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "repeat_interleave")
        assert name not in waits and not indexed_by_mask, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class OfBias:
    """A function of the output bias's sum; `calls` has the loss's name, the update and the batch's sentences."""

    function: Callable[[Tensor], Tensor] = torch.clone
    name: str = ""
    calls: list[tuple[str, int, list[int]]] = field(compare=False, default_factory=list)
    beam = 0

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        assert noise is not None and isinstance(model, LstmSeq2Seq)
        self.calls.append((self.name, int(noise.update), batch.sentence_B.tolist()))
        total = self.function(model.output_layer.bias.sum())
        return LossOutput(total, None, {"loss": total.detach()})


LOSS_NOT_FINITE = OfBias(lambda bias: bias + torch.inf)
GRADIENT_NOT_FINITE = OfBias(lambda bias: (bias - bias.detach()).sqrt())


def on_cuda(test: Callable[..., None]) -> Callable[..., None]:
    there = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(there(test))


def weights_of(step: TrainStep) -> dict[str, Tensor]:
    """The weights as they are now, those of the loss included, and the optimizer's state."""
    named = {"weight": step.optimizer.parameters, "state": step.optimizer.state}
    return {f"{name} {i}": value.detach().clone() for name, values in named.items() for i, value in enumerate(values)}


def model_on(device: torch.device, settings: ModelSettings = LSTM) -> Network:
    model = make_model(settings, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    model.initialise(bound=0.3, generator=torch.Generator().manual_seed(1))
    return model.to(device)


def cpu_step(loss: Loss | None = None, settings: ModelSettings = LSTM) -> RecordableStep:
    """A step for the model, and for what the loss learns besides it."""
    model = model_on(CPU, settings)
    return RecordableStep(model, optimizer_of(model, loss), 1, CPU)


def recorded_step() -> tuple[RecordableStep, CapturedStep]:
    """A step, and the one that captures it."""
    step = cpu_step()
    return step, CapturedStep(step, step.recorder)


def optimizer_of(model: Network, loss: Loss | None) -> Adagrad:
    groups, rates = model.modules_by_rate(), {"encoder": 0.1, "decoder": 0.1, "output": 0.2}
    if loss is not None and loss.weights is not None:
        groups["loss"], rates["loss"] = list(loss.weights.module.parameters()), loss.weights.rate
    return Adagrad(groups, rates=rates, max_norm=5.0)


def fresh(name: str, device: torch.device, settings: ModelSettings = LSTM) -> Loss:
    """The loss with weights of its own, where it has some."""
    loss = deepcopy(LOSSES[name])
    if isinstance(loss, Mixer):
        loss = replace(loss, baseline=Baseline(settings.hidden))
    if loss.weights is not None:
        loss.weights.module.to(device)
    return loss


def plan(longest: int = 5, loss: Loss | None = None) -> BatchPlan:
    """Eleven sentences of two to five words, of which batches of four make three shapes; for MRT with end symbols."""
    draw = torch.Generator().manual_seed(2)
    lengths = [2, 2, 2, 2, 3, 3, 3, 3, longest, longest, longest]
    targets = [tuple(torch.randint(4, VOCABULARY, (n,), generator=draw).tolist()) for n in lengths]
    end = (EOS,) if isinstance(loss, Mrt) else ()
    return BatchPlan([Example(t[::-1], t + end, i) for i, t in enumerate(targets)], 4, 1, 1, seed=1)


def train(stepper: TrainStep | CapturedStep, loss: Loss, *, epochs: int, longest: int = 5) -> None:
    """Every batch twice an epoch: the first step of a shape is eager."""
    batches, update = plan(longest, loss), 0
    for epoch in range(epochs):
        for numbers in 2 * list(batches.epoch(epoch)):
            stepper(loss.at(epoch), batches.batch(numbers), update)
            update += 1


# The LSTM with every loss, Transformers with the main ones: each takes a second.
STEPS = [(LSTM, name) for name in LOSSES] + [(KINDS["transformer_lm"], "conbso")]
STEPS += [(TRANSFORMER, name) for name in ("cross-entropy", "bso", "scheduled sampling", "mrt")]


@pytest.mark.parametrize(("settings", "name"), STEPS)
def test_captured_steps_end_with_the_weights_and_sums_of_eager_steps(settings: ModelSettings, name: str) -> None:
    """Bit for bit, with dropout, over several shapes and, in BSO, two beams."""
    losses = [fresh(name, CPU, settings) for _ in range(2)]
    eager, captured = (cpu_step(loss, settings) for loss in losses)
    train(eager, losses[0], epochs=2)
    stepper = CapturedStep(captured, captured.recorder)
    train(stepper, losses[1], epochs=2)
    # Of three shapes, for one loss or two that differ, the first step is eager and the others replay one recording.
    graphs = captured.recorder.graphs
    assert captured.eager == len(graphs) == stepper.graphs.captures == (3 if losses[1].at(0) == losses[1].at(1) else 6)
    assert sum(graph.replays for graph in graphs) == 12 - captured.eager
    assert len(stepper.graphs.entries) == 3
    assert same_tensors(weights_of(eager), weights_of(captured))
    assert eager.sums.read() == captured.sums.read()


def adamw_on(device: torch.device) -> tuple[Network, AdamW]:
    """Three updates of warm-up in a cosine of twenty."""
    model, rates = model_on(device), {"encoder": 0.01, "decoder": 0.02, "output": 0.02}
    schedule = RateSchedule(cosine, 3, 20)
    kinds = model.modules_by_rate()
    return model, AdamW(kinds, rates=rates, max_norm=1.0, weight_decay=0.1, schedule=schedule, average=0.9)


def test_steps_with_adamw_are_captured_and_ask_for_no_value_on_the_host() -> None:
    eager, captured = (RecordableStep(*adamw_on(CPU), 1, CPU) for _ in range(2))
    with NothingForTheHost():
        train(eager, CrossEntropy(), epochs=2)
    train(CapturedStep(captured, captured.recorder), CrossEntropy(), epochs=2)
    assert same_tensors(weights_of(eager), weights_of(captured))


def test_an_update_of_adamw_played_again_goes_on_with_its_schedule() -> None:
    """A tape of its operations: rate, bias corrections and average are read from the device. A tape is written while
    its operations run, so that the state before it is put back."""
    (_, eager), (_, played) = adamw_on(CPU), adamw_on(CPU)
    gradients = [torch.ones_like(p) for p in eager.parameters]
    tensors = [*played.parameters, *played.state, *played.averages]
    before = [tensor.detach().clone() for tensor in tensors]
    with TapeRecorder().record() as tape:
        played.step(gradients)
    for tensor, value in zip(tensors, before, strict=True):
        tensor.data.copy_(value)
    for _ in range(6):
        eager.step(gradients)
        tape.replay()
    assert all(map(torch.equal, [*eager.parameters, *eager.state, *eager.averages], tensors))
    assert eager.update == 6


@pytest.fixture(scope="module")
def eager() -> RecordableStep:
    """After twelve steps of ConBSO over three shapes and two beams."""
    step = cpu_step()
    train(step, LOSSES["conbso"], epochs=2)
    return step


@pytest.mark.parametrize("when", ["opened", "written", "closed"])
@pytest.mark.parametrize("fails_at", [1, 3])
def test_from_a_step_that_cannot_be_recorded_on_all_run_eagerly_and_each_is_done_once(
    when: str, fails_at: int, eager: RecordableStep
) -> None:
    """Against the same steps never recorded, bit for bit."""
    captured, stepper = recorded_step()
    captured.recorder.fails_at, captured.recorder.when = fails_at, when
    assert stepper.graphs.failure is None
    train(stepper, LOSSES["conbso"], epochs=2)
    assert stepper.graphs.failure == f"RuntimeError: not while recording ({when})"
    assert len(captured.recorder.graphs) == fails_at  # nothing was tried again
    assert captured.eager + sum(graph.replays for graph in captured.recorder.graphs) == eager.eager == 12
    assert same_tensors(weights_of(eager), weights_of(captured))
    assert eager.sums.read() == captured.sums.read()
    assert stepper.graphs.statistics() == {
        "captures": fails_at - 1,
        "capture_seconds": stepper.graphs.statistics()["capture_seconds"],
        "captured_shapes": 0,
        "not_captured": stepper.graphs.failure,
    }


def test_an_error_of_the_step_itself_is_raised() -> None:
    (step, stepper), batch = recorded_step(), plan().batch([0, 1])
    step.recorder.fails_at, step.recorder.when = 1, "written"
    stepper(OfBias(), batch, 0)
    with patch.object(TrainStep, "__call__", side_effect=ValueError("the loss is wrong")), pytest.raises(ValueError):
        stepper(OfBias(), batch, 1)


def test_graphs_are_dropped_when_the_loss_changes_and_kept_while_it_is_equal() -> None:
    (step, stepper), batch, calls = recorded_step(), plan().batch([0, 1]), OfBias().calls
    for update, name in enumerate("aaabbba"):
        stepper(OfBias(name=name, calls=calls), batch, update)  # made anew each time: equality counts, not identity
    assert [call[:2] for call in calls] == [(name, update) for update, name in enumerate("aaabbba")]
    assert (step.eager, stepper.graphs.captures) == (3, 2)
    assert stepper.graphs.entries == {}  # the last step was the first of its loss


def test_a_replay_sees_the_batch_and_the_update_it_was_called_with() -> None:
    (_, stepper), batches, loss = recorded_step(), plan(), OfBias()
    groups = {5: [0, 1, 2, 3], 6: [3, 2, 1, 0], 9: [2, 3, 0, 1], 70: [1, 0, 3, 2]}
    for update, numbers in groups.items():
        stepper(loss, batches.batch(numbers), update)
    assert loss.calls == [("", update, numbers) for update, numbers in groups.items()]


def test_the_callers_batch_is_copied_to_a_place_that_stays() -> None:
    (_, stepper), batches = recorded_step(), plan()
    first, second, third = (batches.batch(numbers) for numbers in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]))
    for update, batch in enumerate((first, second)):
        stepper(CrossEntropy(), batch, update)
    ((_, fixed),) = stepper.graphs.entries.values()
    places = {f.name: getattr(fixed, f.name).data_ptr() for f in fields(Batch) if f.name != "specials"}
    assert all(getattr(second, name).data_ptr() != place for name, place in places.items())
    stepper(CrossEntropy(), third, 2)
    for name, place in places.items():
        assert getattr(fixed, name).data_ptr() == place
        assert torch.equal(getattr(fixed, name), getattr(third, name))
    assert second.sentence_B.tolist() == [3, 1, 0, 2]


def test_sums_add_up_and_are_cleared_in_place() -> None:
    sums = Sums()
    one, two = torch.tensor(1.5), torch.tensor([1.0, 2.0])
    for _ in range(2):
        sums.add({"one": one, "two": two})
    assert sums.read() == {"one": 3.0, "two": [2.0, 4.0]}
    assert (one.item(), two.tolist()) == (1.5, [1.0, 2.0])
    place = sums.values["two"].data_ptr()
    sums.clear()
    assert sums.read() == {"one": 0.0, "two": [0.0, 0.0]}
    assert sums.values["two"].data_ptr() == place


@pytest.mark.parametrize("bad", [LOSS_NOT_FINITE, GRADIENT_NOT_FINITE], ids=["loss", "gradient"])
def test_a_step_whose_loss_or_gradient_is_not_finite_is_counted_and_changes_nothing_else(bad: OfBias) -> None:
    step, batch = cpu_step(), plan().batch([0, 1, 2, 3])
    step(CrossEntropy(), batch, 0)
    sums, weights = step.sums.read(), weights_of(step)
    step(bad, batch, 1)
    assert step.sums.read() == {**sums, "updates": 2.0, "not_finite": 1.0}
    assert same_tensors(weights_of(step), weights)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("lstm", "transformer") for name in LOSSES]
    + [("transformer_lm", name) for name in ("cross-entropy", "conbso", "scheduled sampling", "mrt")],
)
def test_a_step_asks_for_no_value_on_the_host(kind: str, name: str) -> None:
    """Every operation of a step, backward included, passes a guard that refuses those whose result the host reads."""
    loss = fresh(name, CPU, KINDS[kind])
    step, batch = cpu_step(loss, KINDS[kind]), plan(loss=loss).batch([0, 4, 8])
    with as_on_a_device(), NothingForTheHost():
        for epoch in (0, 2):
            step(loss.at(epoch), batch, epoch)
    found = step.sums.read()
    assert (found["updates"], found["not_finite"]) == (2.0, 0.0)


@pytest.mark.parametrize("ask", [lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x[x > 0]])
def test_the_guard_sees_what_it_is_there_for(ask: Callable[[Tensor], object]) -> None:
    with NothingForTheHost(), pytest.raises(AssertionError, match="waits for the device"):
        ask(torch.ones(3))


def test_the_longest_run_of_gradients_that_are_not_finite_is_kept() -> None:
    """bad bad good bad bad bad good bad: one at the end, three at most."""
    step, batch, seen = cpu_step(), plan().batch([0, 1, 2, 3]), []
    for update, bad in enumerate([True, True, False, True, True, True, False, True]):
        step(GRADIENT_NOT_FINITE if bad else CrossEntropy(), batch, update)
        seen.append(step.streak.tolist())
    assert seen == [[1, 1], [2, 2], [0, 2], [1, 2], [2, 2], [3, 3], [0, 3], [1, 3]]


@dataclass(frozen=True)
class SmallMemory:
    """A loss on a device that holds so many rows and no more."""

    loss: StepLoss
    rows: int
    tried: list[int] = field(compare=False, default_factory=list)
    beam = 0

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        self.tried.append(batch.shape[0])
        if batch.shape[0] > self.rows:
            if batch.source_BS.is_cuda:
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
            raise torch.OutOfMemoryError("not enough memory")
        return self.loss(model, batch, noise)


def assert_same_step(
    one: TrainStep, other: TrainStep, *, weights: tuple[float, float] = (1e-5, 1e-6), sums: float = 1e-4
) -> None:
    """To rounding, by default float32's where CUDA adds in another order; batches taken in halves are not compared."""
    for a, b in zip(one.optimizer.parameters, other.optimizer.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=weights[0], atol=weights[1])
    left, right = one.sums.read(), other.sums.read()
    assert left.keys() == right.keys()
    for key in left.keys() - {"out_of_memory"}:
        assert left[key] == pytest.approx(right[key], rel=sums)


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def two_exact_steps(name: str) -> tuple[list[Loss], list[RecordableStep]]:
    """Two equal losses in float64, each with a step of its own."""
    losses = [fresh(name, CPU) for _ in range(2)]
    for loss in losses:
        if loss.weights is not None:
            loss.weights.module.double()
    steps = [cpu_step(loss) for loss in losses]
    for total in chain.from_iterable(step.optimizer.state for step in steps):
        total.fill_(0.01)  # from nothing, Adagrad takes a gradient of 1e-17, which is rounding, for a large one
    return losses, steps


@pytest.mark.parametrize(
    ("name", "numbers", "captured"),
    [(name, *case) for name in LOSSES for case in (([4, 5, 6], True), ([8], False))]
    + [("conbso", [0, 1, 2, 3], False)],
)
def test_a_batch_that_memory_does_not_hold_is_taken_in_halves_with_the_same_numbers(
    name: str, numbers: list[int], captured: bool, float64: None
) -> None:
    """To rounding in float64; with one sentence in four rows, the second half is padding alone."""
    losses, (whole, split) = two_exact_steps(name)
    batch, tried = plan(loss=losses[0]).batch(numbers), list[int]()
    stepper = CapturedStep(split, split.recorder) if captured else split
    for update in range(3):
        whole(losses[0].at(2), batch, update)
        stepper(SmallMemory(losses[1].at(2), 2, tried), batch, update)
    assert tried == [4, 2, 2] * 3
    assert (whole.sums.read()["out_of_memory"], split.sums.read()["out_of_memory"]) == (0.0, 3.0)
    assert_same_step(whole, split, weights=(1e-10, 1e-12), sums=1e-10)


@pytest.mark.parametrize(("name", "captured"), [*((name, True) for name in LOSSES), ("conbso", False)])
def test_batches_that_make_one_update_have_the_numbers_of_one_batch(name: str, captured: bool, float64: None) -> None:
    """To rounding in float64: eleven sentences at once, and in three batches of other shapes; the third update has one
    batch alone, and the loss changes between two updates."""
    losses, (whole, parts) = two_exact_steps(name)
    stepper = CapturedStep(parts, parts.recorder) if captured else parts
    batches, three = plan(loss=losses[0]), [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10]]
    for update, numbers in enumerate([three, three, three[:1], three, three]):
        whole(losses[0].at(2 * update // 3), batches.batch(list(chain(*numbers))), update)
        for place, part in enumerate(numbers, 1):
            stepper(losses[1].at(2 * update // 3), batches.batch(part), update, last=place == len(numbers))
    assert parts.sums.read()["updates"] == 5
    assert sum(graph.replays for graph in parts.recorder.graphs) == 13 * captured - parts.eager * captured
    assert_same_step(whole, parts, weights=(1e-9, 1e-11), sums=1e-9)


@pytest.mark.parametrize("place", [0, 1])
def test_a_bad_batch_spoils_its_update_and_no_other(place: int) -> None:
    step, batch = cpu_step(), plan().batch([0, 1, 2, 3])
    weights = weights_of(step)
    for number in range(2):
        step(LOSS_NOT_FINITE if number == place else OfBias(), batch, 0, last=number == 1)
    assert same_tensors(weights_of(step), weights)
    for number in range(2):
        step(OfBias(), batch, 1, last=number == 1)
    found = step.sums.read()
    assert (found["updates"], found["not_finite"]) == (2.0, 1.0)
    assert not same_tensors(weights_of(step), weights)


@pytest.mark.parametrize(("size", "rows", "tries"), [(4, 1, [4, 2]), (1, 0, [1])])
def test_a_batch_whose_halves_memory_does_not_hold_is_an_error(size: int, rows: int, tries: list[int]) -> None:
    step, tried = cpu_step(), list[int]()
    weights = weights_of(step)
    batch = make_batch([Example((4, 5), (5, 4), number) for number in range(size)])
    with pytest.raises(ArgbeamError) as error:
        step(SmallMemory(CrossEntropy(), rows, tried), batch, 0)
    assert str(error.value) == (
        f"out of memory with {size} sentences of 2 source and 2 target tokens, and in halves too; "
        "lower text.max_length, or batch.size with more batch.accumulate for the same updates"
    )
    assert tried == tries
    assert same_tensors(weights_of(step), weights)


def cuda_step(loss: Loss | None, *, settings: ModelSettings = LSTM, group: Group = ALONE) -> TrainStep:
    model = model_on(torch.device("cuda"), settings)
    return TrainStep(model, optimizer_of(model, loss), 1, torch.device("cuda"), group=group)


@on_cuda
def test_adamw_in_cuda_graphs_gives_the_eager_numbers() -> None:
    device = torch.device("cuda")
    eager, captured = (TrainStep(*adamw_on(device), 1, device) for _ in range(2))
    stepper = CapturedStep(captured, CudaRecorder())
    train(stepper, CrossEntropy(), epochs=3)
    train(eager, CrossEntropy(), epochs=3)
    assert_same_step(eager, captured)
    assert (stepper.graphs.failure, stepper.graphs.captures > 0) == (None, True)


@on_cuda
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_cuda_graphs_give_the_eager_numbers(name: str, kind: str) -> None:
    """One shape has more than 16 words, for which kernels come in another size: none may be loaded in a capture."""
    losses = [fresh(name, torch.device("cuda"), KINDS[kind]) for _ in range(2)]
    eager, captured = (cuda_step(loss, settings=KINDS[kind]) for loss in losses)
    # Captured first, when no kernel has been loaded by eager steps.
    stepper = CapturedStep(captured, CudaRecorder())
    train(stepper, losses[1], epochs=3, longest=18)
    train(eager, losses[0], epochs=3, longest=18)
    assert_same_step(eager, captured)
    assert (stepper.graphs.failure, stepper.graphs.captures > 0) == (None, True)


FIRST_RECORDINGS = """
import torch
from argbeam.runtime.graph_cache import CudaRecorder, GraphCache

graphs, matrix = GraphCache(CudaRecorder()), torch.rand(64, 64, device="cuda")
matrix @ matrix  # as a step is made once before it is recorded: a library that is met first while recording fails
for _ in range(3):
    with graphs.capturing() as graph:
        product = matrix @ matrix
    graph.replay()
    torch.testing.assert_close(product, matrix @ matrix)
    del graph, product
    graphs.clear()
"""


@on_cuda
def test_cuda_records_again_after_the_first_recordings_of_a_process_are_dropped() -> None:
    """In the first one a workspace is allotted that outlives its graph: its pool of memory cannot be used again."""
    done = subprocess.run([sys.executable, "-c", FIRST_RECORDINGS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@on_cuda
def test_a_loss_that_waits_for_the_device_trains_without_graphs_on_cuda() -> None:
    """And what is recorded afterwards by others is none the worse for it."""
    step, eager = cuda_step(None), cuda_step(None)
    captured = CapturedStep(step, CudaRecorder())
    asking = OfBias(lambda bias: bias * (2.0 if bias.item() > 0 else 1.0))
    stream = torch.cuda.current_stream()
    batch = plan().batch([0, 1, 2, 3])
    for update in range(4):
        for stepper in (captured, eager):
            stepper(asking, batch, update)
    assert captured.graphs.failure is not None
    assert torch.cuda.current_stream() == stream
    assert step.sums.read() == eager.sums.read()
    again = CapturedStep(step, CudaRecorder())
    for update in range(4):
        for stepper in (again, eager):
            stepper(CrossEntropy(), batch, update)
    assert (again.graphs.failure, again.graphs.captures) == (None, 1)
    assert_same_step(step, eager)


@on_cuda
@pytest.mark.parametrize("name", LOSSES)
def test_a_cuda_graph_holds_the_exchange_between_processes(name: str, tmp_path: Path) -> None:
    """NCCL among one process, the sum over which is its own: the group says that it has two, or it would not ask."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        losses = [fresh(name, torch.device("cuda")) for _ in range(2)]
        eager, captured = cuda_step(losses[0]), cuda_step(losses[1], group=Group(rank=0, size=2))
        train(eager, losses[0], epochs=6)
        stepper = CapturedStep(captured, CudaRecorder())
        train(stepper, losses[1], epochs=6)
        assert stepper.graphs.captures > 0
        assert_same_step(eager, captured)
        stepper.graphs.clear()  # NCCL waits for graphs that hold its exchanges
    finally:
        dist.destroy_process_group()


@on_cuda
def test_a_batch_too_large_for_cuda_memory_is_captured_in_halves() -> None:
    batch = plan().batch([0, 1, 2, 3])
    whole, split = cuda_step(CrossEntropy()), cuda_step(CrossEntropy())
    stepper = CapturedStep(split, CudaRecorder())
    for update in range(4):
        whole(CrossEntropy(), batch, update)
        stepper(SmallMemory(CrossEntropy(), 2), batch, update)
    # Adagrad divides by the size of gradients, and with it what rounding did to small ones.
    assert_same_step(whole, split, weights=(1e-5, 2e-5))
    assert split.sums.read()["out_of_memory"] == 4.0


@on_cuda
@pytest.mark.parametrize("hidden", [5, 64])
@pytest.mark.parametrize("name", LOSSES)
def test_kernels_give_the_plain_gradients_on_cuda(name: str, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole step by kernels against the same step by plain torch operations."""
    device = torch.device("cuda")
    model = model_on(device, LstmModel(layers=2, hidden=hidden, embedding=hidden, dropout=0.3))
    parameters = list(model.parameters())
    batch = plan().batch([0, 1, 2, 3]).to(device)
    noise = Noise(1, torch.tensor(3, device=device), batch.sentence_B)
    loss = fresh(name, device)
    if isinstance(loss, Mixer):
        loss = replace(loss, baseline=Baseline(hidden).to(device))
    found = []
    for wanted in (True, False):
        monkeypatch.setattr(devices, "_KERNELS_WANTED", wanted)
        out = loss.at(2)(model, batch, noise)
        found.append((out.total, torch.autograd.grad(out.total, parameters, materialize_grads=True)))
    (by_kernels, its_gradients), (plain, plain_gradients) = found
    torch.testing.assert_close(by_kernels, plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(its_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
