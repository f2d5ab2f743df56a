"""How long a training step and a decoding take, at any shape and on any device.

All systems run in turn, round after round, so that a machine that slows down slows all of them; a figure is the median
of its rounds, with the distance between its quartiles beside it. The data are random words: no file is needed.
Several processes share the batch, and a round is over when all of them have done their part.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.decoding.captured_search import CapturedSearch, Search
from argbeam.losses import Bso, CrossEntropy, StepLoss
from argbeam.models.lstm import LstmSeq2Seq
from argbeam.reports.table import table
from argbeam.runtime.graph_cache import CudaRecorder, Graphs
from argbeam.runtime.group import ALONE, Group
from argbeam.search.score_rules import LastScore, LogprobSum
from argbeam.search.search import SearchSettings
from argbeam.search.successors import Permutation, Unconstrained
from argbeam.training.captured_step import CapturedStepper
from argbeam.training.optimizer import Adagrad
from argbeam.training.step import EagerStepper, TrainStep

_FIRST_WORD = EOS + 1


@dataclass(frozen=True)
class Shape:
    """Sizes of the batch and of the model."""

    batch: int
    source: int
    target: int
    vocabulary: int
    layers: int
    hidden: int

    def __str__(self) -> str:
        sizes = f"B {self.batch}, S {self.source}, T {self.target}, V {self.vocabulary}"
        return f"{sizes}, {self.layers} x {self.hidden}"


@dataclass(frozen=True)
class Row:
    """One system's figures. `ratio` is to cross-entropy in the same rounds; it is None for decoding."""

    system: str
    beam: int
    ms: float
    spread: float
    tokens_per_s: float
    ratio: float | None
    memory_mb: float
    capture_s: float

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class _Runner:
    """Something to be timed: `run` does one round and waits for nothing."""

    system: str
    beam: int
    tokens: int
    run: Callable[[], None]
    capture_s: Callable[[], float]
    times: list[float]
    memory_mb: float = 0.0


def bench(
    shape: Shape,
    *,
    device: torch.device,
    train_beams: Sequence[int],
    test_beams: Sequence[int],
    rounds: int = 20,
    capture: bool = True,
    group: Group = ALONE,
) -> Iterator[Row]:
    """Time cross-entropy, BSO and ConBSO steps at each train beam, then decoding at each test beam."""
    training = _training(shape, device, train_beams, capture, group)
    runners = [*training, *_decoding(shape, device, test_beams, capture, group)]
    for runner in runners:
        _warm_up(runner, device)
    for _ in range(rounds):
        for runner in runners:
            runner.times.append(_timed(runner.run, device))
    base = statistics.median(runners[0].times)
    for runner in runners:
        middle = statistics.median(runner.times)
        low, _, high = statistics.quantiles(runner.times, n=4)
        yield Row(
            system=runner.system,
            beam=runner.beam,
            ms=1000 * middle,
            spread=1000 * (high - low),
            tokens_per_s=runner.tokens / middle,
            ratio=None if runner.system.startswith("decode") else middle / base,
            memory_mb=runner.memory_mb,
            capture_s=runner.capture_s(),
        )


def _training(
    shape: Shape, device: torch.device, beams: Sequence[int], capture: bool, group: Group
) -> Iterator[_Runner]:
    anything = Unconstrained(shape.vocabulary, end_symbol=True)
    losses: list[tuple[str, int, StepLoss]] = [("cross_entropy", 0, CrossEntropy())]
    losses += [("bso", k, Bso(anything, train_beam=k, start_beam=k).at(0)) for k in beams]
    if shape.source == shape.target:  # a permutation is as long as its source
        losses += [
            ("conbso", k, Bso(Permutation(), train_beam=k, start_beam=k, open_length=False).at(0)) for k in beams
        ]
    batch = random_batch(shape, group)
    batch = batch.pin() if device.type == "cuda" else batch
    for system, beam, loss in losses:
        yield _training_runner(system, beam, loss, shape, device, batch, capture, group)


