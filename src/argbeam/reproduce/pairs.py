"""Paired tests between runs, from outputs or counts by sentence that scoring left behind.

Imports no torch, so that processes of a pool start in a moment.
"""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argbeam.errors import DataError
from argbeam.metrics.attachment import AttachmentCounts
from argbeam.metrics.significance import PairedBootstrap, compare_attachment, compare_bleu

# A test takes about a second; fewer are not worth starting processes for.
_WORTH_A_POOL = 8


@dataclass(frozen=True)
class Pair:
    """Two runs' files of one scoring and beam, under a key that finds the test's result again."""

    key: str
    ours: Path
    theirs: Path


def paired_file(folder: Path, scoring: str, beam: int) -> Path:
    """Where a scoring's outputs or counts by sentence are kept."""
    return folder / "paired" / f"{hashlib.sha256(scoring.encode()).hexdigest()[:10]}.beam{beam}.json"


def paired_tests(pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
    """A record of each pair's tests, in the order given; on all cores where there are many."""
    if len(pairs) < _WORTH_A_POOL:
        yield from map(_record, pairs)
        return
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(pairs)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_record, pairs)


def _record(pair: Pair) -> dict[str, Any]:
    tests = _tests(json.loads(pair.ours.read_bytes()), json.loads(pair.theirs.read_bytes()))
    return {
        "key": pair.key,
        "p": {name: test.p_value for name, test in tests.items()},
        "signatures": {name: test.signature for name, test in tests.items()},
    }


def _tests(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, PairedBootstrap]:
    if "counts" in ours:
        counts = [[AttachmentCounts(*sentence) for sentence in side["counts"]] for side in (ours, theirs)]
        return compare_attachment(*counts, punctuation=ours["punctuation"])
    if ours["references"] != theirs["references"]:
        raise DataError("paired tests: the two runs were scored on other sentences; the same ones are needed")
    return compare_bleu(ours["outputs"], theirs["outputs"], ours["references"], metric=ours["metric"])
