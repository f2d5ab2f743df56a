"""Tables beyond the paper: losses under constraints that users have, each with the same network on the same corpus."""

from argbeam.reproduce.experiments import Experiment, System
from argbeam.reproduce.paper import BEAMS

_CROSS_ENTROPY = "cross-entropy"
_TITLES = {
    "regex": "Regular expressions under a grammar",
    "anselm": "Historical spelling under a trie",
    "uspto": "Retrosynthesis",
    "office": "Recommendation under a trie, Office",
    "beauty": "Recommendation under a trie, Beauty",
}
_MSL = ("stages.cross_entropy.loss.valid_only=true",)
_BEAR = ("stages.cross_entropy.loss.pruning_weight=0.25", "stages.cross_entropy.loss.pruning_temperature=2.75")
_LOGPROBS = ("stages.bso.loss.rule=logprob_sum", "stages.bso.loss.margin_per_token=0.5")
_SCORES = ("stages.bso.loss.rule=score_sum",)
# The network that a recipe does not have: dev says which one is stronger.
_OTHER_MODELS = {
    "lstm": (
        'model={kind="transformer", layers=3, hidden=256, heads=4, feed_forward=1024, dropout=0.3}',
        "stages.cross_entropy.optimizer.rate=0.001",
        "stages.cross_entropy.optimizer.warmup=800",
    ),
    "transformer": (
        'model={kind="lstm", layers=1, hidden=256, embedding=128, dropout=0.3}',
        "stages.cross_entropy.optimizer.rate=0.002",
    ),
}
_MODELS = {"regex": "transformer", "anselm": "lstm", "uspto": "transformer", "office": "lstm"}
_NAMES = {"lstm": "LSTM", "transformer": "Transformer"}


def _first(corpus: str) -> tuple[System, ...]:
    """Cross-entropy, MSL where there is a constraint, BSO with the sums that dev chose, and the CRF with restarts."""
    baseline, bso = _recipes(corpus)
    constrained = corpus != "uspto"
    return (
        System(_CROSS_ENTROPY, baseline),
        *((System("MSL", baseline, "msl", _MSL),) if constrained else ()),
        System("ConBSO, sums of scores" if constrained else "BSO, sums of log-probabilities", bso),
        System("CRF with restarts", bso, "crf", (_crf(corpus),)),
    )


def _more(corpus: str) -> tuple[System, ...]:
    baseline, bso = _recipes(corpus)
    constrained, rank = corpus != "uspto", _widest(corpus) - 1
    bear = (*_BEAR, f"stages.cross_entropy.loss.pruning_rank={rank}", *(_MSL if constrained else ()))
    other_rule = (
        System("ConBSO, sums of log-probabilities", bso, "logprob", _LOGPROBS)
        if constrained
        else System("BSO, sums of scores", bso, "scores", _SCORES)
    )
    return (
        System(_CROSS_ENTROPY, baseline),
        System("BEAR", baseline, "bear", bear),
        # Random sequences without a constraint are no alternatives to gold.
        *((System("APAO", baseline, "apao", (_apao(corpus),)),) if constrained else ()),
        other_rule,
        System("MRT", bso, "mrt", (_mrt(corpus), "stages.bso.optimizer.rate=0.0001")),
        *((System("ConBSO, sums of scores, from MSL", bso, "from_msl", _MSL),) if constrained else ()),
    )


def _models(corpus: str) -> tuple[System, ...]:
    baseline, own = _recipes(corpus)[0], _MODELS[corpus]
    other = next(name for name in _NAMES if name != own)
    return (
        System(f"{_CROSS_ENTROPY}, {_NAMES[own]}", baseline),
        System(f"{_CROSS_ENTROPY}, {_NAMES[other]}", baseline, other, _OTHER_MODELS[own]),
    )


def _recipes(corpus: str) -> tuple[str, str]:
    """Beauty has the recipes of Office, with other files."""
    name = "office" if corpus == "beauty" else corpus
    return f"constraints/{name}_cross_entropy", f"constraints/{name}_{'bso' if name == 'uspto' else 'conbso'}"


def _widest(corpus: str) -> int:
    return 21 if corpus in ("office", "beauty") else 6


def _crf(corpus: str) -> str:
    beam, constrained = _widest(corpus), "true" if corpus != "uspto" else "false"
    start = beam if beam > 6 else 2
    beams = f"train_beam={beam}, start_beam={start}, epochs_per_beam=1"
    return f'stages.bso.loss={{kind="crf", restarts=true, {beams}, constrained={constrained}}}'


def _apao(corpus: str) -> str:
    """Long outputs have fewer random rivals: each of them is read as gold is."""
    return f'stages.cross_entropy.loss={{kind="apao", negatives={100 if _widest(corpus) > 6 else 20}}}'


def _mrt(corpus: str) -> str:
    """Expected errors of a beam: only the whole output counts, so the risk is 0 or 1."""
    constrained = "true" if corpus != "uspto" else "false"
    beam = f'candidates="beam", size={_widest(corpus) - 1}, alpha=1.0'
    return f'stages.bso.loss={{kind="mrt", {beam}, risk="zero_one", constrained={constrained}}}'


def _table(name: str, corpus: str, split: str, systems: tuple[System, ...]) -> Experiment:
    beams = (20,) if corpus in ("office", "beauty") else BEAMS
    title = _TITLES[corpus] + {"constraints": "", "constraints_more": ", more losses"}.get(name, ", networks")
    return Experiment(f"{name}_{corpus}", title, corpus, split, systems, (systems[0].label,), beams)


_CORPORA = tuple(_MODELS)
_FIRST = tuple(_table("constraints", corpus, "test", _first(corpus)) for corpus in _CORPORA)
_MORE = tuple(_table("constraints_more", corpus, "test", _more(corpus)) for corpus in _CORPORA)
_BEAUTY = (
    _table("constraints", "beauty", "test", _first("beauty")),
    _table("constraints_more", "beauty", "test", _more("beauty")),
)
_COMPARED = tuple(_table("constraints_models", corpus, "dev", _models(corpus)) for corpus in _CORPORA)
CONSTRAINT_TABLES = (*_COMPARED, *_FIRST, *_MORE, *_BEAUTY)
CONSTRAINT_GROUPS = {
    "constraints": _FIRST,
    "constraints_more": _MORE,
    "beauty": _BEAUTY,
    "constraints_models": _COMPARED,
}
