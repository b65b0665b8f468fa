"""Learning from rewards: a model writes, its texts are scored, and it becomes likelier to write what scored well.

REINFORCE (Williams 1992) with the mean of a group as its baseline, and GRPO (Shao et al. 2024), in parts that can be
switched off one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.data.batching import pad
from txlib.devices import to_device
from txlib.generation import GenerationConfig, generate
from txlib.generation.prompts import end_tokens
from txlib.hints import FieldHints

Reward = Callable[[Sequence[int], Sequence[int]], float]  # of a prompt's tokens and an answer's, without its end


@dataclass(frozen=True)
class PolicyConfig(FieldHints):
    """The parts of the loss; each can be switched off.

    Args:
        group: answers that are drawn for each prompt.
        baseline: subtract the mean reward of the group (Kool et al. 2019); False: REINFORCE alone.
        spread: divide by the standard deviation of the group's rewards (Shao et al. 2024, §4.1.2).
        clip: ε; the ratio to the probability at the time of writing counts between 1 - ε and 1 + ε (Schulman et al.
            2017, eq. 7); None: no limit. It matters only with several steps per answer.
        by_length: average over the tokens of each answer before the mean over answers, as GRPO does; False: all tokens
            count alike, as Liu et al. (2025) and Yu et al. (2025) advise.
        kl: β, the weight of the divergence from a reference model (Shao et al. 2024, eq. 4); 0 needs no such model.
        max_new_tokens: most tokens of an answer.
        temperature: of drawing.
    """

    group: int = 8
    baseline: bool = True
    spread: bool = True
    clip: float | None = 0.2
    by_length: bool = True
    kl: float = 0.0
    max_new_tokens: int = 32
    temperature: float = 1.0

    def __post_init__(self):
        if self.group < 1 or (self.group == 1 and (self.baseline or self.spread)):
            raise ValueError(f"group={self.group}: the mean and spread of a group need at least 2 answers a prompt")
        for name in ("max_new_tokens", "temperature"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")
        if self.kl < 0 or (self.clip is not None and self.clip <= 0):
            raise ValueError(f"kl={self.kl}, clip={self.clip}: kl must be at least 0, and clip above 0 or None")


@dataclass(frozen=True)
class Rollouts:
    """Answers of a model, each in a row with its prompt, padded at the end.

    input_ids: prompt, answer, and the token that ended it, if one did.
    attention_mask: 1 = a token, 0 = padding.
    written: True for the answer's tokens, which the loss counts.
    log_p: log-probability of each token but the first, at the time of writing; of those written, else 0.
    rewards, advantages: of each answer.
    """

    input_ids: Int[Tensor, "answer length"]
    attention_mask: Int[Tensor, "answer length"]
    written: Bool[Tensor, "answer length"]
    log_p: Float[Tensor, "answer length-1"]
    rewards: Float[Tensor, "answer"]
    advantages: Float[Tensor, "answer"]


def token_log_probs(
    model: nn.Module,
    input_ids: Int[Tensor, "batch length"],
    attention_mask: Int[Tensor, "batch length"] | None = None,
    *,
    temperature: float = 1.0,
) -> Float[Tensor, "batch length-1"]:
    """Return the log-probability that a decoder gives to each token but the first, after those before it.

    Args:
        temperature: that tokens were drawn with; logits are divided by it.
    """
    mask = None if attention_mask is None else attention_mask[:, :-1]
    logits = model(input_ids[:, :-1], mask).logits.float() / temperature  # (batch, length - 1, vocab)
    return logits.log_softmax(dim=-1).gather(-1, input_ids[:, 1:, None])[..., 0]


def group_advantages(
    rewards: Float[Tensor, "prompt group"], *, baseline: bool = True, spread: bool = True
) -> Float[Tensor, "prompt group"]:
    """Return how much better each answer is than its group: (r - mean) / standard deviation.

    Args:
        baseline, spread: whether to subtract the mean, and to divide; see `PolicyConfig`.

    Raises:
        ValueError: when a reward is not a finite number.
    """
    if not rewards.isfinite().all():
        bad = rewards[~rewards.isfinite()][0].item()
        raise ValueError(f"a reward is {bad}; a reward function must return a finite number for every answer")
    advantages = rewards - rewards.mean(dim=-1, keepdim=True) if baseline else rewards
    return advantages / (rewards.std(dim=-1, keepdim=True) + 1e-6) if spread else advantages


def policy_loss(
    log_p: Float[Tensor, "answer token"],
    old_log_p: Float[Tensor, "answer token"],
    advantages: Float[Tensor, "answer"],
    written: Bool[Tensor, "answer token"],
    *,
    clip: float | None = 0.2,
    by_length: bool = True,
    kl: float = 0.0,
    reference_log_p: Float[Tensor, "answer token"] | None = None,
) -> tuple[Float[Tensor, ""], Tensor]:
    """Return GRPO's loss (Shao et al. 2024, eq. 3), summed, and over how many it is summed: answers, or tokens.

    Args:
        log_p, old_log_p, reference_log_p: of each token, by the model, by the model that wrote the answers, and by the
            reference; see `token_log_probs`.
        written: the tokens that count.
        clip, by_length, kl: see `PolicyConfig`.

    Raises:
        ValueError: when kl needs reference_log_p, and there is none.
    """
    if kl and reference_log_p is None:
        raise ValueError(f"kl={kl} needs reference_log_p, the log-probabilities of a reference model")
    ratio = (log_p - old_log_p).exp()
    gain = ratio * advantages[:, None]
    if clip is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - clip, 1 + clip) * advantages[:, None])
    if kl and reference_log_p is not None:
        difference = reference_log_p - log_p
        gain = gain - kl * (difference.exp() - difference - 1)  # an estimate that is never negative
    losses = -gain.masked_fill(~written, 0)
    if not by_length:
        return losses.sum(), written.sum()
    return (losses.sum(dim=-1) / written.sum(dim=-1).clamp(min=1)).sum(), torch.tensor(len(losses))


def write_answers(
    model: Any,
    prompts: Sequence[Sequence[int]],
    reward: Reward,
    config: PolicyConfig,
    *,
    seed: int | None = None,
    eos_id: int | None = None,
) -> Rollouts:
    """Draw a group of answers for each prompt, and score them.

    Args:
        model: a decoder, such as `GPT`.
        prompts: the tokens of each.
        reward: `reward(prompt, answer)` scores one answer.
        seed: of the draws; None: they follow torch's generator.
        eos_id: the token that ends an answer; the model's by default.

    Raises:
        ValueError: when a prompt with its answer is longer than the context, or a reward is not a finite number.
    """
    longest, context = max(map(len, prompts), default=0) + config.max_new_tokens, model.config.max_length
    if longest > context:
        raise ValueError(
            f"a prompt and its answer may have {longest} tokens, the context holds {context}; lower max_new_tokens or "
            "drop long prompts"
        )
    repeated = [list(prompt) for prompt in prompts for _ in range(config.group)]
    drawing = GenerationConfig(
        max_new_tokens=config.max_new_tokens,
        do_sample=True,
        temperature=config.temperature,
        seed=seed,
        eos_id=eos_id,
    )
    training = model.training
    model.eval()
    answers = generate(model, repeated, config=drawing)
    ends = end_tokens(model.config, eos_id)
    rows = as_rows(repeated, answers, ends[0] if ends else None, config.max_new_tokens)
    device = next(model.parameters()).device
    inputs = rows["input_ids"].to(device), rows["attention_mask"].to(device)
    with torch.no_grad():
        log_p = token_log_probs(model, *inputs, temperature=config.temperature).cpu()
    model.train(training)
    log_p = log_p.masked_fill(~rows["written"][:, 1:], 0)
    scores = [float(reward(prompt, answer)) for prompt, answer in zip(repeated, answers, strict=True)]
    rewards = torch.tensor(scores).view(len(prompts), config.group)
    advantages = group_advantages(rewards, baseline=config.baseline, spread=config.spread)
    return Rollouts(**rows, log_p=log_p, rewards=rewards.flatten(), advantages=advantages.flatten())


def as_rows(prompts: list[list[int]], answers: list[list[int]], end: int | None, most: int) -> dict[str, Tensor]:
    """Return prompts and answers as tensors, padded at the end; an answer that ended by itself has its end again."""
    written = [[*answer, *([end] if end is not None and len(answer) < most else [])] for answer in answers]
    rows = [prompt + answer for prompt, answer in zip(prompts, written, strict=True)]
    input_ids = pad(rows, 0)
    column = torch.arange(input_ids.shape[1])
    starts = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    stops = torch.tensor([len(row) for row in rows])[:, None]
    return {
        "input_ids": input_ids,
        "attention_mask": (column < stops).long(),
        "written": (column >= starts) & (column < stops),
    }


def check_rewards(rewards: Sequence[float], *, window: int = 20) -> None:
    """Check the mean reward of each step so far.

    Args:
        window: steps that are averaged.

    Raises:
        ValueError: when all rewards are the same from the first step on, so that nothing can be learned, or when the
            last ones are below half of the best that there were before.
    """
    if len(rewards) == window and max(rewards) - min(rewards) < 1e-6:
        raise ValueError(
            f"all answers of the first {window} steps got the reward {rewards[0]:g}, so nothing can be learned; "
            "give tasks of which the model solves some, or a reward for a part of the answer"
        )
    if len(rewards) < 2 * window:
        return
    sums = list(accumulate(rewards, initial=0.0))
    means = [(after - before) / window for before, after in zip(sums, sums[window:], strict=False)]
    best = max(range(len(means) - window), key=means.__getitem__)
    if means[-1] < means[best] / 2:
        raise ValueError(
            f"the rewards collapsed: {means[best]:.2f} on average in steps {best + 1} to {best + window}, "
            f"{means[-1]:.2f} in the last {window}; the newest checkpoint is from before. Lower the learning rate, or "
            "hold the model to a reference by kl"
        )


def rollout_loss(
    config: PolicyConfig, reference: nn.Module | None = None
) -> Callable[[nn.Module, Rollouts], tuple[Tensor, Tensor]]:
    """Return the function `loss(model, rollouts)` of what `write_answers` returned.

    A loss for `train` calls both, so that each step's answers are written by the model as it is then.

    Args:
        reference: the model from which `config.kl` measures the divergence; its weights don't change.

    Raises:
        ValueError: when `config.kl` needs it, and it is missing.
    """
    if config.kl and reference is None:
        raise ValueError(f"kl={config.kl} needs a reference model, usually a copy of the model before training")

    def loss(model: nn.Module, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        rollouts = to_device(rollouts, next(model.parameters()).device)
        rows = rollouts.input_ids, rollouts.attention_mask
        log_p = token_log_probs(model, *rows, temperature=config.temperature)
        of_reference = None
        if config.kl and reference is not None:
            with torch.no_grad():
                of_reference = token_log_probs(reference, *rows, temperature=config.temperature)
        return policy_loss(
            log_p,
            rollouts.log_p,
            rollouts.advantages,
            rollouts.written[:, 1:],
            clip=config.clip,
            by_length=config.by_length,
            kl=config.kl,
            reference_log_p=of_reference,
        )

    return loss
