"""Blocks compiled, and computed twice: the same numbers, few graphs, less memory, and nothing is left of it."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import compile_script
import pytest
import resume_script
import torch
from compile_script import BLOCK, make_gpt, result
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from txlib.models.sizes import build
from txlib.recipes.language import window_loss
from txlib.recipes.translation import translation_loss
from txlib.training import TrainConfig, blocks, train, trainer
from txlib.training.blocks import blocks_of, checkpointed, compiled, in_fp8
from txlib.training.memory import activation_memory, saved_bytes, training_memory
from txlib.training.processes import run_ranks

POLICIES = ("blocks", "every-2", "matmuls")


def test_what_a_block_is():
    assert [len(blocks_of(model)) for model in (make_gpt(3), resume_script.make_model(), nn.Linear(2, 2))] == [3, 2, 0]
    experts = make_gpt(2, experts=3, top_k=1)
    assert blocks_of(experts) == list(experts.decoder.layers)  # not the experts inside of them


# Computed twice


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_computed_twice_is_the_same_bit_for_bit(policy, bf16):
    """With dropout, of which the second pass draws the same."""
    cases = (
        (make_gpt(), window_loss, torch.randint(30, (3, 17))),
        (make_gpt(experts=3, top_k=2), window_loss, torch.randint(30, (3, 17))),
        (resume_script.make_model().train(), translation_loss, resume_script.batches(0)[-1]),
    )
    for model, loss, batch in cases:
        expected, gradients = result(model, loss, batch, bf16)
        with checkpointed(model, policy):
            again, others = result(model, loss, batch, bf16)
        assert again.equal(expected)
        assert all(others[name].equal(gradient) for name, gradient in gradients.items())
        assert not any("forward" in vars(block) for block in blocks_of(model))


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
        return function(*args, **kwargs or {})


def test_how_much_is_computed_twice():
    """Of 4 blocks with 7 matrices each: all, half of them, or none of the products."""
    model, batch, counts = make_gpt(), torch.randint(30, (3, 17)), {}
    for policy in ("none", *POLICIES):
        with checkpointed(model, policy), Products() as products:
            result(model, window_loss, batch)
        counts[policy] = products.count
    more = {policy: counts[policy] - counts["none"] for policy in POLICIES}
    # the last product of a block gives its output, which nobody asks for again
    assert more["matmuls"] == 0 and more["blocks"] == 2 * more["every-2"] and 4 * 6 <= more["blocks"] <= 4 * 9


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("policy", ["none", *POLICIES])
def test_memory_is_predicted(policy, bf16):
    """Against what a real forward pass keeps: what is packed for autograd, and what torch's own caches hold."""
    model, ids = make_gpt(), torch.randint(30, (3, 16))
    cached = []

    def forward():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return model(ids, labels=ids).loss

    known = [*model.parameters(), *model.buffers(), ids]
    with checkpointed(model, policy, cached.append):
        real = saved_bytes(forward, known, cached)
    batch = {"input_ids": ids, "labels": ids}
    options = {"bf16": bf16, "checkpoint_activations": policy}
    assert activation_memory(build(model.config), batch, **options) == real > 10_000
    assert training_memory(model, batch, **options).activations == real


@pytest.mark.usefixtures("unchecked")
def test_memory_that_policies_save():
    """Blocks: the input of each, (batch, length, d_model), and what lies outside of them. The others lie between."""
    ids = torch.randint(30, (3, 16))
    bytes_of = {
        (policy, layers): activation_memory(
            build(make_gpt(layers).config), {"input_ids": ids, "labels": ids}, checkpoint_activations=policy
        )
        for policy in ("none", *POLICIES)
        for layers in (2, 4)
    }
    of_two = {policy: bytes_of[policy, 4] - bytes_of[policy, 2] for policy in ("none", *POLICIES)}
    assert of_two["blocks"] == 2 * ids.numel() * BLOCK.d_model * 4
    assert 2 * of_two["every-2"] == of_two["none"] + of_two["blocks"]
    assert of_two["blocks"] < of_two["matmuls"] < of_two["none"] / 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("policy", ["all", "every-", "every-0", "every-N", "every-2x"])
def test_an_unknown_policy_is_named(policy):
    with pytest.raises(ValueError, match=f"checkpoint_activations='{policy}' is unknown; choose none, blocks, every-N"):
        TrainConfig(checkpoint_activations=policy)


def test_a_run_may_go_on_with_another_policy(tmp_path):
    config = replace(resume_script.CONFIG, checkpoint_every=2, validate_every=None)
    straight = train(resume_script.make_model(), resume_script.batches, translation_loss, config, steps=4, quiet=True)
    calls = []

    def dies(model, batch):
        calls.append(1)
        if len(calls) == 6:
            raise SystemExit
        return translation_loss(model, batch)

    options = dict(steps=4, out=tmp_path, quiet=True)
    with pytest.raises(SystemExit):
        train(resume_script.make_model(), resume_script.batches, dies, config, **options)
    other = replace(config, checkpoint_activations="blocks")
    model = resume_script.make_model()
    again = train(model, resume_script.batches, translation_loss, other, resume=True, **options)
    assert again.losses == straight.losses


# In 8 bits


