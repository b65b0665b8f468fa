"""Generation against `transformers`, the samplers against probabilities computed by hand."""

import warnings
from functools import partial
from itertools import product

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from oracles import shake
from scipy.stats import chisquare
from torch.testing import assert_close
from transformers.generation import logits_process as theirs

from txlib.attention import StaticKeyValueCache, causal
from txlib.generation import (
    GenerationConfig,
    Sampling,
    TextGenerator,
    apply_temperature,
    beam_search,
    generate,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
    stream,
)
from txlib.generation.decoding import seen_tokens
from txlib.generation.prompts import pad_left
from txlib.layers import BlockConfig
from txlib.models import GPT, Encoder, EncoderConfig, GPTConfig
from txlib.models.pretrained import load_pretrained

VOCABULARY = 23
LLAMA = {"norm": "rms", "activation": "swiglu", "position": "rotary_half", "kv_heads": 2, "bias": False}
KINDS = {
    "gpt2": {"activation": "gelu_tanh", "position": "learned"},
    "sinusoidal": {"position": "sinusoidal"},
    "llama": LLAMA,
    "mixtral": {**LLAMA, "experts": 4},
    "switch": {**LLAMA, "experts": 4, "top_k": 1},
    "alibi": {"position": "alibi"},
    "shaw": {"position": "shaw"},
    "skewed": {"position": "skewed"},
    "t5": {"position": "t5"},
    "none": {"position": "none"},
}


def make(kind="llama", max_length=40, seed=0, eos_id=None, size=0.3):
    torch.manual_seed(seed)
    block = BlockConfig.of_sizes(16, 4, 20, **KINDS[kind])
    return shake(GPT(GPTConfig(VOCABULARY, block, layers=2, max_length=max_length, eos_id=eos_id)), size).eval()


def ids(*shape):
    return torch.randint(0, VOCABULARY, shape)


# The cache ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("kind, capacity", [*product(KINDS, [None, 30]), ("llama", 9)])
@torch.no_grad()
def test_cached_is_uncached(kind, left, capacity):
    model, x = make(kind), ids(3, 9)
    mask = torch.ones_like(x)
    if left:
        mask[1, :4] = mask[2, :2] = 0
    whole = model(x, mask).logits
    for steps in ([9], [4, 3, 1, 1], [1, 1, 7]):
        cache, parts, end = model.new_cache(capacity), [], 0
        for step in steps:
            start, end = end, end + step
            parts.append(model(x[:, start:end], mask[:, :end] if left else None, cache=cache).logits)
        real = mask.bool()
        assert_close(torch.cat(parts, dim=1)[real], whole[real], rtol=1e-5, atol=1e-5)


def test_a_static_cache_moves_nothing_and_has_an_end():
    cache = StaticKeyValueCache(4)
    first = torch.randn(2, 1, 3, 5)
    k, _ = cache.update(first, first)
    where = k.data_ptr()
    k, v = cache.update(first[:, :, :1], first[:, :, 1:2])
    assert k.data_ptr() == where and cache.length == 4
    assert torch.equal(k, torch.cat([first, first[:, :, :1]], 2)) and torch.equal(v[:, :, 3:], first[:, :, 1:2])
    cache.reorder(torch.tensor([1, 1, 0]))
    assert torch.equal(cache.k[2, :, :3], first[0]) and cache.length == 4
    with pytest.raises(ValueError, match="capacity=4 positions, got 5"):
        cache.update(first[[1, 1, 0], :, :1], first[[1, 1, 0], :, :1])


# Greedy ---------------------------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
THEIRS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=40,
            n_embd=16,
            n_layer=2,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4)),
}


def until_the_end(row, eos=2):
    row = row.tolist()
    return row[: row.index(eos)] if eos in row else row


@pytest.fixture(scope="module", params=THEIRS)
def both(request, tmp_path_factory):
    """A model of transformers, and the same in txlib."""
    torch.manual_seed(3)
    model = shake(THEIRS[request.param](), 0.5).eval()
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, load_pretrained(folder)


