"""AdamW against its formula; which parameters Muon gets; what is remembered; what torch's own tools make of it."""

import sys
from copy import deepcopy

import pytest
import torch
from torch import nn

from txlib.layers import BlockConfig
from txlib.models import Transformer, TransformerConfig
from txlib.training import Optimizers, optimizers
from txlib.training.distributed import DistributedContext
from txlib.training.optimizers import hidden_matrices
from txlib.training.processes import run_ranks

MODULE = sys.modules["txlib.training.optimizers"]  # the module: the package has a function of that name


def make_transformer():
    block = BlockConfig.of_sizes(d_model=8, heads=2, d_ff=16, qk_norm="layer", position="none")
    return Transformer(TransformerConfig(vocab_size=13, block=block, encoder_layers=2, decoder_layers=1))


def learn(model, optimizer, steps, factor=lambda step: 1.0):
    """Steps along the gradients of a fixed random function of the weights."""
    for step in range(1, steps + 1):
        optimizer.set_factor(factor(step))
        chance = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=chance, dtype=parameter.dtype)
            parameter.grad = parameter.detach() + noise
        optimizer.step()
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in model.parameters())


def test_adamw_is_its_algorithm():
    """Loshchilov & Hutter 2019, algorithm 2, written out."""
    lr, (beta1, beta2), eps, decay = 0.1, (0.9, 0.98), 1e-8, 0.3
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(3, 2)]), "head": nn.Linear(2, 2, bias=False)}).double()
    theta = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    m = {name: torch.zeros_like(value) for name, value in theta.items()}
    v = {name: torch.zeros_like(value) for name, value in theta.items()}
    learn(model, optimizers(model, lr=lr, weight_decay=decay), 5, factor=lambda step: 1 / step)
    for t in range(1, 6):
        chance = torch.Generator().manual_seed(t)
        for name in theta:
            g = theta[name] + torch.randn(theta[name].shape, generator=chance, dtype=torch.float64)
            if name == "layers.0.weight":  # weight decay is for the blocks' matrices only
                theta[name] = theta[name] - lr / t * decay * theta[name]
            m[name] = beta1 * m[name] + (1 - beta1) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g**2
            m_hat, v_hat = m[name] / (1 - beta1**t), v[name] / (1 - beta2**t)
            theta[name] = theta[name] - lr / t * m_hat / (v_hat.sqrt() + eps)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), theta[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 6)])
def test_muon_is_torchs(shape, monkeypatch):
    """Bit for bit where torch, too, iterates in 16 bits."""
    monkeypatch.setattr(MODULE, "supports_bf16", lambda device: True)
    start, options = torch.randn(shape), dict(lr=0.3, momentum=0.9, weight_decay=0.2)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    both = MODULE.Muon([("layers.w", ours)], **options), torch.optim.Muon([("layers.w", theirs)], **options)
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in both:
            optimizer.step()
        assert ours.equal(theirs)


def test_the_iteration_makes_singular_values_alike(monkeypatch):
    """In 32 bits, alone and in stacks: U and V of the singular value decomposition stay, values come close to 1."""
    monkeypatch.setattr(MODULE, "supports_bf16", lambda device: False)
    for shape in ((6, 4), (4, 6)):
        matrices = [torch.randn(shape) for _ in range(3)]
        stacked = MODULE.newton_schulz(torch.stack(matrices))
        for matrix, of_stack in zip(matrices, stacked, strict=True):
            found = MODULE.newton_schulz(matrix)
            torch.testing.assert_close(found, of_stack, rtol=1e-4, atol=1e-5)
            u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
            turned = u.mT @ found @ vh.mT
            values = turned.diagonal()
            torch.testing.assert_close(turned, torch.diag(values), rtol=0, atol=1e-4)
            assert values.min() > 0.6 and values.max() < 1.3


