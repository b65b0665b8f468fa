"""A draft head against a loop over whole texts."""

import pytest
import torch
import torch.nn.functional as F
from oracles import shake
from torch.testing import assert_close

from txlib.generation import DraftHead, generate, speculate
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig

LLAMA = {"norm": "rms", "activation": "swiglu", "position": "rotary_half", "kv_heads": 2, "bias": False}


def make(**config):
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(16, 4, 20, **LLAMA)
    return shake(GPT(GPTConfig(11, block, layers=2, max_length=60, **config)), 0.5).eval()


def guessed(model, head, ids, ahead):
    """The most likely tokens after a text by the head: the whole text again for each state, one token at a time."""
    state, guesses = model.decode(torch.tensor([ids[:-1]]))[0, -1], []
    for token in [ids[-1], *([None] * (ahead - 1))]:
        token = guesses[-1] if token is None else token
        both = torch.cat([x / x.pow(2).mean().sqrt() for x in (state, model.embedding.weight[token])])
        state = state + head.narrow(F.gelu(head.wide(both)))
        guesses.append(int(model.logits(state).argmax()))
    return guesses


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("use_cache", [True, False])
@torch.no_grad()
def test_greedy_guesses_are_those_of_a_loop(use_cache, ahead):
    model = make()
    head, ids = shake(DraftHead(model, 24), 0.3), [1, 2, 3]
    found = speculate(model, head, ids, ahead=ahead, max_new_tokens=20, use_cache=use_cache)
    (alone,) = generate(model, [ids], max_new_tokens=20)
    assert found.tokens == alone
    text, calls, accepted = [*ids, alone[0]], 1, 0
    while len(text) < 23:
        guesses, right = guessed(model, head, text, min(ahead, 23 - len(text) - 1)) if len(text) < 22 else [], 0
        rest = alone[len(text) - 3 :]
        while right < len(guesses) and guesses[right] == rest[right]:
            right += 1
        text, calls, accepted = text + rest[: right + 1], calls + 1, accepted + right
    assert (found.calls, found.accepted) == (calls, accepted)


def test_its_loss_is_that_of_a_loop_and_reaches_only_the_head():
    model = make(logit_softcap=5.0)
    head, ids = shake(DraftHead(model), 0.3), torch.randint(11, (2, 9))
    states = model.decode(ids)
    total, count = 0.0, 0
    for text in range(2):
        for place in range(9 - 3):
            state = states[text, place]
            for step in range(1, 4):
                state = head(state[None, None], ids[text, place + step][None, None])[0, 0]
                p = model.logits(states[text, place + step]).softmax(-1)
                total, count = total - (p @ model.logits(state).log_softmax(-1)).item(), count + 1
    loss = head.loss(ids, ahead=3)
    assert_close(loss.item(), total / count, atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(weight.grad is not None for weight in head.parameters())
    assert all(weight.grad is None for weight in model.parameters())


def test_training_makes_it_a_better_draft():
    model = make()
    head, texts = DraftHead(model), torch.tensor(generate(model, [[n] for n in range(11)], max_new_tokens=40))
    before = speculate(model, head, [1, 2], max_new_tokens=40)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        head.loss(texts).backward()
        optimizer.step()
    after = speculate(model, head, [1, 2], max_new_tokens=40)
    assert after.calls < 0.7 * before.calls
    assert after.tokens == before.tokens


def test_what_does_not_fit_is_refused():
    head = DraftHead(make())
    with pytest.raises(ValueError, match="the draft head belongs to another model"):
        speculate(make(), head, [1, 2], max_new_tokens=4)
    with pytest.raises(ValueError, match="ahead=4 needs texts of at least 6 tokens; these have 5"):
        head.loss(torch.zeros(1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="d_ff=0 must be at least 1"):
        DraftHead(make(), 0)
