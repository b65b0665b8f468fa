"""Every paper's table of sizes, as configs. A test counts their parameters on the meta device."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from txlib.attention import BigBirdConfig, BlockSparseConfig, MemoryCompressedConfig, block_local, sliding_window
from txlib.hints import did_you_mean
from txlib.layers import BlockConfig, LongformerConfig, RotaryConfig
from txlib.models.convnet import ConvNet, ConvNetConfig, Spatial
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.gpt import GPT, GPTConfig
from txlib.models.perceiver import Perceiver, PerceiverConfig, PerceiverForMaskedLM, PerceiverLMConfig
from txlib.models.transformer import Transformer, TransformerConfig
from txlib.models.vit import ViT, ViTConfig

Config = TransformerConfig | GPTConfig | EncoderConfig | ViTConfig | PerceiverConfig | PerceiverLMConfig | ConvNetConfig
Sized = Transformer | GPT | Encoder | ViT | Perceiver | PerceiverForMaskedLM | ConvNet

MAX_WIDTH = 4096  # the search for a model's width ends here
TOLERANCE = 0.1  # of a model's number of parameters, relative

_BASE = BlockConfig.of_sizes(
    d_model=512, heads=8, d_ff=2048, dropout=0.1, norm_first=False, activation="relu", position="sinusoidal"
)

VASWANI: dict[str, TransformerConfig] = {
    "base": TransformerConfig(vocab_size=37_000, block=_BASE),
    "big": TransformerConfig(vocab_size=37_000, block=_BASE.replace(d_model=1024, heads=16, d_ff=4096, dropout=0.3)),
}
"""The two models of Vaswani et al. 2017, Table 3, with the shared vocabulary of §5.1: 63.1 M and 214.2 M parameters."""


def _gpt(layers: int, d_model: int, heads: int, context: int, dropout: float) -> GPTConfig:
    block = BlockConfig.of_sizes(
        d_model=d_model,
        heads=heads,
        d_ff=4 * d_model,
        activation="gelu_tanh",
        position="learned",
        dropout=dropout,
        attention_dropout=dropout,
    )
    end = 50_256  # <|endoftext|>
    return GPTConfig(vocab_size=50_257, block=block, layers=layers, max_length=context, bos_id=end, eos_id=end)


GPT2: dict[str, GPTConfig] = {
    "small": _gpt(12, 768, 12, 1024, 0.1),
    "medium": _gpt(24, 1024, 16, 1024, 0.1),
    "large": _gpt(36, 1280, 20, 1024, 0.1),
    "xl": _gpt(48, 1600, 25, 1024, 0.1),
}
"""Radford et al. 2019, Table 2, as released: 124.4 M, 354.8 M, 774.0 M and 1,557.6 M parameters. The
paper prints 117 M, 345 M, 762 M and 1542 M, a counting error."""


@dataclass(frozen=True)
class Printed:
    """A row of a paper's table, as printed.

    parameters: in Table 2.1; appendix: parameters in Table D.1; flops: of the whole training, in Table D.1.
    """

    layers: int
    d_model: int
    heads: int
    head_dim: int
    parameters: float
    appendix: float
    flops: float


GPT3_PRINTED: dict[str, Printed] = {
    "small": Printed(12, 768, 12, 64, 125e6, 125e6, 2.25e20),
    "medium": Printed(24, 1024, 16, 64, 350e6, 356e6, 6.41e20),
    "large": Printed(24, 1536, 16, 96, 760e6, 760e6, 1.37e21),
    "xl": Printed(24, 2048, 24, 128, 1.3e9, 1320e6, 2.38e21),
    "2.7b": Printed(32, 2560, 32, 80, 2.7e9, 2650e6, 4.77e21),
    "6.7b": Printed(32, 4096, 32, 128, 6.7e9, 6660e6, 1.20e22),
    "13b": Printed(40, 5140, 40, 128, 13.0e9, 12_850e6, 2.31e22),
    "175b": Printed(96, 12_288, 96, 128, 175.0e9, 174_600e6, 3.14e23),
}
"""Brown et al. 2020, Tables 2.1 and D.1."""

GPT3_TOKENS = 300e9  # training tokens of each (Table D.1)

_CORRECTED = {  # name -> (d_model, heads)
    "xl": (2048, 16),  # 24 heads of 128 would make 3072, not the printed 2048: 16 do. The count is the same.
    "13b": (5120, 40),  # 40 heads of 128 make 5120, not 5140; and 5120 gives Table D.1's 12,850 million.
}

GPT3: dict[str, GPTConfig] = {
    name: _gpt(row.layers, *_CORRECTED.get(name, (row.d_model, row.heads)), 2048, 0.0)
    for name, row in GPT3_PRINTED.items()
}
"""Brown et al. 2020, Table 2.1, with two rows corrected. Every other layer of the paper's models is sparse (§2.1),
which changes no parameter; here all are dense."""

_BERT = BlockConfig.of_sizes(
    d_model=768,
    heads=12,
    d_ff=3072,
    norm_first=False,
    norm_eps=1e-12,
    activation="gelu",
    dropout=0.1,
    attention_dropout=0.1,
    position="learned",
)

BERT: dict[str, EncoderConfig] = {
    "base": EncoderConfig(vocab_size=30_522, block=_BERT, layers=12),
    "large": EncoderConfig(vocab_size=30_522, block=_BERT.replace(d_model=1024, heads=16, d_ff=4096), layers=24),
}
"""Devlin et al. 2019, §3, as released (uncased): 109.5 M and 335.1 M parameters, pooler included, heads not. The paper
prints 110 M and 340 M."""

_LONGFORMER = _BERT.replace(
    norm_eps=1e-5, mask=sliding_window(256), mixer=LongformerConfig(), mechanism=BlockSparseConfig()
)


def _longformer(block: BlockConfig, layers: int) -> EncoderConfig:
    return EncoderConfig(
        50_265, block, layers, max_length=4096, segments=1, pad_id=1, sep_id=2, positions_after_pad=True
    )


LONGFORMER: dict[str, EncoderConfig] = {
    "base": _longformer(_LONGFORMER, 12),
    "large": _longformer(_LONGFORMER.replace(d_model=1024, heads=16, d_ff=4096), 24),
}
"""Beltagy et al. 2020, §5, as released (longformer-base-4096 and -large-4096): 148.7 M and 434.6 M parameters, pooler
included, heads not. transformers' list of pretrained models prints 149 M and 435 M."""

