"""Tables beyond the paper: prefixes ranked by sums, with LSTMs and with Transformers."""

from collections.abc import Sequence

from argbeam.reproduce.constraints import CONSTRAINT_GROUPS, CONSTRAINT_TABLES
from argbeam.reproduce.experiments import AVERAGED, EXPERIMENTS, Experiment, System
from argbeam.reproduce.paper import BEAMS

# A beam of 50 shows whether wide beams hurt.
_WIDE = (*BEAMS, 50)
# The Transformers' vocabulary in translation: words seen once are UNK.
_MIN_COUNT = ("text.min_count=2",)
_LSTM = ("seq2seq averaged", "seq2seq averaged, by length")
_TRANSFORMER = ("cross-entropy", "cross-entropy, by length")
_TASKS = {
    "translation": "Translation, min_count 2",
    "word_ordering": "Word ordering",
    "parsing": "Dependency parsing",
    "tatoeba": "Translation, Tatoeba, min_count 2",
}


# What dev chose for sums with LSTMs (docs/results/trials.md): the beam grows every epoch, so fewer epochs do.
_SCORES = ("stages.bso.loss.rule=score_sum", "stages.bso.loss.epochs_per_beam=1")
_LOGPROBS = ("stages.bso.loss.rule=logprob_sum", "stages.bso.loss.epochs_per_beam=1")
_MARGIN = "stages.bso.loss.margin_per_token="


def _lstm_translation(variant: str, *sets: str) -> tuple[System, ...]:
    """Averaged baselines, and BSO from an averaged pre-training with half of the paper's rates."""
    seq2seq, bso = "translation/seq2seq", "translation/bso_01"
    baseline = (*_MIN_COUNT, *AVERAGED)
    rates = tuple(f"stages.bso.optimizer.{key}" for key in ("encoder=0.01", "decoder=0.01", "output=0.05"))
    short = (f"{_MARGIN}0.5", "stages.pretrain.epochs=8", "stages.bso.epochs=12", "stages.bso.patience=4")
    shared = (*_MIN_COUNT, "stages.pretrain.optimizer.average=0.999", *rates, *short, *sets)
    scores, logprobs = f"sums{variant}", f"logprobs{variant}"
    return (
        System(_LSTM[0], seq2seq, "averaged_min2", baseline),
        System(_LSTM[1], seq2seq, "averaged_min2", baseline, by_length=True),
        System("BSO, sums of scores", bso, scores, (*_SCORES, *shared)),
        System("BSO, sums of log-probabilities", bso, logprobs, (*_LOGPROBS, *shared)),
        System(
            "BSO, sums of log-probabilities, by length",
            bso,
            logprobs,
            (*_LOGPROBS, *shared),
            by_length=True,
            stop="best",
        ),
    )


_ORDERING_EPOCHS = ("stages.bso.epochs=14",)
_LSTM_WORD_ORDERING = (
    System(_LSTM[0], "word_ordering/seq2seq", "averaged", AVERAGED),
    System("ConBSO, sums of scores", "word_ordering/conbso", "sums", (*_SCORES, *_ORDERING_EPOCHS)),
    System(
        "ConBSO, sums of log-probabilities",
        "word_ordering/conbso",
        "logprobs",
        (*_LOGPROBS, *_ORDERING_EPOCHS, f"{_MARGIN}0.3"),
    ),
)
_PARSING_SETS = (*_SCORES, f"{_MARGIN}0.2", "stages.bso.loss.start_beam=4", "stages.bso.epochs=16")
_LSTM_PARSING = (
    System(_LSTM[0], "parsing/seq2seq", "averaged", AVERAGED),
    System("ConBSO, sums of scores", "parsing/conbso", "sums", _PARSING_SETS),
)


def _transformer_translation(variant: str = "", *sets: str, logprobs: tuple[str, ...] = ()) -> tuple[System, ...]:
    """The model of log-probabilities is searched in two ways: its own, and that of servers (refilled, by length).

    `logprobs` are further overrides of that model.
    """
    names = ("cross_entropy", "bso", "bso_logprob")
    baseline, scores, logprob = (f"transformer/translation_{name}" for name in names)
    further = (*sets, *logprobs)
    return (
        System(_TRANSFORMER[0], baseline, variant, sets),
        System(_TRANSFORMER[1], baseline, variant, sets, by_length=True),
        System("BSO, sums of scores", scores, variant, sets),
        System("BSO, sums of log-probabilities", logprob, variant, further),
        System("BSO, sums of log-probabilities, by length", logprob, variant, further, by_length=True, stop="best"),
    )


