"""Every setting of a recipe, with its default, bounds and one-line meaning.

Read `recipe` and `recipe_files` first. A setting is defined here and nowhere else; no module here reads data or uses
torch. `recipes/` holds the shipped recipes.
"""

from argbeam.settings.data import IwsltData, ParsingTask, WordOrderingTask
from argbeam.settings.models import ConvModel, LstmLmModel, LstmModel, Model, TransformerLmModel, TransformerModel
from argbeam.settings.recipe import Decode, Recipe, Runtime, Text
from argbeam.settings.stages import Stage
from argbeam.settings.strict import MOST_BEAM

__all__ = ["MOST_BEAM", "ConvModel", "Decode", "IwsltData", "LstmLmModel", "LstmModel", "Model", "ParsingTask"]
__all__ += ["Recipe", "Runtime", "Stage", "Text", "TransformerLmModel", "TransformerModel", "WordOrderingTask"]
