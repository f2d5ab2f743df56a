"""Attachment scores of dependency parsing: counts first, then UAS and LAS."""

from collections.abc import Sequence
from dataclasses import dataclass

from argbeam.errors import DataError

# Increase this when `attachment_counts` counts differently: it is part of the signature.
_ATTACHMENT_VERSION = 1


# Tags of the words that attachment scores leave out, by the name of the rule. The Penn Treebank's five are usual
# practice: brackets (-LRB-, -RRB-) are scored.
PUNCTUATION: dict[str, frozenset[str]] = {
    "upos": frozenset({"PUNCT"}),
    "ptb": frozenset({"``", "''", ":", ",", "."}),
    "none": frozenset(),
}


@dataclass(frozen=True)
class AttachmentCounts:
    """Counts of scored words, of those with the right head (UAS), and of those with the right label too (LAS)."""

    words: int = 0
    uas_correct: int = 0
    las_correct: int = 0

    def __add__(self, other: "AttachmentCounts") -> "AttachmentCounts":
        return AttachmentCounts(
            self.words + other.words, self.uas_correct + other.uas_correct, self.las_correct + other.las_correct
        )

    @property
    def uas(self) -> float:
        """Unlabelled attachment score in percent; 0 where no word is scored."""
        return 100 * self.uas_correct / max(self.words, 1)

    @property
    def las(self) -> float:
        """Labelled attachment score in percent, by full labels (`nsubj:pass`); 0 where no word is scored."""
        return 100 * self.las_correct / max(self.words, 1)


def attachment_counts(
    predicted_heads: Sequence[int],
    predicted_labels: Sequence[str],
    gold_heads: Sequence[int],
    gold_labels: Sequence[str],
    *,
    is_punctuation: Sequence[bool],
) -> AttachmentCounts:
    """Count one sentence's right heads and labels over the words that are not punctuation."""
    lengths = (len(predicted_heads), len(predicted_labels), len(gold_labels), len(is_punctuation))
    if any(length != len(gold_heads) for length in lengths):
        raise DataError(
            f"attachment: {lengths[0]} predicted heads, {lengths[1]} predicted labels, "
            f"{lengths[2]} gold labels and {lengths[3]} punctuation flags for {len(gold_heads)} gold heads; "
            "every word has one of each"
        )
    right_heads = [p == g for p, g in zip(predicted_heads, gold_heads, strict=True)]
    right_labels = [p == g for p, g in zip(predicted_labels, gold_labels, strict=True)]
    scored = [word for word, left_out in enumerate(is_punctuation) if not left_out]
    return AttachmentCounts(
        words=len(scored),
        uas_correct=sum(right_heads[word] for word in scored),
        las_correct=sum(right_heads[word] and right_labels[word] for word in scored),
    )


def attachment_signature(punctuation: str) -> str:
    """The signature of attachment scores; `punctuation` is a name in `PUNCTUATION`."""
    return f"punct:{punctuation}|labels:full|version:argbeam-attachment-{_ATTACHMENT_VERSION}"