def test_greedy_tokens_are_those_of_transformers(both):
    model, ours = both
    prompts = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12]] + torch.randint(3, VOCABULARY, (5, 4)).tolist()
    x, mask = pad_left(prompts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.generate(x, attention_mask=mask, max_new_tokens=9, do_sample=False)[:, 5:]
        penalized = model.generate(x[3:, 1:], max_new_tokens=9, do_sample=False, repetition_penalty=1.3)[:, 4:]
    found = [until_the_end(row) for row in expected]
    for use_cache in (True, False):
        assert found == generate(ours, prompts, max_new_tokens=9, use_cache=use_cache)
    assert (
        found == generate(ours, x, mask, max_new_tokens=9) == beam_search(ours, x, mask, max_new_tokens=9, num_beams=1)
    )
    expected = [until_the_end(row) for row in penalized]
    for likeliest in ({}, {"do_sample": True, "top_k": 1}, {"do_sample": True, "temperature": 0}, {"temperature": 0}):
        options = {**likeliest, "repetition_penalty": 1.3, "max_new_tokens": 9}
        assert generate(ours, x[3:, 1:], **options) == expected


def test_marian_writes_what_transformers_write(tmp_path):
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=20,
        decoder_ffn_dim=20,
        pad_token_id=22,
        decoder_start_token_id=22,
        eos_token_id=0,
        forced_eos_token_id=None,
        scale_embedding=True,
        max_position_embeddings=40,
    )
    model = transformers.MarianMTModel(config)
    positions = {name: value.clone() for name, value in model.named_parameters() if "embed_positions" in name}
    shake(model).load_state_dict(positions, strict=False)
    model.eval().save_pretrained(tmp_path)
    x, mask = torch.randint(3, 22, (6, 7)), torch.ones(6, 7, dtype=torch.long)
    mask[1, 4:] = mask[2, 2:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.generate(x, attention_mask=mask, max_new_tokens=15, do_sample=False, num_beams=1)[:, 1:]
    found = generate(load_pretrained(tmp_path), x, mask, max_new_tokens=15)
    assert found == [until_the_end(row, 0) for row in expected]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_writes_what_each_prompt_alone_does(kind):
    model, prompts = make(kind, eos_id=2), [[3, 4, 5, 6, 7, 8], [9], [10, 11, 12]]
    together = generate(model, prompts, max_new_tokens=6)
    assert together == [generate(model, [prompt], max_new_tokens=6)[0] for prompt in prompts]
    assert together == generate(model, prompts, max_new_tokens=6, use_cache=False)


@torch.no_grad()
def test_when_the_context_is_full_its_older_half_is_forgotten():
    model, prompt = make("gpt2", max_length=8), [3, 4, 5]
    tokens, start = list(prompt), 0
    for _ in range(25):
        if len(tokens) - start > 8:
            start = len(tokens) - 4
        tokens.append(int(model(torch.tensor([tokens[start:]])).logits[0, -1].argmax()))
    for use_cache in (True, False):
        assert generate(model, [prompt], max_new_tokens=25, use_cache=use_cache) == [tokens[3:]]


def test_greedy_takes_stop_sequences_and_several_ends():
    model = make("llama")
    free = generate(model, [[3, 4]], max_new_tokens=30)[0]
    assert len(free) == 30
    stop = free[7:9]
    first = next(i for i in range(30) if free[i : i + 2] == stop)
    assert generate(model, [[3, 4]], max_new_tokens=30, stop=[[21, 22, 21], stop])[0] == free[:first]
    ends = [free[5], free[3]]
    assert generate(model, [[3, 4]], max_new_tokens=30, eos_id=ends)[0] == free[: min(map(free.index, ends))]
    steps = list(stream(model, [[3, 4], [5]], max_new_tokens=30, eos_id=free[3]))
    assert [row[0] for row in steps][: free.index(free[3]) + 1] == free[: free.index(free[3]) + 1]
    assert {row[0] for row in steps[free.index(free[3]) + 1 :]} <= {None}


# Drawing --------------------------------------------------------------------------------------------------------------

LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.2, -0.5, -1.0, -3.0, 1.5])
P = [
    value / sum(2.718281828459045**x for x in LOGITS.tolist())
    for value in (2.718281828459045**x for x in LOGITS.tolist())
]


def share(weights):
    return [weight / sum(weights) for weight in weights]


draw = partial(GenerationConfig, do_sample=True)


