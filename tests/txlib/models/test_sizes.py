"""The papers' tables: parameters counted against the printed figures, and by hand."""

import pytest
import torch

from txlib.layers import BlockConfig
from txlib.models import sizes
from txlib.models.families import FAMILIES
from txlib.models.sizes import (
    BERT,
    BIGBIRD,
    GPT2,
    GPT3,
    GPT3_PRINTED,
    GPT3_TOKENS,
    LIU,
    LLAMA,
    LONGFORMER,
    MIXTRAL,
    PERCEIVER,
    RESNET,
    VASWANI,
    build,
    count_parameters,
    forward_flops,
    from_size,
    training_flops,
)

EXACT = {
    "GPT2": {"small": 124_439_808, "medium": 354_823_168, "large": 774_030_080, "xl": 1_557_611_200},
    "BERT": {"base": 109_482_240, "large": 335_141_888},
    "LLAMA": {"7b": 6_738_415_616, "13b": 13_015_864_320},
    "MIXTRAL": {"8x7b": 46_702_792_704},
    "VASWANI": {"base": 63_082_496, "big": 214_245_376},
    "PERCEIVER": {"imagenet": 44_912_254, "language": 201_108_230},
}


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in EXACT for name in EXACT[table]])
def test_released_models_have_exactly_as_many(table, name):
    assert EXACT[table].keys() == getattr(sizes, table).keys()
    assert count_parameters(getattr(sizes, table)[name]) == EXACT[table][name]


