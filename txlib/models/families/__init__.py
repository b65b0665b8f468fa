"""How models are written down: a file for each published family, and one for txlib's own format.

A module of this package that defines a `Family` adds its `model_type`.
"""

from importlib import import_module
from pkgutil import iter_modules

from txlib.models.families.family import TENSORS, Family
from txlib.models.families.own import OWN

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
FAMILIES = {
    family.model_type: family
    for family in [value for module in _MODULES for value in vars(module).values() if isinstance(value, Family)]
    if family is not OWN
} | {OWN.model_type: OWN}
"""By `model_type`. A model is saved by the first family that can describe it; txlib's own format is the last."""

__all__ = ["FAMILIES", "OWN", "TENSORS", "Family"]
