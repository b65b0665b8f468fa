"""Data: one loader per data set, and batches of like length."""

from .batching import Batch, Inputs, MadeWhenAsked, batches_by_length, collate, pad, padding_share
from .chorales import chorales
from .files import Splits
from .images import Pictures, PictureSplits, digits, fashion
from .reviews import Review, reviews
from .shakespeare import Texts, plays, shakespeare, speeches, text_file
from .spans import Question, spans
from .tags import Tagged, tags
from .translation import translation
from .verses import SentencePair, sentence_pairs, verses

__all__ = [
    "Batch",
    "Inputs",
    "MadeWhenAsked",
    "PictureSplits",
    "Pictures",
    "Question",
    "Review",
    "SentencePair",
    "Splits",
    "Tagged",
    "Texts",
    "batches_by_length",
    "chorales",
    "collate",
    "digits",
    "fashion",
    "pad",
    "padding_share",
    "plays",
    "reviews",
    "sentence_pairs",
    "shakespeare",
    "spans",
    "speeches",
    "tags",
    "text_file",
    "translation",
    "verses",
]
