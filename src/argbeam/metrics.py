"""Reported numbers: BLEU by sacreBLEU, attachment scores, and whether one system is better than another.

Counts come first and scores are made from them. Every number has a signature, and numbers with different
signatures are not comparable.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from argbeam.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

# Goes up when attachment_counts counts differently; the package's version would part numbers that are the
# same.
_ATTACHMENT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class BleuResult:
    """Corpus BLEU in percent, with what it stands on. The lengths are in sacreBLEU's tokens."""

    score: float
    precisions: tuple[float, ...]
    hypothesis_length: int
    reference_length: int
    length_ratio: float
    signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str) -> BleuResult:
    """Score hypotheses with one reference each; `tokenize` is "none" for tokens and "13a" for raw text."""
    _check_pairs(hypotheses, references)
    bleu = _bleu(tokenize)
    score = bleu.corpus_score(hypotheses, [references])
    return BleuResult(
        score=score.score,
        precisions=tuple(score.precisions),
        hypothesis_length=score.sys_len,
        reference_length=score.ref_len,
        length_ratio=score.sys_len / score.ref_len if score.ref_len else 0.0,
        signature=str(bleu.get_signature()),
    )


def sentence_bleu(hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    """Return the BLEU, between 0 and 1, of one tokenised sentence: smoothing "exp", effective order.

    `segment_bleu` gives the same number for whole batches. Tokens hold no white space.
    """
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(tokenize="none", smooth_method="exp", effective_order=True, force=True)
    return float(bleu.sentence_score(" ".join(hypothesis), [" ".join(reference)]).score) / 100


@dataclass(frozen=True)
class Punctuation:
    """A rule for the words that attachment scores leave out: a tag set's name and its tags of punctuation."""

    name: str
    tags: frozenset[str]

    def mask(self, tags: Sequence[str]) -> tuple[bool, ...]:
        """Tell for each word's tag whether it is punctuation."""
        return tuple(tag in self.tags for tag in tags)


UPOS_PUNCTUATION = Punctuation("upos", frozenset({"PUNCT"}))
# The five tags of the usual practice for the Penn treebank: brackets (-LRB-, -RRB-) are scored.
PTB_PUNCTUATION = Punctuation("ptb", frozenset({"``", "''", ":", ",", "."}))


@dataclass(frozen=True)
class AttachmentCounts:
    """Scored words, and how many of them have the right head (UAS) and the right head and label (LAS)."""

    words: int = 0
    uas_correct: int = 0
    las_correct: int = 0

    def __add__(self, other: "AttachmentCounts") -> "AttachmentCounts":
        return AttachmentCounts(
            self.words + other.words,
            self.uas_correct + other.uas_correct,
            self.las_correct + other.las_correct,
        )

    @property
    def uas(self) -> float:
        """Unlabelled attachment score in percent; 0 where no word is scored."""
        return 100 * self.uas_correct / max(self.words, 1)

    @property
    def las(self) -> float:
        """Labelled attachment score in percent, by full labels (`nsubj:pass`); 0 where no word is scored."""
        return 100 * self.las_correct / max(self.words, 1)


def attachment_counts(
    predicted_heads: Sequence[int],
    predicted_labels: Sequence[str],
    gold_heads: Sequence[int],
    gold_labels: Sequence[str],
    *,
    is_punctuation: Sequence[bool],
) -> AttachmentCounts:
    """Count one sentence's right heads and labels over the words that are not punctuation."""
    lengths = (len(predicted_heads), len(predicted_labels), len(gold_labels), len(is_punctuation))
    if any(length != len(gold_heads) for length in lengths):
        raise DataError(
            f"attachment: {lengths[0]} predicted heads, {lengths[1]} predicted labels, "
            f"{lengths[2]} gold labels and {lengths[3]} punctuation flags for {len(gold_heads)} gold heads; "
            "every word has one of each"
        )
    right_heads = [p == g for p, g in zip(predicted_heads, gold_heads, strict=True)]
    right_labels = [p == g for p, g in zip(predicted_labels, gold_labels, strict=True)]
    scored = [word for word, left_out in enumerate(is_punctuation) if not left_out]
    return AttachmentCounts(
        words=len(scored),
        uas_correct=sum(right_heads[word] for word in scored),
        las_correct=sum(right_heads[word] and right_labels[word] for word in scored),
    )


def attachment_signature(punctuation: Punctuation) -> str:
    """Return the signature of attachment scores that leave these words out."""
    return f"punct:{punctuation.name}|labels:full|version:argbeam-attachment-{_ATTACHMENT_VERSION}"


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

    _check_pairs(system, references)
    _check_pairs(baseline, references)
    _check_bootstrap(samples, seed)
    with _sacrebleu_seed(seed):
        signatures, columns = PairedTest(
            [("baseline", baseline), ("system", system)],
            {"BLEU": _bleu(tokenize)},
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


def _bleu(tokenize: str) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(f"BLEU: unknown tokenize {tokenize!r}; accepted: {', '.join(sorted(BLEU.TOKENIZERS))}")
    # force: a tokenised corpus ends its sentences in " ." and is no mistake to warn about.
    return BLEU(tokenize=tokenize, force=tokenize == "none")


def _check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise DataError(
            f"BLEU: {len(hypotheses)} hypotheses for {len(references)} references; "
            "as many of one as of the other, and at least one, are needed"
        )


def _check_bootstrap(samples: int, seed: int) -> None:
    if samples < 1 or seed < 1:
        # sacreBLEU takes 0 samples for its default and seed 0 for none.
        raise ConfigError(f"bootstrap: {samples} samples and seed {seed}; both are 1 or more")


def _extent(counts: Sequence[AttachmentCounts]) -> str:
    return f"{len(counts)} sentences with {sum(one.words for one in counts)} scored words"


def bleu_tokenizer(signature: str) -> str:
    """The tokenizer that a BLEU signature names: `nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|...`."""
    found = re.search(r"\btok:([^|]+)", signature)
    assert found is not None, f"no tokenizer in {signature}"
    return found[1]


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
