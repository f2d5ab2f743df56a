"""IWSLT 2014 prepared as for MIXER (Ranzato et al. 2016), whose data the paper used.

Moses tokens; training pairs of 1 to 50 tokens a side, neither side more than 1.5 times the other; lower case; every
23rd pair that is left goes to dev. The five TED sets together are the test set. Unlike there, nothing is
escaped as XML.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from argbeam.data.readers.iwslt import SOURCE, TARGET, iwslt_folder, read_sets, read_talks
from argbeam.data.readers.text import TextPair
from argbeam.data.tokenizers import Moses
from argbeam.errors import DataError

_LONGEST, _RATIO, _DEV_EVERY = 50, 1.5, 23
# Typographic apostrophes of the test sets become plain ones; those of the training files stay.
_APOSTROPHE = {0x2019: "'"}


@dataclass(frozen=True)
class Prepared:
    """Tokenised, lower-cased pairs by split, and how many training pairs cleaning left out."""

    train: list[TextPair]
    dev: list[TextPair]
    test: list[TextPair]
    left_out: int


@lru_cache(maxsize=1)
def prepared(root: Path) -> Prepared:
    """The corpus under `root`, in the distribution's own files."""
    folder = iwslt_folder(root)
    if folder is None:
        raise DataError(
            f"{root}: no train.tags.{SOURCE}-{TARGET}.{SOURCE} there; IWSLT 2014 as distributed is expected"
        )
    source, target = Moses(SOURCE), Moses(TARGET)

    def tokens(pair: TextPair) -> tuple[list[str], list[str]]:
        return source.tokenize(pair.source), target.tokenize(pair.target)

    talks = read_talks(folder)
    kept = [_joined(pair, *both) for pair in talks if fits(*(both := tokens(pair)))]
    plain = (
        replace(p, source=p.source.translate(_APOSTROPHE), target=p.target.translate(_APOSTROPHE))
        for p in read_sets(folder)
    )
    return Prepared(
        train=[pair for number, pair in enumerate(kept, start=1) if number % _DEV_EVERY],
        dev=[pair for number, pair in enumerate(kept, start=1) if not number % _DEV_EVERY],
        test=[_joined(pair, *tokens(pair)) for pair in plain],
        left_out=len(talks) - len(kept),
    )


def fits(source: list[str], target: list[str]) -> bool:
    """Whether cleaning keeps a training pair."""
    shorter, longer = sorted((len(source), len(target)))
    return shorter >= 1 and longer <= _LONGEST and longer <= _RATIO * shorter


def _joined(pair: TextPair, source: list[str], target: list[str]) -> TextPair:
    # Lower case comes last: Moses knows abbreviations by their capitals.
    return replace(pair, source=" ".join(source).lower(), target=" ".join(target).lower())