def learn_on_ranks(rank):
    """The weights after three steps, and how many matrices this rank made orthogonal."""
    context, model, done = DistributedContext.current(), make_transformer(), []
    each = MODULE.newton_schulz
    MODULE.newton_schulz = lambda matrix: done.append(matrix.shape) or each(matrix)
    try:
        learn(model, optimizers(model, lr=0.01, muon_lr=0.02, weight_decay=0.1, context=context), 3)
    finally:
        MODULE.newton_schulz = each
    return {name: weight.detach() for name, weight in model.named_parameters()}, len(done)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_muons_work(world):
    """The same weights as one process, bit for bit; each matrix is made orthogonal once, by one rank."""
    torch.manual_seed(3)
    found = run_ranks(learn_on_ranks, world)
    torch.manual_seed(3)
    alone, matrices = learn_on_ranks(0)
    for weights, _ in found:
        assert all(weights[name].equal(weight) for name, weight in alone.items())
    counts = [count for _, count in found]
    assert sum(counts) == matrices == 3 * 22 and max(counts) - min(counts) <= 3 * 4


def test_more_ranks_than_matrices():
    """Some have nothing to do, and take part."""
    matrix = torch.randn(4, 3)
    expected = MODULE.newton_schulz(matrix)
    for found in run_ranks(lambda rank: MODULE.orthogonalize_on_ranks([matrix], DistributedContext.current()), 3):
        assert found[0].equal(expected)


def test_muon_gets_the_matrices_of_the_blocks_and_nothing_else():
    model = make_transformer()
    muon, adamw = optimizers(model, lr=0.1, muon_lr=0.2).parts
    assert isinstance(muon, torch.optim.Muon) and isinstance(adamw, torch.optim.AdamW)
    by_muon, by_adamw = ([each for group in part.param_groups for each in group["params"]] for part in (muon, adamw))
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if any(part in name for part in ("query.", "key.", "value.", "output.", "up_proj.", "down_proj."))
        and name.endswith("weight")
    ]
    # 4 projections for each of 4 attentions (2 encoder, 2 in the decoder's block), 2 for each of 3 feed-forwards
    assert len(matrices) == 4 * 4 + 2 * 3
    assert {id(each) for each in by_muon} == {id(each) for each in matrices}
    assert any(each is model.embedding.weight for each in by_adamw)
    assert len(by_muon) + len(by_adamw) == len(list(model.parameters()))
    assert not {id(each) for each in by_muon} & {id(each) for each in by_adamw}
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.0}


def test_frozen_parameters_are_left_alone():
    model = make_transformer()
    model.encoder.requires_grad_(False)
    groups = [group for part in optimizers(model, lr=0.1, muon_lr=0.1).parts for group in part.param_groups]
    held = {each for group in groups for each in group["params"]}
    assert held == set(model.decoder.parameters()) | {model.embedding.weight}


@pytest.mark.parametrize("muon_lr", [None, 0.02])
def test_set_factor_multiplies_the_peaks(muon_lr):
    optimizer = optimizers(make_transformer(), lr=0.5, muon_lr=muon_lr)
    peaks = {"Muon": 0.02, "AdamW": 0.5}
    for factor in (0.5, 0.1, 1.0):  # of the peak, not of the last rate
        optimizer.set_factor(factor)
        for part in optimizer.parts:
            for group in part.param_groups:
                assert group["lr"] == pytest.approx(peaks[type(part).__name__] * factor)


@pytest.mark.parametrize("muon_lr", [None, 0.02])
def test_state_round_trip(muon_lr):
    straight = make_transformer()
    optimizer = optimizers(straight, lr=0.01, muon_lr=muon_lr)
    learn(straight, optimizer, 3)
    state = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
    again = make_transformer()
    again.load_state_dict(straight.state_dict())
    resumed = optimizers(again, lr=0.01, muon_lr=muon_lr)
    resumed.load_state_tensors(state)
    learn(straight, optimizer, 3)
    learn(again, resumed, 3)
    for a, b in zip(straight.parameters(), again.parameters(), strict=True):
        assert a.equal(b)
    fresh = make_transformer()
    fresh.load_state_dict(again.state_dict())
    for name, tensor in resumed.state_tensors().items():
        assert tensor.equal(optimizer.state_tensors()[name]), name


