"""Paired bootstrap tests of a difference between two systems, two-tailed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from argbeam.errors import DataError
from argbeam.metrics.attachment import AttachmentCounts, attachment_signature
from argbeam.metrics.bleu import bleu_tokenizer, check_pairs
from argbeam.metrics.outputs import RankedOutputs, Statistics, make_metric, percentage

_SAMPLES, _SEED = 1000, 12345
_TEST = f"bs:{_SAMPLES}|seed:{_SEED}|tails:2"
_Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PairedBootstrap:
    """Paired bootstrap test of a system against a baseline (Koehn 2004); scores are in percent.

    `p_value` is two-tailed: the share of resampled differences that lie as far from their mean, on either side, as the
    observed difference from 0, or farther. It is at least 1 / (samples + 1). Two equal scores have p = 1.
    """

    system_score: float
    baseline_score: float
    p_value: float
    signature: str


def p_text(p_value: float) -> str:
    """A p-value for tables; the lowest one that so many samples can give is a bound."""
    lowest = 1 / (_SAMPLES + 1)
    return f"<= {lowest:.3f}" if p_value <= lowest else f"{p_value:.3f}"


def compare_bleu(
    system: Sequence[str], baseline: Sequence[str], references: Sequence[str], *, metric: str
) -> dict[str, PairedBootstrap]:
    """Test a difference in corpus BLEU, by score name. `metric` is the signature of the BLEU to be tested.

    Sentences are resampled with sacreBLEU's seed and statistics. Its own p counts one tail: about half of this one.
    """
    check_pairs(system, references)
    check_pairs(baseline, references)
    bleu = make_metric("bleu", tokenize=bleu_tokenizer(metric))
    sides = [
        [RankedOutputs([text], gold) for text, gold in zip(one, references, strict=True)] for one in (system, baseline)
    ]
    return {"bleu": _compared(bleu.score, bleu.rows(sides[0]), bleu.rows(sides[1]), bleu.signature)}


def compare_statistics(
    system: Mapping[str, Statistics], baseline: Mapping[str, Statistics], *, metric: str
) -> dict[str, PairedBootstrap]:
    """Test a difference in each score as `compare_bleu` does, from statistics by metric and sentence.

    `metric` is the signature of the scores.
    """
    sizes = [{name: len(rows_NS) for name, rows_NS in side.items()} for side in (system, baseline)]
    if sizes[0] != sizes[1]:
        raise DataError("paired tests: the two systems were scored on other sentences; the same ones are needed")
    scores = {name: make_metric(name).score for name in system}
    return {name: _compared(scores[name], rows_NS, baseline[name], metric) for name, rows_NS in system.items()}


def compare_attachment(
    system: Sequence[AttachmentCounts], baseline: Sequence[AttachmentCounts], *, punctuation: str
) -> dict[str, PairedBootstrap]:
    """Test a difference in UAS and in LAS as `compare_bleu` does, from counts by sentence, by score name.

    `punctuation` is a name in `PUNCTUATION`.
    """
    if [counts.words for counts in system] != [counts.words for counts in baseline] or not baseline:
        raise DataError(
            f"attachment: {_extent(system)} against {_extent(baseline)}; "
            "both systems need the same sentences, at least one, with the same words scored"
        )
    signature = attachment_signature(punctuation)
    tests = {}
    for name, correct in (("uas", attrgetter("uas_correct")), ("las", attrgetter("las_correct"))):
        system_N2, baseline_N2 = (
            np.array([(correct(counts), counts.words) for counts in one], np.float64) for one in (system, baseline)
        )
        tests[name] = _compared(percentage, system_N2, baseline_N2, f"{name}|{signature}")
    return tests


def _compared(
    score: Callable[[Statistics], float], system_NS: Statistics, baseline_NS: Statistics, signature: str
) -> PairedBootstrap:
    """The test from statistics by sentence, whose sums `score` turns into a score."""
    sides, counts_MN = (system_NS, baseline_NS), _resampled(len(baseline_NS))
    scores = [score(one_NS.sum(0)) for one_NS in sides]
    system_M, baseline_M = (np.array([score(sums_S) for sums_S in counts_MN @ one_NS]) for one_NS in sides)
    difference = abs(scores[0] - scores[1])
    # Shifted by their mean, the resampled differences are what chance makes of no difference.
    differences_M = system_M - baseline_M
    as_large = int((np.abs(differences_M - differences_M.mean()) >= difference).sum())
    p_value = 1.0 if difference == 0 else (as_large + 1) / (_SAMPLES + 1)
    return PairedBootstrap(
        system_score=scores[0], baseline_score=scores[1], p_value=p_value, signature=f"{signature}|{_TEST}"
    )


def _resampled(sentences: int) -> _Counts:
    """How often each sentence occurs in each sample."""
    index_MN = np.random.default_rng(_SEED).choice(sentences, size=(_SAMPLES, sentences), replace=True)
    return np.stack([np.bincount(index_N, minlength=sentences) for index_N in index_MN])


def _extent(by_sentence: Sequence[AttachmentCounts]) -> str:
    return f"{len(by_sentence)} sentences with {sum(counts.words for counts in by_sentence)} scored words"
