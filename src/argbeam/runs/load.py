"""A trained run, opened: its model and its task, ready to decode and to score."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from argbeam import __version__
from argbeam.decoding.batch_decoder import (
    WINDOW,
    BatchDecoder,
    Decoded,
    Evaluation,
    check_lengths,
    decode_rules,
    evaluate,
    item_of,
)
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.decoding.length_power import best_power, evaluate_powers, fingerprint, read_power, save_power
from argbeam.errors import ConfigError, DataError, counted
from argbeam.losses import last_beam
from argbeam.models import Network, load_weights, make_model
from argbeam.runs import layout
from argbeam.runs.checkpoint import finished_model, interpreting, task_of
from argbeam.runs.checkpoint import load as load_checkpoint
from argbeam.runtime import device as devices
from argbeam.runtime.group import ALONE, Group
from argbeam.search.score_rules import SCORE_RULES, LogprobSum, ScoreRule, with_power
from argbeam.search.stop_rules import STOPS, Stop
from argbeam.search.successors import Unconstrained
from argbeam.settings import Recipe
from argbeam.settings.recipe import Rules
from argbeam.settings.recipe_files import parse_recipe, recipe_from_json
from argbeam.tasks import Task
from argbeam.tasks.contract import Item
from argbeam.training.state import scored_weights

# Settings of a finished run that may still change: the search, the device, the place of its files.
_OPEN_KEYS = ("decode.", "runtime.", "data.root")


@dataclass(frozen=True)
class Run:
    """A trained model, its task and its search rules.

    `stage` names the stage that trained the weights; empty: that of the run it started from, which was not improved on.
    `weights` is their file in the run folder, `start_search` what that other run's `trained_search` was, and
    `trained_limit` the length limit of the recipe that was trained, which overrides may change.
    """

    recipe: Recipe
    task: Task
    model: Network
    rule: ScoreRule
    stop: Stop
    device: torch.device
    path: Path
    stage: str
    weights: str = ""
    trained_limit: str = ""
    group: Group = ALONE
    captured: CapturedSearch | None = None
    start_search: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: the weights and the vocabulary would be pages."""
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        facts = f"{self.recipe.task.kind}, {self.recipe.model.kind}, {weights:,} weights, rule {self.rule.name}"
        return f"Run({str(self.path)!r}: {self.recipe.name}, {facts}, {self.device})"

    @property
    def folder(self) -> Path:
        """The run folder, also of a checkpoint file in it."""
        return layout.folder_of(self.path)

    @property
    def capture_failure(self) -> str | None:
        """Why searches did not run as CUDA graphs; None: they did, or were not to."""
        return None if self.captured is None else self.captured.graphs.failure

    def decode(self, lines: Iterable[str], *, beam: int = 0) -> list[str]:
        """The best output for each line of input, in order."""
        return [
            self.task.text(item, decoded.hypotheses[0].tokens) if decoded.hypotheses else ""
            for _, item, decoded in self.search_items(lines, beam=beam)
        ]

    def search(
        self, lines: Iterable[str], *, beam: int = 0, n_best: int = 1, trace: bool = False
    ) -> Iterator[tuple[str, Decoded]]:
        """Each line with the result of its search, in order; reads no more than `WINDOW` lines ahead."""
        for line, _, decoded in self.search_items(lines, beam=beam, n_best=n_best, trace=trace):
            yield line, decoded

    def search_items(
        self,
        lines: Iterable[str],
        *,
        beam: int = 0,
        n_best: int = 1,
        trace: bool = False,
        place: str = "line ",
        first: int = 1,
        done: Callable[[int], None] = lambda count: None,
    ) -> Iterator[tuple[str, Item, Decoded]]:
        """Each line with its item and the result of its search; a line without words has no hypothesis.

        A line that cannot be decoded is a DataError, raised after the results of the lines before it. The error starts
        with `place` and the number of the line; numbers count from `first`. `done` as in `BatchDecoder.decode`.
        """
        if isinstance(lines, str):
            raise TypeError("lines is one string, whose characters would be decoded one by one; pass a list of lines")
        if beam < 0:
            raise ConfigError(f"beam = {beam}: must be at least 1, or 0 for the recipe's")
        decoder, numbered = self.decoder(), enumerate(lines, start=first)
        while window := list(islice(numbered, WINDOW)):
            items: list[Item] = []
            fault: DataError | None = None
            for number, line in window:
                try:
                    items.append(item_of(self.task, line, most=self.recipe.decode.max_words, where=f"{place}{number}"))
                except DataError as error:
                    fault = error
                    break
            worded = (item for item in items if item.source)
            width = beam or self.recipe.decode.beam
            found = decoder.decode(worded, beam=width, n_best=n_best, trace=trace, done=done)
            for (_, line), item in zip(window, items, strict=False):
                yield line, item, next(found) if item.source else Decoded((), dead=False)
            if fault is not None:
                raise fault

    def items(self, split: str) -> list[Item]:
        """The items of "dev" or "test", each of a length that can be decoded."""
        items = self.task.read(split).items
        check_lengths(items, most=self.recipe.decode.max_words, where=split)
        return items

    def evaluate(self, split: str, *, beam: int) -> Evaluation:
        """Decode a split and score it."""
        if beam < 1:
            raise ConfigError(f"beam = {beam}: must be at least 1")
        return evaluate(self.decoder(), self.items(split), beam=beam)

    def decoder(self) -> BatchDecoder:
        size = self.recipe.decode.batch
        return BatchDecoder(self.model, self.task, self.rule, self.stop, self.device, size, self.group, self.captured)

    @property
    def trained_search(self) -> dict[str, Any]:
        """The beam and the successors with which the weights were trained; a beam of 0 without a search."""
        if not self.stage:
            return {"train_beam": 0, "successors": "unconstrained", **self.start_search}
        stage = self.recipe.stages[self.stage]
        constrained = any(getattr(stage.loss, key, False) for key in ("constrained", "valid_only"))
        return {"train_beam": last_beam(stage), "successors": "constrained" if constrained else "unconstrained"}

    def signature(self, *, split: str, beam: int, evaluation: Evaluation) -> dict[str, Any]:
        """The record of a score: everything that it depends on, and the score."""
        trained = self.trained_search
        return {
            "task": self.recipe.task.kind,
            "system": self.recipe.name,
            "split": split,
            "successors": trained["successors"],
            "decoded": "unconstrained" if isinstance(self.task.constraint, Unconstrained) else "constrained",
            "train_beam": trained["train_beam"],
            "test_beam": beam,
            "rule": self.rule.name,
            "length_power": self.rule.length_power if isinstance(self.rule, LogprobSum) else 0.0,
            "length_power_from": "dev" if self.recipe.decode.length_power == "dev" else "recipe",
            "stop": self.stop.name if self.task.open_length else "length",
            "limit": self.recipe.decode.limit if self.task.open_length else "",
            "seed": self.recipe.seed,
            "weights": self.weights,
            "version": __version__,
            "metric": evaluation.score.signature,
            "scores": dict(evaluation.score.parts),
            "sentences": len(evaluation.outputs),
            "unfinished": evaluation.unfinished,
            "dead": evaluation.dead,
        }


