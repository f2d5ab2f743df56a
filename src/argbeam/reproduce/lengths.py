"""Scores by sentence length: where a gain comes from, and where it is missing."""

from collections.abc import Mapping, Sequence
from typing import Any

from argbeam.metrics.attachment import AttachmentCounts
from argbeam.metrics.bleu import bleu_tokenizer, corpus_bleu
from argbeam.reproduce.checked import LengthScore

# Sentences of up to 10 words, of 11 to 20, ..., and longer ones.
_LAST = (10, 20, 30, 40, 60)


def scores_by_length(kept: Mapping[str, Any]) -> list[LengthScore]:
    """The scores of short, middling and long sentences, from what is kept for paired tests.

    Words are those of the reference, with its punctuation. A class without sentences is left out.
    """
    lengths = kept["lengths"] if "counts" in kept else [len(text.split()) for text in kept["references"]]
    found = []
    for first, last in zip((0, *(last + 1 for last in _LAST)), (*_LAST, None), strict=True):
        places = [i for i, words in enumerate(lengths) if first <= words and (last is None or words <= last)]
        if places:
            found.append(LengthScore(first, last, len(places), _scores(kept, places)))
    return found


def _scores(kept: Mapping[str, Any], places: Sequence[int]) -> dict[str, float]:
    if "counts" in kept:
        total = sum((AttachmentCounts(*kept["counts"][i]) for i in places), AttachmentCounts())
        return {"uas": total.uas, "las": total.las}
    outputs, references = ([kept[side][i] for i in places] for side in ("outputs", "references"))
    return {"bleu": corpus_bleu(outputs, references, tokenize=bleu_tokenizer(kept["metric"])).score}
