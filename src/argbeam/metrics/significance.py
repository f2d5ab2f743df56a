"""Paired bootstrap tests of a difference between two systems."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argbeam.errors import DataError
from argbeam.metrics.attachment import AttachmentCounts, attachment_signature
from argbeam.metrics.bleu import bleu_tokenizer, check_pairs, make_bleu

_SAMPLES, _SEED = 1000, 12345
_Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PairedBootstrap:
    """Paired bootstrap test of a system against a baseline; scores are in percent.

    `p_value` is sacreBLEU's: the share of resampled differences, shifted by their mean, above the observed one. It
    counts one tail: about half the p of a two-sided test.
    """

    system_score: float
    baseline_score: float
    p_value: float
    signature: str


def compare_bleu(
    system: Sequence[str], baseline: Sequence[str], references: Sequence[str], *, metric: str
) -> dict[str, PairedBootstrap]:
    """Test a difference in corpus BLEU with sacreBLEU's own paired bootstrap (Koehn 2004), by score name.

    `metric` is the signature of the BLEU to be tested. Two equal scores have p = 1 here: sacreBLEU gives
    1 / (samples + 1), as if equality were significant.
    """
    from sacrebleu.significance import PairedTest, Result

    check_pairs(system, references)
    check_pairs(baseline, references)
    with _sacrebleu_seed(_SEED):
        signatures, columns = PairedTest(
            [("baseline", baseline), ("system", system)],
            {"BLEU": make_bleu(bleu_tokenizer(metric))},
            [references],
            test_type="bs",
            n_samples=_SAMPLES,
        )()
    baseline_result, system_result = columns["BLEU"]
    assert isinstance(baseline_result, Result) and isinstance(system_result, Result)
    assert system_result.p_value is not None
    equal = system_result.score == baseline_result.score
    test = PairedBootstrap(
        system_score=system_result.score,
        baseline_score=baseline_result.score,
        p_value=1.0 if equal else system_result.p_value,
        signature=str(signatures["BLEU"]),
    )
    return {"bleu": test}


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
    signature = f"{attachment_signature(punctuation)}|bs:{_SAMPLES}|seed:{_SEED}"
    correct = {
        "uas": np.array([[counts.uas_correct for counts in one] for one in (system, baseline)]),
        "las": np.array([[counts.las_correct for counts in one] for one in (system, baseline)]),
    }
    return {name: _bootstrap(correct_2N, words_N, f"{name}|{signature}") for name, correct_2N in correct.items()}


def _bootstrap(correct_2N: _Counts, words_N: _Counts, signature: str) -> PairedBootstrap:
    """The test from both systems' right words and the scored words of each sentence."""
    index_MN = np.random.default_rng(_SEED).choice(len(words_N), size=(_SAMPLES, len(words_N)), replace=True)
    words_M = np.maximum(words_N[index_MN].sum(1), 1)
    system, baseline = (100 * int(one_N.sum()) / max(int(words_N.sum()), 1) for one_N in correct_2N)
    system_M, baseline_M = (100 * one_N[index_MN].sum(1) / words_M for one_N in correct_2N)
    difference = abs(system - baseline)
    # Shifted by their mean, the resampled differences are what chance makes of no difference.
    differences_M = np.abs(system_M - baseline_M)
    larger = int((differences_M - differences_M.mean() > difference).sum())
    p_value = 1.0 if difference == 0 else (larger + 1) / (_SAMPLES + 1)
    return PairedBootstrap(system_score=system, baseline_score=baseline, p_value=p_value, signature=signature)


def _extent(by_sentence: Sequence[AttachmentCounts]) -> str:
    return f"{len(by_sentence)} sentences with {sum(counts.words for counts in by_sentence)} scored words"


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set the seed of sacreBLEU's significance tests: an environment variable is the only way."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
