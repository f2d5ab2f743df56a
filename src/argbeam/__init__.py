"""Train sequence models for the beam search that decodes them."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from argbeam.data.batches import Batch as Batch
    from argbeam.data.batches import Example as Example
    from argbeam.data.batches import make_batch as make_batch
    from argbeam.data.vocabulary import Vocabulary as Vocabulary
    from argbeam.losses.bso import Bso as Bso
    from argbeam.losses.contract import Loss as Loss
    from argbeam.losses.crf import Crf as Crf
    from argbeam.losses.cross_entropy import CrossEntropy as CrossEntropy
    from argbeam.losses.mrt import Mrt as Mrt
    from argbeam.losses.mrt import Sampled as Sampled
    from argbeam.losses.mrt import Searched as Searched
    from argbeam.models.contract import Model as Model
    from argbeam.models.noise import Noise as Noise
    from argbeam.models.state import State as State
    from argbeam.runs.load import Run as Run
    from argbeam.runs.load import load as load
    from argbeam.search.gold import EarlyUpdate as EarlyUpdate
    from argbeam.search.gold import MaxViolation as MaxViolation
    from argbeam.search.gold import Restart as Restart
    from argbeam.search.score_rules import LastScore as LastScore
    from argbeam.search.score_rules import LogprobSum as LogprobSum
    from argbeam.search.score_rules import ScoreRule as ScoreRule
    from argbeam.search.score_rules import ScoreSum as ScoreSum
    from argbeam.search.search import beam_search as beam_search
    from argbeam.search.stop_rules import Stop as Stop
    from argbeam.search.stop_rules import StopBest as StopBest
    from argbeam.search.stop_rules import StopTop as StopTop
    from argbeam.search.successors import Choices as Choices
    from argbeam.search.successors import Permutation as Permutation
    from argbeam.search.successors import ShiftReduce as ShiftReduce
    from argbeam.search.successors import Successors as Successors
    from argbeam.search.successors import Unconstrained as Unconstrained
    from argbeam.search.successors import check_gold as check_gold
    from argbeam.tasks.contract import Task as Task
    from argbeam.training.optimizer import Adagrad as Adagrad


# A name is imported when it is first asked for: torch takes seconds, and `argbeam --help` needs none of it.
_HOMES = {
    "Adagrad": "argbeam.training.optimizer",
    "Batch": "argbeam.data.batches",
    "Bso": "argbeam.losses.bso",
    "Choices": "argbeam.search.successors",
    "Crf": "argbeam.losses.crf",
    "CrossEntropy": "argbeam.losses.cross_entropy",
    "EarlyUpdate": "argbeam.search.gold",
    "Example": "argbeam.data.batches",
    "LastScore": "argbeam.search.score_rules",
    "LogprobSum": "argbeam.search.score_rules",
    "Loss": "argbeam.losses.contract",
    "MaxViolation": "argbeam.search.gold",
    "Model": "argbeam.models.contract",
    "Mrt": "argbeam.losses.mrt",
    "Noise": "argbeam.models.noise",
    "Permutation": "argbeam.search.successors",
    "Restart": "argbeam.search.gold",
    "Run": "argbeam.runs.load",
    "Sampled": "argbeam.losses.mrt",
    "ScoreRule": "argbeam.search.score_rules",
    "ScoreSum": "argbeam.search.score_rules",
    "Searched": "argbeam.losses.mrt",
    "ShiftReduce": "argbeam.search.successors",
    "State": "argbeam.models.state",
    "Stop": "argbeam.search.stop_rules",
    "StopBest": "argbeam.search.stop_rules",
    "StopTop": "argbeam.search.stop_rules",
    "Successors": "argbeam.search.successors",
    "Task": "argbeam.tasks.contract",
    "Unconstrained": "argbeam.search.successors",
    "Vocabulary": "argbeam.data.vocabulary",
    "beam_search": "argbeam.search.search",
    "check_gold": "argbeam.search.successors",
    "load": "argbeam.runs.load",
    "make_batch": "argbeam.data.batches",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
