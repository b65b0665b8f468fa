"""The contract of `txlib.attention.mechanism`: every mechanism keeps it, and what breaks it is caught."""

import inspect
import math
from dataclasses import dataclass, replace

import pytest
import torch
from oracles import shake
from torch import nn
from torch.testing import assert_close

import txlib.attention
from txlib.attention import (
    AdditiveAttention,
    AdditiveConfig,
    BigBirdAttention,
    BigBirdConfig,
    BilinearAttention,
    BlockSparseAttention,
    BlockSparseConfig,
    DenseAttention,
    DenseConfig,
    DotAttention,
    FlashAttention,
    FlashConfig,
    GatedLinearAttention,
    GatedLinearConfig,
    LayerContext,
    LinearAttention,
    LinearConfig,
    Linformer,
    LinformerConfig,
    Mask,
    MechanismConfig,
    MechanismError,
    MemoryCompressedAttention,
    MemoryCompressedConfig,
    NativeSparseAttention,
    NativeSparseConfig,
    Nystrom,
    NystromConfig,
    Performer,
    PerformerConfig,
    ShawAttention,
    StateCache,
    as_dense,
    attention,
    causal,
    check_mechanism,
    for_each_head,
    padding,
)
from txlib.attention.conformance_rules import Sizes, plain_block

PADDED_BLOCKS = {
    rule: "the last block, padded or not, is global, as in the authors' code"
    for rule in ("padding equals absence", "independent of the number of keys")
}
CONFIGS = {  # besides each config's defaults
    "dense, by products": (DenseConfig(fused=False), {}),
    "dense, fused": (DenseConfig(fused=True), {}),
    "block-sparse, blocks of 4": (BlockSparseConfig(block_size=4), {"length": 50}),
    "flash, tiles of 4": (FlashConfig(tile=4), {"length": 18}),
    "linear, relu": (LinearConfig("relu", chunk=4), {"length": 50}),
    "linear, softmax": (LinearConfig("softmax"), {}),
    "performer, few features": (PerformerConfig(features=8, chunk=4), {"length": 50}),
    "gated, chunks of 2": (GatedLinearConfig(chunk=2), {"length": 50}),
    "compressed by 2": (MemoryCompressedConfig(2), {}),
    "gated, fixed rates": (GatedLinearConfig(gated=False, chunk=4), {"length": 50}),
    "linformer, none shared": (LinformerConfig(4, "none"), {}),
    "linformer, one projection": (LinformerConfig(4, "key-value"), {}),
    "linformer, of all layers": (LinformerConfig(4, "layerwise"), {}),
    "nystrom, with a convolution": (NystromConfig(landmarks=3, residual=3), {}),
    "bigbird, sparse": (BigBirdConfig(block=4, random=1), {"length": 50, "exceptions": PADDED_BLOCKS}),
    "additive, narrow": (AdditiveConfig(width=3), {}),
}
CONFIGS |= {
    config.__name__: (config(), {})
    for config in MechanismConfig.__subclasses__()
    if config.__module__.startswith("txlib.attention.")
}
TOGETHER = {"grouped heads": "the heads that share a key head choose their blocks together"}
CONFIGS["NativeSparseConfig"] = NativeSparseConfig(), {"exceptions": TOGETHER}


def made_for_its_layer(config, block, max_length):
    causal_only = isinstance(config, NativeSparseConfig)
    return config.make(block, LayerContext(max_length=max_length, causal=causal_only))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_keeps_the_contract(name):
    config, options = CONFIGS[name]
    report = check_mechanism(config, value_dim=6, **options)
    assert not set(report.skipped) - SKIPPED.get(report.name, set()), str(report)


