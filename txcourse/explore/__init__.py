"""Views one can touch: pictures that come alive in a notebook or on a page, without a kernel and without a network.

Each function returns a `View`, which a notebook shows when it is a cell's last value.
"""

from txcourse.explore.attention import all_heads, heads, lookup, one_query
from txcourse.explore.experts import routing
from txcourse.explore.flash import flash
from txcourse.explore.generation import sampling
from txcourse.explore.masks import masks
from txcourse.explore.patterns import patterns
from txcourse.explore.positions import rotary
from txcourse.explore.transformer import transformer
from txcourse.explore.view import View

__all__ = [
    "View",
    "all_heads",
    "flash",
    "heads",
    "lookup",
    "masks",
    "one_query",
    "patterns",
    "rotary",
    "routing",
    "sampling",
    "transformer",
]
