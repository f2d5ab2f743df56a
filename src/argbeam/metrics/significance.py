"""Paired bootstrap tests of a difference between two systems, two-tailed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argbeam.errors import DataError
from argbeam.metrics.attachment import AttachmentCounts, attachment_signature
from argbeam.metrics.bleu import bleu_tokenizer, check_pairs
from argbeam.metrics.outputs import RankedOutputs, Statistics, make_metric

_SAMPLES, _SEED = 1000, 12345
_TEST = f"bs:{_SAMPLES}|seed:{_SEED}|tails:2"
_Counts = NDArray[np.int64]
_Floats = NDArray[np.float64]


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
    words_N = np.array([counts.words for counts in baseline])
    signature = f"{attachment_signature(punctuation)}|{_TEST}"
    correct = {
        "uas": np.array([[counts.uas_correct for counts in one] for one in (system, baseline)]),
        "las": np.array([[counts.las_correct for counts in one] for one in (system, baseline)]),
    }
    counts_MN = _resampled(len(words_N))
    words_M = np.maximum(counts_MN @ words_N, 1)
    tests = {}
    for name, correct_2N in correct.items():
        scores = [100 * int(one_N.sum()) / max(int(words_N.sum()), 1) for one_N in correct_2N]
        scores_M = [100 * (counts_MN @ one_N) / words_M for one_N in correct_2N]
        tests[name] = _test(scores, scores_M, f"{name}|{signature}")
    return tests


def _compared(
    score: Callable[[Statistics], float], system_NS: Statistics, baseline_NS: Statistics, signature: str
) -> PairedBootstrap:
    sides, counts_MN = (system_NS, baseline_NS), _resampled(len(baseline_NS))
    scores_M = [np.array([score(sums_S) for sums_S in counts_MN @ one_NS]) for one_NS in sides]
    return _test([score(one_NS.sum(0)) for one_NS in sides], scores_M, f"{signature}|{_TEST}")


def _resampled(sentences: int) -> _Counts:
    """How often each sentence occurs in each sample."""
    index_MN = np.random.default_rng(_SEED).choice(sentences, size=(_SAMPLES, sentences), replace=True)
    return np.stack([np.bincount(index_N, minlength=sentences) for index_N in index_MN])


def _test(scores: Sequence[float], scores_M: Sequence[_Floats], signature: str) -> PairedBootstrap:
    """The test from the scores of system and baseline, and from those of each sample."""
    difference = abs(scores[0] - scores[1])
    # Shifted by their mean, the resampled differences are what chance makes of no difference.
    differences_M = scores_M[0] - scores_M[1]
    as_large = int((np.abs(differences_M - differences_M.mean()) >= difference).sum())
    p_value = 1.0 if difference == 0 else (as_large + 1) / (_SAMPLES + 1)
    return PairedBootstrap(system_score=scores[0], baseline_score=scores[1], p_value=p_value, signature=signature)


def _extent(by_sentence: Sequence[AttachmentCounts]) -> str:
    return f"{len(by_sentence)} sentences with {sum(counts.words for counts in by_sentence)} scored words"