SKIPPED = {  # what no call can try, as the mechanism refuses it
    "Linformer": {"no leak from the future", "cached equals full", "grouped heads"},
    "Nystrom": {"no leak from the future", "cached equals full"},
    "BigBirdAttention": {"no leak from the future", "cached equals full"},
    "FlashAttention": {"a tensor is a mask"},
    "MemoryCompressedAttention": {"grouped heads"},
    "NativeSparseAttention": {"no mask, no limits", "a tensor is a mask"},
}
MODULES = {
    "DenseAttention": DenseAttention(0.5),
    "BlockSparseAttention": BlockSparseAttention(0.5, block_size=16),
    "FlashAttention": FlashAttention(tile=16),
    "ShawAttention": ShawAttention(8, 3, 0.5),
    "AdditiveAttention": AdditiveAttention(8),
    "BilinearAttention": BilinearAttention(8),
    "DotAttention": DotAttention(),
    "LinearAttention": LinearAttention(),
    "Performer": Performer(8),
    "GatedLinearAttention": GatedLinearAttention(4),
    "Linformer": Linformer(187, 9),
    "Nystrom": Nystrom(6),
    "MemoryCompressedAttention": MemoryCompressedAttention(8, 2),
    "BigBirdAttention": BigBirdAttention(4),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_keeps_the_contract(name):
    before = {key: value.clone() for key, value in MODULES[name].state_dict().items()}
    report = check_mechanism(MODULES[name])
    assert report.name == name and not set(report.skipped) - SKIPPED.get(name, set()), str(report)
    assert_close(MODULES[name].state_dict(), before, rtol=0, atol=0)
    assert MODULES[name].training


def test_no_mechanism_is_forgotten():
    found = {
        name
        for name in dir(txlib.attention)
        if inspect.isclass(kind := getattr(txlib.attention, name)) and issubclass(kind, nn.Module)
        if list(inspect.signature(kind.forward).parameters)[1:5] == ["q", "k", "v", "mask"]
    }
    block = plain_block(Sizes(4, 2, 8, 6, 150))
    made = {type(made_for_its_layer(config, block, 512)).__name__ for config, _ in CONFIGS.values()}
    assert set(MODULES) <= found <= made | set(MODULES)


# What is caught -------------------------------------------------------------------------------------------------------


class DeltaRule(nn.Module):
    """S ← S + (v - S k) kᵀ / |k|², out = S q: a fast weight that is corrected, not added to (Yang et al. 2024)."""

    def new_cache(self):
        return StateCache()

    def forward(self, q, k, v, mask=None, *, cache=None):
        real, keys = self.real(mask, q, k), k.shape[2]
        k, v = (for_each_head(x, q.shape[1]) for x in (k, v))
        k = nn.functional.normalize(k, dim=-1).masked_fill(~real.mT, 0.0)
        state = (
            cache.state[0] if cache is not None and cache.state else v.new_zeros(*v.shape[:2], v.shape[3], k.shape[3])
        )
        outs = []
        for step in range(keys):
            key, value = k[:, :, step], v[:, :, step]
            read = torch.einsum("bhvd,bhd->bhv", state, key)
            state = state + torch.einsum("bhv,bhd->bhvd", value - read, key)
            outs.append(torch.einsum("bhvd,bhd->bhv", state, q[:, :, step]))
        if cache is not None:
            cache.state = (self.remembered(state),)
        return torch.stack(outs, dim=2)

    def real(self, mask, q, k):
        """Which keys count."""
        name, (queries, keys) = type(self).__name__, (q.shape[2], k.shape[2])
        if not isinstance(mask, Mask) or not mask.is_causal(queries, keys) or queries != keys:
            raise ValueError(f"{name} is causal, and this mask is not: {mask}; add & causal()")
        real = torch.ones(1, 1, 1, keys, dtype=torch.bool)
        for part in mask.conjuncts():
            if part.only_keys:
                real = real & part.dense(1, keys)
            elif part.distances() is None or part.reach() != (0, math.inf):
                raise ValueError(f"{name} honors causal() and padding, and not {part}")
        return real

    def remembered(self, state):
        return state


class IgnoresTheMask(DeltaRule):
    def real(self, mask, q, k):
        return torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool)


class IgnoresPadding(DeltaRule):
    def real(self, mask, q, k):
        super().real(mask, q, k)
        return torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool)


class ForgetsWhenItDecodes(DeltaRule):
    def remembered(self, state):
        return 0.9 * state


