"""Speculative decoding against the model's own distribution, which is computed exactly."""

from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from oracles import shake
from scipy.stats import chisquare

from txlib.attention import sliding_window
from txlib.generation import GenerationConfig, accept, generate, speculate
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig

pytestmark = pytest.mark.slow

LLAMA = {"norm": "rms", "activation": "swiglu", "position": "rotary_half", "kv_heads": 2, "bias": False}


def make(vocab_size=11, seed=0, size=0.5, max_length=40, eos_id=None, **block):
    torch.manual_seed(seed)
    config = BlockConfig.of_sizes(16, 4, 20, **(block or LLAMA))
    return shake(GPT(GPTConfig(vocab_size, config, layers=2, max_length=max_length, eos_id=eos_id)), size).eval()


def flat(ids):
    """A draft that has no opinion."""
    return torch.zeros(11)


draw = partial(GenerationConfig, do_sample=True)
DRAFTS = {
    "another model": make(seed=1),
    "nearly the same": make(size=0.49),
    "without an opinion": flat,
    "always the same": lambda ids: 9 * torch.eye(11)[3],
}


def expected(counts, p):
    """Counts and what p expects, with rare outcomes thrown together."""
    counts, p = torch.tensor(counts, dtype=torch.float64), torch.tensor(p, dtype=torch.float64)
    total, p = counts.sum().item(), p / p.sum()
    rare = p * total < 5
    counts = [*counts[~rare].tolist(), counts[rare].sum().item()]
    p = [*p[~rare].tolist(), p[rare].sum().item()]
    return [each for each, share in zip(counts, p, strict=True) if share], [total * share for share in p if share]


def test_accepting_draws_from_the_models_distribution():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 6).mul(1.5).softmax(-1), torch.randn(1, 6).mul(1.5).softmax(-1)
    seen = torch.zeros(6, 6)  # first token, second one (where there is one)
    alone = torch.zeros(6)
    for guess in torch.multinomial(q[0], 2_000, replacement=True, generator=generator).tolist():
        first, *second = accept([guess], q, p, generator)
        alone[first] += 1
        if second:
            seen[first, second[0]] += 1
    assert chisquare(*expected(alone.tolist(), p[0].tolist())).pvalue > 1e-3
    assert chisquare(*expected(seen.sum(0).tolist(), p[1].tolist())).pvalue > 1e-3
    rate = seen.sum() / 2_000
    assert abs(rate - torch.minimum(p[0], q[0]).sum()) < 4 * (0.25 / 2_000) ** 0.5  # Leviathan et al., theorem 3.5


def test_equal_distributions_accept_everything_and_disjoint_ones_nothing():
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert accept([1], p[:1], p) == [1, 3]
    (token,) = accept([2], torch.tensor([[0.0, 0.0, 1.0, 0.0]]), p)
    assert token in (0, 1)
    assert accept([], p[:0], p[1:]) == [3]


class Table:
    """A decoder whose next token depends on the two before it: fast, and with a cache that can be cropped."""

    class Cache(list):
        def crop(self, length):
            del self[length:]

    def __init__(self, vocab_size, seed):
        self.config = SimpleNamespace(vocab_size=vocab_size, max_length=9, eos_id=None)
        generator = torch.Generator().manual_seed(seed)
        self.table = 1.5 * torch.randn(vocab_size, vocab_size, vocab_size, generator=generator)

    def parameters(self):
        return iter([self.table])

    def new_cache(self, capacity=None):
        return self.Cache()

    def decode(self, input_ids, attention_mask, cache):
        new = input_ids[0].tolist()
        text = [0, *(cache or []), *new]
        if cache is not None:
            cache += new
        return torch.stack([self.table[text[i - 1], text[i]] for i in range(len(text) - len(new), len(text))])[None]

    def logits(self, hidden):
        return hidden


