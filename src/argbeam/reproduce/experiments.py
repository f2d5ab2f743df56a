"""The tables to reproduce: their systems, the corpus and split of each, and the reference of their gains."""

from dataclasses import dataclass

from argbeam.reproduce.paper import BEAMS

TIMING = "timing"


@dataclass(frozen=True)
class System:
    """A row of a table. `label` is the paper's where the paper has the row; `variant` names the overrides `sets`."""

    label: str
    recipe: str
    variant: str = ""
    sets: tuple[str, ...] = ()
    by_length: bool = False  # divide sums of log-probabilities by a power of the length, chosen on dev
    stop: str = ""  # stop rule for decoding instead of the run's own


@dataclass(frozen=True)
class Experiment:
    """A table. `corpus` is a kind of `find_corpora`; gains are over the systems that `references` labels."""

    name: str
    title: str
    corpus: str
    split: str
    systems: tuple[System, ...]
    references: tuple[str, ...] = ("seq2seq",)
    beams: tuple[int, ...] = BEAMS


def _train_beam(recipe: str, system: str, beam: int) -> System:
    """A train beam K_tr; dev chooses the epoch at the test beam it is meant for, K_tr - 1."""
    if beam == 6:  # the recipe's own
        return System(f"{system}, K_tr 6", recipe)
    sets = (f"stages.bso.loss.train_beam={beam}", f"stages.bso.keep_beam={beam - 1}")
    return System(f"{system}, K_tr {beam}", recipe, f"k{beam}", sets)


_LAST_SCORE = ("stages.early_update.loss.rule=last_score",)
_WORD_ORDERING = (
    System("LSTM-LM", "word_ordering/lm"),
    System("seq2seq", "word_ordering/seq2seq"),
    System("early update", "word_ordering/early_update"),
    System("early update, last score", "word_ordering/early_update", "last_score", _LAST_SCORE),
    System("maximum violation", "word_ordering/max_violation"),
    System("CRF, early update", "word_ordering/crf"),
    System("BSO", "word_ordering/bso"),
    System("ConBSO", "word_ordering/conbso"),
    _train_beam("word_ordering/bso", "BSO", 11),
    _train_beam("word_ordering/conbso", "ConBSO", 11),
)
_TRAIN_BEAM = (
    System("seq2seq", "word_ordering/seq2seq"),
    *(_train_beam("word_ordering/conbso", "ConBSO", beam) for beam in (2, 6, 11)),
)
_PARSING = (
    System("seq2seq", "parsing/seq2seq"),
    System("CRF, early update", "parsing/crf"),
    System("BSO", "parsing/bso"),
    System("ConBSO", "parsing/conbso"),
    _train_beam("parsing/bso", "BSO", 11),
)
AVERAGED = ("stages.train.optimizer.average=0.999",)
_SEQ2SEQ = (
    System("seq2seq", "translation/seq2seq"),
    System("seq2seq, by length", "translation/seq2seq", by_length=True),
    # BSO's recipes average their weights: the baseline with the same advantage.
    System("seq2seq averaged, by length", "translation/seq2seq", "averaged", AVERAGED, by_length=True),
)
_BSO = "translation/bso_01"
# Pre-training with averaged weights too, and a beam that has its full size after nine epochs instead of eighteen.
_FROM_AVERAGED = (
    "stages.pretrain.epochs=10",
    "stages.pretrain.optimizer.average=0.999",
    "stages.bso.loss.train_beam=11",
    "stages.bso.loss.epochs_per_beam=1",
)
_TRANSLATION = (
    System("XENT", "translation/xent"),
    System("DAD", "translation/scheduled_sampling"),
    System("MIXER", "translation/mixer"),
    System("MRT", "translation/mrt"),
    *_SEQ2SEQ,
    System("BSO, 0/1", _BSO),
    System("BSO, 1-SB", "translation/bso"),
    System("BSO + cross-entropy", "translation/bso_mixed"),
    _train_beam(_BSO, "BSO, 0/1", 11),
    System("BSO, 0/1, K_tr 11, from averaged", _BSO, "k11_from_averaged", _FROM_AVERAGED),
)
_COSTS = (System("cost 0/1", _BSO), System("cost 1-SB", "translation/bso"))
_TRANSLATION_BEAM = (_SEQ2SEQ[0], *(_train_beam(_BSO, "BSO", beam) for beam in (2, 6, 11)))
_STOP_BEST = ("stages.bso.loss.stop=best",)
_STOPS = (
    System("trained and searched with top", _BSO),
    System("trained and searched with best", _BSO, "best", _STOP_BEST),
    System("trained with best, searched with top", _BSO, "best", _STOP_BEST, stop="top"),
)
_TATOEBA = (*_SEQ2SEQ, System("BSO, 0/1", _BSO))
_BOTH = ("seq2seq", "seq2seq, by length")

EXPERIMENTS = (
    Experiment("word_ordering", "Word ordering", "word_ordering", "test", _WORD_ORDERING),
    Experiment("train_beam", "Word ordering by train beam", "word_ordering", "dev", _TRAIN_BEAM),
    Experiment("parsing", "Dependency parsing", "parsing", "test", _PARSING),
    Experiment("translation", "Translation", "translation", "test", _TRANSLATION, _BOTH),
    Experiment("costs", "Translation by cost", "translation", "dev", _COSTS, ("cost 0/1",)),
    Experiment("translation_beam", "Translation by train beam", "translation", "dev", _TRANSLATION_BEAM),
    Experiment("stops", "Translation by stop rule", "translation", "dev", _STOPS, (_STOPS[1].label,)),
    Experiment("tatoeba", "Translation, Tatoeba", "tatoeba", "test", _TATOEBA, _BOTH),
)
