"""Time per training step and per decoding, at any shape and on any device.

All systems run in turn, round after round, so that a machine that slows down slows all of them. A figure is the median
of its rounds, with the distance between its quartiles beside it. The data are random token ids: no file is needed.
Several processes share the batch, and a round is over when all of them have done their part.
"""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import torch
from pydantic import ValidationError

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import SPECIALS, STANDARD
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.errors import ConfigError
from argbeam.losses import Bso, CrossEntropy, StepLoss
from argbeam.models import Network, make_model
from argbeam.reports.table import table
from argbeam.runtime.graph_cache import CudaRecorder, GraphCache
from argbeam.runtime.group import ALONE, Group
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule
from argbeam.search.search import Search, SearchSettings
from argbeam.search.successors import Permutation, Unconstrained
from argbeam.settings import LstmModel, Model, TransformerLmModel, TransformerModel
from argbeam.settings.mistakes import first_mistake
from argbeam.training.captured_step import CapturedStep
from argbeam.training.optimizer import Adagrad, AdamW
from argbeam.training.step import TrainStep


@dataclass(frozen=True)
class BenchShape:
    """Sizes of the batch and of the model, whose kind and bounds are those of recipes."""

    batch: int
    source: int
    target: int
    vocabulary: int
    layers: int
    hidden: int
    model: str = "lstm"

    def __post_init__(self) -> None:
        _ = self.settings  # an error now, before anything is timed

    def __str__(self) -> str:
        sizes = f"B {self.batch}, S {self.source}, T {self.target}, V {self.vocabulary}"
        layers = f"{self.layers} + {self.layers}" if self.model == "transformer" else f"{self.layers}"
        return f"{sizes}, {self.model} {layers} x {self.hidden}"

    @property
    def settings(self) -> Model:
        """Heads of 64 and a feed-forward layer of four times the width, as is usual."""
        heads = self.hidden // 64 if self.hidden % 64 == 0 else 1
        kind: type[Model]
        match self.model:
            case "lstm":
                kind, more = LstmModel, {"embedding": self.hidden}
            case "transformer" | "transformer_lm":
                kind = TransformerModel if self.model == "transformer" else TransformerLmModel
                more = {"heads": heads, "feed_forward": 4 * self.hidden}
            case _:
                raise ConfigError(f"model {self.model}: accepted: lstm, transformer, transformer_lm")
        try:
            return kind.model_validate({"layers": self.layers, "hidden": self.hidden, **more})
        except ValidationError as error:
            raise ConfigError(first_mistake(error.errors(include_url=False)[:1], "bench", table=kind)) from None


@dataclass(frozen=True)
class BenchRow:
    """Figures of one system. `ratio` is to cross-entropy in the same rounds; it is None for decoding."""

    system: str
    beam: int
    ms: float
    spread: float
    tokens_per_s: float
    ratio: float | None
    memory_mb: float
    capture_s: float


@dataclass
class _Timed:
    """A system to time: `run` does one round and does not wait for the device."""

    system: str
    beam: int
    run: Callable[[], None]
    graphs: GraphCache[Any] | None
    times: list[float] = field(default_factory=list)
    memory_mb: float = 0.0


@dataclass(frozen=True)
class _Bench:
    """What all systems have in common."""

    shape: BenchShape
    device: torch.device
    capture: bool
    bf16: bool
    group: Group

    def training(self, beams: Sequence[int], rules: Sequence[ScoreRule]) -> Iterator[_Timed]:
        shape = self.shape
        anything = Unconstrained(shape.vocabulary, end_symbol=True)
        losses: list[tuple[str, int, StepLoss]] = [("cross_entropy", 0, CrossEntropy())]
        for rule in rules:
            name = "" if rule == LastScore() else f"_{rule.name}"
            bso = [(k, Bso(anything, train_beam=k, start_beam=k, rule=rule)) for k in beams]
            losses += [(f"bso{name}", k, loss.at(0)) for k, loss in bso]
            if shape.source == shape.target:  # a permutation is as long as its source
                bso = [(k, replace(loss, successors=Permutation(), open_length=False)) for k, loss in bso]
                losses += [(f"conbso{name}", k, loss.at(0)) for k, loss in bso]
        free, permuted = (random_batch(shape, self.group, end=end) for end in (True, False))
        if self.device.type == "cuda":
            free, permuted = free.pin(), permuted.pin()
        for system, beam, loss in losses:
            yield self._training(system, beam, loss, permuted if system.startswith("conbso") else free)

    def _training(self, system: str, beam: int, loss: StepLoss, batch: Batch) -> _Timed:
        model = random_model(self.shape).to(self.device)
        # Each kind of model with the optimizer of its recipes.
        kind, rate = (Adagrad, 0.02) if self.shape.model == "lstm" else (AdamW, 0.0003)
        groups = model.modules_by_rate()
        optimizer = kind(groups, rates=dict.fromkeys(groups, rate), max_norm=5.0)
        step = TrainStep(model, optimizer, 1, self.device, bf16=self.bf16, group=self.group)
        captured = CapturedStep(step, CudaRecorder()) if self.capture else None
        run_step, updates = captured or step, itertools.count()
        graphs = captured.graphs if captured else None
        return _Timed(system, beam, lambda: run_step(loss, batch, next(updates)), graphs)

    def decoding(self, beams: Sequence[int]) -> Iterator[_Timed]:
        """Searches up to the length limit: random weights end anywhere, so there is no end symbol."""
        batch, model = random_batch(self.shape, self.group).to(self.device), random_model(self.shape).to(self.device)
        anything = Unconstrained(self.shape.vocabulary, end_symbol=False)
        for system, rule in (("decode_logprob_sum", LogprobSum()), ("decode_last_score", LastScore())):
            for beam in beams:
                yield self._decoding(system, Search(model, anything, SearchSettings(beam, rule)), batch)

    def _decoding(self, system: str, search: Search, batch: Batch) -> _Timed:
        captured = CapturedSearch(CudaRecorder()) if self.capture else None

        def run() -> None:
            if captured is None:
                search(batch, batch.target_length_B, steps=self.shape.target)
            else:
                captured(search, batch, batch.target_length_B, steps=self.shape.target)
            self.group.any(False)  # all processes have done their part

        return _Timed(system, search.settings.beam_size, run, captured.graphs if captured else None)