def _training_runner(
    system: str,
    beam: int,
    loss: StepLoss,
    shape: Shape,
    device: torch.device,
    batch: Batch,
    capture: bool,
    group: Group,
) -> _Runner:
    model = random_model(shape).to(device)
    rates = {"encoder": 0.02, "decoder": 0.02, "output": 0.1}
    step = TrainStep(model, Adagrad(model.modules_by_rate(), rates=rates, max_norm=5.0), 1, device, group=group)
    captured = CapturedStepper(step, CudaRecorder()) if capture and device.type == "cuda" else None
    stepper = captured or EagerStepper(step)
    updates = iter(range(1 << 40))
    return _Runner(
        system,
        beam,
        shape.batch * (shape.source + shape.target),
        run=lambda: stepper(loss, batch, next(updates)),
        capture_s=lambda: captured.graphs.seconds if captured else 0.0,
        times=[],
    )


def _decoding(
    shape: Shape, device: torch.device, beams: Sequence[int], capture: bool, group: Group
) -> Iterator[_Runner]:
    """Searches that go on to the length limit: random weights end nowhere in particular, so nothing may end at all."""
    batch = random_batch(shape, group).to(device)
    model = random_model(shape).to(device)
    anything = Unconstrained(shape.vocabulary, end_symbol=False)
    for system, rule in (("decode_logprob_sum", LogprobSum()), ("decode_last_score", LastScore())):
        for beam in beams:
            search = Search(model, anything, SearchSettings(beam, rule))
            yield _decoding_runner(system, search, batch, shape, capture and device.type == "cuda", group)


def _decoding_runner(system: str, search: Search, batch: Batch, shape: Shape, capture: bool, group: Group) -> _Runner:
    captured = CapturedSearch(Graphs(CudaRecorder())) if capture else None

    def run() -> None:
        if captured is None:
            search(batch, batch.target_length_B, steps=shape.target)
        else:
            captured(search, batch, batch.target_length_B, steps=shape.target)
        group.any(False)  # all have done their part

    return _Runner(
        system,
        search.settings.beam_size,
        shape.batch * (shape.source + shape.target),
        run,
        capture_s=lambda: captured.graphs.seconds if captured else 0.0,
        times=[],
    )


def show_rows(rows: Sequence[Row], shape: Shape, device: torch.device) -> None:
    """A table of the rows."""
    headers = ("system", "beam", "ms", "spread", "tokens/s", "ratio", "memory MB", "capture s")
    shown = [
        (
            row.system,
            str(row.beam or "-"),
            f"{row.ms:.2f}",
            f"{row.spread:.2f}",
            f"{row.tokens_per_s:,.0f}",
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            f"{row.memory_mb:.0f}" if row.memory_mb else "-",
            f"{row.capture_s:.2f}" if row.capture_s else "-",
        )
        for row in rows
    ]
    table(headers, shown, title=f"{shape}, {device.type}")


def random_batch(shape: Shape, group: Group = ALONE) -> Batch:
    """Full-length sentences of random words, or this process's share of them.

    The source holds the target's words where the lengths are equal.
    """
    draw = random.Random(1)
    examples = []
    for number in range(shape.batch):
        target = [draw.randrange(_FIRST_WORD, shape.vocabulary) for _ in range(shape.target)]
        source = [draw.randrange(_FIRST_WORD, shape.vocabulary) for _ in range(shape.source)]
        if shape.source == shape.target:
            source = draw.sample(target, k=shape.target)
        examples.append(Example(tuple(source), tuple(target), number))
    return make_batch(group.share(examples), size=group.share_of(shape.batch))


def random_model(shape: Shape) -> LstmSeq2Seq:
    """The paper's model with weights as at the start of training."""
    model = LstmSeq2Seq(
        source_vocabulary=shape.vocabulary,
        target_vocabulary=shape.vocabulary,
        layers=shape.layers,
        hidden=shape.hidden,
        embedding=shape.hidden,
        dropout=0.2,
    )
    model.initialise(bound=0.1, generator=torch.Generator().manual_seed(1))
    return model


def _warm_up(runner: _Runner, device: torch.device) -> None:
    """Twice: on CUDA the first step is eager and the second records the graph."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        _timed(runner.run, device)
    runner.memory_mb = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0.0


def _timed(run: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