def exact(model, prompt, sampling, length):
    """The probability of each text of that length, by the definition."""
    size, found = model.config.vocab_size, {}
    for text in product(range(size), repeat=length):
        share = 1.0
        for place, token in enumerate(text):
            ids = torch.tensor([[*prompt, *text[:place]]])
            seen = torch.zeros(1, size, dtype=torch.bool)
            seen[0, ids[0]] = True
            written = torch.tensor(text[:place], dtype=torch.long).bincount(minlength=size)[None]
            share *= sampling(model.decode(ids, None, None)[:, -1], seen, written).softmax(-1)[0, token].item()
        found[text] = share
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        draw(),
        draw(temperature=0.7, top_k=2),
        draw(temperature=1.3, top_p=0.8, repetition_penalty=1.4),
        draw(presence_penalty=1.0, frequency_penalty=0.5),
    ],
    ids=["plain", "top-k", "repetition", "counts"],
)
def test_three_tokens_have_the_models_joint_distribution(sampling):
    model, draft = Table(3, seed=2), Table(3, seed=3)
    found = exact(model, [1, 2], sampling, 3)
    counts = dict.fromkeys(found, 0)
    for seed in range(500):
        text = speculate(model, draft, [1, 2], ahead=2, max_new_tokens=3, config=sampling, seed=seed).tokens
        counts[tuple(text)] += 1
    assert not [text for text, times in counts.items() if times and not found[text]]
    assert chisquare(*expected(list(counts.values()), list(found.values()))).pvalue > 1e-3


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("ahead", [1, 4, 30])
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_tokens_are_those_of_the_model_alone(draft, ahead, use_cache):
    model, prompt = make(), torch.randint(11, (6,)).tolist()
    found = speculate(model, DRAFTS[draft], prompt, ahead=ahead, max_new_tokens=12, use_cache=use_cache)
    assert [found.tokens] == generate(model, [prompt], max_new_tokens=12)
    assert 12 / (ahead + 1) <= found.calls <= 12
    assert found.accepted + found.calls == 12


@pytest.mark.parametrize("position", ["learned", "alibi"])
def test_greedy_with_other_positions(position):
    model, draft = make(position=position), make(seed=4, position=position)
    prompt = [1, 2, 3]
    assert [speculate(model, draft, prompt, max_new_tokens=15).tokens] == generate(model, [prompt], max_new_tokens=15)


def test_its_own_model_is_the_perfect_draft():
    model = make()
    found = speculate(model, model, [1, 2], ahead=4, max_new_tokens=20)
    assert (found.calls, found.accepted, found.guessed) == (4, 16, 16)
    found = speculate(model, model, [1, 2], ahead=4, max_new_tokens=20, config=draw(), seed=0)
    assert found.accepted == found.guessed


def test_an_end_token_ends_it():
    model = make()
    (alone,) = generate(model, [[1, 2]], max_new_tokens=20)
    for end in (alone[0], alone[-1]):
        found = speculate(model, DRAFTS["nearly the same"], [1, 2], max_new_tokens=20, eos_id=end)
        assert [found.tokens] == generate(model, [[1, 2]], max_new_tokens=20, eos_id=end)


def test_the_same_seed_draws_the_same():
    model, draft = make(), make(seed=1)
    texts = [speculate(model, draft, [1], config=draw(), seed=seed, max_new_tokens=30).tokens for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_a_sliding_window_takes_back_what_it_has_not_forgotten():
    block = {**LLAMA, "mask": sliding_window(3)}
    model, draft = make(**block), make(seed=1)
    with pytest.raises(ValueError, match="use_cache=False"):
        speculate(model, draft, [1, 2, 3, 4, 5], max_new_tokens=20)
    (alone,) = generate(model, [[1, 2, 3, 4, 5]], max_new_tokens=20)
    assert speculate(model, draft, [1, 2, 3, 4, 5], max_new_tokens=20, use_cache=False).tokens == alone


def test_what_does_not_fit_is_refused():
    model = make()
    for wrong, said in (
        ({"ahead": 0}, "ahead=0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"input_ids": []}, "empty"),
        ({"max_new_tokens": 39}, r"model's context holds 40 tokens, prompt and new ones are 2 \+ 39"),
        ({"draft": make(12)}, "vocabulary has 12 tokens, the model's 11"),
        ({"draft": make(max_length=8)}, "draft's context holds 8"),
    ):
        call = {"model": model, "draft": flat, "input_ids": [1, 2], "max_new_tokens": 20, **wrong}
        with pytest.raises(ValueError, match=said):
            speculate(call.pop("model"), call.pop("draft"), call.pop("input_ids"), **call)


@pytest.mark.parametrize("capacity", [None, 12])
@torch.no_grad()
def test_a_cropped_cache_is_one_that_never_read_on(capacity):
    model, ids = make(), torch.randint(11, (2, 9))
    cache = model.new_cache(capacity)
    model(ids[:, :5], cache=cache)
    model(torch.randint(11, (2, 4)), cache=cache)
    cache.crop(5)
    assert cache.length == 5
    torch.testing.assert_close(model(ids[:, 5:], cache=cache).logits, model(ids).logits[:, 5:], rtol=1e-5, atol=1e-5)
