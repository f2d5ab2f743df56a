"""Every setting of a recipe, with its default, bounds and one-line meaning.

Read `recipe` and `recipe_files` first. A setting is defined here and nowhere else; no module here reads data or uses
torch. `recipes/` holds the shipped recipes.
"""

from argbeam.settings.data import IwsltData as IwsltData
from argbeam.settings.data import ParsingTask as ParsingTask
from argbeam.settings.data import WordOrderingTask as WordOrderingTask
from argbeam.settings.recipe import ConvModel as ConvModel
from argbeam.settings.recipe import Decode as Decode
from argbeam.settings.recipe import LstmLmModel as LstmLmModel
from argbeam.settings.recipe import LstmModel as LstmModel
from argbeam.settings.recipe import Recipe as Recipe
from argbeam.settings.recipe import Runtime as Runtime
from argbeam.settings.recipe import Stage as Stage
from argbeam.settings.recipe import Text as Text
from argbeam.settings.strict import MOST_BEAM as MOST_BEAM
