"""The tables to reproduce: which recipes are their rows, and how those are searched and scored."""

from dataclasses import dataclass

TIMING = "timing"


@dataclass(frozen=True)
class Row:
    """A system. `label` is that of the paper's row where the paper has it; `variant` tells `sets` apart in names.

    `by_length`: the run's log-probabilities are divided by a power of the length, which dev chooses. `stop`: the run is
    searched with this stop rule instead of its own.
    """

    label: str
    recipe: str
    variant: str = ""
    sets: tuple[str, ...] = ()
    by_length: bool = False
    stop: str = ""


@dataclass(frozen=True)
class Experiment:
    """A table. Gains are over the rows that `references` names, so far as they are there.

    `corpus` says which kind of corpus it needs; rows whose recipe is not shipped are left out and named.
    """

    name: str
    title: str
    corpus: str
    split: str
    rows: tuple[Row, ...]
    references: tuple[str, ...]


def _train_beam(recipe: str, system: str, beam: int) -> Row:
    """Epochs are chosen at the test beam that the train beam is meant for: K_tr - 1."""
    if beam == 6:  # the recipe's own
        return Row(f"{system}, K_tr 6", recipe)
    sets = (f"stages.bso.loss.train_beam={beam}", f"stages.bso.keep_beam={beam - 1}")
    return Row(f"{system}, K_tr {beam}", recipe, f"k{beam}", sets)


_BY_LENGTH = Row("seq2seq, by length", "translation/seq2seq", by_length=True)
# BSO's recipes average their weights: the baseline with the same advantage.
_AVERAGED = Row(
    "seq2seq averaged, by length",
    "translation/seq2seq",
    "averaged",
    ("stages.train.optimizer.average=0.999",),
    by_length=True,
)
# The same advantage for pre-training, and a beam that has its full size after nine epochs instead of eighteen.
_FROM_AVERAGED = Row(
    "BSO, 0/1, K_tr 11, from averaged",
    "translation/bso_01",
    "k11_from_averaged",
    (
        "stages.pretrain.epochs=10",
        "stages.pretrain.optimizer.average=0.999",
        "stages.bso.loss.train_beam=11",
        "stages.bso.loss.epochs_per_beam=1",
    ),
)

EXPERIMENTS = (
    Experiment(
        "word_ordering",
        "Word ordering",
        "word_ordering",
        "test",
        (
            Row("LSTM-LM", "word_ordering/lm"),
            Row("seq2seq", "word_ordering/seq2seq"),
            Row("early update", "word_ordering/early_update"),
            Row(
                "early update, last score",
                "word_ordering/early_update",
                "last_score",
                ("stages.early_update.loss.rule=last_score",),
            ),
            Row("maximum violation", "word_ordering/max_violation"),
            Row("CRF, early update", "word_ordering/crf"),
            Row("BSO", "word_ordering/bso"),
            Row("ConBSO", "word_ordering/conbso"),
            _train_beam("word_ordering/bso", "BSO", 11),
            _train_beam("word_ordering/conbso", "ConBSO", 11),
        ),
        ("seq2seq",),
    ),
    Experiment(
        "train_beam",
        "Word ordering by train beam",
        "word_ordering",
        "dev",
        (
            Row("seq2seq", "word_ordering/seq2seq"),
            *(_train_beam("word_ordering/conbso", "ConBSO", beam) for beam in (2, 6, 11)),
        ),
        ("seq2seq",),
    ),
    Experiment(
        "parsing",
        "Dependency parsing",
        "parsing",
        "test",
        (
            Row("seq2seq", "parsing/seq2seq"),
            Row("CRF, early update", "parsing/crf"),
            Row("BSO", "parsing/bso"),
            Row("ConBSO", "parsing/conbso"),
            _train_beam("parsing/bso", "BSO", 11),
        ),
        ("seq2seq",),
    ),
    Experiment(
        "translation",
        "Translation",
        "translation",
        "test",
        (
            Row("XENT", "translation/xent"),
            Row("DAD", "translation/scheduled_sampling"),
            Row("MIXER", "translation/mixer"),
            Row("MRT", "translation/mrt"),
            Row("seq2seq", "translation/seq2seq"),
            _BY_LENGTH,
            _AVERAGED,
            Row("BSO, 0/1", "translation/bso_01"),
            Row("BSO, 1-SB", "translation/bso"),
            Row("BSO + cross-entropy", "translation/bso_mixed"),
            _train_beam("translation/bso_01", "BSO, 0/1", 11),
            _FROM_AVERAGED,
        ),
        ("seq2seq", "seq2seq, by length"),
    ),
    Experiment(
        "costs",
        "Translation by cost",
        "translation",
        "dev",
        (Row("cost 0/1", "translation/bso_01"), Row("cost 1-SB", "translation/bso")),
        ("cost 0/1",),
    ),
    Experiment(
        "translation_beam",
        "Translation by train beam",
        "translation",
        "dev",
        (
            Row("seq2seq", "translation/seq2seq"),
            *(_train_beam("translation/bso_01", "BSO", beam) for beam in (2, 6, 11)),
        ),
        ("seq2seq",),
    ),
    Experiment(
        "stops",
        "Translation by stop rule",
        "translation",
        "dev",
        (
            Row("trained and searched with top", "translation/bso_01"),
            Row("trained and searched with best", "translation/bso_01", "best", ("stages.bso.loss.stop=best",)),
            Row(
                "trained with best, searched with top",
                "translation/bso_01",
                "best",
                ("stages.bso.loss.stop=best",),
                stop="top",
            ),
        ),
        ("trained and searched with best",),
    ),
    Experiment(
        "tatoeba",
        "Translation, Tatoeba",
        "tatoeba",
        "test",
        (
            Row("seq2seq", "translation/seq2seq"),
            _BY_LENGTH,
            _AVERAGED,
            Row("BSO, 0/1", "translation/bso_01"),
        ),
        ("seq2seq", "seq2seq, by length"),
    ),
)
