"""Recipes from a file of the user's."""

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from txlib.recipes.recipe import Recipe


def load_recipe(path: Path | str) -> type[Recipe]:
    """Return the recipe that a Python file defines: its only subclass of `Recipe`, apart from bases of that.

    The file is imported, so that its code runs; it may import modules from its folder.

    Raises:
        ValueError: it can't be imported, or defines no recipe or several.
        FileNotFoundError: it is not there.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; give the path of a Python file that defines a recipe")
    name = f"txlib_recipe_{path.stem}"
    spec = spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path}{_line(error, path)} raises {type(error).__name__}: {error}; fix it") from None
    finally:
        sys.path.pop(0)
    recipes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Recipe) and value.__module__ == name
    ]
    recipes = [recipe for recipe in recipes if not any(recipe in other.__mro__[1:] for other in recipes)]
    if not recipes:
        raise ValueError(f"{path} defines no recipe; add a subclass of txlib.recipes.Recipe, see docs/own_recipe.md")
    if len(recipes) > 1:
        names = " and ".join(recipe.__name__ for recipe in recipes)
        raise ValueError(f"{path} defines {len(recipes)} recipes, {names}; leave one and move the others to files")
    return recipes[0]


def _line(error: Exception, path: Path) -> str:
    """Return where in the file an exception comes from, as ", line 3"."""
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return f", line {error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path.resolve())
    ]
    return f", line {lines[-1]}" if lines else ""
