"""Outputs or counts by sentence, saved with each scoring: scores by length, and paired tests between runs.

Imports no torch: the processes of a pool start at once.
"""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from argbeam.errors import DataError
from argbeam.files import reading
from argbeam.metrics.attachment import AttachmentCounts
from argbeam.metrics.bleu import bleu_tokenizer, corpus_bleu
from argbeam.metrics.significance import PairedBootstrap, compare_attachment, compare_bleu, compare_statistics
from argbeam.reports.records import LengthScore, damaged, parse_json

# Sentences of up to 10 words, of 11 to 20, ..., and longer ones.
_LAST = (10, 20, 30, 40, 60)
# A test takes about a second; processes for fewer tests take longer than the tests.
_FEWEST_FOR_POOL = 8


@dataclass(frozen=True)
class _TextSentences:
    metric: str
    outputs: list[str]
    references: list[str]


@dataclass(frozen=True)
class _CountedSentences:
    metric: str
    punctuation: str
    counts: list[tuple[int, int, int]]
    lengths: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _SentenceStatistics:
    metric: str
    statistics: dict[str, list[list[float]]]


Pair = tuple[Path, Path]
"""Files of two runs by sentence: the system's and the reference's."""


def sentences_file(run: Path, scoring: str, beam: int) -> Path:
    """The file of a scoring by sentence."""
    return run / "paired" / f"{hashlib.sha256(scoring.encode()).hexdigest()[:10]}.beam{beam}.json"


def scores_by_length(sentences: Mapping[str, Any]) -> list[LengthScore]:
    """The scores of short, medium and long sentences, by the words of the reference, punctuation included.

    None of outputs that have no words: codes, characters, expressions.
    """
    if "statistics" in sentences:
        return []
    lengths = sentences["lengths"] if "counts" in sentences else [len(text.split()) for text in sentences["references"]]
    found = []
    for first, last in zip((0, *(last + 1 for last in _LAST)), (*_LAST, None), strict=True):
        places = [i for i, length in enumerate(lengths) if first <= length and (last is None or length <= last)]
        if places:
            found.append(LengthScore(first, last, len(places), _scores(sentences, places)))
    return found


def _scores(sentences: Mapping[str, Any], places: Sequence[int]) -> dict[str, float]:
    if "counts" in sentences:
        total = sum((AttachmentCounts(*sentences["counts"][i]) for i in places), AttachmentCounts())
        return {"uas": total.uas, "las": total.las}
    outputs, references = ([sentences[side][i] for i in places] for side in ("outputs", "references"))
    return {"bleu": corpus_bleu(outputs, references, tokenize=bleu_tokenizer(sentences["metric"])).score}


def paired_tests(pairs: Sequence[Pair]) -> Iterator[dict[str, PairedBootstrap]]:
    """The tests of each pair by the part of the score, in the order given; on all cores where there are many."""
    if len(pairs) < _FEWEST_FOR_POOL:
        yield from map(_compare, pairs)
        return
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(pairs)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_compare, pairs)


def _read(path: Path) -> dict[str, Any]:
    fix = "remove it, and the test is left out, or remove its run, which `argbeam reproduce` then makes again"
    with reading(path, fix):
        data = path.read_bytes()
    if b'"statistics"' in data:
        return vars(parse_json(data, _SentenceStatistics, path, fix))
    if b'"counts"' in data:
        return vars(parse_json(data, _CountedSentences, path, fix))
    found = parse_json(data, _TextSentences, path, fix)
    if len(found.outputs) != len(found.references):
        raise damaged(path, f"{len(found.outputs)} outputs and {len(found.references)} references", fix)
    return vars(found)


def _compare(pair: Pair) -> dict[str, PairedBootstrap]:
    ours, theirs = (_read(path) for path in pair)
    if ours.keys() != theirs.keys():
        raise DataError(f"{pair[0]} and {pair[1]}: scored by two metrics; only numbers of one can be compared")
    if "statistics" in ours:
        rows = ({name: np.array(one) for name, one in side["statistics"].items()} for side in (ours, theirs))
        return compare_statistics(*rows, metric=ours["metric"])
    if "counts" in ours:
        counts = ([AttachmentCounts(*one) for one in side["counts"]] for side in (ours, theirs))
        return compare_attachment(*counts, punctuation=ours["punctuation"])
    if ours["references"] != theirs["references"]:
        raise DataError("paired tests: the two runs were scored on other sentences; the same ones are needed")
    return compare_bleu(ours["outputs"], theirs["outputs"], ours["references"], metric=ours["metric"])
