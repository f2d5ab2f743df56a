"""Metrics of outputs against one reference: statistics of each sentence, and the score of their sums.

`top5`, `hit10` and `ndcg10` read the list of the best outputs, the others the best output alone. Statistics add up over
sentences, so that a split and a resampled split are scored alike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from argbeam.metrics.bleu import make_bleu
from argbeam.metrics.regular_expressions import same_strings
from argbeam.settings.data import ranked

Statistics = NDArray[np.float64]
"""A row for each sentence, or a sum of rows."""

# Part of the signature; increase the number when a metric counts differently.
VERSION = "version:argbeam-outputs-1"


@dataclass(frozen=True)
class RankedOutputs:
    """The outputs of a sentence, best first, its reference, and whether training had its source."""

    texts: Sequence[str]
    reference: str
    seen: bool = False

    @property
    def best(self) -> str:
        return self.texts[0] if self.texts else ""


@dataclass(frozen=True)
class Metric:
    """A metric by name. It reads `rank` outputs of a sentence; `rows` are statistics, `score` is that of their sum."""

    name: str
    rank: int
    rows: Callable[[Sequence[RankedOutputs]], Statistics]
    score: Callable[[Statistics], float]
    lower_is_better: bool = False
    signature: str = ""

    def value(self, sums: Statistics) -> float:
        """The score, or minus the score where less is better."""
        return -self.score(sums) if self.lower_is_better else self.score(sums)


def make_metric(
    name: str,
    *,
    tokenize: str = "none",
    tokens: Callable[[str], Sequence[str]] = str.split,
    same: Callable[[str], str] = str,
) -> Metric:
    """The metric of this name, as recipes have it.

    `tokenize` is BLEU's, "none" for tokenised and "13a" for raw text; `tokens` cuts up a text for the error rate. Texts
    match that are equal after `same`.
    """

    def plain(one: RankedOutputs) -> RankedOutputs:
        return RankedOutputs(list(dict.fromkeys(map(same, one.texts))), same(one.reference), one.seen)

    if found := ranked(name):
        kind, rank = found
        gain = _discounted if kind == "ndcg" else _found
        return Metric(name, rank, _pairs(lambda one: (gain(plain(one), rank), 1)), percentage)
    if name in ("bleu", "chrf"):
        return _sacrebleu(name, tokenize)
    if name == "token_error_rate":

        def errors(one: RankedOutputs) -> tuple[float | int, int]:
            reference = tokens(one.reference)
            return _distance(tokens(one.best), reference), len(reference)

        return Metric(name, 1, _pairs(errors), percentage, lower_is_better=True)
    if name == "regex":
        return Metric(name, 1, _pairs(lambda one: (same_strings(one.best, one.reference), 1)), percentage)
    match = _MATCHES[name]
    return Metric(name, 1, _pairs(lambda one: match(plain(one))), percentage)


def percentage(sums: Statistics) -> float:
    """100 * the first sum / the second; 0 where there is nothing to count."""
    return 100 * float(sums[0]) / float(sums[1]) if sums[1] else 0.0


def signature_of(metrics: Sequence[Metric], about: str) -> str:
    """The signature of scores; `about` says of what: `target:words`."""
    names = "+".join(metric.name for metric in metrics)
    parts = [names, about, VERSION, *(m.signature for m in metrics if m.signature)]
    return "|".join(parts)


def metric_name(dev: dict[str, Any]) -> str:
    """The name of the score `value` in dev figures, such as BLEU: that of the first part with its value."""
    parts = list(dev)[list(dev).index("value") + 1 :]  # figures before it may be equal by chance
    return next((name.upper() for name in parts if dev[name] == dev["value"]), "score")


_MATCHES: Mapping[str, Callable[[RankedOutputs], tuple[float | int, int]]] = {
    "exact": lambda one: (one.best == one.reference, 1),
    "unseen": lambda one: (one.best == one.reference and not one.seen, not one.seen),
}


def _pairs(row: Callable[[RankedOutputs], tuple[float | int, int]]) -> Callable[[Sequence[RankedOutputs]], Statistics]:
    return lambda outputs: np.array([row(one) for one in outputs], dtype=np.float64).reshape(-1, 2)


def _found(one: RankedOutputs, rank: int) -> float:
    return float(one.reference in one.texts[:rank])


def _discounted(one: RankedOutputs, rank: int) -> float:
    """1 / log2(place + 1) of the reference, places counted from 1: with one reference the ideal is 1."""
    texts = list(one.texts[:rank])
    return 1 / math.log2(texts.index(one.reference) + 2) if one.reference in texts else 0.0


def _distance(output: Sequence[str], reference: Sequence[str]) -> int:
    """Insertions, deletions and substitutions (Levenshtein)."""
    row = list(range(len(reference) + 1))
    for i, token in enumerate(output, start=1):
        before, row[0] = row[0], i
        for j, gold in enumerate(reference, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (token != gold))
    return row[-1]


def _sacrebleu(name: str, tokenize: str) -> Metric:
    """BLEU or chrF by sacreBLEU's own statistics."""
    scorer: Any = make_bleu(tokenize)
    if name == "chrf":
        from sacrebleu.metrics.chrf import CHRF

        scorer = CHRF()

    def rows(outputs: Sequence[RankedOutputs]) -> Statistics:
        texts, references = [one.best for one in outputs], [one.reference for one in outputs]
        return np.array(scorer._extract_corpus_statistics(texts, [references]), dtype=np.float64)

    def score(sums: Statistics) -> float:
        return float(scorer._compute_score_from_stats([round(count) for count in sums.tolist()]).score)

    rows([RankedOutputs(["a"], "a")])  # the signature counts the references
    return Metric(name, 1, rows, score, signature=str(scorer.get_signature()))