RELEASED = {  # model_type → repository, parameters on its page; vocabulary, width, d_ff, layers, heads, kv_heads
    "mistral": ("mistralai/Mistral-7B-v0.1", 7_241_732_096, (32000, 4096, 14336, 32, 32, 8), {}),
    "qwen2": ("Qwen/Qwen2.5-0.5B", 494_032_768, (151936, 896, 4864, 24, 14, 2), {"tie_word_embeddings": True}),
    "qwen3": (
        "Qwen/Qwen3-0.6B",
        596_049_920,
        (151936, 1024, 3072, 28, 16, 8),
        {"head_dim": 128, "tie_word_embeddings": True},
    ),
    "qwen3_moe": (
        "Qwen/Qwen3-30B-A3B",
        30_532_122_624,
        (151936, 2048, 6144, 48, 32, 4),
        {"head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
    ),
    "gemma2": ("google/gemma-2-2b", 2_614_341_888, (256000, 2304, 9216, 26, 8, 4), {"head_dim": 256}),
    "gemma3_text": (
        "google/gemma-3-1b-pt",
        999_885_952,
        (262144, 1152, 6912, 26, 4, 1),
        {"head_dim": 256, "sliding_window": 512},
    ),
    "olmo2": ("allenai/OLMo-2-0425-1B", 1_484_916_736, (100352, 2048, 8192, 16, 16, 16), {}),
    "olmo3": ("allenai/Olmo-3-1025-7B", 7_298_011_136, (100278, 4096, 11008, 32, 32, 32), {}),
    "smollm3": ("HuggingFaceTB/SmolLM3-3B", 3_075_098_624, (128256, 2048, 11008, 36, 16, 4), {}),
    "phi3": ("microsoft/Phi-3-mini-4k-instruct", 3_821_079_552, (32064, 3072, 8192, 32, 32, 32), {}),
    "seed_oss": (
        "ByteDance-Seed/Seed-OSS-36B-Instruct",
        36_151_104_512,
        (155136, 5120, 27648, 64, 80, 8),
        {"head_dim": 128},
    ),
    "granite": (
        "ibm-granite/granite-3.0-2b-base",
        2_533_531_648,
        (49155, 2048, 8192, 40, 32, 8),
        {"tie_word_embeddings": True},
    ),
    "gpt_neox": ("EleutherAI/pythia-70m", 70_426_624, (50304, 512, 2048, 6, 8, 8), {}),
    "gpt_oss": (
        "openai/gpt-oss-20b",
        20_914_757_184,
        (201088, 2880, 2880, 24, 64, 8),
        {"head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4},
    ),
}


@pytest.mark.parametrize("model_type", RELEASED)
def test_families_of_today_have_as_many(model_type):
    """The config.json of a released model, read with one layer and with two: all layers have the same size."""
    _, count, sizes, others = RELEASED[model_type]
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    names += ("num_attention_heads", "num_key_value_heads")
    settings = {**dict(zip(names, sizes, strict=True)), **others, "max_position_embeddings": 4096}
    one, two = (
        count_parameters(FAMILIES[model_type].read({**settings, "num_hidden_layers": layers})) for layers in (1, 2)
    )
    assert one + (settings["num_hidden_layers"] - 1) * (two - one) == count


def test_mamba2_and_deepseek_v3_have_as_many():
    """state-spaces/mamba2-130m and -2.7b exactly; the 671 billion that the report on DeepSeek-V3 prints."""
    for width, heads, layers, count in (768, 24, 24, 128_989_632), (2560, 80, 64, 2_702_599_680):
        settings = {"vocab_size": 50288, "hidden_size": width, "num_heads": heads, "n_groups": 1}
        settings |= {"num_hidden_layers": layers, "tie_word_embeddings": True}
        assert count_parameters(FAMILIES["mamba2"].read(settings)) == count
    settings = {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048}
    settings |= {"num_attention_heads": 128, "n_routed_experts": 256}
    four, five = (
        count_parameters(FAMILIES["deepseek_v3"].read({**settings, "num_hidden_layers": layers})) for layers in (4, 5)
    )
    assert four + 57 * (five - four) == pytest.approx(671e9, rel=1e-4)


@pytest.mark.parametrize("name", GPT3)
def test_gpt3_has_what_its_paper_prints(name):
    count, row = count_parameters(GPT3[name]), GPT3_PRINTED[name]
    assert count == pytest.approx(row.parameters, rel=0.02)
    assert count == pytest.approx(row.appendix, rel=0.005)
    d = GPT3[name].block.d_model
    assert count == row.layers * (12 * d * d + 13 * d) + (50_257 + 2048) * d + 2 * d
    assert training_flops(row.appendix, GPT3_TOKENS) == pytest.approx(row.flops, rel=0.02)


def test_two_rows_of_gpt3_are_misprinted():
    wrong = {name for name, row in GPT3_PRINTED.items() if row.heads * row.head_dim != row.d_model}
    assert wrong == {"xl", "13b"}
    for name, row in GPT3_PRINTED.items():
        block = GPT3[name].block
        assert block.head_dim == row.head_dim
        assert (block.d_model == row.d_model) == (name != "13b") and (block.attention.heads == row.heads) == (
            name != "xl"
        )
    assert round(count_parameters(GPT3["13b"]) / 1e6) == 12_853
    with pytest.raises(ValueError, match="5140"):
        BlockConfig.of_sizes(d_model=5140, heads=40, d_ff=4 * 5140)


@pytest.mark.parametrize(("name", "millions"), [("base", 65), ("big", 213)])
def test_vaswani_has_about_what_its_paper_prints(name, millions):
    assert count_parameters(VASWANI[name]) == pytest.approx(millions * 1e6, rel=0.04)


def test_decoders_of_liu_by_hand():
    """Blocks of Vaswani's base; a decoder alone has less than half of the weights, embeddings left out (§4.2.2)."""
    d, d_ff, embedding = 512, 2048, 32_000 * 512
    network = 2 * d * d_ff + d_ff + d
    layer = 4 * (d * d + d) + network + 4 * d
    counts = {name: count_parameters(config) - embedding for name, config in LIU.items()}
    assert counts["t-d"] == 6 * layer < counts["t-ed"] / 2
    assert counts["t-dmca"] == 5 * layer + 2 * (2 * 8 * 3 * 64 * 64)  # in two layers two convolutions, of eight heads
    for experts in (128, 256):
        assert counts[f"t-dmca-moe-{experts}"] == counts["t-dmca"] + (experts - 1) * network + d * experts


@pytest.mark.parametrize(("name", "millions"), [("base", 149), ("large", 435)])
def test_longformer_has_what_is_printed(name, millions):
    """In transformers' list of pretrained models."""
    assert round(count_parameters(LONGFORMER[name]) / 1e6) == millions


def test_gpt3_training_in_the_papers_words():
    assert training_flops(174.6e9, 300e9) == pytest.approx(3.14e23, rel=0.002)
    assert training_flops(174.6e9, 300e9) / (1e15 * 24 * 3600) == pytest.approx(3640, rel=0.01)  # petaflop/s-days


def test_a_model_by_its_size():
    with torch.device("meta"):
        for name, count in ("gpt2-small", 124_439_808), ("bert-base", 109_482_240), ("vaswani-big", 214_245_376):
            assert sum(parameter.numel() for parameter in from_size(name).parameters()) == count
    with pytest.raises(ValueError, match="size 'gpt2' is unknown; choose one of vaswani-base.*gpt2-small, gpt2-medium"):
        from_size("gpt2")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GPT2["small"], "gpt2"),
        (BERT["base"], "bert"),
        (LLAMA["7b"], "llama"),
        (MIXTRAL["8x7b"], "mixtral"),
        (LONGFORMER["base"], "longformer"),
        (LONGFORMER["large"], "longformer"),
        (BIGBIRD["base"], "big_bird"),
        (PERCEIVER["language"], "perceiver"),
    ],
    ids=["gpt2", "bert", "llama", "mixtral", "longformer", "longformer-large", "big_bird", "perceiver"],
)
def test_transformers_counts_the_same(config, name):
    """The same sizes in transformers' own model."""
    transformers = pytest.importorskip("transformers")
    heads, width = config.block.attention.heads, config.block.d_model
    common = {
        "vocab_size": config.vocab_size,
        "hidden_size": width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": heads,
        "intermediate_size": config.block.ffn.d_ff,
    }
    theirs = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=config.vocab_size, n_positions=1024, n_embd=width, n_layer=config.layers, n_head=heads
            )
        ),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**common)),
        "longformer": lambda: transformers.LongformerModel(
            transformers.LongformerConfig(**common, max_position_embeddings=4098, type_vocab_size=1)
        ),
        "big_bird": lambda: transformers.BigBirdModel(transformers.BigBirdConfig()),  # the defaults are the base model
        "perceiver": lambda: transformers.PerceiverForMaskedLM(
            transformers.PerceiverConfig(qk_channels=8 * 32, v_channels=1280)  # as released; the rest are defaults
        ),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, tie_word_embeddings=False)),
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(
                **common,
                num_key_value_heads=config.block.attention.kv_heads,
                num_local_experts=8,
                tie_word_embeddings=False,
            )
        ),
    }
    with torch.device("meta"):
        model = theirs[name]()
    assert sum(parameter.numel() for parameter in model.parameters()) == count_parameters(config)


