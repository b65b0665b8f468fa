"""From probabilities to text, and to music."""

from txlib.generation.composer import Composer
from txlib.generation.sampling import (
    Sampling,
    apply_temperature,
    generate,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_counts,
    penalise_repetition,
    stream,
)
from txlib.generation.search import beam_search, greedy
from txlib.generation.speculative import Speculation, accept, speculate
from txlib.generation.translator import Translator
from txlib.generation.writer import Writer

__all__ = [
    "Composer",
    "Sampling",
    "Speculation",
    "Translator",
    "Writer",
    "accept",
    "apply_temperature",
    "beam_search",
    "generate",
    "greedy",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "penalise_counts",
    "penalise_repetition",
    "speculate",
    "stream",
]
