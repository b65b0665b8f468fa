"""Mixture of experts: many feed-forward networks, of which each token uses a few."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.layers.feedforward import FeedForward, FeedForwardConfig


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(FeedForwardConfig, name="mixture"):
    """`MixtureOfExperts` in a block's config: number of experts, and how tokens are routed to them.

    The Switch Transformer uses top_k=1 and capacity_factor=1.25; Mixtral uses experts=8.

    Args:
        d_ff, activation, bias: of each expert; see `FeedForward`.
        experts: number of feed-forward networks.
        top_k: how many of them each token uses.
        capacity_factor: an expert takes at most this times tokens · top_k / experts; later tokens are dropped, that is,
            only the residual connection carries them past the layer (Fedus et al. 2022, §2.2). None: no limit.
        normalize: make the weights of a token's experts sum to 1. By default with several experts (Jiang et al. 2024,
            §2.1), but not with one, whose weight would always be 1, without a gradient for the router.
        balance: factor of the load-balancing loss while training (α of Fedus et al. 2022, eq. 4).
        jitter: while training the input is multiplied by random numbers in 1 ± jitter.
        router: "softmax" over the experts, or "sigmoid" of each score alone (DeepSeek-AI 2024b, eq. 15).
        router_bias: whether the router's scores have a bias.
        choice_bias: add a number for each expert to its probability where experts are chosen, but not in the weights,
            to balance them without a loss (Wang et al. 2024); a buffer, which no optimizer trains.
        expert_groups, top_groups: each token chooses among the best `top_groups` of these groups of experts, judged by
            their two best (DeepSeek-AI 2024b, §2.1.2).
        routed_scale: factor of the experts' sum.
        shared_d_ff: width of a network that every token uses as well (Dai et al. 2024, §3.2); None: there is none.
        shared_gate: multiply its output by the sigmoid of a score of the token, as in Qwen.
    """

    experts: int
    top_k: int = 2
    capacity_factor: float | None = None
    normalize: bool | None = None
    balance: float = 0.01
    jitter: float = 0.0
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    choice_bias: bool = False
    expert_groups: int = 1
    top_groups: int = 1
    routed_scale: float = 1.0
    shared_d_ff: int | None = None
    shared_gate: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.expert_groups < 1 or self.experts % self.expert_groups:
            raise ValueError(
                f"experts={self.experts} is not divisible by expert_groups={self.expert_groups}; choose a divisor"
            )
        if not 1 <= self.top_groups <= self.expert_groups:
            raise ValueError(f"top_groups={self.top_groups} must be from 1 to expert_groups={self.expert_groups}")
        choice = self.experts // self.expert_groups * self.top_groups
        if not 1 <= self.top_k <= choice:
            groups = "" if choice == self.experts else f", those of top_groups={self.top_groups} groups"
            raise ValueError(f"top_k={self.top_k} must be from 1 to experts={choice}{groups}")
        self.check_at_least_one("shared_d_ff")
        if self.shared_gate and self.shared_d_ff is None:
            raise ValueError("shared_gate=True needs a shared network: set shared_d_ff to its width")
        if self.capacity_factor is not None and self.capacity_factor <= 0:
            raise ValueError(f"capacity_factor={self.capacity_factor} must be above 0; None is no limit")
        if self.normalize is None:
            object.__setattr__(self, "normalize", self.top_k > 1)
        for name in ("balance", "jitter"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0")

    def make(self, d_model: int) -> nn.Module:
        """Return the experts and their router."""
        return MixtureOfExperts(self, d_model)


@dataclass(frozen=True)
class Routing:
    """The experts that each token of a batch is routed to.

    probabilities: the router's, which sum to 1; chosen: each token's experts, the most likely first; weights: what the
    experts' outputs are multiplied by; kept: False where the expert was full.
    """

    probabilities: Float[Tensor, "tokens experts"]
    chosen: Int[Tensor, "tokens top_k"]
    weights: Float[Tensor, "tokens top_k"]
    kept: Bool[Tensor, "tokens top_k"]

    @property
    def counts(self) -> Int[Tensor, "experts"]:
        """Number of tokens that each expert takes."""
        return self.chosen[self.kept].bincount(minlength=self.probabilities.shape[-1])

    @property
    def drop_rate(self) -> float:
        """Fraction of the choices that were dropped because the expert was full."""
        return 1.0 - self.kept.float().mean().item() if self.kept.numel() else 0.0

    @property
    def balance_loss(self) -> Float[Tensor, ""]:
        """See `load_balancing_loss`."""
        return load_balancing_loss(self.probabilities, self.chosen)


def load_balancing_loss(
    probabilities: Float[Tensor, "tokens experts"], chosen: Int[Tensor, "tokens top_k"]
) -> Float[Tensor, ""]:
    """Return experts · Σ fraction of tokens · mean probability, summed over the experts (Fedus et al. 2022, eq. 4–6).

    It is top_k when all experts are used equally, and grows to `experts` when all tokens go to the same one. Gradients
    flow through the probabilities only.
    """
    experts = probabilities.shape[-1]
    fraction = F.one_hot(chosen, experts).to(probabilities.dtype).sum(dim=1).mean(dim=0)  # (experts,)
    return experts * (fraction * probabilities.mean(dim=0)).sum()


def within_capacity(chosen: Int[Tensor, "tokens top_k"], experts: int, capacity: int) -> Bool[Tensor, "tokens top_k"]:
    """Return True for the first `capacity` tokens that choose an expert; first choices come before second ones."""
    choices = chosen.T.flatten()  # (top_k · tokens,)
    counts = F.one_hot(choices, experts).cumsum(dim=0)  # tokens per expert so far
    rank = counts.gather(1, choices[:, None])  # 1 for an expert's first token
    return (rank <= capacity).view(chosen.T.shape).T


def within_groups(
    scores: Float[Tensor, "tokens experts"], groups: int, top_groups: int
) -> Float[Tensor, "tokens experts"]:
    """Return the scores with -∞ for experts outside of a token's best groups, judged by their two best experts."""
    by_group = scores.unflatten(-1, (groups, -1))
    of_group = by_group.topk(min(2, by_group.shape[-1])).values.sum(dim=-1)  # (tokens, groups)
    outside = torch.ones_like(of_group, dtype=torch.bool).scatter(-1, of_group.topk(top_groups).indices, False)
    return by_group.masked_fill(outside[..., None], -torch.inf).flatten(-2)


