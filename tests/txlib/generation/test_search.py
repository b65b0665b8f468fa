"""Beam search against all sequences that there are, greedy search against a naive loop."""

from itertools import product

import pytest
import torch
from oracles import shake

from txlib.generation import beam_search, generate
from txlib.layers import BlockConfig
from txlib.models import Transformer, TransformerConfig

PAD, BOS, EOS = 0, 1, 2


def make_model(vocab_size, position="rotary", seed=0, sharp=False):
    """A model whose guesses are far from even, and which is not too fond of the end."""
    torch.manual_seed(seed)
    block = BlockConfig.of_sizes(d_model=8, heads=2, d_ff=16, position=position)
    model = Transformer(TransformerConfig(vocab_size=vocab_size, block=block, encoder_layers=1, decoder_layers=2))
    model = shake(model, 0.6).double().eval()
    if sharp:  # each last vector is drawn away from what they have in common: results differ more
        model.decoder.norm.weight.data *= 3
        model.decoder.norm.bias.data.zero_()
        model.embedding.weight.data[EOS] *= 2
    return model


@pytest.fixture
def model():
    return make_model(12, seed=3, sharp=True)


@pytest.fixture
def sources():
    """Sentences of different lengths, padded: (ids, attention_mask)."""
    lengths = [3, 7, 1, 5, 7]
    ids = torch.randint(3, 12, (5, 7))
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    return ids.masked_fill(mask == 0, PAD), mask


def log_p(model, source, words):
    """log p of each word after those before it, without cache, one sentence: a list of floats."""
    decoder_input_ids = torch.tensor([[BOS, *words[:-1]]])
    logits = model(source, decoder_input_ids=decoder_input_ids).logits[0].log_softmax(-1)
    return [logits[i, word].item() for i, word in enumerate(words)]


def best_of_all(model, source, max_length, power):
    """The best of all sequences: those that end within max_length, and those cut off there."""
    others = [word for word in range(model.config.vocab_size) if word not in (EOS, PAD)]
    candidates = [(*words, EOS) for n in range(max_length) for words in product(others, repeat=n)]
    candidates += list(product(others, repeat=max_length))
    padded = torch.tensor([[BOS, *words, *[PAD] * (max_length - len(words))] for words in candidates])
    logits = model(source.expand(len(padded), -1), decoder_input_ids=padded[:, :-1]).logits.log_softmax(-1)
    each = logits.gather(-1, padded[:, 1:, None])[..., 0].tolist()  # (candidate, length): log p of each word
    score = [sum(p[: len(words)]) / ((5 + len(words)) / 6) ** power for p, words in zip(each, candidates, strict=True)]
    best = candidates[max(range(len(candidates)), key=score.__getitem__)]
    return [word for word in best if word != EOS]


