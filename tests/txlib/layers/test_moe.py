"""Mixtures of experts against loops, `transformers` and hand counts."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from oracles import shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

from txlib.layers import BlockConfig, FeedForward, MixtureConfig, MixtureOfExperts, TransformerBlock
from txlib.layers.moe import load_balancing_loss, within_capacity
from txlib.models import GPT, GPTConfig, Transformer, TransformerConfig
from txlib.models.outputs import auxiliary_loss
from txlib.recipes.language import window_loss


def make(**config):
    return shake(MixtureOfExperts(MixtureConfig(d_ff=10, **config), 6)).double()


def loop(model, x):
    """One token at a time; experts that are full let it pass. All first choices are served before second ones."""
    config, tokens = model.config, x.flatten(0, 1)
    p = [torch.softmax(model.router(token), dim=-1) for token in tokens]
    ranked = [sorted(range(config.experts), key=lambda e, q=q: -q[e])[: config.top_k] for q in p]
    room = float("inf")
    if config.capacity_factor is not None:
        room = -(-config.capacity_factor * len(tokens) * config.top_k // config.experts)
    taken, out, dropped = [0] * config.experts, torch.zeros_like(tokens), 0
    for choice in range(config.top_k):
        for i, token in enumerate(tokens):
            expert = ranked[i][choice]
            total = sum(p[i][e] for e in ranked[i]) if config.top_k > 1 else 1.0
            if taken[expert] >= room:
                dropped += 1
                continue
            taken[expert] += 1
            out[i] += p[i][expert] / total * model.experts[expert](token[None, None])[0, 0]
    return out.view_as(x), taken, dropped / (len(tokens) * config.top_k)


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("capacity_factor", [None, 2.0, 1.0, 0.3])
@torch.no_grad()
def test_equals_a_loop(top_k, capacity_factor):
    model = make(experts=4, top_k=top_k, capacity_factor=capacity_factor)
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    out, counts, dropped = loop(model, x)
    assert_close(model(x), out, rtol=1e-6, atol=1e-6)  # the router's softmax is float32
    assert model.routing.counts.tolist() == counts
    assert model.routing.drop_rate == pytest.approx(dropped, abs=1e-6)
    if capacity_factor == 0.3:
        assert dropped > 0


def drawn(theirs):
    """One of transformers' layers, which alone is not initialized, with weights in eval mode."""
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return theirs.eval()


def network(ours, up, gate, down):
    ours.load_state_dict({"up_proj.weight": up, "gate_proj.weight": gate, "down_proj.weight": down})


def same_weights(ours, theirs, shared):
    """Load the weights of one of transformers' layers, which holds all experts in one tensor."""
    ours.router.weight.copy_(theirs.gate.weight)
    for expert, both, down in zip(ours.experts, theirs.experts.gate_up_proj, theirs.experts.down_proj, strict=True):
        gate, up = both.chunk(2)
        network(expert, up, gate, down)
    network(ours.shared, shared.up_proj.weight, shared.gate_proj.weight, shared.down_proj.weight)


SIZES = {"hidden_size": 6, "moe_intermediate_size": 10, "num_experts_per_tok": 3, "hidden_act": "silu"}
OURS = {"d_ff": 10, "experts": 8, "top_k": 3, "activation": "swiglu", "bias": False}


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (4, 2), (2, 1)])
@torch.no_grad()
def test_sigmoid_router_with_groups_equals_deepseeks(normalize, groups, top_groups):
    config = transformers.DeepseekV3Config(
        **SIZES,
        n_routed_experts=8,
        n_shared_experts=2,
        n_group=groups,
        topk_group=top_groups,
        norm_topk_prob=normalize,
        routed_scaling_factor=2.5,
    )
    theirs = drawn(DeepseekV3MoE(config))
    theirs.gate.e_score_correction_bias.normal_()
    ours = MixtureOfExperts(
        MixtureConfig(
            **OURS,
            normalize=normalize,
            router="sigmoid",
            choice_bias=True,
            expert_groups=groups,
            top_groups=top_groups,
            routed_scale=2.5,
            shared_d_ff=20,
        ),
        6,
    ).eval()
    same_weights(ours, theirs, theirs.shared_experts)
    x = torch.randn(3, 7, 6)
    before = ours(x)
    ours.choice_bias.copy_(theirs.gate.e_score_correction_bias)
    assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours(x), before, atol=1e-3) and "choice_bias" in ours.state_dict()
    assert_close(ours.routing.probabilities.sum(-1), torch.ones(21))
    if groups == 1:  # an expert with a much higher bias is chosen by all, at its own weight
        ours.choice_bias[5] += 10
        ours(x)
        assert (ours.routing.chosen[:, 0] == 5).all() and ours.routing.weights.max() <= 2.5


