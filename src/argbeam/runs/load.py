"""A trained run: its model with its task, to decode and to score with."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from argbeam import __version__
from argbeam.decoding.batch_decoder import BatchDecoder, Decoded, check_lengths, decode_rules, item_of
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.decoding.evaluate import Evaluation, evaluate
from argbeam.decoding.length_power import best_power, evaluate_powers, fingerprint, read_power, save_power
from argbeam.errors import ConfigError
from argbeam.models import Network, load_weights
from argbeam.runs import checkpoint
from argbeam.runs import layout as folders
from argbeam.runs.model import build_model
from argbeam.runs.saved import finished_model, reading, task_of
from argbeam.runtime import device as devices
from argbeam.runtime.group import ALONE, Group
from argbeam.search.score_rules import SCORE_RULES, LogprobSum, ScoreRule
from argbeam.search.stop_rules import STOPS, Stop
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import parse_recipe, recipe_from_json
from argbeam.tasks import Task
from argbeam.tasks.contract import Item


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
    def capture_failure(self) -> str | None:
        """Why searches did not run as CUDA graphs; None: they did, or were not to."""
        return None if self.captured is None else self.captured.graphs.failure

    def decode(self, lines: Iterable[str], *, beam: int = 0) -> list[str]:
        """The best output for each line of input, in order."""
        _need_lines(lines)
        items = [self._item(line, number) for number, line in enumerate(lines, start=1)]
        decoded = self.decoder().decode(items, beam=self._beam(beam))
        return [
            self.task.text(item, found.hypotheses[0].tokens) if found.hypotheses else ""
            for item, found in zip(items, decoded, strict=True)
        ]

    def search(
        self, lines: Iterable[str], *, beam: int = 0, n_best: int = 1, trace: bool = False
    ) -> Iterator[tuple[str, Decoded]]:
        """Each line with all that the search found for it; reads no further ahead than it must."""
        _need_lines(lines)
        beam = self._beam(beam)
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

    def decoder(self) -> BatchDecoder:
        size = self.recipe.decode.batch
        return BatchDecoder(self.model, self.task, self.rule, self.stop, self.device, size, self.group, self.captured)

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

    def _beam(self, asked: int) -> int:
        """The beam asked for; 0: the recipe's."""
        if asked < 0:
            raise ConfigError(f"beam = {asked}: must be at least 1, or 0 for the recipe's")
        return asked or self.recipe.decode.beam

    def _item(self, line: str, number: int) -> Item:
        return item_of(self.task, line, most=self.recipe.decode.max_words, where=f"line {number}")


def load(path: str | Path, *, device: str = "auto", overrides: Sequence[str] = (), group: Group = ALONE) -> Run:
    """Open a finished run, or a checkpoint file of it, with each `key=value` of `overrides` put over its recipe.

    An empty `device` is the recipe's own. A length power to be chosen on dev is chosen now, if it has not been before.
    """
    run = replace(open_trained(Path(path), device, overrides), group=group)
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
    power = run.group.first(lambda: read_power(file, key))
    if power is None:
        evaluations = evaluate_powers(run.decoder(), run.task.read("dev").items, beam=decode.beam)
        scores = {power: evaluation.score.value for power, evaluation in evaluations.items()}
        run.group.first(lambda: save_power(file, key, scores))
        power = best_power(scores)
    return replace(run, rule=LogprobSum(power))


def open_trained(path: Path, device: str, overrides: Sequence[str] = ()) -> Run:
    """`load`, without the choice of a length power."""
    found = checkpoint.load(path) if path.is_file() else finished_model(path)
    with reading(found.path):
        recipe = recipe_from_json(found.meta["recipe"], where=str(found.path))
        recipe = parse_recipe(recipe.model_dump(), overrides, where=str(path)) if overrides else recipe
        rule, stop = decode_rules(SCORE_RULES[found.meta["rule"]], STOPS[found.meta["stop"]], recipe.decode)
    task = task_of(recipe, found)
    chosen = devices.choose_device(device or recipe.runtime.device)
    model = build_model(recipe, task).to(chosen)
    with reading(found.path):
        load_weights(model, {k: v.to(chosen) for k, v in found.tensors.items()}, "model.")
    recorder = devices.make_recorder(recipe.runtime, chosen)
    captured = None if recorder is None else CapturedSearch(recorder)
    return Run(recipe, task, model, rule, stop, chosen, path, captured=captured)


def _need_lines(lines: Iterable[str]) -> None:
    if isinstance(lines, str):
        raise TypeError("lines is one string, whose characters would be decoded one by one; a list of lines is needed")
