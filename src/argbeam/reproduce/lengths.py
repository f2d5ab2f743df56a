"""Scores by sentence length: where a gain comes from, and where it is missing."""

from collections.abc import Mapping, Sequence
from typing import Any

from argbeam.metrics import AttachmentCounts, bleu_tokenizer, corpus_bleu

# Sentences of up to 10 words, of 11 to 20, ..., and longer ones.
_LAST = (10, 20, 30)


def scores_by_length(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The scores of short, middling and long sentences, from what is kept for paired tests.

    Words are those of the reference, in parsing those that are scored. A class without sentences is left out.
    """
    lengths = [one[0] for one in kept["counts"]] if "counts" in kept else [len(r.split()) for r in kept["references"]]
    found = []
    for first, last in zip((0, *(last + 1 for last in _LAST)), (*_LAST, None), strict=True):
        places = [i for i, words in enumerate(lengths) if first <= words and (last is None or words <= last)]
        if places:
            scores = _scores(kept, places)
            found.append({"first": first, "last": last, "sentences": len(places), "scores": scores})
    return found


def _scores(kept: Mapping[str, Any], places: Sequence[int]) -> dict[str, float]:
    if "counts" in kept:
        total = sum((AttachmentCounts(*kept["counts"][i]) for i in places), AttachmentCounts())
        return {"uas": total.uas, "las": total.las}
    outputs, references = ([kept[side][i] for i in places] for side in ("outputs", "references"))
    return {"bleu": corpus_bleu(outputs, references, tokenize=bleu_tokenizer(kept["metric"])).score}
