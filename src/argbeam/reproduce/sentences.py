"""Outputs or counts by sentence, saved with each scoring: scores by length, and paired tests between runs.

Imports no torch: the processes of a pool start at once.
"""

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from argbeam.errors import DataError
from argbeam.files import reading
from argbeam.metrics.attachment import AttachmentCounts
from argbeam.metrics.bleu import bleu_tokenizer, corpus_bleu
from argbeam.metrics.significance import PairedBootstrap, compare_attachment, compare_bleu, compare_statistics
from argbeam.reports.records import LengthScore, damaged, parse_json

_T = TypeVar("_T")
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


def paired_tests(wanted: Sequence[Sequence[Pair]]) -> Iterator[dict[str, PairedBootstrap]]:
    """Tests by the part of the score, each of a pair or of the mean over the pairs of several seeds.

    They come in the order given, and from all cores where there are many.
    """
    if len(wanted) < _FEWEST_FOR_POOL:
        yield from map(_compare, wanted)
        return
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(wanted)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_compare, wanted)


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


def _compare(pairs: Sequence[Pair]) -> dict[str, PairedBootstrap]:
    read = {path: _read(path) for pair in pairs for path in pair}
    first, *others = read
    for path in others:
        if read[path].keys() != read[first].keys():
            raise DataError(f"{first} and {path}: scored by two metrics; only numbers of one can be compared")
        if read[path].get("references") != read[first].get("references"):
            raise DataError(f"{first} and {path}: scored on other sentences; the same ones are needed")

    def each(content: Callable[[dict[str, Any]], _T]) -> list[tuple[_T, _T]]:
        return [(content(read[ours]), content(read[theirs])) for ours, theirs in pairs]

    about = read[first]
    if "statistics" in about:
        rows = each(lambda side: {name: np.array(one) for name, one in side["statistics"].items()})
        return compare_statistics(rows, metric=about["metric"])
    if "counts" in about:
        counts = each(lambda side: [AttachmentCounts(*one) for one in side["counts"]])
        return compare_attachment(counts, punctuation=about["punctuation"])
    return compare_bleu(each(lambda side: side["outputs"]), about["references"], metric=about["metric"])
