"""The figures of an epoch's record, from the sums of its steps."""

from typing import Any

# Sums that some losses report, by what a record divides them by.
_PER_SENTENCE = ("reward", "risk", "candidates")
_PER_WORD = ("own_words", "sequence_loss", "cross_entropy")


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