class MixtureOfExperts(nn.Module):
    """A router sends each token to its most likely experts and sums their weighted outputs (Shazeer et al. 2017).

    All positions of a batch count as tokens, including padding. `routing` holds the routing of the last batch.
    """

    choice_bias: Tensor | None

    def __init__(self, config: MixtureConfig, d_model: int):
        super().__init__()
        self.config = config
        self.router = nn.Linear(d_model, config.experts, bias=config.router_bias)
        self.register_buffer("choice_bias", torch.zeros(config.experts) if config.choice_bias else None)
        options: dict[str, Any] = {"activation": config.activation, "bias": config.bias}
        self.experts = nn.ModuleList(FeedForward(d_model, config.d_ff, **options) for _ in range(config.experts))
        shared = config.shared_d_ff
        self.shared = None if shared is None else FeedForward(d_model, shared, **options)
        self.shared_gate = nn.Linear(d_model, 1, bias=False) if config.shared_gate else None
        self.routing: Routing | None = None

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Return the weighted sum of its experts' outputs for each position."""
        shared = self.shared_output(x)
        if self.training and self.config.jitter:
            x = x * torch.empty_like(x).uniform_(1 - self.config.jitter, 1 + self.config.jitter)
        tokens = x.flatten(0, 1)  # (tokens, d_model)
        self.routing = routing = self.route(tokens)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            token, choice = (routing.kept & (routing.chosen == index)).nonzero(as_tuple=True)
            weight = routing.weights[token, choice, None]  # (its tokens, 1)
            out = out.index_add(0, token, (weight * expert(tokens[None, token])[0]).to(out.dtype))
        return out.view_as(x) if shared is None else out.view_as(x) + shared

    def shared_output(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"] | None:
        """Return the output of the network that all tokens use, if there is one."""
        if self.shared is None:
            return None
        return self.shared(x) if self.shared_gate is None else self.shared_gate(x).sigmoid() * self.shared(x)

    def route(self, tokens: Float[Tensor, "tokens d_model"]) -> Routing:
        """Choose each token's experts."""
        config = self.config
        scores = self.router(tokens).float()  # (tokens, experts)
        scores = scores.softmax(dim=-1) if config.router == "softmax" else scores.sigmoid()
        choice = scores if self.choice_bias is None else scores + self.choice_bias
        if config.top_groups < config.expert_groups:
            choice = within_groups(choice, config.expert_groups, config.top_groups)
        chosen = choice.topk(config.top_k).indices  # (tokens, top_k)
        weights = scores.gather(-1, chosen)
        if config.normalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if config.routed_scale != 1.0:
            weights = weights * config.routed_scale
        probabilities = scores if config.router == "softmax" else scores / scores.sum(dim=-1, keepdim=True)
        kept = torch.ones_like(chosen, dtype=torch.bool)
        if config.capacity_factor is not None:
            capacity = math.ceil(config.capacity_factor * chosen.numel() / config.experts)
            kept = within_capacity(chosen, config.experts, capacity)
        return Routing(probabilities, chosen, weights.to(tokens.dtype), kept)

    def auxiliary_loss(self) -> Float[Tensor, ""] | float:
        """Return the last batch's load-balancing loss times its factor."""
        return 0.0 if self.routing is None else self.config.balance * self.routing.balance_loss

    def __getstate__(self) -> dict:
        """Leave out the last routing, which belongs to an autograd graph and cannot be copied."""
        return {**self.__dict__, "routing": None}
