"""Transformers, built by hand: the library behind the course."""

from typing import Any

__all__ = ["load_pretrained", "save_pretrained"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for, so that `import txlib` stays light."""
    if name in __all__:
        from txlib.models import pretrained

        return getattr(pretrained, name)
    raise AttributeError(f"module 'txlib' has no attribute {name!r}")
