"""The networks that the translation recipe trains: the Transformer and its predecessors, all of one size."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from txlib.models import (
    ByteNet,
    ByteNetConfig,
    ConvSeq2Seq,
    ConvSeq2SeqConfig,
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    UniversalTransformer,
    UniversalTransformerConfig,
)
from txlib.models.sizes import of_size, parameters
from txlib.recipes.recipe import ModelChoice, Preset
from txlib.text import Tokenizer

Vocabulary = Mapping[str, Any]  # vocab_size, pad_id, bos_id, eos_id
Make = Callable[[int, Preset, Vocabulary], nn.Module]  # a model of that width


def recurrent(*, stacked: bool = False, **options: Any) -> Make:
    """Return the maker of a recurrent encoder–decoder, of one layer each or of twice the preset's."""

    def make(width: int, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
        layers = 2 * preset.layers if stacked else 1
        depth: dict[str, Any] = {"encoder_layers": layers, "decoder_layers": layers}
        return Seq2Seq(Seq2SeqConfig(**vocabulary, **depth, d_model=width, dropout=preset.block.dropout, **options))

    return make


def convolutional(width: int, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
    layers = 2 * preset.layers
    return ConvSeq2Seq(
        ConvSeq2SeqConfig(
            **vocabulary, d_model=width, encoder_layers=layers, decoder_layers=layers, dropout=preset.block.dropout
        )
    )


def bytenet(width: int, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
    return ByteNet(ByteNetConfig(**vocabulary, d_model=width, dropout=preset.block.dropout))


def transformer(width: int, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
    block, layers = resized(preset, width), preset.layers
    return Transformer(TransformerConfig(**vocabulary, block=block, encoder_layers=layers, decoder_layers=layers))


def universal(width: int, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
    return UniversalTransformer(
        UniversalTransformerConfig(**vocabulary, block=resized(preset, width), steps=2 * preset.layers)
    )


def resized(preset: Preset, width: int) -> Any:
    """Return the preset's block in another width, its feed-forward layer in proportion."""
    block = preset.block
    return (
        block if width == block.d_model else block.replace(d_model=width, d_ff=width * block.ffn.d_ff // block.d_model)
    )


ADAM = {"muon_lr": None, "lr": 6e-3}  # learns faster here than Muon does; elsewhere Muon is ahead

TRANSLATORS: dict[str, ModelChoice] = {
    "rnn-plain": ModelChoice("a GRU that hands over one vector (Cho et al. 2014)", recurrent(attention=None)),
    "rnn": ModelChoice("a GRU with additive attention (Bahdanau et al. 2015)", recurrent()),
    "lstm": ModelChoice(
        "stacked LSTMs with residuals and attention, as in GNMT (Wu et al. 2016)", recurrent(cell="lstm", stacked=True)
    ),
    "bytenet": ModelChoice("dilated convolutions, no attention (Kalchbrenner et al. 2016)", bytenet),
    "conv": ModelChoice(
        "ConvS2S: gated convolutions, attention in each layer (Gehring et al. 2017)", convolutional, ADAM
    ),
    "transformer": ModelChoice("the preset's Transformer (Vaswani et al. 2017)", transformer),
    "universal": ModelChoice("one block for all steps (Dehghani et al. 2019)", universal),
}
"""In the order of their papers. Each has the width that gives it as many parameters as the Transformer, and is trained
as the preset says, except where noted: short runs with other rates and with Adam alone were worse."""


def make_translator(choice: ModelChoice, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
    """Return the model whose number of parameters comes closest to that of the preset's Transformer.

    Raises:
        ValueError: when no width comes within a tenth of it.
    """
    step = 2 * preset.block.attention.heads  # heads of even width, as rotary positions want them
    with torch.device("meta"):
        aim = parameters(transformer(preset.block.d_model, preset, vocabulary))
    return of_size(lambda width: choice.make(width, preset, vocabulary), aim, step)


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return what a model's config must know of a tokenizer."""
    return {"vocab_size": len(tokenizer)} | {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
