"""The score and the perplexity of a split. The trainer chooses epochs by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from argbeam.data.batches import Example, in_order_of_length, make_batch
from argbeam.decoding.batch_decoder import BatchDecoder, Hypothesis
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.models.contract import Model
from argbeam.runtime.group import ALONE, Group
from argbeam.tasks.contract import Item, Score


@dataclass(frozen=True)
class Evaluation:
    """A split decoded and scored: `score` of the split, `scores` of the outputs.

    `unfinished` counts outputs cut off at the length limit, `dead` those without a valid successor.
    """

    score: Score
    outputs: list[tuple[int, ...]]
    scores: list[float]
    unfinished: int
    dead: int


def evaluate(decoder: BatchDecoder, items: Sequence[Item], *, beam: int) -> Evaluation:
    """Decode items and score them with the task's metric."""
    decoded = list(decoder.decode(items, beam=beam))
    best = [d.hypotheses[0] if d.hypotheses else Hypothesis((), -math.inf, False) for d in decoded]
    outputs = [hypothesis.tokens for hypothesis in best]
    return Evaluation(
        score=decoder.task.score(items, outputs),
        outputs=outputs,
        scores=[hypothesis.score for hypothesis in best],
        unfinished=sum(not h.finished and not d.dead for h, d in zip(best, decoded, strict=True)),
        dead=sum(d.dead for d in decoded),
    )


def perplexity(
    model: Model, examples: Sequence[Example], *, batch: int, device: torch.device, group: Group = ALONE
) -> float:
    """Of the gold tokens given the gold history, end symbols included; sentences without gold do not count."""
    with_gold = [example for example in examples if example.target]
    sums: list[tuple[int, float, float]] = []
    for place, numbers in group.share(list(enumerate(in_order_of_length(with_gold, size=batch)))):
        with torch.no_grad():
            out = CrossEntropy()(model, make_batch([with_gold[i] for i in numbers]).to(device), None)
        sums.append((place, float(out.total), float(out.sums["words"])))
    # Added in one order, whatever the number of processes: the best epoch must not depend on rounding.
    ordered = sorted(tuple(entry) for part in group.gather(sums) for entry in part)
    loss, count = sum(loss for _, loss, _ in ordered), sum(count for _, _, count in ordered)
    return math.exp(min(loss / max(count, 1.0), 700.0))