@torch.no_grad()
def test_shared_network_with_a_gate_equals_qwens():
    config = transformers.Qwen2MoeConfig(**SIZES, num_experts=8, shared_expert_intermediate_size=12)
    theirs = drawn(Qwen2MoeSparseMoeBlock(config))
    ours = MixtureOfExperts(MixtureConfig(**OURS, normalize=False, shared_d_ff=12, shared_gate=True), 6).eval()
    same_weights(ours, theirs, theirs.shared_expert)
    ours.shared_gate.weight.copy_(theirs.shared_expert_gate.weight)
    x = torch.randn(3, 7, 6)
    assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_router_bias_equals_gpt_oss():
    """A softmax over the chosen scores is one over all, made to sum to 1 again."""
    config = transformers.GptOssConfig(hidden_size=6, num_local_experts=8, num_experts_per_tok=3)
    theirs = drawn(GptOssTopKRouter(config))
    ours = MixtureOfExperts(MixtureConfig(**OURS, router_bias=True), 6)
    ours.router.load_state_dict(theirs.state_dict())
    x = torch.randn(21, 6)
    _, weights, chosen = theirs(x)
    routing = ours.route(x)
    assert_close(routing.weights, weights) and torch.equal(routing.chosen, chosen)


def test_all_experts_alike_are_one_network():
    model = make(experts=4, top_k=3)
    for expert in model.experts:
        expert.load_state_dict(model.experts[0].state_dict())
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    assert_close(model(x), model.experts[0](x), rtol=1e-6, atol=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_the_balance_loss(seed, top_k):
    torch.manual_seed(seed)
    p = torch.randn(9, 4).softmax(-1)
    chosen = p.topk(top_k).indices
    f = [sum(expert in row for row in chosen.tolist()) / 9 for expert in range(4)]
    by_hand = 4 * sum(f[expert] * p[:, expert].mean().item() for expert in range(4))
    assert load_balancing_loss(p, chosen).item() == pytest.approx(by_hand)
    assert_close(load_balancing_loss(p, chosen), load_balancing_loss_func((p.log(),), 4, top_k))


def test_balance_is_best_and_collapse_is_worst():
    even, chosen = torch.full((8, 4), 0.25), torch.arange(8)[:, None] % 4
    assert load_balancing_loss(even, chosen).item() == pytest.approx(1)
    collapsed = torch.eye(4)[torch.zeros(8, dtype=torch.long)]
    assert load_balancing_loss(collapsed, torch.zeros(8, 1, dtype=torch.long)).item() == pytest.approx(4)


def test_the_balance_loss_cures_a_collapsed_router():
    model = MixtureOfExperts(MixtureConfig(d_ff=10, experts=4, top_k=1), 6)
    with torch.no_grad():
        model.router.weight.normal_(std=0.1)  # rows that are alike would stay so
        model.router.weight[2] += 0.5
    x = torch.randn(8, 16, 6) + 1  # all tokens lean toward expert 2
    model(x)
    assert model.routing.counts[2] > 100
    optimizer = torch.optim.Adam(model.router.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        model(x)
        model.routing.balance_loss.backward()
        optimizer.step()
    assert model.routing.counts.max() < 60 and model.routing.balance_loss < 1.3


def test_first_come_first_served():
    chosen = torch.tensor([[0, 1], [0, 2], [0, 1], [1, 0]])
    kept = within_capacity(chosen, 3, 2)
    assert kept.tolist() == [[True, True], [True, True], [False, False], [True, False]]


def test_every_weight_that_is_used_gets_a_gradient():
    for config in (
        {"experts": 3, "top_k": 1},
        {"experts": 3, "top_k": 2},
        {"experts": 3, "router": "sigmoid", "router_bias": True, "shared_d_ff": 5, "shared_gate": True},
    ):
        model = make(**config)
        model(torch.randn(4, 9, 6, dtype=torch.float64)).square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_cost_grows_with_top_k_and_not_with_experts():
    def operations(experts, top_k):
        model = MixtureOfExperts(MixtureConfig(d_ff=10, experts=experts, top_k=top_k), 6)
        with FlopCounterMode(display=False) as counter:
            model(torch.randn(2, 8, 6))
        return counter.get_total_flops() - 2 * 16 * 6 * experts  # without the router

    assert operations(2, 1) == operations(16, 1) == 2 * 16 * 6 * 10 * 2
    assert operations(16, 3) == 3 * operations(16, 1)


def test_jitter_acts_in_training_only():
    model, x = make(experts=3, jitter=0.5), torch.randn(1, 4, 6, dtype=torch.float64)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_a_model_after_a_batch_can_be_copied():
    model, x = make(experts=3), torch.randn(1, 4, 6, dtype=torch.float64)
    out = model(x)
    assert torch.equal(copy.deepcopy(model)(x), out) and copy.deepcopy(model).routing is None


def test_a_block_of_experts():
    config = BlockConfig.of_sizes(8, 2, 12, activation="swiglu", experts=3, zero_output=True, dropout=0.0)
    block, x = TransformerBlock(config), torch.randn(2, 5, 8)
    assert isinstance(block.feed_forward.experts[0], FeedForward) and torch.equal(block(x), x)


@pytest.mark.parametrize("options", [{"logit_divisor": 3.0}, {"logit_softcap": 0.5}, {"embedding_scale": 4.0}])
def test_the_recipes_loss_is_of_the_same_logits(options):
    block = BlockConfig.of_sizes(8, 2, 12, position="rotary")
    plain = shake(GPT(GPTConfig(11, block, layers=1)))
    model, x = GPT(replace(plain.config, **options)).eval(), torch.randint(0, 11, (2, 6))
    model.load_state_dict(plain.state_dict())
    total, tokens = window_loss(model, x)
    assert_close(total / tokens, model(x, labels=x).loss)
    assert not torch.allclose(model(x).logits, plain(x).logits, atol=1e-2)
    with pytest.raises(ValueError, match="logit_softcap=-1.0 must be above 0"):
        replace(plain.config, logit_softcap=-1.0)


def test_a_model_adds_the_loss_while_training_only():
    block = BlockConfig.of_sizes(8, 2, 12, experts=3, balance=0.5, position="rotary")
    model, x = GPT(GPTConfig(11, block, layers=2)), torch.randint(0, 11, (2, 6))
    training = model(x, labels=x).loss
    balance = sum(routing.balance_loss for routing in model.routing())
    assert len(model.routing()) == 2
    assert_close(training, model.eval()(x, labels=x).loss + 0.5 * balance)
    total, tokens = window_loss(model, x)
    assert tokens == 10
    assert_close(window_loss(model.train(), x)[0], total + 10 * auxiliary_loss(model))
    translator = Transformer(TransformerConfig(11, block, 1, 1))
    training = translator(x, labels=x).loss
    assert_close(training, translator.eval()(x, labels=x).loss + auxiliary_loss(translator))
    dense = GPT(GPTConfig(11, block.replace(experts=None)))
    assert auxiliary_loss(translator) > 0 and auxiliary_loss(dense) == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"experts": 2, "top_k": 3}, "top_k=3 must be from 1 to experts=2"),
        ({"experts": 2, "top_k": 0}, "top_k=0 must be from 1"),
        ({"experts": 2, "capacity_factor": 0.0}, "capacity_factor=0.0 must be above 0"),
        ({"experts": 2, "balance": -1.0}, "balance=-1.0 must be at least 0"),
        ({"experts": 2, "router": "tanh"}, "router='tanh' must be 'softmax' or 'sigmoid'"),
        ({"experts": 4, "expert_groups": 3}, "experts=4 is not divisible by expert_groups=3"),
        ({"experts": 4, "expert_groups": 2, "top_groups": 3}, "top_groups=3 must be from 1 to expert_groups=2"),
        ({"experts": 4, "expert_groups": 4}, "top_k=2 must be from 1 to experts=1, those of top_groups=1 groups"),
        ({"experts": 2, "shared_d_ff": 0}, "shared_d_ff=0 must be at least 1"),
        ({"experts": 2, "shared_gate": True}, "set shared_d_ff to its width"),
    ],
)
def test_refused(config, words):
    with pytest.raises(ValueError, match=words):
        MixtureConfig(d_ff=10, **config)
