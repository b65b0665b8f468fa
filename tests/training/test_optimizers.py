"""AdamW against its formula; which parameters Muon gets; what is remembered."""

import pytest
import torch
from torch import nn

from txlib.layers import BlockConfig
from txlib.models import Transformer, TransformerConfig
from txlib.training import optimizers


def make_transformer():
    block = BlockConfig(d_model=8, heads=2, d_ff=16, qk_norm=True)
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


def test_muon_gets_the_matrices_of_the_blocks_and_nothing_else():
    model = make_transformer()
    muon, adamw = optimizers(model, lr=0.1, muon_lr=0.2).parts
    assert isinstance(muon, torch.optim.Muon) and isinstance(adamw, torch.optim.AdamW)
    by_muon, by_adamw = ([each for group in part.param_groups for each in group["params"]] for part in (muon, adamw))
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if any(part in name for part in ("query.", "key.", "value.", "output.", "widen.", "narrow."))
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
