"""Every setting of a recipe, with its default, bounds and one-line meaning.

Read `recipe` and `recipe_files` first. A setting is defined here and nowhere else; no module here reads data or uses
torch. `recipes/` holds the shipped recipes.
"""

from argbeam.settings.data import (
    InteractionData,
    IwsltData,
    ParsingTask,
    RecommendationTask,
    Text2TextTask,
    WordOrderingTask,
)
from argbeam.settings.models import ConvModel, LstmLmModel, LstmModel, Model, TransformerLmModel, TransformerModel
from argbeam.settings.recipe import Decode, Recipe, Runtime, Text
from argbeam.settings.stages import Stage
from argbeam.settings.strict import MOST_BEAM

__all__ = ["MOST_BEAM", "ConvModel", "Decode", "InteractionData", "IwsltData", "LstmLmModel", "LstmModel", "Model"]
__all__ += ["ParsingTask", "Recipe", "RecommendationTask", "Runtime", "Stage", "Text", "Text2TextTask"]
__all__ += ["TransformerLmModel", "TransformerModel", "WordOrderingTask"]
