"""Paired bootstrap tests of a difference between two systems, or of its mean over seeds, two-tailed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from argbeam.errors import DataError
from argbeam.metrics.attachment import AttachmentCounts, attachment_signature
from argbeam.metrics.bleu import bleu_tokenizer, check_pairs
from argbeam.metrics.outputs import RankedOutputs, Statistics, make_metric, percentage

_SAMPLES, _SEED = 1000, 12345
_TEST = f"bs:{_SAMPLES}|seed:{_SEED}|tails:2"
_Counts = NDArray[np.int64]
_T = TypeVar("_T")
Pairs = Sequence[tuple[_T, _T]]
"""A system and a baseline of each seed; one pair for two systems without seeds."""


@dataclass(frozen=True, kw_only=True)
class PairedBootstrap:
    """Paired bootstrap test of a system against a baseline (Koehn 2004); scores are in percent.

    Of several seeds, scores are means, and so is the score of a sample: it holds the same sentences with every seed.
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


def compare_bleu(pairs: Pairs[Sequence[str]], references: Sequence[str], *, metric: str) -> dict[str, PairedBootstrap]:
    """Test a difference in corpus BLEU, or its mean over pairs, by score name. `metric` is the signature of that BLEU.

    Sentences are resampled with sacreBLEU's seed and statistics. Its own p counts one tail: about half of this one.
    """
    bleu = make_metric("bleu", tokenize=bleu_tokenizer(metric))

    def rows(texts: Sequence[str]) -> Statistics:
        check_pairs(texts, references)
        return bleu.rows([RankedOutputs([text], gold) for text, gold in zip(texts, references, strict=True)])

    statistics = [(rows(system), rows(baseline)) for system, baseline in pairs]
    return {"bleu": _compared(bleu.score, statistics, bleu.signature)}


def compare_statistics(pairs: Pairs[Mapping[str, Statistics]], *, metric: str) -> dict[str, PairedBootstrap]:
    """Test a difference in each score as `compare_bleu` does, from statistics by metric and sentence.

    `metric` is the signature of the scores.
    """
    first, *others = ({name: len(rows_NS) for name, rows_NS in side.items()} for pair in pairs for side in pair)
    if any(sizes != first for sizes in others):
        raise DataError("paired tests: the two systems were scored on other sentences; the same ones are needed")
    return {
        name: _compared(make_metric(name).score, [(system[name], baseline[name]) for system, baseline in pairs], metric)
        for name in first
    }


def compare_attachment(pairs: Pairs[Sequence[AttachmentCounts]], *, punctuation: str) -> dict[str, PairedBootstrap]:
    """Test a difference in UAS and in LAS as `compare_bleu` does, from counts by sentence, by score name.

    `punctuation` is a name in `PUNCTUATION`.
    """
    first, *others = (side for pair in pairs for side in pair)
    for side in others:
        if [counts.words for counts in side] != [counts.words for counts in first] or not first:
            raise DataError(
                f"attachment: {_extent(first)} against {_extent(side)}; "
                "both systems need the same sentences, at least one, with the same words scored"
            )

    def rows(side: Sequence[AttachmentCounts], name: str) -> Statistics:
        correct = attrgetter(f"{name}_correct")
        return np.array([(correct(counts), counts.words) for counts in side], np.float64)

    tests = {}
    for name in ("uas", "las"):
        statistics = [(rows(system, name), rows(baseline, name)) for system, baseline in pairs]
        tests[name] = _compared(percentage, statistics, f"{name}|{attachment_signature(punctuation)}")
    return tests


def _compared(score: Callable[[Statistics], float], pairs: Pairs[Statistics], signature: str) -> PairedBootstrap:
    """The test from statistics by sentence, whose sums `score` turns into a score."""
    counts_MN = _resampled(len(pairs[0][0]))
    # Means over the pairs, for each side, and below for each side and sample.
    scores = np.mean([[score(one_NS.sum(0)) for one_NS in pair] for pair in pairs], 0).tolist()
    system_M, baseline_M = np.mean(
        [[[score(sums_S) for sums_S in counts_MN @ one_NS] for one_NS in pair] for pair in pairs], 0
    )
    difference = abs(scores[0] - scores[1])
    # Shifted by their mean, the resampled differences are what chance makes of no difference.
    differences_M = system_M - baseline_M
    as_large = int((np.abs(differences_M - differences_M.mean()) >= difference).sum())
    p_value = 1.0 if difference == 0 else (as_large + 1) / (_SAMPLES + 1)
    test = _TEST + (f"|runs:{len(pairs)}" if len(pairs) > 1 else "")
    return PairedBootstrap(
        system_score=scores[0], baseline_score=scores[1], p_value=p_value, signature=f"{signature}|{test}"
    )


def _resampled(sentences: int) -> _Counts:
    """How often each sentence occurs in each sample."""
    index_MN = np.random.default_rng(_SEED).choice(sentences, size=(_SAMPLES, sentences), replace=True)
    return np.stack([np.bincount(index_N, minlength=sentences) for index_N in index_MN])


def _extent(by_sentence: Sequence[AttachmentCounts]) -> str:
    return f"{len(by_sentence)} sentences with {sum(counts.words for counts in by_sentence)} scored words"