class Softmax(nn.Module):
    """Attention by its definition, of which subclasses change a part."""

    def forward(self, q, k, v, mask=None):
        k, v = self.keys(k, q.shape[1]), self.keys(v, q.shape[1])
        return self.output(attention(q, k, v, as_dense(mask, q, k)), k)

    def keys(self, k, heads):
        return for_each_head(k, heads)

    def output(self, out, k):
        return out


class WrongShape(Softmax):
    def output(self, out, k):
        return out.transpose(1, 2)


class NoTensor(Softmax):
    def output(self, out, k):
        return out, None


class NoMask(nn.Module):
    def forward(self, q, k, v):
        return attention(q, for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1]))


class CountsKeys(Softmax):
    def output(self, out, k):
        return out * math.log(k.shape[2])


class LooksAtOthers(Softmax):
    def output(self, out, k):
        return out - out.mean(dim=0, keepdim=True)


class LooksAhead(Softmax):
    def output(self, out, k):
        return out / out.abs().amax(dim=2, keepdim=True).clamp(min=1e-3)


class MixesUpHeads(Softmax):
    def keys(self, k, heads):
        return k.repeat(1, heads // k.shape[1], 1, 1)


class NotANumber(nn.Module):
    def forward(self, q, k, v, mask=None):
        k, v = for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1])
        score, allowed = q @ k.mT, as_dense(mask, q, k)
        return (score if allowed is None else score.masked_fill(~allowed, -torch.inf)).softmax(dim=-1) @ v


class SteepAtZero(Softmax):
    def output(self, out, k):
        return out.abs().sqrt()


class TakesTensorsForBiases(Softmax):
    def forward(self, q, k, v, mask=None):
        if isinstance(mask, torch.Tensor):
            k, v = for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1])
            return attention(q, k, v, bias=mask.float().expand(-1, -1, q.shape[2], -1))
        return super().forward(q, k, v, mask)


class CausalByItself(Softmax):
    """Right for whole sequences only: with a cache the first query is not the first position."""

    def forward(self, q, k, v, mask=None):
        if isinstance(mask, Mask) and mask.is_causal(q.shape[2], q.shape[2]):
            kept = [
                part.shift(-part.queries) if type(part).__name__ == "Shifted" else part for part in mask.conjuncts()
            ]
            return super().forward(
                q, k, v, torch.stack([as_dense(part, q, k).expand(len(q), 1, q.shape[2], -1) for part in kept]).all(0)
            )
        return super().forward(q, k, v, mask)


class DrawsAnew(nn.Module):
    def __init__(self):
        super().__init__()
        self.directions = torch.randn(8, 8)  # no buffer

    def forward(self, q, k, v, mask=None):
        return Softmax()(q @ self.directions, k, v, mask)


@dataclass(frozen=True)
class DrawsAnewConfig(MechanismConfig, name="draws anew, in a test"):
    def make(self, block, layer):
        return DrawsAnew()


@dataclass(frozen=True)
class SetConfig(MechanismConfig, name="with a mapping, in a test"):
    sizes: object = (1, (2, 3))

    def make(self, block, layer):
        return Softmax()

    def to_dict(self):
        return super().to_dict() | {"sizes": [1]}


class Drops(Softmax):
    """Drops outputs, of which subclasses get one thing wrong."""

    def __init__(self, dropout=0.5):
        super().__init__()
        self.dropout = dropout

    def output(self, out, k):
        return nn.functional.dropout(out, self.dropout, self.training)


class DropsInEvaluation(Drops):
    def output(self, out, k):
        return nn.functional.dropout(out, self.dropout)


class DropsWithoutScale(Drops):
    def output(self, out, k):
        return (1 - self.dropout) * super().output(out, k) if self.training else out


@dataclass(frozen=True)
class DropsConfig(MechanismConfig, name="drops, in a test"):
    kind: str = "Drops"

    def make(self, block, layer):
        return globals()[self.kind](block.attention.dropout)


class DropsNothing(Drops):
    def output(self, out, k):
        return out


class RaisesAnything(nn.Module):
    def forward(self, q, k, v, mask=None):
        if mask is not None:
            raise NotImplementedError("no masks yet")
        return Softmax()(q, k, v)


