"""Data: one loader per data set, and batches of like length."""

from .batching import Batch, Inputs, MadeWhenAsked, batches_by_length, collate, pad, padding_share
from .chorales import chorales
from .files import Splits
from .images import Pictures, PictureSplits, digits, fashion
from .mixtures import Mixture, fit_mixture, random_mixtures
from .reviews import Review, reviews
from .sets import clustered_points, largest_numbers, pad_sets, point_clouds
from .shakespeare import Texts, plays, shakespeare, speeches, text_file
from .spans import Question, spans
from .tags import Tagged, tags
from .translation import translation
from .verses import SentencePair, sentence_pairs, verses

__all__ = [
    "Batch",
    "Inputs",
    "MadeWhenAsked",
    "Mixture",
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
    "clustered_points",
    "collate",
    "digits",
    "fashion",
    "fit_mixture",
    "largest_numbers",
    "pad",
    "pad_sets",
    "padding_share",
    "plays",
    "point_clouds",
    "random_mixtures",
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