BY_HAND = {
    "plain": (draw(), P),
    "temperature": (draw(temperature=0.5), share([p**2 for p in P])),
    "hot": (draw(temperature=2), share([p**0.5 for p in P])),
    "top_k": (draw(top_k=3), share([P[0], P[1], 0, 0, 0, 0, 0, P[7]])),
    # 0.361 + 0.219 + 0.219 = 0.799 is below 0.85, the next reaches it
    "top_p": (draw(top_p=0.85), share([P[0], P[1], P[2], 0, 0, 0, 0, P[7]])),
    "min_p": (draw(min_p=0.3), share([p if p >= 0.3 * max(P) else 0 for p in P])),
    # the seen tokens 0 and 4: 2 / 1.5 and -0.5 · 1.5
    "repetition": (
        draw(repetition_penalty=1.5),
        share([2.718281828459045**x for x in (2 / 1.5, 1.5, 1, 0.2, -0.75, -1, -3, 1.5)]),
    ),
    # of the squares: 0.467, 0.172, 0.172, 0.063, …; of those of top 4 at least 0.7 · 1 …: the first three reach 0.9
    "all": (
        draw(temperature=0.5, top_k=4, top_p=0.9, min_p=0.2),
        share([P[0] ** 2, P[1] ** 2, 0, 0, 0, 0, 0, P[7] ** 2]),
    ),
}


class Fixed(torch.nn.Module):
    """A model that always gives the same logits."""

    def __init__(self):
        super().__init__()
        self.logit = torch.nn.Parameter(LOGITS)
        self.config = GPTConfig(len(LOGITS), BlockConfig.of_sizes(4, 2, 4), layers=1, max_length=1000)

    def decode(self, input_ids, attention_mask=None, cache=None):
        return self.logit.expand(*input_ids.shape, -1)

    def logits(self, hidden):
        return hidden

    def new_cache(self, capacity=None):
        return None


@pytest.mark.parametrize("name", BY_HAND)
def test_draws_follow_the_distribution(name):
    sampling, expected = BY_HAND[name]
    prompts = [[0, 4]] * 4000
    drawn = generate(Fixed(), prompts, config=sampling, max_new_tokens=1, seed=7)
    counts = torch.tensor(drawn).flatten().bincount(minlength=len(expected)).tolist()
    possible = [i for i, p in enumerate(expected) if p > 0]
    assert sum(counts[i] for i in possible) == 4000
    result = chisquare([counts[i] for i in possible], [4000 * expected[i] for i in possible])
    assert result.pvalue > 1e-3
    if name != "plain":  # the test can tell: the plain distribution is refused
        assert any(counts[i] == 0 for i in range(8)) or chisquare(counts, [4000 * p for p in P]).pvalue < 1e-6


@given(st.integers(0, 10**6))
def test_filters_are_those_of_transformers(seed):
    torch.manual_seed(seed)
    logits = torch.randn(3, 11) * 3
    k, p = int(torch.randint(1, 14, ())), float(torch.rand(()) * 0.98 + 0.01)
    x, seen = ids(3, 5) % 11, None
    assert torch.equal(keep_top_k(logits, k), theirs.TopKLogitsWarper(k)(x, logits.clone()))
    assert torch.equal(keep_top_p(logits, p), theirs.TopPLogitsWarper(p)(x, logits.clone()))
    assert torch.equal(keep_min_p(logits, p), theirs.MinPLogitsWarper(p)(x, logits.clone()))
    seen = seen_tokens(x, None, 11)
    assert torch.equal(
        penalize_repetition(logits, seen, 1.7), theirs.RepetitionPenaltyLogitsProcessor(1.7)(x, logits.clone())
    )
    assert torch.equal(apply_temperature(logits, 0.7), logits / 0.7)


def test_ties_stay_together():
    flat = torch.zeros(1, 5)
    assert keep_top_k(flat, 2).isfinite().all()  # there is no fair way to choose two of them
    assert keep_top_p(flat, 0.5).isfinite().sum() == 3
    assert keep_top_p(flat, 1).isfinite().all() and keep_min_p(flat, 1).isfinite().all()
    sharp = torch.tensor([[9.0, 0.0, 0.0]])
    assert keep_top_p(sharp, 0.1).isfinite().tolist() == [[True, False, False]]


