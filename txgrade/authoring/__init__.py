"""Exercises and assignments: how they are read, recorded, released and proved."""

import txgrade.quick_nbformat  # noqa: F401  before any module of this room imports nbformat