def above_beam(option: str, n_best: int, beam: int) -> str:
    """A line for the user about more outputs than a beam holds; empty: there are enough."""
    return f"{option} {n_best} is above the beam: at most {counted(beam, 'output')} a line" if n_best > beam else ""


def load(
    path: str | Path,
    *,
    device: str = "auto",
    overrides: Sequence[str] = (),
    group: Group = ALONE,
    keep: bool = True,
) -> Run:
    """Open a finished run, or a checkpoint file of it; each `key=value` of `overrides` changes its recipe.

    An empty `device` is the recipe's own. A length power that dev decides is chosen now, unless it was chosen before;
    with `keep` it is saved in the run folder.
    """
    return _with_power(replace(open_trained(Path(path), device, overrides), group=group), keep=keep)


def _with_power(run: Run, *, keep: bool) -> Run:
    chosen_on_dev = run.recipe.decode.length_power == "dev" and run.rule.normalised
    # Outputs of one length have the same order whatever the power.
    return _with_power_of_dev(run, keep=keep) if chosen_on_dev and run.task.open_length else run


def open_run(path: Path, overrides: Sequence[str] = (), group: Group = ALONE, *, keep: bool = True) -> Run:
    """`load` for the command: on the recipe's device and threads, and with overrides of open keys only."""
    for override in overrides:
        if not override.strip().startswith(_OPEN_KEYS):
            raise ConfigError(f"--set {override}: a trained run takes decode.*, runtime.* and data.root only")
    run = replace(open_trained(path, "", overrides), group=group)
    devices.set_decoding_threads(run.recipe.runtime, run.device, sum(p.numel() for p in run.model.parameters()))
    return _with_power(run, keep=keep)


