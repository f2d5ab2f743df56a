"""The dev split after an epoch: perplexity, and the score of a search."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from argbeam.data.batches import Example
from argbeam.decoding.batch_decoder import BatchDecoder, decode_rules
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.decoding.evaluate import evaluate, perplexity
from argbeam.errors import ArgbeamError
from argbeam.losses import Loss
from argbeam.models.contract import Network
from argbeam.runtime.group import Group
from argbeam.settings import Decode, Stage
from argbeam.tasks.contract import Item, Task

DIVERGED = "training has diverged: lower the learning rates of the stage"


@dataclass(frozen=True)
class Dev:
    """The dev split and everything needed to score it. `batch` is the size of training batches."""

    model: Network
    task: Task
    items: Sequence[Item]
    examples: Sequence[Example]
    decode: Decode
    batch: int
    device: torch.device
    group: Group
    captured: CapturedSearch | None

    def figures(self, stage: Stage, loss: Loss, *, update: int) -> dict[str, Any]:
        """The `dev` part of an epoch's record."""
        figures: dict[str, Any] = {}
        if loss.rule.normalised or stage.keep == "perplexity":
            # A training batch fits in memory, and so does this one: every token of the vocabulary has a score.
            size = min(self.decode.batch, self.batch)
            figures["perplexity"] = perplexity(
                self.model, self.examples, batch=size, device=self.device, group=self.group
            )
            figures["without_gold"] = sum(not example.target for example in self.examples)
            if math.isnan(figures["perplexity"]):
                raise ArgbeamError(f"update {update}: the dev perplexity is not a number; {DIVERGED}")
        if stage.keep == "score":
            rule, stop = decode_rules(loss.rule, loss.stop, self.decode)
            size = self.decode.batch
            decoder = BatchDecoder(self.model, self.task, rule, stop, self.device, size, self.group, self.captured)
            found = evaluate(decoder, self.items, beam=stage.keep_beam)
            figures |= {
                "value": found.score.value,
                **found.score.parts,
                "test_beam": stage.keep_beam,
                "unfinished": found.unfinished,
                "dead": found.dead,
                "signature": found.score.signature,
            }
        return figures


def judged_value(stage: Stage, figures: dict[str, Any]) -> float | None:
    """The figure that chooses the stage's best epoch; None: its last epoch is the one."""
    return {"perplexity": figures.get("perplexity"), "score": figures.get("value"), "last": None}[stage.keep]


def is_better(stage: Stage, value: float | None, best: float | None) -> bool:
    """Whether an epoch with this value is the best so far."""
    if value is None or best is None:
        return value is not None
    return value < best if stage.keep == "perplexity" else value > best