@pytest.mark.parametrize("table", [VASWANI, GPT2, GPT3, BERT, LONGFORMER, BIGBIRD, LLAMA, MIXTRAL, LIU, PERCEIVER])
def test_configs_are_plain(table):
    for config in table.values():
        assert type(config).from_dict(config.to_dict()) == config
        assert isinstance(config, sizes.Config)


RAMACHANDRAN = {  # 10⁶ parameters and 10⁹ operations of Ramachandran et al. 2019, Table 1
    "26": (13.7, 4.7),
    "38": (19.6, 6.5),
    "50": (25.6, 8.2),
    "26-attention": (10.3, 4.5),
    "38-attention": (14.1, 5.7),
    "50-attention": (18.0, 7.0),
}


@pytest.mark.parametrize("name", RESNET)
def test_local_attention_in_resnets_is_as_small_as_its_paper_prints(name):
    """Their operations are found to the last digit if q meets all k² relative positions; ours meets k rows and k
    columns. ResNet-38 is counted as 6.4 of convolutions, printed as 6.5."""
    config, (millions, billions) = RESNET[name], RAMACHANDRAN[name]
    assert count_parameters(config) / 1e6 == pytest.approx(millions, rel=0.007)
    flops = forward_flops(build(config), torch.empty(1, 3, 224, 224, device="meta"))
    if config.spatial == "attention":
        sides = [224 // 4 // 2**stage for stage in range(4)]
        for width, side, blocks in zip(config.widths, sides, config.blocks, strict=True):
            pixels = blocks * side**2 + (3 * side**2 if width > 64 else 0)  # the first of a stage is pooled afterwards
            flops += 2 * (7**2 - 7) * width * pixels
    assert flops / 1e9 == pytest.approx(billions, abs=0.07 if name == "38" else 0.05)


def test_resnet_50_and_its_savings():
    """The paper's count is of projections that see all channels; a slice for each head (§2.2) would leave 14.7 M."""
    plain, attention = count_parameters(RESNET["50"]), count_parameters(RESNET["50-attention"])
    assert plain == 25_557_032  # as torchvision's
    assert 1 - attention / plain == pytest.approx(0.29, abs=0.005)  # "29% fewer parameters", in the abstract
    matrices = sum(blocks * width**2 for blocks, width in zip(RESNET["50"].blocks, RESNET["50"].widths, strict=True))
    assert (attention - 3 * matrices * 7 / 8) / 1e6 == pytest.approx(14.7, abs=0.05)