class RefusesWithoutItsName(nn.Module):
    def forward(self, q, k, v, mask=None):
        if mask is not None:
            raise ValueError("no masks yet")
        return Softmax()(q, k, v)


class RefusesEverything(nn.Module):
    def forward(self, q, k, v, mask=None):
        raise ValueError("RefusesEverything is not done yet")


BROKEN = [
    (IgnoresTheMask(), "'no mask, no limits': with mask=None the first query sees no later key"),
    (IgnoresPadding(), "'hidden keys have no influence': only keys and values changed that the mask hides"),
    (ForgetsWhenItDecodes(), "'cached equals full': positions 72 to 72 were read with a cache of those before"),
    (WrongShape(), r"returned shape \(3, 150, 4, 8\), expected \(batch, heads, query, value_dim\) = \(3, 4, 150, 8\)"),
    (NoTensor(), r"NoTensor returned tuple, expected \(batch, heads, query, value_dim\) = \(3, 4, 150, 8\)"),
    (NoMask(), r"NoMask takes \(q, k, v\), but is called as mechanism\(q, k, v, mask\); add mask=None"),
    (CountsKeys(), "'padding equals absence': row 1 is the same text with 75 positions of padding"),
    (LooksAtOthers(), "'padding equals absence'|'order of the batch'"),
    (LooksAhead(), r"'no leak from the future': only positions after 0 changed under causal\(\), yet its output is"),
    (MixesUpHeads(), "'grouped heads': 4 heads that share 2 key heads are 4 heads with equal keys"),
    (NotANumber(), "'zeros for a query that sees nothing': the query may attend to nothing, yet its output is nan"),
    (SteepAtZero(), "'finite gradients': the gradient of [qkv] holds NaN or infinity"),
    (TakesTensorsForBiases(), "'a tensor is a mask': the mask is the same, written out as a tensor"),
    (CausalByItself(), "'cached equals full'"),
    (DrawsAnewConfig(), "'saving': another one loaded its state_dict"),
    (SetConfig(), r"SetConfig\(sizes=\(1, \(2, 3\)\)\) is SetConfig\(sizes=\(1,\)\) after to_dict, JSON and from_dict"),
    (DropsConfig("DropsInEvaluation"), "'dropout': it is in evaluation, yet its output is"),
    (DropsConfig("DropsWithoutScale"), "'dropout': it is the mean of 200 draws in training, yet its output is"),
    (DropsWithoutScale(), "'dropout': it is the mean of 200 draws in training, yet its output is"),
    (
        DropsConfig("DropsNothing"),
        "'dropout': attention_dropout=0.5 drops nothing in training; let the config",
    ),
    (RaisesAnything(), r"raises NotImplementedError .* mask=causal\(\): no masks yet; .* ValueError that begins with"),
    (RefusesWithoutItsName(), r"raises ValueError where 'output shape' is tried with mask=causal\(\): no masks yet"),
    (RefusesEverything(), "refuses every call, so no rule can be tried: RefusesEverything is not done yet"),
]


@pytest.mark.parametrize("mechanism, words", BROKEN, ids=[type(mechanism).__name__ for mechanism, _ in BROKEN])
def test_what_breaks_the_contract_is_named(mechanism, words):
    with pytest.raises(MechanismError, match=words) as caught:
        check_mechanism(mechanism)
    assert type(mechanism).__name__.removesuffix("Config") in str(caught.value)


def test_what_keeps_the_contract_passes_and_what_it_refuses_is_reported():
    report = check_mechanism(DeltaRule())
    assert not report.exceptions and "cached equals full" in report.kept
    assert report.skipped == ("no mask, no limits", "a tensor is a mask")
    assert report.refused[0] == "DeltaRule is causal, and this mask is not: None; add & causal()"
    assert "refused   DeltaRule is causal, and this mask is not: None; add & causal()" in str(report)
    for mechanism in Softmax(), Drops(), DropsConfig():
        assert not check_mechanism(mechanism).refused


