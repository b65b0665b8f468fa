"""One submission: run in a sealed kernel, and judged outside it."""

import txgrade.quick_nbformat  # noqa: F401  before any module of this room imports nbformat
