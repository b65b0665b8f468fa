"""What `txlib train` and `txlib finetune` do: a recipe for each kind of model, and one `run` for all recipes.

A module of this package that defines a subclass of `Recipe` with a command is a command.
"""

from importlib import import_module
from pkgutil import iter_modules

from txlib.recipes.leaderboard import leaderboard
from txlib.recipes.recipe import RECIPES, ModelChoice, Preset, Recipe, option
from txlib.recipes.run import run

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")

__all__ = ["RECIPES", "ModelChoice", "Preset", "Recipe", "leaderboard", "option", "run"]