def test_an_exception_has_a_rule_and_a_reason(unchecked):
    exceptions = PADDED_BLOCKS | {"cached equals full": "a cache has fewer keys at first"}
    report = check_mechanism(CountsKeys(), exceptions=exceptions)
    assert report.exceptions == exceptions and not set(report.kept) & set(exceptions)
    with pytest.raises(ValueError, match="unknown rule 'padding'; choose from 'takes a mask', "):
        check_mechanism(CountsKeys(), exceptions={"padding": "why not"})
    with pytest.raises(TypeError, match="takes a module or a MechanismConfig, got <class .*; give an instance"):
        check_mechanism(CountsKeys)


def test_random_numbers_of_the_caller_stay_as_they_are():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    check_mechanism(DenseAttention())
    assert torch.equal(torch.rand(1), expected)


# What no mechanism alone needs a file for -----------------------------------------------------------------------------


def small(name):
    """A mechanism for 4 heads that share 2 key heads, whose numbers are nowhere those that it started with."""
    if name == "ShawAttention":
        return shake(ShawAttention(3, 2))
    block = plain_block(Sizes(heads=4, kv_heads=2, head_dim=3, value_dim=3, length=5))
    config = CONFIGS[name][0]
    if isinstance(config, LinformerConfig):
        config = replace(config, keys=4)
    if isinstance(config, NystromConfig):
        config = replace(config, landmarks=3)
    return shake(made_for_its_layer(config, block, 9))


def inputs(queries, keys, batch=2, dtype=torch.float32):
    return [torch.randn(batch, heads, n, 3, dtype=dtype) for heads, n in ((4, queries), (2, keys), (2, keys))]


EVERY = [*CONFIGS, "ShawAttention"]
every_mechanism = pytest.mark.parametrize("name", EVERY)


@every_mechanism
@pytest.mark.parametrize("mask", [None, causal() & padding([4])], ids=str)
def test_gradients_equal_finite_differences(name, mask, unchecked):
    mechanism = small(name).double()
    q, k, v = (x.requires_grad_() for x in inputs(5, 5, 1, torch.float64))
    try:
        mechanism(q, k, v, mask)
    except ValueError:
        mask = causal() if mask is None else padding([4])
    tensors = [q, k, v, *(parameter for parameter in mechanism.parameters() if parameter.numel() < 50)]
    assert torch.autograd.gradcheck(lambda q, k, v, *_: mechanism(q, k, v, mask), tensors, fast_mode=True)


@every_mechanism
@pytest.mark.parametrize("batch, queries, keys", [(0, 9, 9), (2, 0, 9), (2, 9, 0), (2, 0, 0), (2, 3, 0)])
def test_where_there_is_nothing_to_ask_or_to_see_the_output_is_zero(name, batch, queries, keys):
    mechanism, (q, k, v) = small(name), inputs(queries, keys, batch)
    q.requires_grad_()
    for mask in None, causal():
        try:
            out = mechanism(q, k, v, mask)
        except ValueError as error:
            assert type(mechanism).__name__ in str(error) or "relative positions" in str(error)
            continue
        assert out.shape == q.shape and (out == 0).all()
        out.sum().backward()
        assert (q.grad == 0).all()


@every_mechanism
def test_weights_are_what_the_values_are_averaged_with(name):
    mechanism, (q, k, v) = small(name).eval(), inputs(9, 9)
    adds = name == "ShawAttention" or getattr(mechanism, "residual", None) is not None  # more than averages
    if not hasattr(mechanism, "weights") or adds:
        return
    for mask in None, padding([9, 5]), causal() & padding([9, 5]):
        try:
            out = mechanism(q, k, v, mask)
        except ValueError:
            continue
        weights = mechanism.weights(q, k, mask)
        assert weights.shape == (2, 4, 9, 9)
        assert_close(weights @ for_each_head(v, 4), out, rtol=1e-4, atol=1e-5)
        assert mask is None or not weights[~mask.dense(9).expand(weights.shape)].any()


@every_mechanism
def test_shapes_are_known_on_the_meta_device(name, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it for good when the meta device needs it
    mechanism = small(name).to("meta")
    q, k, v = (x.to("meta") for x in inputs(9, 9))
    out = mechanism(q, k, v, causal() if isinstance(mechanism, NativeSparseAttention) else None)
    assert out.shape == q.shape and out.device.type == "meta"
