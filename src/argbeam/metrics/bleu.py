"""BLEU by sacreBLEU, with its signature. Scores with different signatures are not comparable."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from argbeam.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


@dataclass(frozen=True, kw_only=True)
class BleuResult:
    """Corpus BLEU in percent, and the ratio of the lengths of hypotheses and references in sacreBLEU's tokens."""

    score: float
    length_ratio: float
    signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str) -> BleuResult:
    """Score hypotheses with one reference each; `tokenize` is "none" for tokenised and "13a" for raw text."""
    check_pairs(hypotheses, references)
    bleu = make_bleu(tokenize)
    score = bleu.corpus_score(hypotheses, [references])
    return BleuResult(
        score=score.score,
        length_ratio=score.sys_len / score.ref_len if score.ref_len else 0.0,
        signature=str(bleu.get_signature()),
    )


def bleu_tokenizer(signature: str) -> str:
    """The tokenizer that a BLEU signature names: `nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|...`."""
    found = re.search(r"\btok:([^|]+)", signature)
    assert found is not None, f"no tokenizer in {signature}"
    return found[1]


def make_bleu(tokenize: str) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(f"BLEU: unknown tokenize {tokenize!r}; accepted: {', '.join(sorted(BLEU.TOKENIZERS))}")
    # force: a tokenised corpus ends its sentences in " ." and is no mistake to warn about.
    return BLEU(tokenize=tokenize, force=tokenize == "none")


def check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise DataError(
            f"BLEU: {len(hypotheses)} hypotheses for {len(references)} references; "
            "as many of one as of the other, and at least one, are needed"
        )
