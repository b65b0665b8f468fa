"""Set Transformer and Deep Sets: put together as in the authors' code, in any order, padded, saved, refused."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import shake
from torch.testing import assert_close

from txlib import load_pretrained, save_pretrained
from txlib.attention import LinearConfig
from txlib.models import DeepSets, DeepSetsConfig, SetTransformer, SetTransformerConfig
from txlib.models.sizes import parameters
from txlib.training.memory import training_memory

ISABS = SetTransformerConfig(3, 5, outputs=2, d_model=8, heads=2, layers=2, decoder_layers=1, points=3)
CONFIGS = {
    "isab": ISABS,
    "sab": replace(ISABS, points=None, norm=True, dropout=0.5),
    "paper": replace(ISABS, formula="paper", norm=True),
    "linear": replace(ISABS, mechanism=LinearConfig()),
    "sab and mean": replace(ISABS, points=None, pool="mean"),
    "deep sets": DeepSetsConfig(3, 5, outputs=2, d_model=8, layers=3, decoder_layers=2),
    "deep sets and sum": DeepSetsConfig(3, 5, outputs=2, d_model=8, pool="sum", equivariant="mean"),
    "deep sets and max": DeepSetsConfig(3, 5, outputs=2, d_model=8, pool="max", equivariant="max"),
    "deep sets and attention": DeepSetsConfig(3, 5, outputs=2, d_model=8, heads=2, pool="attention"),
}
every_model = pytest.mark.parametrize("name", CONFIGS)


def make(name):
    config = CONFIGS[name]
    kind = SetTransformer if isinstance(config, SetTransformerConfig) else DeepSets
    return shake(kind(config).double(), 0.1).eval()


def sets(*shape):
    return torch.randn(*shape, 3, dtype=torch.float64)


@given(st.sampled_from(list(CONFIGS)), st.lists(st.integers(1, 6), min_size=2, max_size=2))
def test_any_order_and_any_padding_give_the_same(name, sizes):
    model, x = make(name), sets(2, 6)
    real = (torch.arange(6) < torch.tensor(sizes)[:, None]).long()
    out, order = model(x, real), torch.randperm(6)
    moved = model(x[:, order], real[:, order])
    assert_close(moved.logits, out.logits)
    assert_close(moved.last_hidden_state[real[:, order] == 1], out.last_hidden_state[:, order][real[:, order] == 1])
    for row, size in enumerate(sizes):
        alone = model(x[row : row + 1, :size])
        assert_close(out.logits[row], alone.logits[0])
        assert_close(out.last_hidden_state[row, :size], alone.last_hidden_state[0])


@every_model
def test_each_element_counts(name):
    model, x = make(name), sets(1, 4)
    out = model(x).logits
    assert out.shape == (1, 2, 5)
    for element in range(4):
        changed = x.clone()
        changed[0, element] *= 5
        assert not torch.allclose(model(changed).logits, out)


def test_the_defaults_are_the_authors_network():
    """d_in → 128 three times by ISABs of 32 points, PMA, two SABs, a linear layer: counted by hand."""
    d, points = 128, 32

    def mab(query, key):
        return (query + 2 * key + d) * d + 4 * d  # fc_q, fc_k, fc_v, fc_o

    def isab(width):
        return points * d + mab(d, width) + mab(width, d)

    expected = isab(2) + 2 * isab(d) + (4 * d + mab(d, d)) + 2 * mab(d, d) + (d + 1) * 4
    assert parameters(SetTransformer(SetTransformerConfig(2, 4, outputs=4))) == expected


def test_a_set_transformer_is_its_blocks_in_a_row():
    model, x = make("isab"), sets(2, 4)
    first, second = model.encoder
    seeds = model.decoder.pool(second(first(x)))
    assert_close(model(x).logits, model.decoder.output(model.decoder.layers[0](seeds)))


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
@pytest.mark.parametrize("equivariant", ["mean", "max", None])
def test_deep_sets_against_loops(pool, equivariant):
    config = replace(CONFIGS["deep sets"], pool=pool, equivariant=equivariant)
    model, sizes = shake(DeepSets(config).double()), [2, 4]
    x, how = sets(2, 4), {"mean": lambda rows: sum(rows) / len(rows), "sum": sum, "max": largest}
    real = (torch.arange(4) < torch.tensor(sizes)[:, None]).long()
    for row, size in enumerate(sizes):
        hidden = [model.encoder[0](element) for element in x[row, :size]]
        for number, layer in enumerate(model.encoder[1:]):
            hidden = [each.clamp(min=0) for each in hidden]
            told = model.others[number](how[equivariant](hidden)) if equivariant else 0
            hidden = [layer(each) + told for each in hidden]
        whole = how[pool](hidden)
        for layer in model.decoder.layers:
            whole = layer(whole).clamp(min=0)
        assert_close(model(x, real).logits[row], model.decoder.output(whole).view(2, 5))


def largest(rows):
    best = rows[0]
    for row in rows[1:]:
        best = torch.maximum(best, row)
    return best


@every_model
def test_it_is_saved_and_read(name, tmp_path):
    model, x = make(name).float(), sets(2, 4).float()
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config and type(again) is type(model)
    assert_close(again(x).logits, model(x).logits, rtol=0, atol=0)


def test_dropout_acts_while_training_only():
    model, x = make("sab"), sets(1, 4)
    assert_close(model(x).logits, model(x).logits)
    model.train()
    assert not torch.allclose(model(x).logits, model(x).logits)


@every_model
def test_its_memory_is_planned(name):
    assert training_memory(make(name).float(), {"inputs": torch.randn(2, 6, 3)}).activations > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model([torch.ones(2, 3), torch.ones(4, 3)]), "come as a list; .* = pad_sets\\(sets\\)"),
        (lambda model: model(torch.ones(4, 3)), r"shape \(4, 3\), expected \(batch, elements, d_in=3\)"),
        (lambda model: model(torch.ones(1, 4, 2)), r"shape \(1, 4, 2\), expected \(batch, elements, d_in=3\)"),
        (lambda model: model(torch.ones(2, 0, 3)), "the sets are empty: give each at least one element"),
        (
            lambda model: model(torch.ones(2, 2, 3), torch.tensor([[1, 1], [0, 0]])),
            "set 1 of the batch is empty; leave it out",
        ),
        (
            lambda model: model(torch.ones(2, 2, 3), torch.ones(2, 3)),
            r"attention_mask has shape \(2, 3\), expected \(batch, elements\) = \(2, 2\)",
        ),
    ],
)
@every_model
@pytest.mark.usefixtures("unchecked")
def test_bad_sets_are_refused(name, call, message):
    with pytest.raises(ValueError, match=message):
        call(make(name).float())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": "median"}, "pool='median' must be 'attention' or 'mean'"),
        ({"formula": "book"}, "formula='book' must be 'code' or 'paper'"),
        ({"points": 0}, "points=0 must be at least 1"),
        ({"outputs": 0}, "outputs=0 must be at least 1"),
        ({"decoder_layers": -1}, "decoder_layers=-1 must be at least 0"),
        ({"dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
        ({"heads": 3}, "d_model=8 is not divisible by heads=3"),
    ],
)
def test_bad_configs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SetTransformer(replace(ISABS, **changes))


def test_what_is_no_config_is_refused(unchecked):
    with pytest.raises(TypeError, match=r"write SetTransformerConfig\(d_in=…, d_out=…, …\)"):
        SetTransformer({"d_in": 3})
    with pytest.raises(ValueError, match="equivariant='sum' must be 'mean' or 'max' or None"):
        replace(CONFIGS["deep sets"], equivariant="sum")