BIGBIRD: dict[str, EncoderConfig] = {
    "base": EncoderConfig(
        50_358, _BERT.replace(activation="gelu_tanh", mechanism=BigBirdConfig()), 12, max_length=4096, sep_id=66
    ),
}
"""Zaheer et al. 2020, appendix E (ITC), as released (bigbird-roberta-base): 127.5 M parameters, pooler included, heads
not; counted as transformers counts them."""

_LLAMA = BlockConfig.of_sizes(
    d_model=4096,
    heads=32,
    d_ff=11_008,
    norm="rms",
    norm_eps=1e-6,
    activation="swiglu",
    bias=False,
    position="rotary_half",
)


def _llama(block: BlockConfig, layers: int, context: int) -> GPTConfig:
    return GPTConfig(
        vocab_size=32_000, block=block, layers=layers, max_length=context, tie_embeddings=False, bos_id=1, eos_id=2
    )


LLAMA: dict[str, GPTConfig] = {
    "7b": _llama(_LLAMA, 32, 2048),
    "13b": _llama(_LLAMA.replace(d_model=5120, heads=40, d_ff=13_824), 40, 2048),
}
"""Touvron et al. 2023, Table 2: 6,738 M and 13,016 M parameters."""

MIXTRAL: dict[str, GPTConfig] = {
    "8x7b": _llama(
        _LLAMA.replace(
            d_ff=14_336, norm_eps=1e-5, kv_heads=8, position=RotaryConfig(base=1e6, layout="half"), experts=8
        ),
        32,
        32_768,
    )
}
"""Jiang et al. 2024, Table 1: 46.7 billion parameters, of which a token uses 12.9."""


