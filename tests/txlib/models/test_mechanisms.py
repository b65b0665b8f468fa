"""Each mechanism in each model, by its config alone: run, copied, saved, without tokens; each on the meta device."""

import copy

import pytest
import torch
from torch.testing import assert_close

from txlib import load_pretrained, save_pretrained
from txlib.attention import (
    AdditiveConfig,
    BigBirdConfig,
    BilinearConfig,
    BlockSparseConfig,
    DenseConfig,
    DotConfig,
    FlashConfig,
    GatedLinearConfig,
    LinearConfig,
    LinformerConfig,
    MechanismConfig,
    MemoryCompressedConfig,
    NystromConfig,
    PerformerConfig,
    bigbird,
    random_blocks,
    sliding_window,
)
from txlib.layers import BlockConfig
from txlib.models import (
    GPT,
    BertForTokenClassification,
    Encoder,
    EncoderConfig,
    GPTConfig,
    MusicConfig,
    MusicTransformer,
    Transformer,
    TransformerConfig,
    UniversalGPT,
    UniversalGPTConfig,
    ViTConfig,
    ViTForImageClassification,
)

MECHANISMS = {
    "dense": DenseConfig(),
    "products": DenseConfig(fused=False),
    "block sparse": BlockSparseConfig(block_size=4),
    "flash": FlashConfig(tile=4),
    "linear": LinearConfig(chunk=4),
    "performer": PerformerConfig(features=8),
    "gated": GatedLinearConfig(),
    "linformer": LinformerConfig(4, "none"),
    "linformer, shared by layers": LinformerConfig(4, "layerwise"),
    "nystrom": NystromConfig(landmarks=3, residual=3),
    "compressed": MemoryCompressedConfig(),
    "bigbird": BigBirdConfig(block=1, random=1),
    "additive": AdditiveConfig(),
    "dot": DotConfig(),
    "bilinear": BilinearConfig(),
}
NEW = {  # besides these: each has a place in a model, or refuses it by name
    config.name: config()
    for config in MechanismConfig.__subclasses__()
    if config.__module__.startswith("txlib.attention.") and config not in map(type, MECHANISMS.values())
}
MECHANISMS |= NEW
TEXT, TOKENS, LONGEST = 30, 10, 16
NOT_CAUSAL = ("linformer", "linformer, shared by layers", "nystrom", "bigbird")
REFUSED = {  # by name, when the model is built
    "gpt": NOT_CAUSAL,
    "music": NOT_CAUSAL,
    "universal": NOT_CAUSAL,
    "encoder": (),
    "transformer": NOT_CAUSAL,
    "memory": ("nystrom", "gated", "bigbird"),
    "pictures": (),
}


def build(kind, mechanism):
    """A small model, which is only told the config."""
    block = BlockConfig.of_sizes(16, 4, 24, position="learned", mechanism=mechanism)
    match kind:
        case "gpt":
            return GPT(GPTConfig(TEXT, block, layers=1, max_length=LONGEST))
        case "music":
            return MusicTransformer(MusicConfig(TEXT, block, layers=1, max_length=LONGEST))
        case "universal":
            return UniversalGPT(UniversalGPTConfig(TEXT, block, max_length=LONGEST))
        case "encoder":
            return BertForTokenClassification(EncoderConfig(TEXT, block, layers=2, max_length=LONGEST))
        case "transformer" | "memory":
            if kind == "memory":
                block = BlockConfig.of_sizes(16, 4, 24, position="learned", cross_mechanism=mechanism)
            return Transformer(
                TransformerConfig(TEXT, block=block, encoder_layers=1, decoder_layers=1, max_length=LONGEST)
            )
        case _:
            config = ViTConfig(8, patch_size=2, block=block, layers=1, channels=1)
            return ViTForImageClassification(config, labels=3)


def inputs(kind, batch=2, tokens=TOKENS):
    """What such a model reads."""
    if kind == "pictures":
        return (torch.randn(batch, 1, 8, 8),)
    ids = torch.randint(TEXT, (batch, tokens))
    return (ids, None, ids[:, 1:]) if kind in ("transformer", "memory") else (ids,)


