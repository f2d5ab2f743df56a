"""Every setting of a recipe, with its default, bounds and one-line meaning.

Read `recipe` and `recipe_files` first. A setting is defined here and nowhere else; no module here reads data or uses
torch. `recipes/` holds the shipped recipes.
"""

from argbeam.settings.data import ConlluData as ConlluData
from argbeam.settings.data import ConllxData as ConllxData
from argbeam.settings.data import Data as Data
from argbeam.settings.data import GeneratedData as GeneratedData
from argbeam.settings.data import IwsltData as IwsltData
from argbeam.settings.data import ParallelData as ParallelData
from argbeam.settings.data import ParsingTask as ParsingTask
from argbeam.settings.data import TextData as TextData
from argbeam.settings.data import TsvData as TsvData
from argbeam.settings.data import WordOrderingTask as WordOrderingTask
from argbeam.settings.losses import BsoLoss as BsoLoss
from argbeam.settings.losses import CrfLoss as CrfLoss
from argbeam.settings.losses import CrossEntropyLoss as CrossEntropyLoss
from argbeam.settings.losses import ExponentialSchedule as ExponentialSchedule
from argbeam.settings.losses import InverseSigmoidSchedule as InverseSigmoidSchedule
from argbeam.settings.losses import LinearSchedule as LinearSchedule
from argbeam.settings.losses import Loss as Loss
from argbeam.settings.losses import MixerLoss as MixerLoss
from argbeam.settings.losses import MrtLoss as MrtLoss
from argbeam.settings.losses import Schedule as Schedule
from argbeam.settings.losses import ScheduledSamplingLoss as ScheduledSamplingLoss
from argbeam.settings.losses import SequenceLoss as SequenceLoss
from argbeam.settings.recipe import ConvModel as ConvModel
from argbeam.settings.recipe import Decode as Decode
from argbeam.settings.recipe import LstmLmModel as LstmLmModel
from argbeam.settings.recipe import LstmModel as LstmModel
from argbeam.settings.recipe import Model as Model
from argbeam.settings.recipe import ModelSizes as ModelSizes
from argbeam.settings.recipe import Recipe as Recipe
from argbeam.settings.recipe import Runtime as Runtime
from argbeam.settings.recipe import Stage as Stage
from argbeam.settings.recipe import Text as Text
from argbeam.settings.strict import MOST_BEAM as MOST_BEAM
