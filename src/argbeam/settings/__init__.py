"""Every setting of a recipe, with its default, bounds and one-line meaning.

Read `recipe` and `recipe_files` first. A setting is defined here and nowhere else; no module here reads data or uses
torch. `recipes/` holds the shipped recipes.
"""

from argbeam.settings.data import IwsltData, ParsingTask, WordOrderingTask
from argbeam.settings.recipe import ConvModel, Decode, LstmLmModel, LstmModel, Recipe, Runtime, Text
from argbeam.settings.stages import Stage
from argbeam.settings.strict import MOST_BEAM

__all__ = ["MOST_BEAM", "ConvModel", "Decode", "IwsltData", "LstmLmModel", "LstmModel", "ParsingTask", "Recipe"]
__all__ += ["Runtime", "Stage", "Text", "WordOrderingTask"]
