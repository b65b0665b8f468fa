"""Views of sparse patterns: Longformer's and Big Bird's, with their parameters as sliders."""

from txcourse.explore.view import View
from txlib.attention import bigbird, global_tokens, sliding_window
from txlib.plots.matrices import mask


def patterns(length: int = 64, *, radius: int = 4, global_count: int = 2) -> View:
    """The masks `dilated(radius, gap) | global_tokens(range(n))` (Beltagy et al. 2020, §3.1) and `bigbird(…)` (Zaheer
    et al. 2020, §2), drawn and counted while their parameters move.

    Args:
        length: positions at first, at most 128. radius, global_count: of Longformer at first.
    """
    shown = {
        "Longformer": sliding_window(radius) | global_tokens(range(global_count)),
        "Big Bird": bigbird(block=4, random=2, window=3, global_blocks=2),
    }
    still = mask(shown, length, title="Longformer sees a band, Big Bird sees blocks; both have global ones")
    data = {
        "length": length,
        "radius": radius,
        "globals": global_count,
        "block": 4,
        "window": 3,
        "blocks": 2,
        "random": 2,
    }
    return View(still, "patterns", {"start": data}, title="Longformer's and Big Bird's patterns: who sees whom?")
