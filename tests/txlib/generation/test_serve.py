"""Many requests at once against `generate` for each alone; blocks that are shared, short and given back."""

import random
from collections import Counter

import pytest
import torch
from oracles import shake
from torch.testing import assert_close

from txlib.attention import LinearConfig, global_tokens, random_blocks, sliding_window
from txlib.attention.cache import KeyValueCache, StaticKeyValueCache, WindowKeyValueCache
from txlib.generation import GenerationConfig, generate
from txlib.generation.serve import BlockPool, Engine, QueueFull
from txlib.layers import BlockConfig, DeltaConfig, LatentConfig, LongRotaryScaling, RotaryConfig, pack_weights
from txlib.models import GPT, GPTConfig, MusicConfig, MusicTransformer, Transformer, TransformerConfig

LLAMA = {"norm": "rms", "activation": "swiglu", "position": "rotary_half", "kv_heads": 2, "bias": False}
WINDOW = {"mask": sliding_window(5)}
KINDS = {
    "GPT-2": {"position": "learned"},
    "Llama": LLAMA,
    "Gemma": LLAMA | {"softcap": 5.0, "qk_norm": "rms", "layer_pattern": (WINDOW, {"position": "none"})},
    "gpt-oss": LLAMA | {"sinks": True, "mask": sliding_window(6) | global_tokens([0, 1]), "experts": 3},
    "NeoX": {"position": "rotary_half", "parallel": True, "gate": True, "attention_scale": 0.2},
    "sinusoids": {"position": "sinusoidal", "norm_first": False},
    "music": {"position": "learned"},
}
VOCAB_SIZE = 31


def make(kind="Llama", max_length=96, eos_id=None, layers=2, **block):
    torch.manual_seed(0)
    config = BlockConfig.of_sizes(16, 4, 24, **(block or KINDS[kind]))
    family, sizes = (MusicTransformer, MusicConfig) if kind == "music" else (GPT, GPTConfig)
    return shake(family(sizes(VOCAB_SIZE, config, layers=layers, max_length=max_length, eos_id=eos_id))).eval()


