"""Public names and their modules, for type checkers and for the lazy imports of `__init__.py`."""

from .data.batches import Batch as Batch
from .data.batches import Example as Example
from .data.batches import make_batch as make_batch
from .data.vocabulary import SpecialTokens as SpecialTokens
from .data.vocabulary import Vocabulary as Vocabulary
from .losses.bso import Bso as Bso
from .losses.contract import Loss as Loss
from .losses.crf import Crf as Crf
from .losses.cross_entropy import CrossEntropy as CrossEntropy
from .losses.mrt import Mrt as Mrt
from .losses.mrt import Sampled as Sampled
from .losses.mrt import Searched as Searched
from .models.contract import Model as Model
from .models.noise import Noise as Noise
from .models.state import State as State
from .runs.load import Run as Run
from .runs.load import load as load
from .search.constraints.trie import Trie as Trie
from .search.gold import EarlyUpdate as EarlyUpdate
from .search.gold import MaxViolation as MaxViolation
from .search.gold import Restart as Restart
from .search.score_rules import LastScore as LastScore
from .search.score_rules import LogprobSum as LogprobSum
from .search.score_rules import ScoreRule as ScoreRule
from .search.score_rules import ScoreSum as ScoreSum
from .search.search import beam_search as beam_search
from .search.stop_rules import Stop as Stop
from .search.stop_rules import StopBest as StopBest
from .search.stop_rules import StopTop as StopTop
from .search.successors import Choices as Choices
from .search.successors import Permutation as Permutation
from .search.successors import ShiftReduce as ShiftReduce
from .search.successors import Successors as Successors
from .search.successors import Unconstrained as Unconstrained
from .search.successors import check_gold as check_gold
from .tasks.contract import Task as Task
from .training.optimizer import Adagrad as Adagrad
from .training.optimizer import AdamW as AdamW

__version__: str
