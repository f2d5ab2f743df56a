"""The paper's numbers (Wiseman & Rush 2016), by table and row; nothing here is measured by argbeam."""

from collections.abc import Mapping
from dataclasses import dataclass

BEAMS = (1, 5, 10)

Scores = tuple[float, ...]
"""A system's score at one beam: BLEU alone, or UAS and LAS."""


@dataclass(frozen=True)
class PaperTable:
    """A table as printed. Each row has its scores at beams 1, 5 and 10; None where the paper gives none."""

    title: str
    rows: Mapping[str, tuple[Scores | None, Scores | None, Scores | None]]


PAPER = {
    "word_ordering": PaperTable(
        "Table 1: word ordering, Penn Treebank, test BLEU",
        {
            "LSTM-LM": ((15.4,), None, (26.8,)),
            "seq2seq": ((25.2,), (29.8,), (31.0,)),
            "BSO": ((28.0,), (33.2,), (34.3,)),
            "ConBSO": ((28.6,), (34.3,), (34.5,)),
        },
    ),
    "train_beam": PaperTable(
        "Table 2: word ordering, Penn Treebank, dev BLEU by train beam",
        {
            "seq2seq": ((26.11,), (30.20,), (31.04,)),
            "ConBSO, K_tr 2": ((30.59,), (31.23,), (30.26,)),
            "ConBSO, K_tr 6": ((28.20,), (34.22,), (34.67,)),
            "ConBSO, K_tr 11": ((26.88,), (34.42,), (34.88,)),
        },
    ),
    "parsing": PaperTable(
        "Table 3: dependency parsing, Penn Treebank, test UAS/LAS",
        {
            "seq2seq": ((87.33, 82.26), (88.53, 84.16), (88.66, 84.33)),
            "BSO": ((86.91, 82.11), (91.00, 87.18), (91.17, 87.41)),
            "ConBSO": ((85.11, 79.32), (91.25, 86.92), (91.57, 87.26)),
            # Andor et al. 2016; at beam 32 they report 94.41/92.55.
            "CRF, early update": ((93.17, 91.18), None, None),
        },
    ),
    "translation": PaperTable(
        "Table 4: translation, IWSLT 2014 German to English, test BLEU",
        {
            "XENT": ((17.74,), (20.10,), (20.28,)),
            "DAD": ((20.12,), (22.25,), (22.40,)),
            "MIXER": ((20.73,), (21.81,), (21.83,)),
            "seq2seq": ((22.53,), (24.03,), (23.87,)),
            "BSO, 1-SB": ((23.83,), (26.36,), (25.48,)),
        },
    ),
    "costs": PaperTable(
        "Table 5: translation, IWSLT 2014 German to English, dev BLEU by cost",
        {"cost 0/1": ((25.73,), (28.21,), (27.43,)), "cost 1-SB": ((25.99,), (28.45,), (27.58,))},
    ),
    "translation_beam": PaperTable(
        "Commented out in the paper's source: translation, IWSLT 2014, dev BLEU by train beam, cost 0/1",
        {
            "seq2seq": ((24.90,), (26.34,), (26.02,)),
            "BSO, K_tr 2": ((24.86,), (23.20,), (20.54,)),
            "BSO, K_tr 6": ((25.73,), (28.21,), (27.43,)),
            "BSO, K_tr 11": ((25.03,), (28.42,), (27.92,)),
        },
    ),
}

# Training speed on a GTX 970 in tokens/s, source and target together, by train beam; 0 is cross-entropy.
PAPER_SPEED = {0: 13038, 2: 1985, 3: 1768, 4: 1709, 5: 1521, 6: 1458}
