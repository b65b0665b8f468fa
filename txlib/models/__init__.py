"""Whole models, put together from the parts."""

from txlib.models.transformer import Seq2SeqOutput, Transformer, TransformerConfig

__all__ = ["Seq2SeqOutput", "Transformer", "TransformerConfig"]
