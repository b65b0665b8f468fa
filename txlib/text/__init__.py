"""Text: byte pairs from scratch, and the tokenizer of a model."""

from .bpe import BytePairEncoder
from .segmentation import Segmentation
from .tokenizer import Tokenizer, byte_tokenizer, load_tokenizer

__all__ = ["BytePairEncoder", "Segmentation", "Tokenizer", "byte_tokenizer", "load_tokenizer"]
