"""The Music Transformer: against GPT, its voices, its memory against the naive form, its folder."""

from dataclasses import replace

import pytest
import torch
from oracles import Largest, shake
from torch.testing import assert_close

from txlib.attention import SkewedBias
from txlib.attention.relative import relative_distances
from txlib.layers import BlockConfig, SkewedConfig
from txlib.models import GPT, GPTConfig, MusicConfig, MusicTransformer
from txlib.models.pretrained import load_pretrained, save_pretrained

BLOCK = BlockConfig.of_sizes(16, 2, 24, position="skewed", activation="gelu")
CONFIG = MusicConfig(11, BLOCK, layers=2, max_length=24)


def make(config=CONFIG):
    torch.manual_seed(0)
    return shake(MusicTransformer(config).double()).eval()


def test_without_voices_it_is_a_gpt():
    model, ids = make(), torch.randint(0, 11, (2, 9))
    gpt = GPT(GPTConfig(11, BLOCK, layers=2, max_length=24)).double().eval()
    gpt.load_state_dict({name: value for name, value in model.state_dict().items() if name != "voice"})
    assert not torch.allclose(model(ids).logits, gpt(ids).logits)
    torch.nn.init.zeros_(model.voice)
    assert_close(model(ids).logits, gpt(ids).logits)


def test_voices_take_turns():
    """As if each voice had tokens of its own: token t of voice v is row v * 11 + t of a longer embedding."""
    model, ids = make(), torch.randint(0, 11, (2, 10))
    x = model.embed(ids)
    for place in range(10):
        assert_close(x[:, place], model.embedding.weight[ids[:, place]] + model.voice[place % 4])


def test_moved_by_whole_steps_all_is_the_same():
    """Distances and voices are all it knows: what it sees from any place on, it predicts alike, whatever the bar."""
    model, ids = make(), torch.randint(0, 11, (1, 12))
    mask = torch.tensor([[0] * 4 + [1] * 12])
    assert_close(model(torch.cat([ids[:, :4], ids], 1), mask).logits[:, 4:], model(ids).logits)
    rival = make(replace(CONFIG, block=BLOCK.replace(position="sinusoidal")))
    later = rival.embed(torch.cat([ids, ids], 1))
    assert not torch.allclose(later[:, 12:], later[:, :12])


@pytest.mark.parametrize("position", ["skewed", "sinusoidal", "learned", "rotary"])
def test_cached_decoding_is_the_whole(position):
    model = make(replace(CONFIG, block=BLOCK.replace(position=position)))
    ids, mask = torch.randint(0, 11, (2, 10)), torch.tensor([[1] * 10, [0] * 3 + [1] * 7])
    whole, cache = model(ids, mask).logits, model.new_cache()
    parts = [
        model(part, mask[:, : cache.length + part.shape[1]], cache=cache).logits for part in ids.split([5, 1, 4], 1)
    ]
    assert_close(torch.cat(parts, 1), whole)


def test_beyond_the_last_distance_nothing_is_added():
    near, far = SkewedBias(2, 4, max_length=9, max_distance=3).double(), SkewedBias(2, 4, max_length=9).double()
    shake(near)
    with torch.no_grad():
        far.distances.zero_()[:, -3:] = near.distances
    for query, key in ((9, 9), (2, 7), (1, 2)):
        q = torch.randn(3, 2, query, 4).double()
        past = relative_distances(query, key) <= 0
        assert_close(near(q, key).masked_fill(~past, 0), far(q, key).masked_fill(~past, 0))
        assert not near(q, key)[..., relative_distances(query, key) <= -3].any()


def test_the_vectors_are_as_many_as_asked_for():
    for distances, rows in ((None, 24), (8, 8), (64, 24)):
        model = MusicTransformer(replace(CONFIG, block=BLOCK.replace(position=SkewedConfig(max_distance=distances))))
        assert {tuple(each.distances.shape) for each in model.modules() if isinstance(each, SkewedBias)} == {
            (2, rows, 8)
        }
    with pytest.raises(ValueError, match="max_distance >= 1, got max_length=9, max_distance=0"):
        SkewedBias(2, 4, max_length=9, max_distance=0)


@pytest.mark.parametrize("n", [32, 64, 128])
def test_skewing_needs_no_tensor_of_n_n_d(n):
    """Huang et al. 2019, §3.4: O(n² d) numbers for the naive form, where each pair of positions has its own copy of a
    vector, O(n d) for the vectors and O(n²) for the scores by skewing."""
    heads, d = 2, 16
    bias, q = SkewedBias(heads, d, max_length=n), torch.randn(1, heads, n, d)
    with torch.no_grad(), Largest() as skewing:
        fast = bias(q, n)
    with torch.no_grad(), Largest() as naive:
        rows = (n - 1 + relative_distances(n, n)).clamp(max=n - 1)
        vectors = bias.distances[:, rows]  # (heads, query, key, d)
        slow = torch.einsum("bhqd,hqkd->bhqk", q, vectors) * d**-0.5
    past = relative_distances(n, n) <= 0
    assert_close(fast.masked_fill(~past, 0), slow.masked_fill(~past, 0))
    assert naive.largest == heads * n * n * d
    assert skewing.largest == heads * n * (n + 1)  # the scores, padded by a column
    assert bias.distances.numel() == heads * n * d


def test_save_and_load(tmp_path):
    model = make(replace(CONFIG, voices=3, max_length=21, block=BLOCK.replace(position=SkewedConfig(max_distance=7))))
    save_pretrained(model, tmp_path)
    loaded, ids = load_pretrained(tmp_path), torch.randint(0, 11, (2, 21))
    assert type(loaded) is MusicTransformer and loaded.config == model.config
    assert_close(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: replace(CONFIG, voices=0), "voices=0 must be at least 1"),
        (
            lambda: replace(CONFIG, max_length=30),
            "max_length=30 is no whole number of steps of 4 voices; choose e.g. 32",
        ),
        (
            lambda: make()(torch.zeros(1, 25, dtype=torch.long)),
            "max_length=24 positions at a time, but the sequence reaches 25",
        ),
    ],
)
def test_sizes_that_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