# What torch's own tools expect of an optimizer


@pytest.mark.parametrize("muon_lr", [None, 0.02])
def test_it_is_an_optimizer(muon_lr):
    model = make_transformer()
    optimizer = optimizers(model, lr=0.5, muon_lr=muon_lr)
    assert isinstance(optimizer, torch.optim.Optimizer)
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(each) for each in held} == {id(each) for each in model.parameters()}
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    learn(model, optimizer, 1)
    schedule.step()
    for part, peak in zip(optimizer.parts, (0.02, 0.5) if muon_lr else (0.5,), strict=True):
        assert [group["lr"] for group in part.param_groups] == [peak / 2] * len(part.param_groups)
    assert optimizer.step(lambda: torch.tensor(3.0)) == 3
    assert "lr: 0.25" in repr(optimizer)


@pytest.mark.parametrize("muon_lr", [None, 0.02])
def test_a_state_dict_carries_on(muon_lr):
    """Through `torch.save` and back, and through a deep copy, the next steps are those of the original."""
    straight = make_transformer()
    optimizer = optimizers(straight, lr=0.01, muon_lr=muon_lr)
    learn(straight, optimizer, 3)
    copied, copied_optimizer = deepcopy((straight, optimizer))
    again = make_transformer()
    again.load_state_dict(straight.state_dict())
    resumed = optimizers(again, lr=0.7, muon_lr=muon_lr)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for model, its_optimizer in ((straight, optimizer), (copied, copied_optimizer), (again, resumed)):
        learn(model, its_optimizer, 3, factor=lambda step: 1 / step)
    for a, b, c in zip(straight.parameters(), copied.parameters(), again.parameters(), strict=True):
        assert a.equal(b) and a.equal(c)


def test_a_gradient_scaler_scales_back():
    """With and without scaling the weights are the same; a gradient that is no number costs a step."""
    models = [make_transformer() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    both = [optimizers(model, lr=0.01, muon_lr=0.02) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def loss(model):
        return sum(weight.square().sum() for weight in model.parameters())

    loss(models[0]).backward()
    both[0].step()
    scaler.scale(loss(models[1])).backward()
    scaler.step(both[1])
    scaler.update()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b)
    both[1].zero_grad()
    before = [weight.clone() for weight in models[1].parameters()]
    scaler.scale(loss(models[1]) * float("inf")).backward()
    scaler.step(both[1])
    assert all(a.equal(b) for a, b in zip(before, models[1].parameters(), strict=True))


def test_one_rule_says_what_a_hidden_matrix_is():
    """Muon's parameters, those that decay without Muon, and `hidden_matrices` are the same."""
    model = make_transformer()
    model.encoder.layers[0].requires_grad_(False)
    hidden = {id(each) for each in hidden_matrices(model).values()}
    muon = optimizers(model, lr=0.1, muon_lr=0.1).parts[0]
    decaying = [group for group in optimizers(model, lr=0.1, weight_decay=0.1).param_groups if group["weight_decay"]]
    for groups in (muon.param_groups, decaying):
        assert {id(each) for group in groups for each in group["params"]} == hidden
    assert len(hidden) == 4 + 2 + 4 * 2 + 2  # of the encoder's second block and the decoder's only one


@pytest.mark.usefixtures("unchecked")
def test_parameters_instead_of_a_model():
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"got a generator; give the model itself.*: optimizers\(model, lr=1e-3\)"):
        optimizers(model.parameters(), lr=0.1)


def test_a_state_that_is_no_tensor_is_refused():
    """Checkpoints hold tensors only."""
    model = nn.Linear(2, 2)
    part = torch.optim.SGD(model.named_parameters(), lr=0.1)
    part.state[model.weight]["count"] = 3
    with pytest.raises(ValueError, match="SGD keeps 'count' as a int, and checkpoints hold tensors only"):
        Optimizers([part]).state_tensors()
