"""From probabilities to text."""

from txlib.generation.search import beam_search, greedy

__all__ = ["beam_search", "greedy"]
