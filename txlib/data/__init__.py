"""Data: one loader per data set, and batches of like length."""

from .batching import Batch, BatchDict, LazyDataset, batches_by_length, collate, pad, padding_share
from .chorales import chorales
from .files import Splits, model_folder, shipped
from .images import Pictures, digits, fashion
from .mixtures import Mixture, fit_mixture, random_mixtures
from .reviews import Review, reviews
from .senses import Sense, word_senses
from .sets import clustered_points, largest_numbers, pad_sets, point_clouds
from .shakespeare import Texts, plays, shakespeare, speeches, text_file
from .spans import Question, spans
from .tags import Tagged, tags
from .translation import translation
from .verses import Choice, SentencePair, sentence_pairs, verse_endings, verses

__all__ = [
    "Batch",
    "BatchDict",
    "Choice",
    "LazyDataset",
    "Mixture",
    "Pictures",
    "Question",
    "Review",
    "Sense",
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
    "model_folder",
    "pad",
    "pad_sets",
    "padding_share",
    "plays",
    "point_clouds",
    "random_mixtures",
    "reviews",
    "sentence_pairs",
    "shakespeare",
    "shipped",
    "spans",
    "speeches",
    "tags",
    "text_file",
    "translation",
    "verse_endings",
    "verses",
    "word_senses",
]
