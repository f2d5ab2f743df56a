"""Paired bootstrap tests of a difference between two systems."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argbeam.errors import ConfigError, DataError
from argbeam.metrics.attachment import AttachmentCounts, attachment_signature
from argbeam.metrics.bleu import bleu_tokenizer, check_pairs, make_bleu


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
    """The test of a difference in BLEU, by score name; `metric` is the signature of the BLEU to be tested."""
    return {"bleu": paired_bootstrap_bleu(system, baseline, references, tokenize=bleu_tokenizer(metric))}


def compare_attachment(
    system: Sequence[AttachmentCounts], baseline: Sequence[AttachmentCounts], *, punctuation: str
) -> dict[str, PairedBootstrap]:
    """The tests of a difference in UAS and in LAS, by score name; `punctuation` is a name in `PUNCTUATION`."""
    return {
        name: paired_bootstrap_attachment(system, baseline, labelled=name == "las", punctuation=punctuation)
        for name in ("uas", "las")
    }


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
    baseline_result, system_result = columns["BLEU"]
    assert isinstance(baseline_result, Result) and isinstance(system_result, Result)
    assert system_result.p_value is not None
    equal = system_result.score == baseline_result.score
    return PairedBootstrap(
        system_score=system_result.score,
        baseline_score=baseline_result.score,
        p_value=1.0 if equal else system_result.p_value,
        signature=str(signatures["BLEU"]),
    )


def paired_bootstrap_attachment(
    system: Sequence[AttachmentCounts],
    baseline: Sequence[AttachmentCounts],
    *,
    labelled: bool,
    punctuation: str,
    samples: int = 1000,
    seed: int = 12345,
) -> PairedBootstrap:
    """Test a difference in LAS (`labelled`) or UAS as `paired_bootstrap_bleu` does, from counts by sentence."""
    if [counts.words for counts in system] != [counts.words for counts in baseline] or not baseline:
        raise DataError(
            f"attachment: {_extent(system)} against {_extent(baseline)}; "
            "both systems need the same sentences, at least one, with the same words scored"
        )
    _check_bootstrap(samples, seed)
    index_MN = np.random.default_rng(seed).choice(len(baseline), size=(samples, len(baseline)), replace=True)
    words_N = np.array([counts.words for counts in baseline])
    words_M = np.maximum(words_N[index_MN].sum(1), 1)

    def scores(by_sentence: Sequence[AttachmentCounts]) -> tuple[float, NDArray[np.float64]]:
        """The score of all sentences, and that of each resampled test set."""
        correct_N = np.array([counts.las_correct if labelled else counts.uas_correct for counts in by_sentence])
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
        baseline_score=baseline_score,
        p_value=1.0 if difference == 0 else (larger + 1) / (samples + 1),
        signature=f"{name}|{attachment_signature(punctuation)}|bs:{samples}|seed:{seed}",
    )


def _check_bootstrap(samples: int, seed: int) -> None:
    if samples < 1 or seed < 1:
        # sacreBLEU takes 0 samples for its default and seed 0 for none.
        raise ConfigError(f"bootstrap: {samples} samples and seed {seed}; both are 1 or more")


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
