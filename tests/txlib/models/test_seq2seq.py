"""The recurrent encoder–decoder: against torch's GRU and LSTM, and against a loop that knows one sentence at a time."""

import dataclasses
import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_chunks_are_the_whole, keep, shake
from torch import nn
from torch.testing import assert_close

from txlib.data import collate
from txlib.generation import Translator, beam_search, generate
from txlib.models import Seq2Seq, Seq2SeqConfig
from txlib.models.pretrained import load_pretrained, save_pretrained
from txlib.recipes.translation import translation_loss

VOCABULARY, D = 11, 6
WIRINGS = [  # attention, order, input feeding
    (None, None, False),
    ("additive", None, False),
    ("additive", "luong", False),
    ("bilinear", None, True),
    ("bilinear", "bahdanau", False),
    ("dot", None, False),
    ("dot", None, True),
]
CELLS = ["gru", "lstm"]


def make(wiring=WIRINGS[1], cell="gru", layers=2, **changes):
    attention, order, input_feeding = wiring
    config = Seq2SeqConfig(VOCABULARY, D, layers, layers, cell, attention=attention, order=order)
    config = dataclasses.replace(config, input_feeding=input_feeding, **changes)
    return shake(Seq2Seq(config).double()).eval()


def sentences(*shape):
    return torch.randint(3, VOCABULARY, shape)


def everything_small(test):
    """All wirings, cells, one layer or three, from one end or both."""
    choices = list(itertools.product(WIRINGS, CELLS, (1, 3), (True, False)))
    return pytest.mark.parametrize("wiring, cell, layers, bidirectional", choices)(test)


def step(weights, x, state, suffix=""):
    """One step of a GRU or an LSTM by its formulas; the state is (h,) or (h, c)."""
    h, *cell = state
    from_x = weights[f"weight_ih_l0{suffix}"] @ x + weights[f"bias_ih_l0{suffix}"]
    from_h = weights[f"weight_hh_l0{suffix}"] @ h + weights[f"bias_hh_l0{suffix}"]
    if cell:
        i, f, g, o = (from_x + from_h).view(4, -1)
        c = f.sigmoid() * cell[0] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    (r, z, n), (r_h, z_h, n_h) = from_x.view(3, -1), from_h.view(3, -1)
    z, candidate = (z + z_h).sigmoid(), (n + (r + r_h).sigmoid() * n_h).tanh()
    return (1 - z) * candidate + z * h, *cell


def read(layer, xs, suffix=""):
    """The states of a layer that begins with zeros."""
    weights, states = layer.cell.state_dict(), []
    parts = 2 if isinstance(layer.cell, nn.LSTM) else 1
    state = (torch.zeros(layer.cell.hidden_size).double(),) * parts
    for x in xs:
        state = step(weights, x, state, suffix)
        states.append(state[0])
    return states


@torch.no_grad()
def naive(model, source, target):
    """Annotations, logits and weights of one sentence: lists of vectors, one step at a time."""
    config = model.config

    def embed(ids):
        return [model.embedding.weight[i] * config.d_model**0.5 for i in ids.tolist()]

    h = embed(source)
    for number, layer in enumerate(model.encoder_layers):
        out = read(layer, h)
        if config.bidirectional:
            back = read(layer, h[::-1], "_reverse")[::-1]
            out = [torch.cat(both) for both in zip(out, back, strict=True)]
        h = [x + each for x, each in zip(h, out, strict=True)] if number else out
    half = D // 2 if config.bidirectional else D
    c = torch.cat([h[-1][:half], h[0][half:]])  # the last states
    start = (model.start.weight @ c + model.start.bias).tanh().view(config.decoder_layers, -1, D)
    states = [tuple(state) for state in start]

    def ask(s):
        scores = []
        for h_i in h:
            if config.attention == "additive":
                both = model.attention.query.weight @ s + model.attention.key.weight @ h_i
                scores.append(model.attention.v @ both.tanh())
            else:
                scores.append(s @ (model.attention.key.weight @ h_i if config.attention == "bilinear" else h_i))
        a = torch.stack(scores).softmax(0)
        return sum(a_i * h_i for a_i, h_i in zip(a, h, strict=True)), a

    def through(x):
        for number, layer in enumerate(model.decoder_layers):
            states[number] = step(layer.cell.state_dict(), x, states[number])
            x = x + states[number][0] if number else states[number][0]
        return x

    fed, hidden, alignment = torch.zeros(D).double(), [], []
    for y in embed(target):
        if config.attention is None:
            s = through(torch.cat([y, c]))
            read_by_output = [s, y, c]
        elif config.order == "bahdanau" or (config.order is None and config.attention == "additive"):
            c_t, a = ask(states[0][0])
            read_by_output = [through(torch.cat([y, c_t])), y, c_t]
        else:
            s = through(torch.cat([y, fed]) if config.input_feeding else y)
            c_t, a = ask(s)
            read_by_output = [s, c_t]
        fed = (model.combine.weight @ torch.cat(read_by_output) + model.combine.bias).tanh()
        hidden.append(fed)
        if config.attention:
            alignment.append(a)
    logits = torch.stack(hidden) @ model.embedding.weight.T
    return torch.stack(h), logits, torch.stack(alignment) if alignment else None


