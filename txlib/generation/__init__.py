"""From probabilities to text, and to music."""

from txlib.generation.chat import Chat
from txlib.generation.composer import Composer
from txlib.generation.config import GenerationConfig
from txlib.generation.decoding import generate, stream
from txlib.generation.draft import DraftHead
from txlib.generation.sampling import (
    Sampling,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_counts,
    penalize_repetition,
)
from txlib.generation.scoring import score_answers
from txlib.generation.search import beam_search
from txlib.generation.serve import BlockPool, Engine, QueueFull, Request
from txlib.generation.speculative import Speculation, accept, speculate
from txlib.generation.text_generator import TextGenerator
from txlib.generation.translator import Translator

__all__ = [
    "BlockPool",
    "Chat",
    "Composer",
    "DraftHead",
    "Engine",
    "GenerationConfig",
    "QueueFull",
    "Request",
    "Sampling",
    "Speculation",
    "TextGenerator",
    "Translator",
    "accept",
    "apply_temperature",
    "beam_search",
    "generate",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "penalize_counts",
    "penalize_repetition",
    "score_answers",
    "speculate",
    "stream",
]
