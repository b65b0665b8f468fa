"""Positions against plain loops, complex numbers, and the tables of Marian and Llama."""

import json
import math

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

from txlib.layers import (
    LearnedPosition,
    LongRotaryScaling,
    Rotary,
    RotaryConfig,
    RotaryScaling,
    SinusoidalPosition,
    YarnScaling,
    sinusoidal,
)

even = st.integers(1, 8).map(lambda n: 2 * n)


@given(st.integers(0, 9), even, st.integers(0, 500), st.sampled_from(["interleaved", "concatenated"]))
def test_sinusoidal_against_a_loop(length, d_model, offset, layout):
    expected = torch.zeros(length, d_model)
    for row in range(length):
        for pair in range(d_model // 2):
            angle = (offset + row) / 10000 ** (2 * pair / d_model)
            columns = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, d_model // 2 + pair)
            expected[row, columns[0]], expected[row, columns[1]] = math.sin(angle), math.cos(angle)
    assert_close(sinusoidal(length, d_model, layout=layout, offset=offset), expected)


def test_concatenated_sinusoids_are_those_of_marian():
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    expected = MarianSinusoidalPositionalEmbedding(600, 32).create_weight()
    assert_close(sinusoidal(600, 32, layout="concatenated"), expected)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sinusoids_are_added_at_any_offset_also_beyond_the_table(layout, dtype):
    position = SinusoidalPosition(8, layout=layout).to(dtype)
    for offset, length in ((0, 3), (2, 4), (5, 1), (40, 7), (1, 2), (1000, 2)):
        x = torch.randn(2, length, 8, dtype=dtype)
        expected = x + sinusoidal(length, 8, layout=layout, offset=offset).to(dtype)
        out = position(x, offset)
        assert out.dtype == dtype
        assert_close(out, expected)
    assert not list(position.parameters()) and not position.state_dict()


def test_sinusoids_made_while_evaluating_serve_training():
    position = SinusoidalPosition(4)
    with torch.inference_mode():
        position(torch.randn(1, 3, 4))
    x = torch.randn(1, 3, 4, requires_grad=True)
    position(x).sum().backward()
    assert_close(x.grad, torch.ones(1, 3, 4))


def test_learned_positions_are_rows_of_a_table():
    position = LearnedPosition(6, 4)
    x = torch.randn(2, 3, 4)
    for offset in (0, 2, 3):
        expected = torch.stack([x[:, i] + position.weight[offset + i] for i in range(3)], dim=1)
        assert_close(position(x, offset), expected)
    with pytest.raises(ValueError, match="max_length=6, but the sequence reaches 7"):
        position(x, 4)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 600), even, st.sampled_from(["interleaved", "half"]))
def test_rotary_products_depend_on_distance_only(i, j, shift, head_dim, layout):
    rotary = Rotary(head_dim, layout=layout)
    q, k = torch.randn(2, 1, 2, 1, head_dim, dtype=torch.float64)

    def product(i, j):
        return (rotary(q, offset=i) * rotary(k, offset=j)).sum(-1)

    assert_close(product(i, j), product(i + shift, j + shift), atol=1e-3, rtol=0)
    assert_close(rotary(q, offset=i).norm(dim=-1), q.norm(dim=-1))  # turning changes no length