def _transformer_constrained(task: str, variant: str = "", *sets: str) -> tuple[System, ...]:
    return (
        System(_TRANSFORMER[0], f"transformer/{task}_cross_entropy", variant, sets),
        System("ConBSO, sums of scores", f"transformer/{task}_conbso", variant, sets),
        System("ConBSO, sums of log-probabilities", f"transformer/{task}_conbso_logprob", variant, sets),
    )


def _minimum_risk(task: str, variant: str = "", *sets: str) -> tuple[System, ...]:
    baseline, mrt = f"transformer/{task}_cross_entropy", f"transformer/{task}_mrt"
    plain = (System(_TRANSFORMER[0], baseline, variant, sets), System("MRT", mrt, variant, sets))
    by_length = (
        System(_TRANSFORMER[1], baseline, variant, sets, by_length=True),
        System("MRT, by length", mrt, variant, sets, by_length=True),
    )
    return (*plain, *(by_length if task == "translation" else ()))


def _tables(
    group: str, title: str, references: tuple[str, ...], systems: dict[str, tuple[System, ...]]
) -> tuple[Experiment, ...]:
    """A table for each corpus, all scored on test."""
    return tuple(
        Experiment(
            f"{group}_{corpus}", f"{_TASKS[corpus]}, {title}", corpus, "test", rows, _present(references, rows), _WIDE
        )
        for corpus, rows in systems.items()
    )


def _present(references: tuple[str, ...], rows: tuple[System, ...]) -> tuple[str, ...]:
    return tuple(label for label in references if label in {row.label for row in rows})


# Positions added to the vectors, with the epochs, rates and beams that were measured with them.
_SINUSOIDAL = "sinusoidal"
_ADDED = ('model.positions="sinusoidal"',)
_ADDED_LOGPROBS = ("stages.bso.epochs=10", "stages.bso.optimizer.rate=0.0005")
_ADDED_PARSING = (
    *_ADDED,
    "stages.cross_entropy.epochs=30",
    "stages.bso.epochs=14",
    "stages.bso.batch.size=64",
    'stages.bso.optimizer.schedule="constant"',
    "stages.bso.loss.start_beam=2",
    "stages.bso.loss.margin_per_token=0",
)
# Five times the pairs of Multi30k: fewer epochs are more updates. Rotary positions were not tried.
_TATOEBA = (*_ADDED, "stages.cross_entropy.epochs=12")
_SUMS_TABLES = _tables(
    "sums",
    "LSTM with sums",
    _LSTM,
    {
        "translation": _lstm_translation(""),
        "word_ordering": _LSTM_WORD_ORDERING,
        "parsing": _LSTM_PARSING,
        "tatoeba": _lstm_translation("_tatoeba", "stages.bso.epochs=6"),
    },
)
_TRANSFORMER_TABLES = _tables(
    "transformer",
    "Transformer",
    _TRANSFORMER,
    {
        "translation": _transformer_translation(),
        "word_ordering": _transformer_constrained("word_ordering"),
        "parsing": _transformer_constrained("parsing"),
        "tatoeba": _transformer_translation("tatoeba", *_TATOEBA, "stages.bso.epochs=6"),
    },
)
_SINUSOIDAL_TABLES = _tables(
    "transformer_sinusoidal",
    "Transformer with sinusoidal positions",
    _TRANSFORMER,
    {
        "translation": _transformer_translation(_SINUSOIDAL, *_ADDED, logprobs=_ADDED_LOGPROBS),
        "parsing": _transformer_constrained("parsing", _SINUSOIDAL, *_ADDED_PARSING),
    },
)
_MRT_TABLES = _tables(
    "transformer_mrt",
    "Transformer, minimum risk",
    _TRANSFORMER,
    {
        **{task: _minimum_risk(task) for task in ("translation", "word_ordering", "parsing")},
        "tatoeba": _minimum_risk("translation", "tatoeba", *_TATOEBA, "stages.mrt.epochs=3"),
    },
)
FURTHER = (*_SUMS_TABLES, *_TRANSFORMER_TABLES, *_SINUSOIDAL_TABLES, *_MRT_TABLES, *CONSTRAINT_TABLES)
GROUPS = {
    "sums": _SUMS_TABLES,
    "transformer": (*_TRANSFORMER_TABLES, *_MRT_TABLES),
    "transformer_sinusoidal": _SINUSOIDAL_TABLES,
    "transformer_mrt": _MRT_TABLES,
    **CONSTRAINT_GROUPS,
}


def chosen_experiments(names: Sequence[str]) -> list[Experiment]:
    """The tables of these names, or of groups of them; without names, those of the paper."""
    chosen = {*names, *(table.name for name in names for table in GROUPS.get(name, ()))}
    return [one for one in (*EXPERIMENTS, *FURTHER) if one.name in chosen] if names else list(EXPERIMENTS)
