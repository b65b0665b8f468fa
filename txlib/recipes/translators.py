"""The networks that the translation recipe trains: the Transformer, and those before and beside it, of one size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
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
from txlib.recipes.recipe import Preset, runs_beside
from txlib.text import Tokenizer

Vocabulary = Mapping[str, Any]  # vocab_size, pad_id, bos_id, eos_id
Make = Callable[[int, Preset, Vocabulary], nn.Module]  # a model of that width


@dataclass(frozen=True)
class Kind:
    """A network that translates.

    Args:
        about: for help and tables.
        make: the model of a width; its dropout is the preset's, and its depth, in its own way.
        training: what is trained otherwise than the preset says.
    """

    about: str
    make: Make
    training: Mapping[str, Any] = field(default_factory=dict)


def recurrent(*, stacked: bool = False, **options: Any) -> Make:
    """A recurrent encoder–decoder with these options, of one layer each or of twice the preset's."""

    def make(width: int, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
        layers, share = 2 * preset.layers if stacked else 1, preset.block.dropout
        depth: dict[str, Any] = {"encoder_layers": layers, "decoder_layers": layers}
        return Seq2Seq(Seq2SeqConfig(**vocabulary, **depth, d_model=width, dropout=share, **options))

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
    """The preset's block in another width, its heads and feed-forward layer in proportion."""
    block = preset.block
    return block if width == block.d_model else replace(block, d_model=width, d_ff=width * block.d_ff // block.d_model)


ADAM = {"muon_lr": None, "lr": 6e-3}  # learns faster here than Muon does; elsewhere Muon is ahead

TRANSLATORS: dict[str, Kind] = {
    "rnn-plain": Kind("a GRU that hands over one vector (Cho et al. 2014)", recurrent(attention=None)),
    "rnn": Kind("a GRU with additive attention (Bahdanau et al. 2015)", recurrent()),
    "lstm": Kind(
        "stacked LSTMs with residuals and attention, as in GNMT (Wu et al. 2016)", recurrent(cell="lstm", stacked=True)
    ),
    "bytenet": Kind("dilated convolutions, no attention (Kalchbrenner et al. 2016)", bytenet),
    "conv": Kind("ConvS2S: gated convolutions, attention in each layer (Gehring et al. 2017)", convolutional, ADAM),
    "transformer": Kind("the preset's Transformer (Vaswani et al. 2017)", transformer),
    "universal": Kind("one block for all steps (Dehghani et al. 2019)", universal),
}
"""In the order of their papers. Each is as wide as gives it as many parameters as the Transformer, and trained as the
preset says, but for what is noted: short runs with other rates and with Adam alone were worse."""


def make_translator(kind: Kind, preset: Preset, vocabulary: Vocabulary) -> nn.Module:
    """The model whose number of parameters comes closest to that of the preset's Transformer.

    Raises:
        ValueError: when no width comes within a tenth of it.
    """
    step = 2 * preset.block.heads  # heads of even width, as rotary positions want them
    with torch.device("meta"):
        aim = parameters(transformer(preset.block.d_model, preset, vocabulary))
    return of_size(lambda width: kind.make(width, preset, vocabulary), aim, step)


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """What a model's config must know of a tokenizer."""
    return {"vocab_size": len(tokenizer)} | {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}


def comparison(out: Path | str, data: str, pair: str) -> str:
    """A table of all finished runs beside `out` on these sentences, the best BLEU first."""
    line = "{:<12} {:<7} {:>10} {:>7} {:>8} {:>6} {:>6} {:>7}".format
    lines = [line("model", "preset", "parameters", "steps", "CPU s", "loss", "BLEU", "greedy")]
    for each in runs_beside(out, "bleu", data=data, pair=pair):
        model, loss = each.get("model", "transformer"), f"{each['validation_loss']:.3f}"
        bleu = f"{each['bleu']:.1f}", f"{each['bleu_greedy']:.1f}"
        size, seconds = f"{each['parameters']:,}", f"{each['cpu_seconds']:,.0f}"
        lines.append(line(model, each["preset"], size, f"{each['steps']:,}", seconds, loss, *bleu))
    return "\n".join(lines)
