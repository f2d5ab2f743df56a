"""Train sequence models for the beam search that decodes them."""

from importlib import import_module
from typing import TYPE_CHECKING

from argbeam.version import __version__ as __version__

if TYPE_CHECKING:
    from argbeam.data import Batch as Batch
    from argbeam.data import Example as Example
    from argbeam.data import make_batch as make_batch
    from argbeam.losses.bso import Bso as Bso
    from argbeam.losses.contract import Loss as Loss
    from argbeam.losses.crf import Crf as Crf
    from argbeam.losses.cross_entropy import CrossEntropy as CrossEntropy
    from argbeam.losses.mrt import Mrt as Mrt
    from argbeam.losses.mrt import Sampled as Sampled
    from argbeam.losses.mrt import Searched as Searched
    from argbeam.models.contract import Model as Model
    from argbeam.optim import Adagrad as Adagrad
    from argbeam.policies import EarlyUpdate as EarlyUpdate
    from argbeam.policies import MaxViolation as MaxViolation
    from argbeam.policies import Restart as Restart
    from argbeam.rules import LastScore as LastScore
    from argbeam.rules import LogprobSum as LogprobSum
    from argbeam.rules import ScoreRule as ScoreRule
    from argbeam.rules import ScoreSum as ScoreSum
    from argbeam.rules import Stop as Stop
    from argbeam.rules import StopBest as StopBest
    from argbeam.rules import StopTop as StopTop
    from argbeam.run import Run as Run
    from argbeam.run import load as load
    from argbeam.search import beam_search as beam_search
    from argbeam.state import Noise as Noise
    from argbeam.state import State as State
    from argbeam.successors import Choices as Choices
    from argbeam.successors import Permutation as Permutation
    from argbeam.successors import ShiftReduce as ShiftReduce
    from argbeam.successors import Successors as Successors
    from argbeam.successors import Unconstrained as Unconstrained
    from argbeam.successors import check_gold as check_gold
    from argbeam.tasks.contract import Task as Task
    from argbeam.vocabulary import Vocabulary as Vocabulary


# A name is imported when it is first asked for: torch takes seconds, and `argbeam --help` needs none of it.
_HOMES = {
    "Adagrad": "argbeam.optim",
    "Batch": "argbeam.data",
    "Bso": "argbeam.losses.bso",
    "Choices": "argbeam.successors",
    "Crf": "argbeam.losses.crf",
    "CrossEntropy": "argbeam.losses.cross_entropy",
    "EarlyUpdate": "argbeam.policies",
    "Example": "argbeam.data",
    "LastScore": "argbeam.rules",
    "LogprobSum": "argbeam.rules",
    "Loss": "argbeam.losses.contract",
    "MaxViolation": "argbeam.policies",
    "Model": "argbeam.models.contract",
    "Mrt": "argbeam.losses.mrt",
    "Noise": "argbeam.state",
    "Permutation": "argbeam.successors",
    "Restart": "argbeam.policies",
    "Run": "argbeam.run",
    "Sampled": "argbeam.losses.mrt",
    "ScoreRule": "argbeam.rules",
    "ScoreSum": "argbeam.rules",
    "Searched": "argbeam.losses.mrt",
    "ShiftReduce": "argbeam.successors",
    "State": "argbeam.state",
    "Stop": "argbeam.rules",
    "StopBest": "argbeam.rules",
    "StopTop": "argbeam.rules",
    "Successors": "argbeam.successors",
    "Task": "argbeam.tasks.contract",
    "Unconstrained": "argbeam.successors",
    "Vocabulary": "argbeam.vocabulary",
    "beam_search": "argbeam.search",
    "check_gold": "argbeam.successors",
    "load": "argbeam.run",
    "make_batch": "argbeam.data",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
