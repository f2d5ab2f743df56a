"""Paired bootstrap tests: whether one system is better than another."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argbeam.errors import ConfigError, DataError
from argbeam.metrics.attachment import AttachmentCounts, Punctuation, attachment_signature
from argbeam.metrics.bleu import check_pairs, make_bleu


@dataclass(frozen=True, kw_only=True)
class PairedBootstrap:
    """A paired bootstrap test of a system against a baseline, in percent.

    `p_value` is sacreBLEU's: of the resampled differences, shifted by their mean, the share that exceeds the one found.
    It counts one tail, so that a two-sided test's would be about twice as high.

    `*_mean` is the mean over the resampled test sets, `*_interval` half the width of the 95 % interval around
    it.
    """

    system_score: float
    system_mean: float
    system_interval: float
    baseline_score: float
    baseline_mean: float
    baseline_interval: float
    p_value: float
    signature: str


def paired_bootstrap_bleu(
    system: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str,
    samples: int = 1000,
    seed: int = 12345,
) -> PairedBootstrap:
    """Test a difference in corpus BLEU with sacreBLEU's own paired bootstrap (Koehn 2004).

    Two equal scores have p = 1 here: sacreBLEU gives 1 / (samples + 1), as if equality were significant.
    """
    from sacrebleu.significance import PairedTest, Result

    check_pairs(system, references)
    check_pairs(baseline, references)
    _check_bootstrap(samples, seed)
    with _sacrebleu_seed(seed):
        signatures, columns = PairedTest(
            [("baseline", baseline), ("system", system)],
            {"BLEU": make_bleu(tokenize)},
            [references],
            test_type="bs",
            n_samples=samples,
        )()
    found_baseline, found_system = columns["BLEU"]
    assert isinstance(found_baseline, Result) and isinstance(found_system, Result)
    assert found_baseline.mean is not None and found_baseline.ci is not None
    assert found_system.mean is not None and found_system.ci is not None and found_system.p_value is not None
    return PairedBootstrap(
        system_score=found_system.score,
        system_mean=float(found_system.mean),
        system_interval=float(found_system.ci),
        baseline_score=found_baseline.score,
        baseline_mean=float(found_baseline.mean),
        baseline_interval=float(found_baseline.ci),
        p_value=1.0 if found_system.score == found_baseline.score else found_system.p_value,
        signature=str(signatures["BLEU"]),
    )


def paired_bootstrap_attachment(
    system: Sequence[AttachmentCounts],
    baseline: Sequence[AttachmentCounts],
    *,
    labelled: bool,
    punctuation: Punctuation,
    samples: int = 1000,
    seed: int = 12345,
) -> PairedBootstrap:
    """Test a difference in LAS (`labelled`) or UAS as `paired_bootstrap_bleu` does, by sentence counts."""
    if [counts.words for counts in system] != [counts.words for counts in baseline] or not baseline:
        raise DataError(
            f"attachment: {_extent(system)} against {_extent(baseline)}; "
            "both systems need the same sentences, at least one, with the same words scored"
        )
    _check_bootstrap(samples, seed)
    index_MN = np.random.default_rng(seed).choice(len(baseline), size=(samples, len(baseline)), replace=True)
    words_N = np.array([counts.words for counts in baseline])
    words_M = np.maximum(words_N[index_MN].sum(1), 1)

    def scores(counts: Sequence[AttachmentCounts]) -> tuple[float, NDArray[np.float64]]:
        correct_N = np.array([one.las_correct if labelled else one.uas_correct for one in counts])
        score = 100 * int(correct_N.sum()) / max(int(words_N.sum()), 1)
        return score, 100 * correct_N[index_MN].sum(1) / words_M

    name = "las" if labelled else "uas"
    system_score, system_M = scores(system)
    baseline_score, baseline_M = scores(baseline)
    difference = abs(system_score - baseline_score)
    # Shifted by their mean, the resampled differences are what chance makes of no difference.
    differences_M = np.abs(system_M - baseline_M)
    larger = int((differences_M - differences_M.mean() > difference).sum())
    return PairedBootstrap(
        system_score=system_score,
        system_mean=float(system_M.mean()),
        system_interval=_half_interval(system_M),
        baseline_score=baseline_score,
        baseline_mean=float(baseline_M.mean()),
        baseline_interval=_half_interval(baseline_M),
        p_value=1.0 if difference == 0 else (larger + 1) / (samples + 1),
        signature=f"{name}|{attachment_signature(punctuation)}|bs:{samples}|seed:{seed}",
    )


def _check_bootstrap(samples: int, seed: int) -> None:
    if samples < 1 or seed < 1:
        # sacreBLEU takes 0 samples for its default and seed 0 for none.
        raise ConfigError(f"bootstrap: {samples} samples and seed {seed}; both are 1 or more")


def _extent(counts: Sequence[AttachmentCounts]) -> str:
    return f"{len(counts)} sentences with {sum(one.words for one in counts)} scored words"


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set the seed of sacreBLEU's significance tests, which comes from the environment and nowhere else."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def _half_interval(scores_M: NDArray[np.float64]) -> float:
    """Return half the width of the middle 95 %, by sacreBLEU's rule: 1/40 of the samples off at each end."""
    ordered_M = np.sort(scores_M)
    cut = len(ordered_M) // 40
    return 0.5 * float(ordered_M[len(ordered_M) - cut - 1] - ordered_M[cut])
