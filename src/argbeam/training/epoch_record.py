"""The figures of an epoch's record: averages of its training steps, and the scores of dev."""

import math
from collections.abc import Sequence
from typing import Any

from argbeam.decoding.batch_decoder import BatchDecoder, evaluate, perplexity
from argbeam.errors import ArgbeamError
from argbeam.settings import Stage
from argbeam.tasks.contract import Item

DIVERGED = "training has diverged: lower the learning rates of the stage"
# Sums that some losses report, by what a record divides them by.
_PER_SENTENCE = ("reward", "risk", "candidates")
_PER_WORD = ("own_words", "sequence_loss", "cross_entropy")


def dev_figures(
    decoder: BatchDecoder, items: Sequence[Item], stage: Stage, *, train_batch: int, update: int
) -> dict[str, Any]:
    """The `dev` part of an epoch's record. `train_batch` is the size of training batches."""
    figures: dict[str, Any] = {}
    if decoder.rule.normalised or stage.keep == "perplexity":
        examples = [decoder.task.example(item, i) for i, item in enumerate(items)]
        # A training batch fits in memory, and so does this one: every token of the vocabulary has a score.
        size = min(decoder.batch, train_batch)
        value = perplexity(decoder.model, examples, batch=size, device=decoder.device, group=decoder.group)
        if math.isnan(value):
            raise ArgbeamError(f"update {update}: the dev perplexity is not a number; {DIVERGED}")
        figures |= {"perplexity": value, "without_gold": sum(not example.target for example in examples)}
    if stage.keep == "score":
        found = evaluate(decoder, items, beam=stage.keep_beam)
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


def epoch_figures(sums: dict[str, Any]) -> dict[str, Any]:
    """Averages and shares from sums: `loss_per_word` is `loss` divided by `words`, and so on."""
    words, sentences = max(1.0, sum_of(sums, "words")), max(1.0, sum_of(sums, "sentences"))
    updates = max(1.0, sum_of(sums, "updates"))
    figures: dict[str, Any] = {
        "sentences": sentences,
        "words": words,
        "loss_per_word": sum_of(sums, "loss") / words,
        "gradient_norm": sum_of(sums, "norm") / updates,
        "not_finite": sum_of(sums, "not_finite"),
        "out_of_memory": sum_of(sums, "out_of_memory"),
    }
    if "violations" in sums:
        violations = sum_of(sums, "violations")
        figures |= {
            "violations_per_word": violations / words,
            "violations_by_tenth": [
                v / max(1.0, w) for v, w in zip(sums["violations_by_tenth"], sums["words_by_tenth"], strict=True)
            ],
            "rival_is_gold_share": sum_of(sums, "rival_is_gold") / max(1.0, violations),
            "rival_ended_share": sum_of(sums, "rival_ended") / max(1.0, violations),
            "segment_length": sum_of(sums, "segment_words") / max(1.0, violations),
            "gold_on_beam": sum_of(sums, "gold_on_beam") / sentences,
        }
    if "stopped_early" in sums:
        figures |= {
            "stopped_early_share": sum_of(sums, "stopped_early") / sentences,
            "stop_step": sum_of(sums, "stop_words") / sentences,
        }
    # Of losses that train on their own outputs.
    figures |= {f"{name}_per_sentence": sum_of(sums, name) / sentences for name in _PER_SENTENCE if name in sums}
    figures |= {f"{name}_per_word": sum_of(sums, name) / words for name in _PER_WORD if name in sums}
    if "baseline_error" in sums:
        figures["baseline_error"] = sum_of(sums, "baseline_error") / max(1.0, sum_of(sums, "own_words"))
    return figures


def sum_of(sums: dict[str, Any], name: str) -> float:
    """A sum; 0 if no step has reported it."""
    return float(sums.get(name, 0.0))