def shaken(model):
    """A model whose numbers are nowhere those that it started with."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


LIKE_GPT = ("music", "universal")  # which hand a mechanism to the same block
PAIRS = [
    (kind, name)
    for kind in REFUSED
    for name in (("dense", "linear", "block sparse") if kind in LIKE_GPT else MECHANISMS)
    if name not in REFUSED[kind]
]


@pytest.mark.parametrize("kind, name", PAIRS)
@torch.no_grad()
def test_each_mechanism_in_each_model(kind, name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it for good when the meta device needs it
    try:
        model, given = shaken(build(kind, MECHANISMS[name])), inputs(kind)
    except ValueError as error:
        assert name in NEW and str(error).startswith(type(MECHANISMS[name]).__name__.removesuffix("Config"))
        return
    logits = model(*given).logits
    assert logits.isfinite().all() and logits.std() > 0

    save_pretrained(model, tmp_path)
    assert_close(load_pretrained(tmp_path).eval()(*given).logits, logits, rtol=0, atol=1e-5)

    twin = copy.deepcopy(model)
    for weight in model.parameters():
        weight.zero_()
    assert_close(twin(*given).logits, logits)  # nothing of it belongs to the model

    if kind == "encoder" or name == "dense":
        with torch.device("meta"):
            abstract = build(kind, MECHANISMS[name])
        shape = abstract(*[each if each is None else each.to("meta") for each in given]).logits.shape
        assert shape == logits.shape

    assert len(twin(*inputs(kind, batch=0)).logits) == 0
    if kind != "pictures":
        for tokens in (0, 1):
            if kind in ("transformer", "memory"):
                tokens += 1  # the first is the target's
            assert twin(*inputs(kind, tokens=tokens)).logits.isfinite().all()


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in REFUSED for name in REFUSED[kind]])
def test_what_a_model_cannot_have_is_refused_by_name(kind, name):
    said = {"nystrom": "Nystrom", "bigbird": "BigBirdConfig", "gated": "GatedLinearAttention"}.get(name, "Linformer")
    with pytest.raises(ValueError, match=f"^{said} .*use"):
        build(kind, MECHANISMS[name])


@pytest.mark.parametrize("name", ["compressed", "gated", "linear", "block sparse", "flash", "dense"])
@torch.no_grad()
def test_values_may_have_a_width_of_their_own(name):
    block = BlockConfig.of_sizes(16, 4, 24, position="learned", mechanism=MECHANISMS[name], value_dim=6)
    model = shaken(GPT(GPTConfig(TEXT, block, layers=1, max_length=LONGEST)))
    ids = torch.randint(TEXT, (2, TOKENS))
    later = ids.clone()
    later[:, -1] += 1
    logits = model(ids).logits
    assert_close(model(later % TEXT).logits[:, :-1], logits[:, :-1])
    assert logits.isfinite().all()


@pytest.mark.parametrize("pattern", [bigbird(2, 1, 1, 1), random_blocks(2, 1) | sliding_window(1)])
@torch.no_grad()
def test_random_blocks_stay_where_they_are_while_decoding(pattern):
    ids = torch.randint(TEXT, (2, TOKENS))
    block = BlockConfig.of_sizes(16, 4, 24, position="learned", mechanism=BlockSparseConfig(block_size=2))
    growing, fixed = (
        shaken(GPT(GPTConfig(TEXT, block.replace(mask=mask), layers=1, max_length=LONGEST)))
        for mask in (pattern, pattern.sized(LONGEST))
    )
    with pytest.raises(ValueError, match=r"depends on how many keys there are.*\.sized\(max_length\)"):
        growing(ids, cache=growing.new_cache())
    cache = fixed.new_cache()
    steps = [fixed(ids[:, place : place + 1], cache=cache).logits for place in range(TOKENS)]
    assert_close(torch.cat(steps, dim=1), fixed(ids).logits)


def test_pictures_do_not_turn_keys_that_are_mixed():
    block = BlockConfig.of_sizes(16, 4, 24, position="rotary", mechanism=MemoryCompressedConfig())
    with pytest.raises(ValueError, match="memory compression mixes them"):
        ViTForImageClassification(ViTConfig(8, patch_size=2, block=block, layers=1, channels=1), labels=3)


def test_an_empty_text_has_no_first_token():
    config = EncoderConfig(TEXT, BlockConfig.of_sizes(16, 4, 24, position="learned"), layers=1, max_length=LONGEST)
    nothing = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(ValueError, match=r"pooler reads the first token, and input_ids of shape \(2, 0\) hold none"):
        Encoder(config)(nothing)
    assert Encoder(config, pooler=False)(nothing).last_hidden_state.shape == (2, 0, 16)
