"""Text: byte pairs from scratch, and the tokenizer of a model."""

from .bpe import BytePairEncoder
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["BytePairEncoder", "Tokenizer", "load_tokenizer"]