def local_and_compressed(block: BlockConfig, *, size: int = 256, factor: int = 3) -> BlockConfig:
    """Return a decoder's block whose layers alternate between local attention in blocks and memory-compressed attention
    (Liu et al. 2018, §4.2.4).

    Local layers, which come first and last in the paper, see near positions; compressed ones see the whole past, with
    `factor` keys merged into one.

    Args:
        size: of the blocks of local attention.
        factor: width and stride of the convolution.
    """
    local = {"mask": block_local(size), "mechanism": BlockSparseConfig()}
    return block.replace(layer_pattern=(local, {"mechanism": MemoryCompressedConfig(factor)}))


_DMCA = local_and_compressed(_BASE)


def _experts(number: int) -> BlockConfig:
    local, compressed = _DMCA.layer_pattern
    return _DMCA.replace(layer_pattern=(local, compressed, {**local, "experts": number}, compressed, local))


LIU: dict[str, TransformerConfig | GPTConfig] = {
    "t-ed": replace(VASWANI["base"], vocab_size=32_000),
    "t-d": GPTConfig(vocab_size=32_000, block=_BASE, layers=6, max_length=4_500),
    "t-dmca": GPTConfig(vocab_size=32_000, block=_DMCA, layers=5, max_length=11_500),
    "t-dmca-moe-128": GPTConfig(vocab_size=32_000, block=_experts(128), layers=5, max_length=11_500),
    "t-dmca-moe-256": GPTConfig(vocab_size=32_000, block=_experts(256), layers=5, max_length=8_000),
}
"""The Transformers of Liu et al. 2018, Table 4: T-ED is Vaswani's base; T-D its decoder alone, which reads source,
separator and target as one text; T-DMCA has five layers, alternately local and compressed, and in some runs one layer
of experts, here the middle one. Lengths are the table's longest inputs plus 500 generated tokens."""

_LATENTS = BlockConfig.of_sizes(
    d_model=1280, heads=8, d_ff=1280, head_dim=32, value_dim=160, activation="gelu", attention_dropout=0.1
)

PERCEIVER: dict[str, PerceiverConfig | PerceiverLMConfig] = {
    "imagenet": PerceiverConfig(
        block=BlockConfig.of_sizes(d_model=1024, heads=8, d_ff=1024, activation="gelu"),
        d_input=3 + 2 * (2 * 64 + 1),  # colors, and Fourier features of row and column in 64 bands
        latents=512,
        labels=1000,
    ),
    "language": PerceiverLMConfig(
        block=_LATENTS,
        cross=_LATENTS,
        decoder=_LATENTS.replace(d_model=768, d_ff=768, value_dim=96),
        d_input=768,
        latents=256,
        layers=26,
    ),
}
"""Jaegle et al. 2021, §4.1: 44.9 M parameters, and the paper prints "about 45 million"; Jaegle et al. 2022, §4.1, as
released (language-perceiver): 201.1 M."""


def _vit(d_model: int, layers: int, heads: int, patch: int) -> ViTConfig:
    block = BlockConfig.of_sizes(
        d_model, heads, 4 * d_model, norm_eps=1e-6, activation="gelu", dropout=0.1, position="learned"
    )
    return ViTConfig(image_size=224, patch_size=patch, block=block, layers=layers)


VIT: dict[str, ViTConfig] = {
    f"{name}/{patch}": _vit(*shape, patch)
    for name, shape, patches in (
        ("B", (768, 12, 12), (16, 32)),
        ("L", (1024, 24, 16), (16, 32)),
        ("H", (1280, 32, 16), (14,)),
    )
    for patch in patches
}
"""Dosovitskiy et al. 2021, Table 1: Base 86 M, Large 307 M, Huge 632 M parameters, depending slightly on the size of
the patches: from 86.4 M for B/16 to 632.4 M for H/14, pooler included, head not."""

_RESNET_BLOCKS = {"26": (1, 2, 4, 1), "38": (2, 3, 5, 2), "50": (3, 4, 6, 3)}


def _resnet(blocks: tuple[int, ...], attention: bool) -> ConvNetConfig:
    spatial: Spatial = "attention" if attention else "convolution"
    widths = (64, 128, 256, 512)
    return ConvNetConfig(1000, 3, widths, blocks, expansion=4, spatial=spatial, neighborhood=7, heads=8, stem="large")


