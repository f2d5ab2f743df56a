"""IWSLT 2014 prepared as for MIXER (Ranzato et al. 2016), the data of the paper.

Moses tokens in lower case; training pairs of 1 to 50 tokens a side, neither side more than 1.5 times the other; every
23rd of these pairs goes to dev. The five TED sets together are the test set. Unlike there, nothing is escaped as XML.
"""

from dataclasses import dataclass
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
    """Tokenised pairs by split, and the count of training pairs left out."""

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
    source, target = Moses(SOURCE, lower=True), Moses(TARGET, lower=True)

    def tokenised(pair: TextPair, characters: dict[int, str]) -> TextPair:
        sides = ((source, pair.source), (target, pair.target))
        return TextPair(*(" ".join(moses.tokenize(side.translate(characters))) for moses, side in sides))

    talks = [tokenised(pair, {}) for pair in read_talks(folder)]
    kept = [pair for pair in talks if fits(len(pair.source.split()), len(pair.target.split()))]
    return Prepared(
        train=[pair for number, pair in enumerate(kept, start=1) if number % _DEV_EVERY],
        dev=kept[_DEV_EVERY - 1 :: _DEV_EVERY],
        test=[tokenised(pair, _APOSTROPHE) for pair in read_sets(folder)],
        left_out=len(talks) - len(kept),
    )


def fits(source: int, target: int) -> bool:
    """Whether a training pair of these lengths is used."""
    shorter, longer = sorted((source, target))
    return shorter >= 1 and longer <= _LONGEST and longer <= _RATIO * shorter