@pytest.mark.parametrize("power", [0.0, 0.6, 3.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_all_beams_it_finds_the_best_of_all_sequences(seed, power):
    model = make_model(4, seed=seed)
    sources = torch.randint(2, 4, (3, 4))
    found = beam_search(model, sources, max_new_tokens=4, num_beams=4**4, length_penalty=power)
    with torch.no_grad():
        assert found == [best_of_all(model, source[None], 4, power) for source in sources]


def test_the_penalty_lengthens():
    """Without it short results win; the cases above would not show a penalty that is ignored."""
    lengths = {}
    for power in (0.0, 3.0):
        found = [
            beam_search(
                make_model(4, seed=seed), torch.tensor([[3, 2]]), max_new_tokens=4, num_beams=256, length_penalty=power
            )[0]
            for seed in range(6)
        ]
        lengths[power] = sum(map(len, found))
    assert lengths[3.0] > lengths[0.0]


def naive_greedy(model, source, max_length):
    words = []
    while len(words) < max_length:
        logits = model(source, decoder_input_ids=torch.tensor([[BOS, *words]])).logits[0, -1]
        logits[PAD] = -torch.inf
        word = int(logits.argmax())
        if word == EOS:
            break
        words.append(word)
    return words


@torch.no_grad()
def test_greedy_is_a_plain_loop(model, sources):
    ids, mask = sources
    expected = [naive_greedy(model, row[keep.bool()][None], 9) for row, keep in zip(ids, mask, strict=True)]
    assert generate(model, ids, mask, max_new_tokens=9) == expected
    assert beam_search(model, ids, mask, max_new_tokens=9, num_beams=1, length_penalty=2.0) == expected
    assert len({len(words) for words in expected}) > 1 and max(map(len, expected)) == 9  # some end, some are cut off


@pytest.mark.parametrize("position", ["rotary", "rotary_half", "sinusoidal", "learned", "shaw", "alibi"])
@pytest.mark.parametrize("beams", [1, 3])
def test_cached_equals_uncached(sources, position, beams):
    model = make_model(12, position)
    cached, uncached = (
        beam_search(model, *sources, max_new_tokens=8, num_beams=beams, use_cache=use_cache)
        for use_cache in (True, False)
    )
    assert cached == uncached and any(cached)


@pytest.mark.parametrize("beams", [1, 4])
def test_batched_equals_one_by_one(model, sources, beams):
    ids, mask = sources
    alone = [
        beam_search(model, row[keep.bool()][None], max_new_tokens=9, num_beams=beams)[0]
        for row, keep in zip(ids, mask, strict=True)
    ]
    assert beam_search(model, ids, mask, max_new_tokens=9, num_beams=beams) == alone
    assert len({len(words) for words in alone}) > 1  # rows leave the batch at different times


@torch.no_grad()
def test_more_beams_find_what_greedy_misses(sources):
    model, (ids, mask) = make_model(12), sources

    def score(found):
        rows = zip(ids, mask, found, strict=True)
        return [sum(log_p(model, row[keep.bool()][None], [*words, EOS][:6])) for row, keep, words in rows]

    one, many = (
        score(beam_search(model, ids, mask, max_new_tokens=6, num_beams=beams, length_penalty=0.0))
        for beams in (1, 300)
    )
    gains = [b - a for a, b in zip(one, many, strict=True)]
    assert min(gains) >= -1e-9 and max(gains) > 0.1


class Fixed:
    """Says the same whatever it reads: log p by position. (position, vocab)"""

    config = TransformerConfig(vocab_size=5, block=BlockConfig.of_sizes(d_model=2, heads=1, d_ff=2))

    def __init__(self, p):
        self.p = torch.tensor(p)

    def encode(self, input_ids, attention_mask):
        return torch.zeros(*input_ids.shape, 2)

    def decode(self, decoder_input_ids, memory, attention_mask, cache):
        position = torch.arange(decoder_input_ids.shape[1])
        return position.expand(len(decoder_input_ids), -1)[..., None].float()

    def logits(self, hidden):
        return self.p[hidden[..., 0].long()].log()

    def new_cache(self):
        raise AssertionError("use_cache=False")


def test_it_stops_at_the_end_token():
    model = Fixed([[0.01, 0.01, 0.01, 0.9, 0.07], [0.01, 0.01, 0.95, 0.01, 0.02]])  # a third step would fail
    assert generate(model, torch.tensor([[3], [4]]), max_new_tokens=50, use_cache=False) == [[3], [3]]


def test_it_stops_at_max_new_tokens():
    model = Fixed([[0.01, 0.01, 0.01, 0.07, 0.9]] * 3)
    assert generate(model, torch.tensor([[3]]), max_new_tokens=3, use_cache=False) == [[4, 4, 4]]
    for beams in (1, 2, 10):
        assert beam_search(model, torch.tensor([[3]]), max_new_tokens=3, num_beams=beams, use_cache=False) == [
            [4, 4, 4]
        ]


def test_a_finished_beam_competes_with_longer_ones():
    """Ending now has p = 0.5; going on, 0.3 for the word and then 0.9 for the end: 0.27."""
    model = Fixed([[0.1, 0.1, 0.5, 0.3, 1e-9], [0.05, 0.05, 0.9, 1e-9, 1e-9], [0.2] * 5, [0.2] * 5])
    search = dict(max_new_tokens=4, num_beams=2, use_cache=False)
    assert beam_search(model, torch.tensor([[3]]), length_penalty=0.0, **search) == [[]]
    # The penalty divides by (6/6)^power and (7/6)^power: ln 0.5 = -0.69, ln 0.27 = -1.31 < -0.69 · (7/6)^4 = -1.28
    assert beam_search(model, torch.tensor([[3]]), length_penalty=4.0, **search) == [[]]
    assert beam_search(model, torch.tensor([[3]]), length_penalty=4.5, **search) == [[3]]


def test_no_gradients_and_no_change_of_mode(model, sources):
    model.train()
    beam_search(model, *sources, max_new_tokens=2)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "value"), [("num_beams", 0), ("num_beams", -1), ("max_new_tokens", 0), ("length_penalty", -0.5)]
)
def test_errors(model, sources, name, value):
    with pytest.raises(ValueError, match=f"{name}={value} must be at least"):
        beam_search(model, *sources, **{name: value})
