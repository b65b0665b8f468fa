"""Shapes written in annotations are checked at run time while the tests run."""

from jaxtyping import install_import_hook

install_import_hook("txlib", "beartype.beartype")
