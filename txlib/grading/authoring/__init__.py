"""Exercises and assignments: how they are read, recorded, released and proved."""

import txlib.quick_nbformat  # noqa: F401  before any module of this room imports nbformat
