"""The Universal Transformer: against a loop over positions, against a stack with tied blocks, against itself cached."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import keep, shake, torch_layer
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib.attention import sliding_window
from txlib.data import collate
from txlib.generation import Translator, beam_search, generate
from txlib.layers import BlockConfig
from txlib.models import UniversalGPT, UniversalGPTConfig, UniversalTransformer, UniversalTransformerConfig
from txlib.models.outputs import auxiliary_loss
from txlib.models.pretrained import load_pretrained, save_pretrained
from txlib.models.stack import Stack
from txlib.models.universal import Recurrence, UniversalConfig
from txlib.recipes.translation import translation_loss
from txlib.text import Tokenizer
from txlib.training import TrainConfig, optimizers, train
from txlib.training.memory import training_memory

pytestmark = pytest.mark.slow

BLOCK = BlockConfig.of_sizes(d_model=16, heads=4, d_ff=24, position="sinusoidal", norm_first=False)
VOCABULARY = 11
POSITIONS = ["none", "sinusoidal", "sinusoidal_concatenated", "learned", "rotary_half", "shaw", "alibi", "t5"]
THRESHOLDS = [0.3, 0.6, 0.9, 0.99, 1.0]


def make(
    kind=UniversalTransformer, *, steps=5, halting_threshold=0.9, halting_bias=-0.5, noise=0.3, after=False, **block
):
    made = UniversalTransformerConfig if kind is UniversalTransformer else UniversalGPTConfig
    block = BLOCK.replace(**block)
    config = made(
        VOCABULARY,
        block,
        steps,
        halting_threshold=halting_threshold,
        halting_bias=halting_bias,
        halting_after=after,
        max_length=32,
    )
    return shake(kind(config).double(), noise).eval()


def sentences(*shape):
    return torch.randint(3, VOCABULARY, shape)


def signal(i, t, d):
    """P^t_i by its formula (§2.1)."""
    rows = ((i / 10000 ** (2 * j / d), t / 10000 ** (2 * j / d)) for j in range(d // 2))
    return torch.tensor([f(a) + f(b) for a, b in rows for f in (math.sin, math.cos)], dtype=torch.float64)


def loop(part, x, memory=None):
    """One sentence without padding, position by position: (output, steps, remainders). torch computes the block."""
    layer, d, causal = torch_layer(part.layers[0]), x.shape[-1], memory is not None or part.layers[0].cross_attention
    future = torch.ones(len(x), len(x)).triu(1).bool() if causal else None
    states, sums = list(x), [0.0] * len(x)
    outs, steps, remainders = [torch.zeros(d, dtype=x.dtype) for _ in x], [0] * len(x), [None] * len(x)
    for t in range(1, part.steps + 1):
        reads = torch.stack([state + signal(i, t, d) for i, state in enumerate(states)])
        options = {} if memory is None else {"tgt_mask": future, "memory": memory[None]}
        after = layer(reads[None], **options)[0]
        for i in range(len(x)):
            if remainders[i] is not None:
                continue
            states[i], steps[i] = after[i], t
            seen = after[i] if part.halting_after else reads[i]
            p = 1 / (1 + math.exp(-float(part.halting.weight[0] @ seen + part.halting.bias[0])))
            if sums[i] + p > part.threshold or t == part.steps:
                remainders[i] = 1 - sums[i]
                outs[i] = outs[i] + remainders[i] * after[i]
            else:
                sums[i] += p
                outs[i] = outs[i] + p * after[i]
    out = torch.stack(outs)
    return (part.norm(out), steps, remainders)


@torch.no_grad()
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize(("norm_first", "after"), [(True, False), (False, False), (False, True)])
def test_equals_a_loop_over_positions(threshold, norm_first, after):
    model = make(halting_threshold=threshold, norm_first=norm_first, after=after)
    lengths = [6, 3, 1]
    source, target, mask = sentences(3, 6), sentences(3, 5), keep(lengths, 6)
    out = model(source, mask, target)
    taken = set()
    for row, length in enumerate(lengths):
        memory, steps, remainders = loop(model.encoder, model.embedding(source[row : row + 1, :length])[0])
        assert_close(out.encoder_last_hidden_state[row, :length], memory)
        assert out.encoder_ponder[row].tolist() == steps + [0] * (6 - length)
        expected = torch.tensor(remainders + [0.0] * (6 - length), dtype=torch.float64)
        assert_close(model.encoder.pondering.remainder[row], expected)
        taken |= set(steps)
        hidden, steps, remainders = loop(model.decoder, model.embedding(target[row : row + 1])[0], memory)
        assert_close(out.logits[row], hidden @ model.embedding.weight.T)
        assert out.ponder[row].tolist() == steps
        assert_close(model.decoder.pondering.remainder[row], torch.tensor(remainders, dtype=torch.float64))
        taken |= set(steps)
    assert len(taken) > 1, "all took the same number of steps: nothing is tested"


class Signals(nn.Module):
    """A block with the signals of its step before it."""

    def __init__(self, block, t):
        super().__init__()
        self.block, self.t, self.self_attention = block, t, block.self_attention

    def forward(self, x, *rest):
        rows = torch.stack([signal(i, self.t, x.shape[-1]) for i in range(x.shape[1])])
        return self.block(x + rows, *rest)


@pytest.mark.parametrize("norm_first", [True, False])
def test_without_halting_it_is_a_stack_with_tied_blocks(norm_first):
    model, source, mask = make(halting_threshold=None, norm_first=norm_first), sentences(2, 5), keep([5, 3], 5)
    target, x = sentences(2, 4), model.embedding(source)
    memory = model.encode(source, mask)
    hidden = model.decode(target, memory, mask)
    for part, causal, vectors, read, expected in (
        (model.encoder, False, x, (), memory),
        (model.decoder, True, model.embedding(target), (memory, mask[:, None, None].bool()), hidden),
    ):
        stack = Stack(model.config.block, 5, cross=causal, causal=causal).double()
        for layer in stack.layers:
            layer.load_state_dict(part.layers[0].state_dict())
        stack.norm.load_state_dict(part.norm.state_dict())
        stack.layers = nn.ModuleList(Signals(layer, t) for t, layer in enumerate(stack.layers, start=1))
        seen = torch.ones(1, 1, 4, 4).tril().bool() if causal else mask[:, None, None].bool()
        assert_close(stack(vectors, seen, *read), expected)
    out = model(source, mask, target)
    assert out.encoder_ponder.tolist() == [[5] * 5, [5, 5, 5, 0, 0]] and out.ponder.tolist() == [[5] * 4] * 2


def test_without_signals_a_step_does_not_know_its_number():
    """One step, fed with its own output, is the same as two; with signals it is not."""
    x = torch.randn(2, 5, 16)
    for signals in (False, True):
        block = BLOCK.replace(position="rotary_half")
        once, twice = (
            Recurrence(UniversalConfig(VOCABULARY, block, steps=steps, step_signals=signals)) for steps in (1, 2)
        )
        twice.load_state_dict(shake(once).state_dict())
        assert torch.allclose(once(once(x)), twice(x), atol=1e-6) != signals


def test_the_number_of_steps_is_in_no_parameter():
    sizes = {sum(p.numel() for p in make(steps=steps, halting_threshold=None).parameters()) for steps in (1, 2, 9)}
    assert len(sizes) == 1
    longer = make(steps=9)
    longer.load_state_dict(make(steps=2).state_dict())


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("threshold", [None, 0.9])
@pytest.mark.parametrize("norm_first", [True, False])
def test_more_padding_changes_nothing_at_real_positions(position, threshold, norm_first):
    model = make(position=position, halting_threshold=threshold, norm_first=norm_first)
    source, target, mask = sentences(2, 5), sentences(2, 4), keep([5, 3], 5)
    wider, wider_mask = torch.cat([source, sentences(2, 3)], dim=1), keep([5, 3], 8)
    longer = torch.cat([target, torch.zeros(2, 2, dtype=torch.long)], dim=1)
    narrow, wide = model(source, mask, target), model(wider, wider_mask, longer)
    assert_close(wide.logits[:, :4], narrow.logits)
    assert torch.equal(wide.encoder_ponder[:, :5], narrow.encoder_ponder) and not wide.encoder_ponder[:, 5:].any()
    assert torch.equal(wide.ponder[:, :4], narrow.ponder) and not wide.ponder[:, 4:].any()
    costs = []
    for _ in range(2):
        costs.append((model.encoder.pondering.cost, model.decoder.pondering.cost))
        model(source, mask, target)
    assert_close(*costs)
    alone = model(source[1:, :3], None, target[1:])
    assert_close(narrow.logits[1:], alone.logits)


@settings(max_examples=6)
@pytest.mark.parametrize("position", POSITIONS)
@given(
    chunks=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    norm_first=st.booleans(),
    threshold=st.sampled_from([None, *THRESHOLDS]),
    capacity=st.sampled_from([None, 20]),
    window=st.sampled_from([None, 3]),
    after=st.booleans(),
)
@torch.no_grad()
def test_cached_decoding_equals_all_at_once(position, chunks, norm_first, threshold, capacity, window, after):
    mask = None if window is None else sliding_window(window)
    model = make(position=position, norm_first=norm_first, halting_threshold=threshold, mask=mask, after=after)
    source, target, mask = sentences(3, 5), sentences(3, sum(chunks)), keep([5, 2, 4], 5)
    memory, cache = model.encode(source, mask), model.new_cache(capacity)
    first, *later = target.split(chunks, dim=1)
    outs, ponder = [model.decode(first, memory, mask, cache)], [model.decoder.pondering.steps]
    rows = torch.tensor([1, 1, 2, 0, 2])  # five beams out of three sentences
    cache.reorder(rows)
    outs, ponder = [outs[0][rows]], [ponder[0][rows]]
    for chunk in later:
        outs.append(model.decode(chunk[rows], memory[rows], mask[rows], cache))
        ponder.append(model.decoder.pondering.steps)
    assert cache.length == sum(chunks)
    whole = model(source, mask, target)
    assert_close(model.logits(torch.cat(outs, dim=1)), whole.logits[rows])
    assert torch.equal(torch.cat(ponder, dim=1), whole.ponder[rows])


@torch.no_grad()
def test_a_late_token_reads_the_keys_of_those_that_halted_long_before_it():
    """The case that a cache can get wrong, shown to happen: the first tokens halt together, a later one goes on."""
    for seed in range(200):
        torch.manual_seed(seed)
        model, ids = make(UniversalGPT, steps=6), sentences(2, 8)
        cache, outs, taken = model.new_cache(), [], []
        for i in range(8):
            outs.append(model(ids[:, i : i + 1], cache=cache))
            taken.append(int(outs[-1].ponder.max()))
        if max(taken[:4]) < max(taken[4:]):
            break
    assert max(taken[:4]) < max(taken[4:])
    whole = model(ids)
    assert_close(torch.cat([out.logits for out in outs], dim=1), whole.logits)
    states, steps = cache.states, [block.self_attention.length for block in cache]
    assert states.shape == (2, 8, 16) and steps[0] == 8 and steps == sorted(steps, reverse=True)
    cache.crop(5)
    again = torch.cat([model(ids[:, 5:7], cache=cache).logits, model(ids[:, 7:], cache=cache).logits], dim=1)
    assert_close(again, whole.logits[:, 5:])


@pytest.mark.parametrize("position", ["sinusoidal", "rotary_half", "learned", "skewed"])
@pytest.mark.parametrize("threshold", [None, 0.6, 0.9])
@torch.no_grad()
def test_the_decoder_alone_with_padding_on_the_left(position, threshold):
    model, ids = make(UniversalGPT, position=position, halting_threshold=threshold), sentences(2, 7)
    mask = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    whole, cache = model(ids, mask), model.new_cache()
    assert_close(whole.logits[1, 2:], model(ids[1:, 2:]).logits[0])
    assert not whole.ponder[1, :2].any() and whole.ponder[1, 2:].all()
    outs = [model(ids[:, :4], mask[:, :4], cache=cache)]
    outs += [model(ids[:, i : i + 1], mask[:, : i + 1], cache=cache) for i in range(4, 7)]
    cached = torch.cat([out.logits for out in outs], dim=1)
    assert_close(cached[0], whole.logits[0])
    assert_close(cached[1, 2:], whole.logits[1, 2:])
    assert torch.equal(torch.cat([out.ponder for out in outs], dim=1), whole.ponder)


@pytest.mark.parametrize("threshold", [None, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("kind", [UniversalTransformer, UniversalGPT])
@torch.no_grad()
def test_the_future_changes_neither_logits_nor_halting(kind, threshold):
    model, source, target = make(kind, halting_threshold=threshold), sentences(1, 4), sentences(1, 6)

    def run(ids):
        return model(source, None, ids) if kind is UniversalTransformer else model(ids)

    before = run(target)
    for t in range(6):
        other = target.clone()
        other[0, t] = 3 + (other[0, t] - 2) % (VOCABULARY - 3)
        after = run(other)
        assert torch.equal(after.logits[:, :t], before.logits[:, :t])
        assert torch.equal(after.ponder[:, :t], before.ponder[:, :t])
        assert not torch.allclose(after.logits[:, t], before.logits[:, t])


def test_gradients_of_the_ponder_cost_equal_finite_differences():
    model, source, mask, target = make(), sentences(3, 4), keep([4, 2, 3], 4), sentences(3, 4)
    target[0, 3:] = 0

    def cost():
        model(source, mask, target)
        return model.encoder.pondering.cost + model.decoder.pondering.cost

    value = cost()
    steps, remainders = (
        [getattr(part.pondering, name) for part in (model.encoder, model.decoder)] for name in ("steps", "remainder")
    )
    by_hand = sum(
        sum(n + r for n, r in zip(ns.flatten().tolist(), rs.flatten().tolist(), strict=True) if n) / int((ns > 0).sum())
        for ns, rs in zip(steps, remainders, strict=True)
    )
    assert value.item() == pytest.approx(by_hand) and not steps[1][0, 3] and not remainders[1][0, 3]
    value.backward()
    for part in (model.encoder.layers, model.decoder.layers, model.encoder.halting, model.decoder.halting):
        moved = [(parameter, torch.randn_like(parameter)) for parameter in part.parameters()]
        slope, costs = sum((parameter.grad * direction).sum().item() for parameter, direction in moved), []
        for size in (1e-6, -2e-6, 1e-6):
            with torch.no_grad():
                for parameter, direction in moved:
                    parameter += size * direction
                costs.append(cost().item())
        assert abs(slope) > 1e-3 and slope == pytest.approx((costs[0] - costs[1]) / 2e-6, rel=1e-4)


@pytest.mark.parametrize("kind", [UniversalTransformer, UniversalGPT])
def test_the_loss_takes_the_ponder_cost_along_while_training(kind):
    model, ids = make(kind).train(), sentences(2, 5)
    plain = model.eval()(ids, labels=ids).loss
    assert_close(
        auxiliary_loss(model),
        0.01 * sum(part.pondering.cost for part in model.children() if part.__class__.__name__ == "Recurrence"),
    )
    assert_close(model.train()(ids, labels=ids).loss, plain + auxiliary_loss(model))
    assert auxiliary_loss(make(kind, halting_threshold=None)) == 0.0
    still = make(kind, halting_threshold=None).train()
    assert_close(still(ids, labels=ids).loss, still.eval()(ids, labels=ids).loss)


def test_the_recipes_loss_takes_it_along():
    model, batch = make(), collate([([4, 5, 6], [7, 8]), ([4], [9, 3, 5])], 1, 2, 0)
    total, tokens = translation_loss(model, batch, smoothing=0.0)
    model.train()
    with_cost, _ = translation_loss(model, batch, smoothing=0.0)
    assert tokens == 7
    assert_close(with_cost, total + 7 * auxiliary_loss(model))


def test_a_cost_of_pondering_makes_it_ponder_less():
    model = make(UniversalGPT, halting_bias=-2.0, noise=0.1, steps=8)
    ids, adam = sentences(8, 6), torch.optim.Adam(model.parameters(), lr=0.02)
    before = model(ids).ponder.sum()
    for _ in range(60):
        adam.zero_grad()
        model(ids)
        model.decoder.pondering.cost.backward()
        adam.step()
    assert model(ids).ponder.sum() < 0.5 * before


def test_when_all_have_halted_nothing_more_is_computed():
    def count(p=None):
        threshold = None if p is None else 0.9
        model, ids = make(UniversalGPT, steps=6, halting_threshold=threshold), sentences(2, 8)
        if p is not None:
            nn.init.zeros_(model.decoder.halting.weight)
            nn.init.constant_(model.decoder.halting.bias, math.log(p / (1 - p)))
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            steps = model(ids).ponder
        return counter.get_total_flops(), set(steps.flatten().tolist())

    full, _ = count()
    logits = 2 * 2 * 8 * 16 * VOCABULARY
    unit = 2 * 2 * 8 * 16  # the halting unit
    for p, number in (0.95, 1), (0.5, 2), (0.31, 3), (0.1, 6):
        flops, steps = count(p)
        assert steps == {number}
        assert flops - logits - number * unit == (full - logits) * number / 6


@pytest.mark.parametrize("kind", [UniversalTransformer, UniversalGPT])
def test_its_memory_is_planned_for_all_steps(kind):
    def activations(**options):
        ids = sentences(4, 8)
        inputs = {"input_ids": ids} | ({} if kind is UniversalGPT else {"decoder_input_ids": ids})
        return training_memory(make(kind, **options).train(), inputs).activations

    two, four, six = (activations(steps=steps) for steps in (2, 4, 6))
    assert four - two == six - four > two / 2
    assert activations(steps=4, halting_bias=99.0) == four  # although it would stop after one


def test_the_memory_is_projected_once_for_all_steps():
    model, source, target = make(halting_threshold=None), sentences(2, 5), sentences(2, 3)
    memory, calls = model.encode(source), []
    model.decoder.layers[0].cross_attention.key.register_forward_hook(lambda *_: calls.append(1))
    model.decode(target, memory)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", [UniversalTransformer, UniversalGPT])
@pytest.mark.parametrize("threshold", [None, 0.9])
def test_saved_and_loaded(kind, threshold, tmp_path):
    model, ids = make(kind, halting_threshold=threshold, position="rotary_half"), sentences(2, 5)
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert type(again) is kind and again.config == model.config
    assert torch.equal(again(ids, labels=ids).logits, model(ids, labels=ids).logits)
    assert model.output_weight is model.embedding.weight


@pytest.mark.parametrize("kind", [UniversalTransformer, UniversalGPT])
def test_the_output_projection_may_be_its_own(kind):
    config = dataclasses.replace(make(kind).config, tie_embeddings=False)
    model, ids = shake(kind(config)).eval(), sentences(2, 4)
    first = model.decode(ids) if kind is UniversalGPT else model.decode(torch.tensor([[1], [1]]), model.encode(ids))
    assert_close(model(ids, labels=ids).logits[:, 0], first[:, 0] @ model.output.weight.T)


@pytest.mark.parametrize("threshold", [None, 0.6, 0.9])
def test_searches_are_the_same_with_and_without_cache(threshold):
    model, source, mask = make(halting_threshold=threshold), sentences(3, 5), keep([5, 2, 4], 5)
    nn.init.zeros_(model.embedding.weight[2])  # ends late
    for beams in (1, 3):
        found = beam_search(model, source, mask, max_new_tokens=7, num_beams=beams)
        assert found == beam_search(model, source, mask, max_new_tokens=7, num_beams=beams, use_cache=False)
        assert max(map(len, found)) > 2
    assert generate(model, source, mask, max_new_tokens=7) == beam_search(
        model, source, mask, max_new_tokens=7, num_beams=1
    )
    gpt = make(UniversalGPT, halting_threshold=threshold)
    prompts = [[3, 4, 5], [6], [7, 8]]
    written = generate(gpt, prompts, max_new_tokens=6)
    assert written == generate(gpt, prompts, max_new_tokens=6, use_cache=False)
    assert all(len(row) == 6 for row in written)


def test_it_learns_and_translates():
    pairs = [("ein Hund", "a dog"), ("eine Katze", "a cat"), ("zwei Hunde", "two dogs"), ("zwei Katzen", "two cats")]
    tokenizer = Tokenizer.train([side for pair in pairs for side in pair], 290)
    special = tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id
    block = BLOCK.replace(d_model=32, d_ff=64, norm_first=True)
    config = UniversalTransformerConfig(
        len(tokenizer),
        block,
        steps=3,
        halting_threshold=0.99,
        bos_id=special[0],
        eos_id=special[1],
        pad_id=special[2],
    )
    torch.manual_seed(0)
    model = UniversalTransformer(config)
    encode = lambda text: tokenizer.encode(text)  # noqa: E731
    batch = collate([(encode(one), encode(two)) for one, two in pairs], *special)
    train(
        model,
        lambda epoch: [batch],
        translation_loss,
        TrainConfig(lr=5e-3, muon_lr=0.02, warmup=5),
        steps=60,
        quiet=True,
    )
    translator = Translator(model, tokenizer)
    for beams in (1, 3):
        assert translator.translate([one for one, _ in pairs], num_beams=beams) == [two for _, two in pairs]
    other = UniversalTransformer(dataclasses.replace(config, vocab_size=len(tokenizer) + 1))
    with pytest.raises(ValueError, match="the tokenizer has .* tokens, the model"):
        Translator(other, tokenizer)


def test_muon_takes_the_block_and_adam_the_halting_unit():
    model = make()
    muon, adam = optimizers(model, lr=1e-3, muon_lr=0.02).parts
    taken = [name for group in muon.param_groups for name in group["param_names"]]
    assert all(".layers.0." in name for name in taken) and len(taken) == 16
    assert "decoder.halting.weight" in [name for group in adam.param_groups for name in group["param_names"]]


def test_gradients_reach_every_parameter():
    model = make(position="shaw").train()
    model(sentences(2, 5), keep([5, 3], 5), labels=sentences(2, 4)).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name
    copy.deepcopy(model)  # although the last batch's graph hangs on it


def test_a_sentence_of_padding_only_gives_no_nan():
    model, source = make().train(), sentences(2, 5)
    out = model(source, keep([0, 5], 5), labels=sentences(2, 3))
    out.loss.backward()
    assert out.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_mixed_precision_trains():
    model = make().float().train()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(sentences(2, 5), keep([5, 3], 5), labels=sentences(2, 4))
    out.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    half = make().to(torch.bfloat16)
    assert half(sentences(2, 5), None, sentences(2, 4)).logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"halting_threshold": 0.0}, r"halting_threshold=0.0 must be in \(0, 1\], e.g. 0.99; None takes all steps"),
        ({"halting_threshold": 1.01}, "halting_threshold=1.01 must be in"),
        ({"halting_threshold": math.nan}, "halting_threshold=nan must be in"),
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"ponder_weight": -1.0}, "ponder_weight=-1.0 must be at least 0"),
        ({"eos_id": 50}, "eos_id=50 is not in the vocabulary: vocab_size=50 allows 0 to 49"),
        ({"block": BLOCK.replace(position="skewed")}, "position='skewed' is causal"),
        ({"block": BLOCK.replace(experts=4)}, "leave the experts out"),
        ({"block": BLOCK.replace(layer_pattern=({"mask": sliding_window(1)}, {}))}, "leave its layer_pattern out"),
        ({"block": BLOCK.replace(d_model=15, heads=3)}, "step signals pair up .* got 15; choose e.g. 16"),
    ],
)
def test_wrong_configs_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        UniversalTransformerConfig(**{"vocab_size": 50, "block": BLOCK} | changes)


@pytest.mark.usefixtures("unchecked")
def test_wrong_calls_are_refused():
    model = make()
    with pytest.raises(ValueError, match="needs decoder_input_ids or labels"):
        model(sentences(1, 3))
    with pytest.raises(ValueError, match=r"the source has no tokens: input_ids has shape \(2, 0\); end it with eos_id"):
        model(sentences(2, 0), labels=sentences(2, 3))
    with pytest.raises(ValueError, match="input_ids holds 11, and vocab_size=11 allows 0 to 10"):
        model(torch.tensor([[11]]), labels=sentences(1, 3))
    with pytest.raises(ValueError, match=r"shape \(1, 2\), the tokens \(1, 3\)"):
        model(sentences(1, 3), keep([2], 2), labels=sentences(1, 2))
    with pytest.raises(ValueError, match=r"the memory has shape \(2, 4, 16\), expected .* \(1, any, 16\)"):
        model.decode(sentences(1, 3), model.encode(sentences(2, 4)))
    with pytest.raises(ValueError, match="BlockConfig does not say"):
        make(position=None)