@given(st.integers(1, 5), even, st.integers(0, 100), st.sampled_from([10000.0, 500.0]))
def test_interleaved_rotary_multiplies_by_complex_numbers(length, head_dim, offset, base):
    """Su et al. 2021, eq. 12: the pair (2m, 2m + 1) is a complex number, times e^(i · position · θ_m)."""
    x = torch.randn(2, 3, length, head_dim, dtype=torch.float64)
    angle = torch.tensor(
        [[(offset + p) * base ** (-2 * m / head_dim) for m in range(head_dim // 2)] for p in range(length)],
        dtype=torch.float64,
    )
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    ours = Rotary(head_dim, base=base)(x, offset)
    assert_close(ours, torch.view_as_real(turned).flatten(-2), atol=1e-4, rtol=0)  # angles are in float32


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_half_rotary_is_that_of_llama(base):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": base}
    )
    q, k = torch.randn(2, 2, 4, 9, 16)
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(30, 39)[None])
    rotary = Rotary(16, base=base, layout="half")
    for ours, theirs in zip((rotary(q, 30), rotary(k, 30)), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert_close(ours, theirs)


def test_both_rotary_layouts_are_one_permutation_apart():
    x = torch.randn(1, 2, 5, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # firsts, then seconds
    assert_close(Rotary(8, layout="half")(x[..., order]), Rotary(8)(x)[..., order])


def test_rotary_angles_stay_exact_in_a_bfloat16_model():
    """Rounding a frequency to 8 bits would turn position 2000 by several radians too far."""
    x = torch.randn(1, 1, 4, 64)
    ours = Rotary(64).bfloat16()(x.bfloat16(), 2000)
    assert ours.dtype == torch.bfloat16
    assert_close(ours.float(), Rotary(64)(x, 2000), atol=0.05, rtol=0.05)


def test_rotary_gradient():
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    for layout in ("interleaved", "half"):
        assert torch.autograd.gradcheck(Rotary(4, layout=layout), (x, 3))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Rotary(7), "rotary positions.*even size, got 7; choose e.g. 8"),
        (lambda: Rotary(0), "even size, got 0; choose e.g. 2"),
        (lambda: sinusoidal(4, 9), "sinusoidal positions.*even size, got 9; choose e.g. 10"),
        (lambda: SinusoidalPosition(3), "even size, got 3; choose e.g. 4"),
        (lambda: Rotary(8, layout="pairs"), "layout='pairs' is unknown; choose 'interleaved' or 'half'"),
        (lambda: sinusoidal(4, 8, layout="half"), "layout='half' is unknown; choose 'interleaved' or 'concatenated'"),
    ],
)
def test_wrong_values_are_refused(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


def test_scaled_rotary_slows_what_is_slow():
    """Turns in a context of 100: 15.9 and 1.59 and fewer. The first pair is kept, the last ones are 8 times slower."""
    frequency = 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    kept = RotaryScaling(8, context=100, fast=3)(frequency, 1e4, 0) / frequency
    share = (100 / (2 * torch.pi) * 0.1 - 1) / 2
    assert_close(kept, torch.tensor([1.0, share + (1 - share) / 8, 1 / 8, 1 / 8]))
    q = torch.randn(1, 2, 9, 8)
    slow, plain = Rotary(8, scaling=RotaryScaling(4)), Rotary(8)
    assert_close(slow(q[:, :, :1], offset=12), plain(q[:, :, :1], offset=3))  # position interpolation


ROPES = {
    "yarn": (
        {"factor": 8.0, "original_max_position_embeddings": 64},
        YarnScaling(8.0, 64),
    ),
    "yarn, fractional": (
        {
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
            "beta_fast": 40,
            "beta_slow": 2,
            "attention_factor": 1.5,
        },
        YarnScaling(32.0, 4096, slow=2, fast=40, attention_factor=1.5, whole_pairs=False),
    ),
    "longrope": (
        {
            "short_factor": [1.0, 1.1, 1.5, 2.0],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        LongRotaryScaling((1.0, 1.1, 1.5, 2.0), (2.0, 3.0, 4.0, 5.0), 16, (1 + math.log(4) / math.log(16)) ** 0.5),
    ),
}


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_scaled_frequencies_equal_transformers(name, fraction):
    rope, scaling = ROPES[name]
    head_dim = 8 if fraction == 1 else 16
    config = transformers.LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, max_position_embeddings=64)
    config.rope_parameters = {
        **rope,
        "rope_type": name.partition(",")[0],
        "rope_theta": 500.0,
        "partial_rotary_factor": fraction,
    }
    rotary = Rotary(head_dim, base=500.0, scaling=scaling, fraction=fraction, layout="half")
    plain = 500.0 ** (-torch.arange(0, 8, 2) / 8)
    for length in (10, 40):
        compute = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]]
        expected, attention_factor = compute(config, torch.device("cpu"), seq_len=length)
        assert_close(scaling(plain, 500.0, length), expected)
        assert scaling.factor_of_scores == pytest.approx(attention_factor)
        x = torch.randn(1, 2, length, head_dim)
        angles = torch.arange(length)[:, None] * expected.repeat(2)
        cos, sin = attention_factor * angles.cos(), attention_factor * angles.sin()
        q, _ = apply_rotary_pos_emb(x, x, cos[None], sin[None])
        assert_close(rotary(x), q)
        assert torch.equal(rotary(x)[..., 8:], x[..., 8:])


def test_scalings_go_through_json_and_say_what_is_wrong():
    for _, scaling in ROPES.values():
        config = RotaryConfig(scaling=scaling, fraction=0.5)
        assert RotaryConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    long = ROPES["longrope"][1]
    for make, words in (
        (lambda: Rotary(8, fraction=1.5), "fraction=1.5 must be above 0 and at most 1"),
        (lambda: Rotary(8, fraction=0.4), "even size, got 3"),
        (lambda: YarnScaling(4.0), "YaRN needs context"),
        (lambda: YarnScaling(4.0, 64, slow=0), "slow=0 must be above 0"),
        (lambda: LongRotaryScaling((1.0,), (1.0, 2.0), 16), "short has 1 factors, long 2"),
        (lambda: Rotary(16, scaling=long), "longrope has 4 factors for 8 pairs"),
        (lambda: Rotary(8, scaling=long)(torch.ones(1, 1, 3, 8), offset=15), "decode without a cache: use_cache=False"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    assert Rotary(8, scaling=long)(torch.ones(1, 1, 3, 8), offset=17).shape == (1, 1, 3, 8)


@pytest.mark.parametrize(("changes", "message"), [({"factor": 0.5}, "factor=0.5 must be"), ({"slow": 5.0}, "slow=5.0")])
def test_scaling_that_makes_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**{"factor": 2.0, "context": 10, **changes})