@everything_small
def test_equals_a_loop_over_one_sentence(wiring, cell, layers, bidirectional):
    model = make(wiring, cell, layers, bidirectional=bidirectional)
    source, target, lengths = sentences(3, 5), sentences(3, 4), (3, 5, 1)
    mask = keep(lengths, 5)
    out = model(source, mask, target)
    for row, length in enumerate(lengths):
        h, logits, alignment = naive(model, source[row, :length], target[row])
        assert_close(out.encoder_last_hidden_state[row, :length], h)
        assert_close(out.logits[row], logits)
        if alignment is not None:
            a = model.alignment(source, target, mask)[row]
            assert_close(a[:, :length], alignment)
            assert not a[:, length:].any()


@pytest.mark.parametrize("cell, kind", [("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_the_encoder_is_torchs(cell, kind):
    model = make(cell=cell, layers=1)
    theirs = kind(D, D // 2, bidirectional=True, batch_first=True).double()
    theirs.load_state_dict(model.encoder_layers[0].cell.state_dict())
    source = sentences(2, 5)
    memory = model.encode(source, keep([5, 2], 5))
    vectors = model.embedding.weight[source] * D**0.5
    assert_close(memory[:1], theirs(vectors[:1])[0])
    assert_close(memory[1:, :2], theirs(vectors[1:, :2])[0])


@pytest.mark.parametrize("cell, kind", [("gru", nn.GRUCell), ("lstm", nn.LSTMCell)])
def test_the_decoders_step_is_torchs(cell, kind):
    model = make(cell=cell, layers=1)
    theirs = kind(2 * D, D).double()
    theirs.load_state_dict(
        {name.removesuffix("_l0"): each for name, each in model.decoder_layers[0].cell.state_dict().items()}
    )
    memory, cache, y = model.encode(sentences(3, 4)), model.new_cache(), sentences(3, 1)
    model.decode(sentences(3, 2), memory, cache=cache)
    before = [part[0] for part in cache.states[0]]
    weights = model.attention.weights(before[0][:, None, None], memory[:, None])[:, 0]  # (batch, 1, source)
    x = torch.cat([model.embedding.weight[y[:, 0]] * D**0.5, (weights @ memory)[:, 0]], dim=-1)
    after = theirs(x, tuple(before) if cell == "lstm" else before[0])
    model.decode(y, memory, cache=cache)
    for ours, part in zip(cache.states[0], after if cell == "lstm" else (after,), strict=True):
        assert_close(ours[0], part)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("cell", CELLS)
def test_more_padding_changes_nothing(wiring, cell):
    model, source, target = make(wiring, cell), sentences(2, 5), sentences(2, 4)
    wider, longer = torch.cat([source, sentences(2, 3)], dim=1), torch.cat([target, sentences(2, 2)], dim=1)
    narrow = model(source, keep([5, 3], 5), target)
    wide = model(wider, keep([5, 3], 8), longer)
    assert_close(wide.logits[:, :4], narrow.logits)
    other = model(torch.where(keep([5, 3], 5) > 0, source, 0), keep([5, 3], 5).bool().long(), target)
    assert_close(other.logits, narrow.logits)
    assert torch.equal(model(source, None, target).logits, model(source, torch.ones_like(source), target).logits)


@settings(max_examples=5)
@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("cell", CELLS)
@given(chunks=st.lists(st.integers(1, 3), min_size=2, max_size=4), layers=st.integers(1, 2))
def test_decoding_in_steps_equals_all_at_once(wiring, cell, chunks, layers):
    model = make(wiring, cell, layers)
    assert_chunks_are_the_whole(model, sentences(3, 5), sentences(3, sum(chunks)), chunks)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("beams", [1, 3])
def test_beam_search_with_and_without_a_cache(wiring, beams):
    model, source, mask = make(wiring), sentences(4, 5), keep([5, 1, 3, 4], 5)
    found = beam_search(model, source, mask, num_beams=beams, max_new_tokens=7)
    assert found == beam_search(model, source, mask, num_beams=beams, max_new_tokens=7, use_cache=False)
    alone = beam_search(model, source[2:3, :3], num_beams=beams, max_new_tokens=7)
    assert found[2:3] == alone


def test_greedy_takes_the_likeliest_token():
    model, source = make(), sentences(1, 4)
    (found,) = generate(model, source, max_new_tokens=5)
    logits = model(source, None, torch.tensor([[model.config.bos_id, *found]])).logits[0]
    logits[:, model.config.pad_id] = -torch.inf
    assert logits.argmax(-1).tolist()[: len(found)] == found


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_token_changes_no_logits_before_it(wiring):
    model, source, target = make(wiring), sentences(1, 4), sentences(1, 5)
    before = model(source, None, target).logits
    for t in range(5):
        other = target.clone()
        other[0, t] = 3 + (other[0, t] - 2) % (VOCABULARY - 3)
        after = model(source, None, other).logits
        assert_close(after[:, :t], before[:, :t])
        assert all(not torch.allclose(after[:, later], before[:, later]) for later in range(t, 5))


def test_the_keys_are_projected_once_per_source(monkeypatch):
    model, calls = make(), []
    project = type(model.attention).project
    monkeypatch.setattr(type(model.attention), "project", lambda self, k: calls.append(1) or project(self, k))
    beam_search(model, sentences(2, 5), num_beams=2, max_new_tokens=6)
    model(sentences(2, 5), None, sentences(2, 4))
    assert len(calls) == 2


@pytest.mark.parametrize("wiring, cell", list(zip(WIRINGS, itertools.cycle(CELLS), strict=False)))
def test_gradients_equal_finite_differences(wiring, cell, unchecked):
    model, source, labels, mask = make(wiring, cell), sentences(2, 3), sentences(2, 3), keep([3, 2], 3)
    labels[1, 2] = -100
    model(source, mask, labels=labels).loss.backward()
    for name, parameter in model.named_parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        assert gradient.any(), name
        i, losses = int(gradient.abs().argmax()), []
        for size in (1e-5, -2e-5):
            flat[i] += size
            losses.append(model(source, mask, labels=labels).loss.item())
        flat[i] += 1e-5
        assert gradient[i].item() == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-7), name


def test_the_recipes_loss_and_the_models_are_the_same():
    model = make()
    batch = collate([([4, 5, 6], [7, 8]), ([9], [3, 4, 5])], 1, 2, 0)
    total, tokens = translation_loss(model, batch)
    out = model(batch.input_ids, batch.attention_mask, labels=batch.labels)
    assert tokens == 7
    assert_close(total / tokens, out.loss)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("cell", CELLS)
def test_to_disk_and_back(wiring, cell, tmp_path):
    model, source, target = make(wiring, cell, tie_embeddings=cell == "gru"), sentences(2, 5), sentences(2, 3)
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(source, None, target).logits, model(source, None, target).logits)
    assert Seq2SeqConfig.from_dict(json.loads(json.dumps(model.config.to_dict()))) == model.config


def test_one_matrix_serves_three_times():
    model = make()
    assert model.output_weight is model.embedding.weight
    names = [name for name, parameter in model.named_parameters() if VOCABULARY in parameter.shape]
    assert names == ["embedding.weight"]
    assert make(tie_embeddings=False).output_weight.shape == (VOCABULARY, D)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_dropout_only_while_training(wiring):
    model, source, target = make(wiring, dropout=0.5), sentences(2, 5), sentences(2, 3)
    assert torch.equal(model(source, None, target).logits, model(source, None, target).logits)
    model.train()
    assert not torch.equal(model(source, None, target).logits, model(source, None, target).logits)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("cell", CELLS)
def test_mixed_precision_trains(wiring, cell):
    model = make(wiring, cell).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(sentences(2, 5), keep([5, 3], 5), labels=sentences(2, 4))
    out.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.slow
def test_it_learns_to_turn_a_sentence_round(unchecked):
    """And shows how: the step that writes token t takes most from token n - 1 - t of the source."""
    model = Seq2Seq(Seq2SeqConfig(VOCABULARY, 32, attention="bilinear"))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(300):
        source = sentences(32, 6)
        model(source, labels=source.flip(1)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    source = sentences(50, 6)
    target = torch.cat([torch.full((50, 1), 1), source.flip(1)[:, :-1]], dim=1)
    assert (model.eval()(source, None, target).logits.argmax(-1) == source.flip(1)).float().mean() > 0.9
    assert model.alignment(source, target).mean(dim=0).argmax(-1).tolist() == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"decoder_layers": 0}, "decoder_layers=0 must be at least 1"),
        ({"cell": "rnn"}, "cell='rnn' must be 'gru' or 'lstm'"),
        ({"attention": "general"}, "attention='general' must be 'additive' or 'bilinear' or 'dot' or None"),
        ({"order": "before"}, "order='before' must be 'bahdanau' or 'luong' or None"),
        ({"d_model": 15}, "d_model=15 is shared by two directions; make it even, or bidirectional=False"),
        ({"dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
        ({"attention": None, "order": "luong"}, "order='luong' is of the attention, but attention=None; leave it out"),
        ({"input_feeding": True}, "input_feeding needs Luong's order, got attention='additive' with 'bahdanau'"),
        ({"input_feeding": True, "attention": None}, "input_feeding needs Luong's order, got attention=None"),
    ],
)
def test_wrong_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Seq2SeqConfig(**{"vocab_size": 50, "d_model": 16} | changes)


def test_wrong_calls_are_refused(unchecked):
    model, source, target = make(), sentences(2, 3), sentences(2, 4)
    memory = model.encode(source)
    with pytest.raises(ValueError, match="needs decoder_input_ids or labels"):
        model(source)
    with pytest.raises(ValueError, match=r"the source has no tokens: input_ids has shape \(2, 0\); end it with eos_id"):
        model(source[:, :0], None, target)
    with pytest.raises(ValueError, match="sentence 1 of the source has no token: its attention_mask is all 0"):
        model(source, keep([3, 0], 3), target)
    with pytest.raises(ValueError, match="a 0 before a 1; .* pad at the end"):
        model(source, keep([3, 2], 3).flip(1), target)
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 2\), the tokens \(2, 3\)"):
        model(source, keep([2, 2], 2), target)
    with pytest.raises(ValueError, match=r"the memory has shape \(2, 3, 6\), expected .* = \(1, any, 6\)"):
        model.decode(target[:1], memory)
    with pytest.raises(ValueError, match="decoder_input_ids has no tokens; begin with bos_id=1"):
        model.decode(target[:, :0], memory)
    cache = model.new_cache()
    model.decode(target, memory, cache=cache)
    with pytest.raises(ValueError, match="the cache holds the state of 2 sentences, decoder_input_ids has 1; choose"):
        model.decode(target[:1], memory[:1], cache=cache)
    with pytest.raises(ValueError, match=f"input_ids holds {VOCABULARY}, and vocab_size={VOCABULARY} allows 0 to 10"):
        model(torch.tensor([[VOCABULARY]]), None, target[:1])
    with pytest.raises(ValueError, match="attention=None aligns nothing"):
        make(WIRINGS[0]).alignment(source, target)
    with pytest.raises(ValueError, match="the tokenizer has 12 tokens, the model 11"):
        Translator(model, "a" * 12)