class Rounded(torch.autograd.Function):
    """A linear layer whose products are of numbers in 8 bits (Micikevicius et al. 2022, §3.1): values with 4 bits of
    exponent, gradients with 5."""

    @staticmethod
    def forward(ctx, x, weight):
        x, weight = in_8_bits(x, torch.float8_e4m3fn), in_8_bits(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, upstream):
        (x, weight), g = ctx.saved_tensors, in_8_bits(upstream, torch.float8_e5m2)
        return g @ weight, g.flatten(0, -2).T @ x.flatten(0, -2)


def in_8_bits(x, kind):
    """The nearest of the numbers that there are when the largest is the type's own."""
    scale = torch.finfo(kind).max / x.abs().max()
    return (x * scale).to(kind).float() / scale


class RoundedLinear(nn.Linear):
    def forward(self, x):
        product = Rounded.apply(x, self.weight)
        return product if self.bias is None else product + self.bias


def test_products_in_8_bits():
    pytest.importorskip("torchao")
    model, ids = make_gpt(bias=True), torch.randint(30, (3, 17), generator=torch.Generator().manual_seed(0))
    exact, _ = result(model, window_loss, ids)
    with in_fp8(model, emulate=True):
        found, gradients = result(model, window_loss, ids)
    linear = [layer for block in blocks_of(model) for layer in block.modules() if isinstance(layer, nn.Linear)]
    assert {type(layer) for layer in linear} == {nn.Linear}  # as before
    for layer in linear:
        layer.__class__ = RoundedLinear
    expected, others = result(model, window_loss, ids)
    assert_close(found, expected, rtol=1e-6, atol=0)
    assert abs(exact - expected) > 10 * abs(found - expected)
    for name, gradient in others.items():
        assert_close(gradients[name], gradient, rtol=0, atol=1e-5 * gradient.norm().item(), msg=name)


def trained_in_fp8(rank: int, engine: str):
    """Losses and weights of a short run."""
    ids = torch.randint(30, (4, 17), generator=torch.Generator().manual_seed(0))
    config = replace(resume_script.CONFIG, precision="fp8", parallel=engine, validate_every=None, muon_lr=None)
    model = make_gpt(2, dropout=0.0, attention_dropout=0.0)
    progress = train(model, lambda epoch: [ids], window_loss, config, steps=3, quiet=True)
    assert not any("Float8" in type(layer).__name__ for layer in model.modules())
    return progress.losses, model.state_dict()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="what is patched here reaches forked processes only")
@pytest.mark.usefixtures("unchecked")
def test_several_processes_train_in_8_bits(monkeypatch):
    """With "tp" as one process does; else each scales its own rows."""
    pytest.importorskip("torchao")
    monkeypatch.setattr(trainer, "in_fp8", partial(in_fp8, emulate=True))
    monkeypatch.setattr(TrainConfig, "uses_bf16", lambda config, device: False)  # whose noise would hide errors
    (ddp, _), (fsdp, _) = (run_ranks(trained_in_fp8, 2, engine) for engine in ("ddp", "fsdp"))
    (tp, _), alone = run_ranks(trained_in_fp8, 2, "tp"), trained_in_fp8(0, "ddp")
    for found, expected in (fsdp, ddp), (tp, alone):
        assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert ddp[0] != alone[0] and alone[0][2] < alone[0][0]


def test_8_bits_are_refused_where_they_cannot_be(monkeypatch):
    with pytest.raises(ValueError, match="'fp8' needs a GPU of compute capability 8.9 or more .* which cpu is not"):
        trained_in_fp8(0, "ddp")
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="needs torchao: pip install torchao"):
        patch.setitem(sys.modules, "torchao", None)
        patch.setattr(blocks, "supports_fp8", lambda device: True)
        trained_in_fp8(0, "ddp")
    pytest.importorskip("torchao")
    experts = make_gpt(1, experts=3)
    with in_fp8(experts, emulate=True):
        kinds = {name: type(layer).__name__ for name, layer in experts.named_modules() if isinstance(layer, nn.Linear)}
    assert {name.split(".")[3] for name, kind in kinds.items() if kind == "Float8Linear"} == {"self_attention"}
    with pytest.raises(ValueError, match="no block of GPT has a linear layer whose sizes are multiples of 16; take"):
        in_fp8(make_gpt(2, d_model=24, d_ff=40), emulate=True).__enter__()


# Compiled


@pytest.fixture(scope="module")
def graphs():
    """What the script found: in a process of its own, as the tests' checks of annotations can't be compiled."""
    done = subprocess.run([sys.executable, compile_script.__file__], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "blocks", "matmuls"])
def test_compiled_blocks_give_the_same_numbers(policy, graphs):
    assert graphs[policy]["difference"] < 1e-5
    assert graphs[policy]["graphs"] == 1  # one block stands for all
    assert graphs[policy]["breaks"] == 0 and graphs[policy]["left"] == 0


@pytest.mark.slow
def test_ragged_lengths_take_two_graphs_of_each_kind_of_block(graphs):
    """The first batch's own, then one for all lengths; an encoder's and a decoder's, with dropout."""
    assert graphs["lengths"] == {"graphs": 2, "breaks": 0}
    assert graphs["encoder and decoder"] == {"graphs": 4, "breaks": 0, "validations": 2}


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_compiled_is_named():
    with pytest.raises(ValueError, match="Linear has no blocks in an nn.ModuleList to compile; set compile=False"):
        compiled(nn.Linear(2, 2)).__enter__()
    with pytest.raises(ValueError, match="compile='max' must be True or False or 'reduce-overhead'"):
        TrainConfig(compile="max")