def open_trained(path: Path, device: str, overrides: Sequence[str] = ()) -> Run:
    """`load` without the choice of a length power."""
    found = load_checkpoint(path) if path.is_file() else finished_model(path)
    with interpreting(found.path):
        trained = SCORE_RULES[found.meta["rule"]], STOPS[found.meta["stop"]]
        kept = _rules_of(*trained, found.meta.get("stage", ""))
        recipe = recipe_from_json(found.meta["recipe"], where=str(found.path), weights=kept)
        if any(override.strip().startswith("data.root") for override in overrides) and not hasattr(recipe.data, "root"):
            raise ConfigError(f"data.root (--data): {path} reads no files; its data is {recipe.data.kind}")
        limit = recipe.decode.limit
        recipe = parse_recipe(recipe.model_dump(), overrides, where=str(path), weights=kept) if overrides else recipe
        rule, stop = decode_rules(*trained, recipe.decode)
        stage = found.meta.get("stage", list(recipe.stages)[-1])  # missing in files of version 0.1
        if stage not in ["", *recipe.stages]:
            raise ValueError(f"stage = {stage!r}: the recipe has none of that name")
        start_search = dict(found.meta["position"].get("start_search", {}))
    task = task_of(recipe, found)
    chosen = devices.choose_device(device or recipe.runtime.device)
    model = network_of(recipe, task).to(chosen)
    with interpreting(found.path):
        tensors = scored_weights(model, found.tensors)
        load_weights(model, {k: v.to(chosen) for k, v in tensors.items()}, "model.")
    recorder = devices.make_recorder(recipe.runtime, chosen)
    captured = None if recorder is None else CapturedSearch(recorder)
    weights = f"{found.path.parent.name}/{found.path.name}"
    return Run(
        recipe,
        task,
        model,
        rule,
        stop,
        chosen,
        path,
        stage,
        weights,
        limit,
        captured=captured,
        start_search=start_search,
    )


def _rules_of(rule: ScoreRule, stop: Stop, stage: str) -> Rules:
    """The rules of the weights that this stage kept; without a name, those that training started from."""
    return Rules(rule.name, stop.name, f"with {rule.name}, the rule of the weights{stage and f' of stages.{stage}'}")


def network_of(recipe: Recipe, task: Task) -> Network:
    """The recipe's model for the vocabularies of a task, its weights still to be drawn or loaded."""
    return make_model(
        recipe.model,
        source_vocabulary=len(task.source),
        target_vocabulary=len(task.target),
        ordered_source=recipe.ordered_source,
    )


def _with_power_of_dev(run: Run, *, keep: bool) -> Run:
    decode, file = run.recipe.decode, run.folder / layout.LENGTH_POWER
    layout.refuse_links(run.folder)
    key = {
        "weights": fingerprint(run.model),
        "beam": decode.beam,
        "stop": run.stop.name,
        "length_factor": decode.length_factor,
        "length_extra": decode.length_extra,
    }
    power = run.group.first(lambda: read_power(file, key))
    if power is None:
        evaluations = evaluate_powers(run.decoder(), run.task.read("dev").items, beam=decode.beam)
        scores = {power: evaluation.score.value for power, evaluation in evaluations.items()}
        if keep:
            run.group.first(lambda: save_power(file, key, scores))
        power = best_power(scores)
    return replace(run, rule=with_power(run.rule, power))