def test_padding_is_not_seen():
    x, mask = pad_left([[3, 4], [5]])
    assert seen_tokens(x, mask, 7).nonzero().tolist() == [[0, 3], [0, 4], [1, 5]]


@pytest.mark.slow
def test_seeds():
    model, sampling = make("gpt2"), draw(temperature=1.5)
    first, again, other = (generate(model, [[3], [4, 5]], config=sampling, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    torch.manual_seed(5)
    free = generate(model, [[3]], config=sampling)
    torch.manual_seed(5)
    assert free == generate(model, [[3]], config=sampling) != generate(model, [[3]], config=sampling)


# Beams ----------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_beams_find_the_best_of_all_texts():
    model, length = make("gpt2", eos_id=2, size=0.5), 3
    prompt = [3, 4, 5]
    words = torch.cartesian_prod(*[torch.arange(VOCABULARY)] * length)  # (all, length)
    x = torch.cat([torch.tensor([prompt]).expand(len(words), -1), words], dim=1)
    log_p = model(x[:, :-1]).logits[:, 2:].log_softmax(-1).gather(-1, words[..., None])[..., 0]
    best = {}
    for row, p in zip(words.tolist(), log_p.tolist(), strict=True):
        end = row.index(2) + 1 if 2 in row else length
        best[tuple(row[:end])] = sum(p[:end]) / ((5 + end) / 6) ** 0.6
    expected = [token for token in max(best, key=best.get) if token != 2]
    x, mask = pad_left([prompt, [7, 3, 4, 5, 6]])
    for options in ({}, {"use_cache": False}):
        found = beam_search(model, torch.tensor([prompt]), max_new_tokens=length, num_beams=VOCABULARY**2, **options)
        assert found == [expected]
        assert beam_search(model, x, mask, max_new_tokens=length, num_beams=VOCABULARY**2, **options)[0] == expected


# Text -----------------------------------------------------------------------------------------------------------------


class Bytes:
    """One token a byte, of which only the last few are told apart."""

    alphabet = "ab é€.\n☃xyz".encode()

    def encode(self, text):
        return [self.alphabet.index(byte) for byte in text.encode()]

    def decode(self, tokens):
        return bytes(self.alphabet[token % len(self.alphabet)] for token in tokens).decode(errors="replace")


class Script(Fixed):
    """A model that continues any prompt with a given text."""

    def __init__(self, text):
        super().__init__()
        self.tokens = Bytes().encode(text)
        self.config = GPTConfig(VOCABULARY, BlockConfig.of_sizes(4, 2, 4), layers=1, max_length=100)

    def decode(self, input_ids, attention_mask=None, cache=None):
        step = self.step = getattr(self, "step", -1) + 1
        one_hot = torch.nn.functional.one_hot(torch.tensor(self.tokens[step % len(self.tokens)]), VOCABULARY)
        return one_hot.float().expand(*input_ids.shape, -1)


def test_text_comes_in_whole_characters():
    text = "a é☃€ xyz."
    pieces = list(TextGenerator(Script(text), Bytes()).stream("ab", max_new_tokens=len(text.encode())))
    assert "".join(pieces) == text and len(pieces) == len(text)
    assert TextGenerator(Script(text), Bytes()).generate("ab", max_new_tokens=len(text.encode())) == [text]
    cut = TextGenerator(Script(text), Bytes()).generate("ab", max_new_tokens=3)[0]
    assert (
        "".join(TextGenerator(Script(text), Bytes()).stream("ab", max_new_tokens=3))
        == cut
        == "a \N{REPLACEMENT CHARACTER}"
    )


def test_text_stops():
    script = "xy xyz. ab"
    pieces = list(TextGenerator(Script(script), Bytes()).stream("ab", stop_strings=["xyz", "€"], max_new_tokens=20))
    assert pieces == ["xy "]
    assert TextGenerator(Script(script), Bytes()).generate(["ab"], stop_strings=["z."], max_new_tokens=20) == ["xy xy"]
    assert TextGenerator(Script(script), Bytes()).generate("ab", stop_strings=["zz"], max_new_tokens=10) == [script]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 must be above 0, or 0 for the likeliest token"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0}, r"top_p=0 must be in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p=1.5 must be in \(0, 1\]"),
        ({"min_p": -0.1}, r"min_p=-0.1 must be in \(0, 1\]"),
        ({"top_k": 0}, "top_k=0 must be at least 1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be above 0"),
    ],
)
def test_numbers_refused(number, words):
    with pytest.raises(ValueError, match=words):
        Sampling(**number)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampling": 0.8}, "sampling=0.8 is not an option; to draw tokens give do_sample=True, temperature=0.8"),
        ({"config": 0.8}, r"config=0.8 must be a GenerationConfig, such as GenerationConfig\(do_sample=True"),
        ({"max_new_token": 3}, "GenerationConfig has no field 'max_new_token'; did you mean 'max_new_tokens'"),
        ({"temperature": 0.8}, "temperature=0.8 has no effect without do_sample=True; add that, or leave"),
        ({"top_k": 5}, "top_k=5 has no effect without do_sample=True"),
        ({"num_beams": 2, "do_sample": True}, "num_beams=2 searches and do_sample=True draws; choose one of them"),
        ({"num_beams": 2, "stop": [[5]]}, "beam search and encoder–decoders know no do_sample, stop"),
        ({"num_beams": 0}, "num_beams=0 must be at least 1"),
    ],
)
def test_options_refused(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        generate(make("gpt2"), [[3]], **options)


def test_options_change_a_config():
    model, config = make("gpt2"), GenerationConfig(do_sample=True, temperature=1.5, seed=3, max_new_tokens=9)
    drawn = generate(model, [[3]], config=config)
    assert drawn == generate(model, [[3]], do_sample=True, temperature=1.5, seed=3, max_new_tokens=9)
    assert drawn[0][:4] == generate(model, [[3]], config=config, max_new_tokens=4)[0]
    assert generate(model, [[3]], config=config, temperature=0) == generate(model, [[3]], max_new_tokens=9)
    assert generate(model, [[3]], num_beams=3, max_new_tokens=6) == beam_search(
        model, torch.tensor([[3]]), num_beams=3, max_new_tokens=6
    )


@pytest.mark.usefixtures("unchecked")
def test_prompts_refused():
    model = make("gpt2", max_length=8)
    for text, shown in (("hello", "'hello'"), (["hello"], "'hello'"), ([["hello"]], r"\['hello'\]"), ([1, 2, 3], "1")):
        with pytest.raises(
            TypeError, match=f"input_ids must be a list of lists of tokens.* holds {shown}; .* TextGenerator"
        ):
            generate(model, text)
    with pytest.raises(
        TypeError, match=r"input_ids has shape \(3,\) and must be \(batch, length\); for one text ids\[None\]"
    ):
        generate(model, torch.tensor([1, 2, 3]))
    with pytest.raises(TypeError, match="input_ids are torch.float32 and must be whole numbers"):
        generate(model, torch.ones(1, 3))
    with pytest.raises(TypeError, match="stop must be a list of lists of tokens.* holds 5"):
        generate(model, [[1]], stop=[5])
    with pytest.raises(TypeError, match="Encoder can't write: generation needs a decoder-only model"):
        generate(Encoder(EncoderConfig(9, BlockConfig.of_sizes(16, 4, 20, position="learned"), layers=1)), [[1]])
    for empty in ([[]], [[3], []], []):
        with pytest.raises(ValueError, match="prompt is empty"):
            generate(model, empty)
    with pytest.raises(ValueError, match=r"input_ids holds 99, and vocab_size=\d+ allows 0 to"):
        generate(model, [[3, 99]])
    with pytest.raises(TypeError, match=r"attention_mask=causal\(\) must be a tensor"):
        generate(model, torch.ones(1, 3, dtype=torch.long), causal())
    with pytest.raises(ValueError, match="a prompt has 9 tokens, the context holds 8"):
        generate(model, [[3] * 9])
    assert len(generate(model, [[3] * 8], max_new_tokens=3)[0]) == 3
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        generate(model, [[3]], max_new_tokens=0)
    with pytest.raises(ValueError, match="padded on the left"):
        generate(model, ids(2, 3), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    with pytest.raises(ValueError, match=r"shape \(2, 2\), input_ids \(2, 3\)"):
        generate(model, ids(2, 3), torch.ones(2, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="a prompt has 4 tokens, the context holds 3"):
        beam_search(model, ids(1, 4), max_new_tokens=6)
