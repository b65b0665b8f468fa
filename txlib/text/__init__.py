"""Text: subword vocabularies."""

from .bpe import BytePairEncoder
from .vocabulary import Vocabulary

__all__ = ["BytePairEncoder", "Vocabulary"]