def ragged(count=6, seed=0):
    """Prompts of 1 to 30 tokens, every other beginning alike, and how to go on; every third is drawn."""
    rng = random.Random(seed)
    beginning = [rng.randrange(VOCAB_SIZE) for _ in range(20)]
    for index in range(count):
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
        drawn = {"do_sample": True, "seed": index, "top_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.3}
        config = GenerationConfig(max_new_tokens=rng.randint(1, 15), **(drawn if index % 3 == 0 else {}))
        yield (beginning if index % 2 else []) + prompt, config


@pytest.mark.parametrize("kind", KINDS)
def test_each_request_gets_what_it_would_get_alone(kind):
    """All at once; with a short budget, small blocks and a queue; and in a cache that is too small for all."""
    model, texts = make(kind), list(ragged())
    alone = [generate(model, [prompt], config=config)[0] for prompt, config in texts]
    settings = [
        {},
        {"block_size": 4, "max_running": 5, "step_tokens": 7},
        {"block_size": 4, "cache_tokens": 80, "share_prefixes": False},
    ]
    for setting in settings:
        engine = Engine(model, **setting)
        requests = [engine.submit(prompt, config) for prompt, config in texts]
        engine.run()
        assert [request.written for request in requests] == alone
        assert set(engine.pool.references) == {0} and len(engine.pool.free) == len(engine.pool.references)
        assert bool(engine.preemptions) == ("share_prefixes" in setting)
        assert any(request.reused for request in requests) == ("share_prefixes" not in setting)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_of_8_bits_gives_what_keys_and_values_rounded_by_hand_give(kind, monkeypatch):
    model, texts = make(kind), list(ragged())
    engine = Engine(model, block_size=4, step_tokens=7, kv_cache_dtype="int8")
    requests = [engine.submit(prompt, config) for prompt, config in texts]
    engine.run()
    assert engine.cache.layers[0].k.content.dtype == torch.int8

    def rounded(x):
        step = x.abs().amax(dim=-1, keepdim=True) / 127
        return (x / step).round() * step

    for cache in KeyValueCache, WindowKeyValueCache, StaticKeyValueCache:
        update = cache.__dict__["update"]
        monkeypatch.setattr(cache, "update", lambda self, k, v, update=update: update(self, rounded(k), rounded(v)))
    assert [request.written for request in requests] == [
        generate(model, [prompt], config=config)[0] for prompt, config in texts
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_whole_text(kind):
    model, texts = make(kind), [prompt for prompt, _ in ragged(6, seed=1)]
    engine, logits = Engine(model, block_size=4, step_tokens=9), {}
    for text in texts:
        engine.submit(text, max_new_tokens=1)
    while plan := engine.schedule():
        complete = [request for request, new in plan.items() if new == request.unread]
        logits |= dict(zip(complete, engine.read(plan), strict=True))
        for request, new in plan.items():
            request.read += new
            if not request.unread:
                request.finished = "length"
    for request, row in logits.items():
        with torch.no_grad():
            assert_close(row, model(torch.tensor([request.ids])).logits[0, -1], rtol=1e-5, atol=1e-5)
    assert len(logits) == len(texts)


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="torch without FBGEMM")
@pytest.mark.parametrize("weights", ["fp16", "int8"])
def test_packed_weights_are_served(weights):
    """In fp16 each text gets what it gets alone; in int8 inputs are rounded together, so only alone in the engine."""
    model = pack_weights(make(), weights)
    texts = [prompt for prompt, _ in ragged(4)]
    engine = Engine(model, block_size=4)
    requests = [engine.submit(text, max_new_tokens=8) for text in texts]
    engine.run()
    assert [len(request.written) for request in requests] == [8] * 4
    if weights == "fp16":
        assert [request.written for request in requests] == generate(model, texts, max_new_tokens=8)
    else:
        engine = Engine(model, block_size=4)
        request = engine.submit(texts[0], max_new_tokens=8)
        engine.run()
        assert request.written == generate(model, texts[:1], max_new_tokens=8)[0]


def test_ends_and_stops():
    model = make(eos_id=3)
    stop = ((7, 9), (4,))
    texts = [[1, 2], [5], [8, 8, 8], [7]] * 3
    config = GenerationConfig(max_new_tokens=6, do_sample=True, temperature=1.5, stop=stop)
    alone = [generate(model, [text], config=config, seed=seed)[0] for seed, text in enumerate(texts)]
    engine = Engine(model)
    requests = [engine.submit(text, config, seed=seed) for seed, text in enumerate(texts)]
    engine.run()
    assert [request.written for request in requests] == alone
    assert {request.finished for request in requests} == {"stop", "length"}


def test_others_write_while_a_long_prompt_is_read():
    engine = Engine(make(), step_tokens=8)
    short = engine.submit([1, 2], max_new_tokens=40)
    engine.step()
    long = engine.submit([random.Random(0).randrange(VOCAB_SIZE) for _ in range(70)], max_new_tokens=2)
    for step in range(10):
        assert len(short.ids) == 3 + step and long.unread == 70 - 7 * step
        engine.step()
    assert long.finished is None and len(long.ids) == 71


def test_two_that_come_together_share_what_one_of_them_computes():
    model, prompt = make(), [random.Random(0).randrange(VOCAB_SIZE) for _ in range(40)]
    engine = Engine(model, block_size=8)
    first, second = engine.submit([*prompt, 1], max_new_tokens=4), engine.submit([*prompt, 2], max_new_tokens=4)
    engine.step()
    assert first.table[:5] == second.table[:5] and not set(first.table[5:]) & set(second.table[5:])
    assert [engine.pool.references[block] for block in first.table] == [2, 2, 2, 2, 2, 1]
    assert engine.tokens_read == 42
    engine.run()
    assert [first.written, second.written] == [generate(model, [[*prompt, end]], max_new_tokens=4)[0] for end in (1, 2)]
    again = engine.submit([*prompt, 1, *first.written, 5], max_new_tokens=1)  # the conversation goes on
    engine.run()
    assert again.reused == 40


@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_and_goes_blocks_are_not_mixed_up(seed):
    """Requests come at random and some vanish; two tables share a block only where their texts begin alike."""
    rng, model = random.Random(seed), make(max_length=64, layers=1)
    engine, texts = Engine(model, block_size=4, cache_tokens=64, max_running=6, step_tokens=16), iter(ragged(30, seed))
    requests = {}
    for _ in range(60):
        for prompt, config in [next(texts, (None, None))] if rng.random() < 0.6 else []:
            if prompt is not None and len(prompt) + config.max_new_tokens <= 64:
                requests[engine.submit(prompt, config)] = prompt, config
        if requests and rng.random() < 0.05:
            engine.cancel(rng.choice(list(requests)))
        engine.step()
        uses = Counter(block for request in engine.running for block in request.table)
        assert all(count == uses[block] for block, count in enumerate(engine.pool.references))
        assert engine.pool.free.keys() == set(range(16)) - uses.keys()
        beginnings = {}
        for request in engine.running:
            for index, block in enumerate(request.table):
                if uses[block] > 1:
                    beginning = tuple(request.ids[: 4 * (index + 1)])
                    assert beginnings.setdefault(block, beginning) == beginning
    engine.run()
    ended = [request for request in requests if request.finished != "cancelled"]
    assert len(ended) > 5 and engine.preemptions
    for request in ended:
        prompt, config = requests[request]
        assert request.written == generate(model, [prompt], config=config)[0]


def test_a_block_is_remembered_until_it_is_needed():
    pool = BlockPool(3)
    table = [pool.take(), pool.take()]
    pool.remember(table[0], b"a")
    pool.remember(table[1], b"ab")
    assert pool.share(b"ab") == 1 and pool.references == [1, 2, 0]
    pool.release(table)
    assert table == [] and pool.references == [0, 1, 0] and pool.share(b"a") == 0
    pool.release([0])
    assert [pool.take(), pool.take()] == [2, 0]  # the one free for longest
    assert pool.share(b"a") is None and not pool.free


REFUSED = {
    "AlibiBias": {"position": "alibi"},
    "BucketBias": {"position": "t5"},
    "ShawAttention": {"position": "shaw"},
    "LinearAttention": {"position": "rotary", "mechanism": LinearConfig()},
    "GatedDeltaNet": {"position": "none", "mixer": DeltaConfig()},
    "LatentAttention": {"position": "rotary", "mixer": LatentConfig(rank=8, rotary_dim=4)},
    "depends on the number of keys": {"position": "rotary", "mask": random_blocks(4, 1, seed=0)},
    "capacity_factor": LLAMA | {"experts": 3, "capacity_factor": 1.0},
    "longrope": {"position": RotaryConfig(scaling=LongRotaryScaling((1.0, 1.0), (2.0, 2.0), context=50))},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_served_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"GPT can't be served: layer 0 has .*{name}.*; use generate"):
        Engine(make(**REFUSED[name]))


def test_bad_requests_are_refused_and_harm_no_other():
    model = make(max_length=40)
    engine = Engine(model, cache_tokens=32, max_waiting=2)
    good = engine.submit([1, 2, 3], max_new_tokens=8)
    for ids, options, said in (
        ([], {}, "the prompt is empty"),
        ([5, 31], {}, "beyond vocab_size=31"),
        ([1] * 30, {"max_new_tokens": 11}, "has 30 tokens, and with max_new_tokens=11 the context of 40 is too short"),
        ([1] * 30, {"max_new_tokens": 10}, "the cache of 32 is too short"),
        ([1], {"num_beams": 2}, "neither num_beams nor use_cache"),
    ):
        with pytest.raises(ValueError, match=said):
            engine.submit(ids, **options)
    engine.submit([4], max_new_tokens=1)
    with pytest.raises(QueueFull, match="2 requests are waiting already"):
        engine.submit([4], max_new_tokens=1)
    engine.run()
    assert good.written == generate(model, [[1, 2, 3]], max_new_tokens=8)[0]
    with pytest.raises(ValueError, match="step_tokens=0 must be at least 1"):
        Engine(model, step_tokens=0)
    block = BlockConfig.of_sizes(16, 4, 24, position="rotary")
    with pytest.raises(ValueError, match="kv_cache_dtype='fp8' is unknown; choose one of auto, int8"):
        Engine(make(), kv_cache_dtype="fp8")
    with pytest.raises(ValueError, match="Transformer can't be served"):
        Engine(Transformer(TransformerConfig(31, block, encoder_layers=1, decoder_layers=1)))


def test_listeners_hear_each_token_and_the_end():
    heard = []
    engine = Engine(make())
    request = engine.submit([1, 2], max_new_tokens=3, listen=heard.append)
    gone = engine.submit([1, 2], max_new_tokens=30, listen=heard.append)
    engine.cancel(gone)
    engine.run()
    assert heard == [None, *request.written, None] and gone.finished == "cancelled"
