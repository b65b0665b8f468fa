"""Learning from rewards: the losses against loops and finite differences, and a model that learns from them."""

import copy
import math
import random

import pytest
import torch

from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.posttraining import (
    PolicyConfig,
    check_rewards,
    group_advantages,
    policy_loss,
    rollout_loss,
    token_log_probs,
    write_answers,
)
from txlib.training import TrainConfig, train

BLOCK = BlockConfig.of_sizes(16, 2, 32, norm="rms", activation="swiglu", bias=False, position="rotary_half")
END, LIKED = 0, 7


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(GPTConfig(12, BLOCK, layers=1, max_length=24, eos_id=END)).eval()


def liked(prompt, answer):
    return answer.count(LIKED) / 6


def not_a_number(prompt, answer):
    return math.nan


def learn(model, prompts, config, *, steps, reference=None):
    """Train on what the model writes at each step."""
    loss_of = rollout_loss(config, reference)

    def loss(model, batch):
        return loss_of(model, write_answers(model, batch.tolist(), liked, config))

    torch.manual_seed(3)
    train(model, lambda epoch: [torch.tensor(prompts)], loss, TrainConfig(lr=0.05, warmup=1), steps=steps, quiet=True)


def test_advantages_are_those_of_a_loop():
    rewards = torch.tensor([[1.0, 0, 0, 1], [2, 2, 2, 2], [0, 0, 0, 8]])
    for row, advantages in zip(rewards.tolist(), group_advantages(rewards), strict=True):
        mean = sum(row) / 4
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in row) / 3)
        assert advantages.tolist() == pytest.approx([(reward - mean) / (deviation + 1e-6) for reward in row])
    assert torch.equal(group_advantages(rewards, baseline=False, spread=False), rewards)
    assert group_advantages(rewards, spread=False)[0].tolist() == [0.5, -0.5, -0.5, 0.5]


def naive_loss(log_p, old, reference, advantages, written, clip, by_length, kl):
    total = count = 0.0
    for row in range(len(log_p)):
        terms = []
        for t in range(log_p.shape[1]):
            if not written[row, t]:
                continue
            ratio = math.exp(log_p[row, t] - old[row, t])
            gain = ratio * advantages[row]
            if clip is not None:
                gain = min(gain, max(min(ratio, 1 + clip), 1 - clip) * advantages[row])
            q = math.exp(reference[row, t] - log_p[row, t])
            terms.append(-(gain - kl * (q - math.log(q) - 1)))
        total += sum(terms) / len(terms) if by_length else sum(terms)
        count += 1 if by_length else len(terms)
    return float(total), count


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("by_length", [True, False])
@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_the_loss_is_that_of_a_loop_and_its_gradient_that_of_finite_differences(clip, by_length, kl):
    generator = torch.Generator().manual_seed(0)
    log_p, old, reference = (-torch.rand(3, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    advantages = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    written = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0]]).bool()
    options = {"clip": clip, "by_length": by_length, "kl": kl}
    log_p.requires_grad_()
    loss, count = policy_loss(log_p, old, advantages, written, reference_log_p=reference, **options)
    naive = [log_p.detach(), old, reference, advantages, written, clip, by_length, kl]
    assert (float(loss), float(count)) == pytest.approx(naive_loss(*naive))
    (gradient,) = torch.autograd.grad(loss, log_p)
    for row in range(3):
        for t in range(5):
            step = torch.zeros_like(old)
            step[row, t] = 1e-6
            above, below = (naive_loss(log_p.detach() + s, *naive[1:])[0] for s in (step, -step))
            assert float(gradient[row, t]) == pytest.approx((above - below) / 2e-6, abs=1e-5)


