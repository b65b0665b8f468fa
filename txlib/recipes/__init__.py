"""What `txlib train` and `txlib finetune` do: a recipe for each model, and one `run` for all recipes."""

from txlib.recipes.bert import PreTraining
from txlib.recipes.finetune import FineTuning
from txlib.recipes.language import Language
from txlib.recipes.music import Music
from txlib.recipes.perceiver import Arrays
from txlib.recipes.recipe import Preset, Recipe, option
from txlib.recipes.run import run
from txlib.recipes.sets import Sets
from txlib.recipes.translation import Translation
from txlib.recipes.vision import Vision

RECIPES: dict[str, type[Recipe]] = {
    recipe.command: recipe for recipe in (Translation, Language, PreTraining, Sets, FineTuning, Vision, Music, Arrays)
}
"""By command; one that is added here is a command, with its options and help."""

__all__ = [
    "RECIPES",
    "Arrays",
    "FineTuning",
    "Language",
    "Music",
    "PreTraining",
    "Preset",
    "Recipe",
    "Sets",
    "Translation",
    "Vision",
    "option",
    "run",
]