def bench(
    shape: BenchShape,
    *,
    device: torch.device,
    train_beams: Sequence[int],
    test_beams: Sequence[int],
    rounds: int = 20,
    capture: bool = True,
    bf16: bool = False,
    rules: Sequence[ScoreRule] = (LastScore(),),
    group: Group = ALONE,
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[BenchRow]:
    """Time cross-entropy, BSO and ConBSO steps at each train beam, then decoding at each test beam.

    `bf16`: training as with `runtime.precision = "bf16"`. `rules`: of BSO. `done(1)` is called after each round.
    """
    made = _Bench(shape, device, capture and device.type == "cuda", bf16, group)
    systems = [*made.training(train_beams, rules), *made.decoding(test_beams)]
    for system in systems:
        _warm_up(system, device)
    for _ in range(rounds):
        for system in systems:
            system.times.append(_seconds(system.run, device))
        done(1)
    base = statistics.median(systems[0].times)
    for system in systems:
        middle = statistics.median(system.times)
        low, _, high = statistics.quantiles(system.times, n=4)
        yield BenchRow(
            system=system.system,
            beam=system.beam,
            ms=1000 * middle,
            spread=1000 * (high - low),
            tokens_per_s=shape.batch * (shape.source + shape.target) / middle,
            ratio=None if system.system.startswith("decode") else middle / base,
            memory_mb=system.memory_mb,
            capture_s=system.graphs.seconds if system.graphs else 0.0,
        )


def show_rows(rows: Sequence[BenchRow], shape: BenchShape, device: torch.device) -> None:
    """A table of the rows."""
    headers = ("system", "beam", "ms", "spread", "tokens/s", "ratio", "memory MB", "capture s")
    formats = ("", "", ".2f", ".2f", ",.0f", ".2f", ".0f", ".2f")
    # What a system does not have is None or 0: a beam, a ratio, memory of the device, a capture.
    shown = [[format(x, f) if x else "-" for x, f in zip(astuple(row), formats, strict=True)] for row in rows]
    table(headers, shown, title=f"{shape}, {device.type}")


def random_batch(shape: BenchShape, group: Group = ALONE, *, end: bool = False) -> Batch:
    """Full-length sentences of random tokens, or this process's share of them.

    Where the lengths are equal, the source is a permutation of the target. With `end` the last token of each target is
    then the end symbol.
    """
    draw = random.Random(1)
    examples = []
    for number in range(shape.batch):
        lengths = (shape.target, shape.source)
        target, source = (
            [draw.randrange(len(SPECIALS), shape.vocabulary) for _ in range(length)] for length in lengths
        )
        if shape.source == shape.target:
            source = draw.sample(target, k=shape.target)
        examples.append(Example(tuple(source), (*target[:-1], STANDARD.eos) if end else tuple(target), number))
    return make_batch(group.share(examples), size=group.share_of(shape.batch))


def random_model(shape: BenchShape) -> Network:
    """The model with weights as at the start of training."""
    tokens = shape.vocabulary
    model = make_model(shape.settings, source_vocabulary=tokens, target_vocabulary=tokens)
    model.initialise(bound=shape.settings.init, generator=torch.Generator().manual_seed(1))
    return model


def _warm_up(system: _Timed, device: torch.device) -> None:
    """Twice: on CUDA the first step is eager and the second captures the graph."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        _seconds(system.run, device)
    system.memory_mb = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0.0


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
