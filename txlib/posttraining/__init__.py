"""From a language model to an assistant: rewards, preferences, and how to judge answers."""

from txlib.posttraining.judging import bootstrap_interval, majority, pass_at_k
from txlib.posttraining.policy import (
    PolicyConfig,
    Rollouts,
    check_rewards,
    group_advantages,
    policy_loss,
    rollout_loss,
    token_log_probs,
    write_answers,
)
from txlib.posttraining.preferences import dpo_loss

__all__ = [
    "PolicyConfig",
    "Rollouts",
    "bootstrap_interval",
    "check_rewards",
    "dpo_loss",
    "group_advantages",
    "majority",
    "pass_at_k",
    "policy_loss",
    "rollout_loss",
    "token_log_probs",
    "write_answers",
]
