"""Text: subword vocabularies."""

from .bpe import BytePairEncoder
from .tokenizer import load_tokenizer
from .vocabulary import Vocabulary

__all__ = ["BytePairEncoder", "Vocabulary", "load_tokenizer"]
