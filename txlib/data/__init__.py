"""Data: one loader per data set, and batches of like length."""

from .batching import Batch, batches_by_length, collate, pad, padding_share
from .translation import Splits, translation

__all__ = ["Batch", "Splits", "batches_by_length", "collate", "pad", "padding_share", "translation"]
