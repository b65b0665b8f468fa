"""Charts: one palette, titles that say what to see, and a description for each.

Each function returns a `Picture`, which a notebook shows when it is a cell's last value.
"""

from txlib.plots.charts import bars, landscapes, lines, ranges, shares
from txlib.plots.matrices import heads, heatmap, mask
from txlib.plots.music import piano_roll
from txlib.plots.picture import PALETTE, Picture
from txlib.plots.pictures import pictures
from txlib.plots.text import tokens

__all__ = [
    "PALETTE",
    "Picture",
    "bars",
    "heads",
    "heatmap",
    "landscapes",
    "lines",
    "mask",
    "piano_roll",
    "pictures",
    "ranges",
    "shares",
    "tokens",
]