def test_answers_are_rows_with_their_probabilities(model):
    prompts = [[3, 4], [5, 6, 8, 9]]
    rollouts = write_answers(model, prompts, liked, PolicyConfig(group=3, max_new_tokens=6, temperature=0.7), seed=1)
    assert len(rollouts.rewards) == 6 and rollouts.written.any(dim=1).all()
    for row in range(6):
        prompt = prompts[row // 3]
        ids = rollouts.input_ids[row][rollouts.attention_mask[row].bool()].tolist()
        assert ids[: len(prompt)] == prompt
        answer = ids[len(prompt) :]
        assert rollouts.input_ids[row][rollouts.written[row]].tolist() == answer
        assert len(answer) == 6 or answer[-1] == END
        assert float(rollouts.rewards[row]) == pytest.approx(answer.count(LIKED) / 6)
        alone = (model(torch.tensor([ids])).logits[0] / 0.7).log_softmax(-1)
        for t, token in enumerate(ids[1:]):
            expected = float(alone[t, token]) if t + 1 >= len(prompt) else 0.0
            assert float(rollouts.log_p[row, t]) == pytest.approx(expected, abs=1e-5)


def test_the_gradient_of_the_first_step_is_that_of_reinforce(model):
    """At the weights that wrote the answers all ratios are 1: clipping changes nothing, and ∇ is Σ A ∇ log p."""
    config = PolicyConfig(group=4, by_length=False, max_new_tokens=6)
    rollouts = write_answers(model, [[3, 4], [5, 6]], liked, config)
    loss, _ = rollout_loss(config)(model, rollouts)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    log_p = token_log_probs(model, rollouts.input_ids, rollouts.attention_mask)
    plain = -(log_p * rollouts.written[:, 1:] * rollouts.advantages[:, None]).sum()
    for one, other in zip(gradients, torch.autograd.grad(plain, list(model.parameters())), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_model_learns_what_is_rewarded(model):
    config = PolicyConfig(group=8, max_new_tokens=6)

    def mean_reward():
        judged = write_answers(model, [[3, 4], [5, 6]], liked, PolicyConfig(group=32, max_new_tokens=6))
        return float(judged.rewards.mean())

    before = mean_reward()
    learn(model, [[3, 4], [5, 6], [8, 9]], config, steps=10)
    assert before < 0.3 and mean_reward() > 0.5


def test_the_divergence_holds_a_model_to_its_reference(model):
    def divergence(kl):
        trained = copy.deepcopy(model)
        config = PolicyConfig(group=8, max_new_tokens=6, kl=kl)
        learn(trained, [[3, 4], [5, 6]], config, steps=6, reference=model)
        ids = torch.tensor([[3, 4], [5, 6]])
        p, q = (m(ids).logits[:, -1].log_softmax(-1) for m in (trained, model))
        return float((p.exp() * (p - q)).sum())

    assert divergence(2.0) < 0.5 * divergence(0.0)


def test_rewards_that_collapse_or_never_differ_are_told_from_those_that_rise_or_wobble():
    rng = random.Random(0)
    rising = [min(1.0, step / 100) * rng.uniform(0.8, 1.2) for step in range(200)]
    for steps in range(len(rising)):
        check_rewards(rising[:steps])
    with pytest.raises(ValueError, match=r"collapsed: 1.\d\d on average in steps 1\d\d to 1\d\d, 0.\d\d in the"):
        for steps in range(60):
            check_rewards(rising + [0.1] * steps)
    assert 8 < steps < 15  # a mean of 20 steps falls below half
    with pytest.raises(ValueError, match="all answers of the first 20 steps got the reward 0.5"):
        check_rewards([0.5] * 20)
    check_rewards([0.5] * 19)
    check_rewards([*rising[:30], *[1.0] * 40])  # solved


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda model: PolicyConfig(group=1), "group=1"),
        (lambda model: PolicyConfig(max_new_tokens=0), "max_new_tokens=0 must be above 0"),
        (lambda model: PolicyConfig(clip=0.0), "clip above 0 or None"),
        (lambda model: rollout_loss(PolicyConfig(kl=0.1)), "needs a reference model"),
        (lambda model: write_answers(model, [[1] * 20], liked, PolicyConfig()), "the context holds 24"),
        (lambda model: write_answers(model, [[1]], not_a_number, PolicyConfig(max_new_tokens=2)), "a reward is nan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(model, make, words):
    with pytest.raises(ValueError, match=words):
        make(model)
