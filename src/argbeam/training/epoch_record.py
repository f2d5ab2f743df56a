"""What a record says of an epoch, from the sums that its steps left."""

from typing import Any

# Sums that losses may report, and what a record divides them by.
_PER_SENTENCE = ("reward", "risk", "candidates")
_PER_WORD = ("own_words", "sequence_loss", "cross_entropy")


def epoch_figures(sums: dict[str, Any]) -> dict[str, Any]:
    """What a record says of an epoch, from its sums."""
    words, sentences = max(1.0, number(sums, "words")), max(1.0, number(sums, "sentences"))
    updates = max(1.0, number(sums, "updates"))
    figures: dict[str, Any] = {
        "sentences": sentences,
        "words": words,
        "loss_per_word": number(sums, "loss") / words,
        "gradient_norm": number(sums, "norm") / updates,
        "not_finite": number(sums, "not_finite"),
        "out_of_memory": number(sums, "out_of_memory"),
    }
    if "violations" in sums:
        violations = number(sums, "violations")
        figures |= {
            "violations_per_word": violations / words,
            "violations_by_tenth": [
                v / max(1.0, w) for v, w in zip(sums["violations_by_tenth"], sums["words_by_tenth"], strict=True)
            ],
            "rival_is_gold_share": number(sums, "rival_is_gold") / max(1.0, violations),
            "rival_ended_share": number(sums, "rival_ended") / max(1.0, violations),
            "segment_length": number(sums, "segment_words") / max(1.0, violations),
            "gold_on_beam": number(sums, "gold_on_beam") / sentences,
        }
    if "stopped_early" in sums:
        figures |= {
            "stopped_early_share": number(sums, "stopped_early") / sentences,
            "stop_step": number(sums, "stop_words") / sentences,
        }
    # Of losses that train on outputs of their own, by the words or sentences they are counted over.
    figures |= {f"{name}_per_sentence": number(sums, name) / sentences for name in _PER_SENTENCE if name in sums}
    figures |= {f"{name}_per_word": number(sums, name) / words for name in _PER_WORD if name in sums}
    if "baseline_error" in sums:
        figures["baseline_error"] = number(sums, "baseline_error") / max(1.0, number(sums, "own_words"))
    return figures


def number(sums: dict[str, Any], name: str) -> float:
    """A sum, 0 where no step has reported it."""
    return float(sums.get(name, 0.0))