RESNET: dict[str, ConvNetConfig] = {
    name + end: _resnet(blocks, attention=bool(end))
    for end in ("", "-attention")
    for name, blocks in _RESNET_BLOCKS.items()
}
"""The networks of Ramachandran et al. 2019, Table 1: ResNet-26, -38 and -50 (He et al. 2016, Table 1), and the same
with local attention instead of all 3 × 3 convolutions: 13.7, 19.6 and 25.6 M parameters, and 10.3, 14.2 (printed as
14.1) and 18.0 M."""

TABLES: Mapping[str, Mapping[str, Config]] = {
    "vaswani": VASWANI,
    "gpt2": GPT2,
    "gpt3": GPT3,
    "bert": BERT,
    "longformer": LONGFORMER,
    "bigbird": BIGBIRD,
    "llama": LLAMA,
    "mixtral": MIXTRAL,
    "liu": LIU,
    "vit": VIT,
    "perceiver": PERCEIVER,
    "resnet": RESNET,
}
KINDS: dict[type, Any] = {
    GPTConfig: GPT,
    EncoderConfig: Encoder,
    TransformerConfig: Transformer,
    ViTConfig: ViT,
    PerceiverConfig: Perceiver,
    PerceiverLMConfig: PerceiverForMaskedLM,
    ConvNetConfig: ConvNet,
}


def build(config: Config) -> Sized:
    """Return the model of a config, on the meta device: all shapes, no memory."""
    with torch.device("meta"):
        return KINDS[type(config)](config)


def from_size(name: str) -> Sized:
    """Return a new model of a paper's size, with random weights: "gpt2-small", "bert-base", "vit-B/16", "resnet-50" …

    Raises:
        ValueError: for an unknown name.
    """
    family, _, size = name.partition("-")
    if size not in TABLES.get(family, ()):
        names = [f"{family}-{size}" for family, table in TABLES.items() for size in table]
        raise ValueError(f"size {name!r} is unknown; choose one of {', '.join(names)}{did_you_mean(name, names)}")
    config = TABLES[family][size]
    return KINDS[type(config)](config)


def count_parameters(config: Config) -> int:
    """Return the number of parameters of a model of this config. A tied matrix counts once."""
    return parameters(build(config))


def parameters(model: nn.Module) -> int:
    """Return a model's number of parameters. A tied matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def of_size(make: Callable[[int], nn.Module], aim: int, step: int) -> Any:
    """Return the model whose number of parameters is nearest to `aim`; its width is a multiple of `step`.

    Raises:
        ValueError: when the nearest differs from `aim` by more than a tenth.
    """
    measure = cache(lambda width: parameters(make(width)))
    with torch.device("meta"):
        width = nearest_width(range(step, MAX_WIDTH + 1, step), aim, measure)
        size = measure(width)
    if abs(size - aim) > TOLERANCE * aim:
        raise ValueError(f"no width gives {aim:,} parameters; the nearest, {width}, gives {size:,}")
    return make(width)


def nearest_width(widths: Sequence[int], aim: int, measure: Callable[[int], int]) -> int:
    """Return the width whose measure, which grows with it, is nearest to `aim`."""
    index = bisect_left(widths, aim, key=measure)
    return min(widths[max(0, index - 1) : index + 1], key=lambda width: abs(measure(width) - aim))


def forward_flops(model: nn.Module, *inputs: Tensor) -> int:
    """Return the operations of a forward pass, a multiplication and an addition counted as two: matrix products,
    convolutions and attention, but not element-wise operations such as norms. A model on the meta device is counted
    without computing anything.
    """
    from torch.utils.flop_counter import FlopCounterMode  # it loads Triton

    training = model.training
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(*inputs)
    model.train(training)
    return counter.get_total_flops()


def training_flops(parameters: float, tokens: float) -> float:
    """Return the operations of training, 6 N D: each parameter takes a multiplication and an addition for each token,
    forward, and twice that backward (Kaplan et al. 2020, §2.1). Attention's scores, which have no parameters, do not
    count.
    """
    return 6.0 * parameters * tokens
