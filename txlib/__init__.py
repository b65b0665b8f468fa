"""Transformers, built by hand: the library behind the course."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what `__getattr__` gives, for editors and type checkers
    from txlib import (
        attention,
        data,
        generation,
        inspect,
        layers,
        models,
        music,
        plots,
        posttraining,
        recipes,
        text,
        training,
    )
    from txlib.models.pretrained import load_pretrained, save_pretrained

    __version__: str

DISTRIBUTION = "txlib-course"  # the `txlib` on PyPI is somebody else's

__all__ = [
    "__version__",
    "attention",
    "data",
    "generation",
    "inspect",
    "layers",
    "load_pretrained",
    "models",
    "music",
    "plots",
    "posttraining",
    "recipes",
    "save_pretrained",
    "text",
    "training",
]


def __getattr__(name: str) -> object:
    """Loaded when asked for, so that `import txlib` stays light."""
    if name == "__version__":
        from importlib.metadata import version

        return version(DISTRIBUTION)
    if name in ("load_pretrained", "save_pretrained"):
        return getattr(import_module("txlib.models.pretrained"), name)
    if name in __all__:
        return import_module(f"txlib.{name}")
    from txlib.hints import did_you_mean

    raise AttributeError(f"module 'txlib' has no attribute {name!r}{did_you_mean(name, __all__)}", name=name)


def __dir__() -> list[str]:
    return sorted(__all__)
