"""The figures of an epoch's record: averages of its training steps, and the scores of dev."""

import math
from collections.abc import Sequence
from typing import Any

from argbeam.decoding.batch_decoder import BatchDecoder, evaluate, perplexity
from argbeam.errors import ArgbeamError
from argbeam.settings import Stage
from argbeam.tasks.contract import Item

DIVERGED = "training has diverged: lower the learning rates of the stage"
# The share of violations that may differ in the replay: rounding may turn a few.
_FEW = 0.02
# Figures of a record: one sum of the steps, divided by another (at least 1). Each loss reports some of these sums.
_FIGURES = {
    "loss_per_word": ("loss", "words"),
    "gradient_norm": ("norm", "updates"),
    "violations_per_word": ("violations", "words"),
    "rival_is_gold_share": ("rival_is_gold", "violations"),
    "rival_ended_share": ("rival_ended", "violations"),
    "replay_differs_share": ("replay_differs", "violations"),
    "segment_length": ("segment_words", "violations"),
    "gold_on_beam": ("gold_on_beam", "sentences"),
    "stopped_early_share": ("stopped_early", "sentences"),
    "stop_step": ("stop_words", "sentences"),
    "reward_per_sentence": ("reward", "sentences"),
    "risk_per_sentence": ("risk", "sentences"),
    "candidates_per_sentence": ("candidates", "sentences"),
    "own_words_per_word": ("own_words", "words"),
    "sequence_loss_per_word": ("sequence_loss", "words"),
    "cross_entropy_per_word": ("cross_entropy", "words"),
    "baseline_error": ("baseline_error", "own_words"),
}


def dev_figures(
    decoder: BatchDecoder, items: Sequence[Item], stage: Stage, *, train_batch: int, update: int
) -> dict[str, Any]:
    """The `dev` part of an epoch's record. `train_batch` is the size of the smallest training batches."""
    figures: dict[str, Any] = {}
    # Over the whole vocabulary: of a model that was never taught the scores of invalid tokens it says nothing.
    if decoder.rule.over_vocabulary or stage.keep == "perplexity":
        examples = [decoder.task.example(item, i) for i, item in enumerate(items)]
        # A training batch fits in memory, and so does this one: every token of the vocabulary has a score.
        size = min(decoder.batch, train_batch)
        value = perplexity(
            decoder.model,
            examples,
            batch=size,
            device=decoder.device,
            group=decoder.group,
            specials=decoder.task.target.specials,
        )
        if math.isnan(value):
            raise ArgbeamError(f"update {update}: the dev perplexity is not a number; {DIVERGED}")
        figures |= {"perplexity": value, "without_gold": sum(not example.target for example in examples)}
    return figures | (score_figures(decoder, items, beam=stage.keep_beam) if stage.keep == "score" else {})


def score_figures(decoder: BatchDecoder, items: Sequence[Item], *, beam: int) -> dict[str, Any]:
    """The score of dev, decoded with a beam."""
    found = evaluate(decoder, items, beam=beam)
    return {
        "value": found.score.value,
        **found.score.parts,
        "test_beam": beam,
        "unfinished": found.unfinished,
        "dead": found.dead,
        "signature": found.score.signature,
    }


def replay_warning(sums: dict[str, Any]) -> str | None:
    """What to say of a model whose replayed scores are not those of the search; None: nothing."""
    differs, violations = sum_of(sums, "replay_differs"), max(1.0, sum_of(sums, "violations"))
    if differs <= violations * _FEW:
        return None
    return (
        f"{differs / violations:.0%} of the violations have other scores in the replay than in the search: the model "
        "is not the same network in both; look for dropout that does not come from the noise"
    )


def epoch_figures(sums: dict[str, Any]) -> dict[str, Any]:
    """Counts, and averages and shares from sums."""
    sums = {"loss": 0.0, "norm": 0.0, **sums}
    figures: dict[str, Any] = {name: max(1.0, sum_of(sums, name)) for name in ("sentences", "words")}
    figures |= {name: sum_of(sums, name) for name in ("not_finite", "out_of_memory")}
    for name, (part, whole) in _FIGURES.items():
        if part in sums:
            figures[name] = sum_of(sums, part) / max(1.0, sum_of(sums, whole))
    if "violations" in sums:
        by_tenth = zip(sums["violations_by_tenth"], sums["words_by_tenth"], strict=True)
        figures["violations_by_tenth"] = [violations / max(1.0, words) for violations, words in by_tenth]
    return figures


def sum_of(sums: dict[str, Any], name: str) -> float:
    """A sum; 0 if no step has reported it."""
    return float(sums.get(name, 0.0))
