"""A model that is split over processes computes what the whole one does: outputs, losses, all gradients."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from txlib.models import GPT, Encoder, Transformer
from txlib.models.sizes import BERT, GPT2, LLAMA, VASWANI
from txlib.training.distributed import full_tensor
from txlib.training.processes import run_ranks
from txlib.training.tensor_parallel import parallelize

SMALL = {"d_model": 16, "heads": 4, "d_ff": 24, "dropout": 0.0, "attention_dropout": 0.0}
IDS = torch.randint(0, 30, (3, 7), generator=torch.Generator().manual_seed(0))
PADDING = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 3 + [0] * 4])


def small(config, **changes):
    """A config of sizes.py, narrow and shallow."""
    layers = ("encoder_layers", "decoder_layers") if hasattr(config, "encoder_layers") else ("layers",)
    block = config.block.replace(**SMALL, **changes)
    return replace(config, vocab_size=30, block=block, **dict.fromkeys(layers, 2))


CASES = {
    "gpt2": lambda: (GPT(small(GPT2["small"])), {"labels": IDS}),
    "llama": lambda: (GPT(small(LLAMA["7b"], kv_heads=2, qk_norm="layer")), {"labels": IDS}),
    "gated": lambda: (GPT(small(LLAMA["7b"], kv_heads=2, qk_norm="rms", gate=True, softcap=2.0)), {"labels": IDS}),
    "bert": lambda: (Encoder(small(BERT["base"])), {"attention_mask": PADDING}),
    "transformer": lambda: (Transformer(small(VASWANI["base"])), {"attention_mask": PADDING, "labels": IDS}),
}


class Sent(TorchDispatchMode):
    """Counts how often the processes add something up."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # it comes back with what it is made of
        self.number += function.overloadpacket._qualified_op_name.endswith("::all_reduce")
        return function(*args, **(kwargs or {}))


def shaken(model):
    """In double precision, with noise on every parameter: a zero or a one hides errors."""
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=chance, dtype=torch.double)
    return model


def loss_of(model, inputs):
    """A number that depends on all outputs."""
    out = model(input_ids=IDS, **inputs)
    found = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return (found * torch.linspace(-1, 1, found.shape[-1])).sum() + (getattr(out, "loss", None) or 0.0)


def compare(rank: int, case: str):
    """The whole model beside the one that is split; all-reduces, and share of the parameters."""
    model, inputs = CASES[case]()
    model = shaken(model)
    part = parallelize(copy.deepcopy(model), init_device_mesh("cpu", (2,)))
    expected = loss_of(model, inputs)
    expected.backward()
    with Sent() as sent:
        found = loss_of(part, inputs)
        forwards = sent.number
        found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = {name: each.grad for name, each in part.named_parameters()}
    for name, each in model.named_parameters():
        if each.grad is None:
            assert gradients[name] is None
        else:
            torch.testing.assert_close(full_tensor(gradients[name]), each.grad, rtol=1e-9, atol=1e-11, msg=name)
    here = sum(getattr(each, "to_local", lambda each=each: each)().numel() for each in part.parameters())
    return forwards, sent.number - forwards, here


SENT = {
    "gpt2": (4, 4),
    "llama": (4, 4),
    "gated": (4, 4),
    "bert": (4, 4),
    "transformer": (10, 12),
}  # the memory's gradients, too


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_one_process(case):
    """And each sub-layer adds up once, forwards and backwards; half of what is split is here."""
    results = run_ranks(compare, 2, case)
    assert results[0] == results[1]
    forwards, backwards, here = results[0]
    assert (forwards, backwards) == SENT[case]
    model, _ = CASES[case]()
    linear = [each for name, each in model.named_modules() if isinstance(each, nn.Linear) and "layers." in name]
    halved = [each.weight for each in linear]
    halved += [each.bias for each in linear if each.bias is not None and each.out_features != 16]
    assert here <= sum(map(torch.numel, model.parameters())) - sum(map(torch.numel, halved)) // 2


def refused(rank: int, config, world: int) -> str:
    """What is said about a model that can't be split; it is left as it was."""
    model = GPT(config)
    before = [type(each) for each in model.parameters()]
    with pytest.raises(ValueError) as error:
        parallelize(model, init_device_mesh("cpu", (world,)))
    assert before == [type(each) for each in model.parameters()]
    return str(error.value)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"kv_heads": 2}, "decoder.layers.0.self_attention: kv_heads=2 can't be split 4 ways; use 2 processes, or"),
        ({"heads": 2}, "decoder.layers.0.self_attention: heads=2 can't be split 4 ways; use 2 processes"),
        ({"d_ff": 27}, "decoder.layers.0.feed_forward: d_ff=27 can't be split 4 ways; use 3 processes"),
        ({"position": "alibi"}, "self_attention: AlibiBias belongs to all heads together; use rotary positions"),
        ({"sinks": True}, "self_attention: the sinks belong to all heads together"),
        (
            {"qk_norm": "rms", "qk_norm_whole": True},
            "self_attention: the norm of queries and keys belongs to all",
        ),
        ({"position": "shaw"}, "self_attention: ShawAttention has parameters for all heads together"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(changes, words):
    config = small(GPT2["small"])
    said = refused_by(replace(config, block=config.block.replace(**changes)))
    assert words in said


def refused_by(config) -> str:
    """Four processes are not needed to hear it: a mesh of that size is enough."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        return refused(0, config, 4)
    finally:
        torch.distributed.destroy_process_group()
