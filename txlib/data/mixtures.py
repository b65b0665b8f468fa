"""Mixtures of Gaussians: drawn from, scored, read out of a model, and fitted by expectation and maximization."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

NARROWEST = 0.01  # standard deviation of a cluster, at least: one that shrinks to a single point has no likelihood
Mark = Int[Tensor, "batch elements"] | Bool[Tensor, "batch elements"] | None


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians with axes of their own widths, for each set of a batch (Lee et al. 2019, eq. 17).

    weights: the clusters' shares; means, deviations: where they are and how wide, along each axis.
    """

    weights: Float[Tensor, "batch clusters"]
    means: Float[Tensor, "batch clusters axes"]
    deviations: Float[Tensor, "batch clusters axes"]

    @staticmethod
    def from_logits(logits: Float[Tensor, "batch clusters numbers"]) -> "Mixture":
        """What a model says with 1 + 2 · axes numbers for each cluster: its share, by a softmax over clusters; its
        means; its deviations, by a softplus.

        Raises:
            ValueError: when the numbers are not so many.
        """
        axes, rest = divmod(logits.shape[-1] - 1, 2)
        if rest or not axes:
            raise ValueError(f"a cluster takes 1 + 2 · axes numbers, got {logits.shape[-1]}; for points in a plane 5")
        weights, means, deviations = logits.float().split([1, axes, axes], dim=-1)
        return Mixture(weights[..., 0].softmax(dim=-1), means, F.softplus(deviations) + NARROWEST)

    def log_joint(self, points: Float[Tensor, "batch elements axes"]) -> Float[Tensor, "batch elements clusters"]:
        """log π_j N(x_i; μ_j, σ_j²) of each point and cluster."""
        distance = (points[:, :, None] - self.means[:, None]) / self.deviations[:, None]  # (batch, elements, k, axes)
        scale = self.deviations.log().sum(dim=-1) + points.shape[-1] * 0.5 * math.log(2 * math.pi)
        return self.weights.clamp(min=1e-10).log()[:, None] - scale[:, None] - 0.5 * distance.square().sum(dim=-1)

    def log_likelihood(
        self, points: Float[Tensor, "batch elements axes"], attention_mask: Mark = None
    ) -> Float[Tensor, "batch"]:
        """log p of each set, summed over its points."""
        likelihoods = self.log_joint(points).logsumexp(dim=-1)  # (batch, elements)
        return (likelihoods if attention_mask is None else likelihoods * attention_mask).sum(dim=1)

    def responsibilities(
        self, points: Float[Tensor, "batch elements axes"]
    ) -> Float[Tensor, "batch elements clusters"]:
        """How probable it is that each point came from each cluster."""
        return self.log_joint(points).softmax(dim=-1)

    def improved(self, points: Float[Tensor, "batch elements axes"], attention_mask: Mark = None) -> "Mixture":
        """After one step of expectation and maximization, which no set is less likely by."""
        responsibilities = self.responsibilities(points)
        if attention_mask is not None:
            responsibilities = responsibilities * attention_mask[..., None]
        count = responsibilities.sum(dim=1)  # (batch, clusters): points of each cluster
        mean_of = (responsibilities / count.clamp(min=1e-10)[:, None]).mT  # (batch, clusters, elements)
        means = mean_of @ points
        spread = (points[:, None] - means[:, :, None]).square()  # (batch, clusters, elements, axes)
        variances = (mean_of[..., None] * spread).sum(dim=2)
        return Mixture(count / count.sum(dim=1, keepdim=True), means, variances.sqrt().clamp(min=NARROWEST))

    def draw(self, size: int, generator: torch.Generator | None = None) -> Float[Tensor, "batch {size} axes"]:
        """Points of each mixture."""
        chosen = self.weights.multinomial(size, replacement=True, generator=generator)  # (batch, size)
        row = torch.arange(len(chosen))[:, None]
        noise = torch.randn(*chosen.shape, self.means.shape[-1], generator=generator)
        return self.means[row, chosen] + noise * self.deviations[row, chosen]


def random_mixtures(count: int, clusters: int = 4, *, generator: torch.Generator | None = None) -> Mixture:
    """Mixtures in the plane, as the authors of the Set Transformer make them: means from -4 to 4, deviations of 0.3,
    and all shares equally probable, so that some clusters have hardly a point (github.com/juho-lee/set_transformer)."""
    weights = -torch.rand(count, clusters, generator=generator).clamp(min=1e-10).log()
    means = 8 * torch.rand(count, clusters, 2, generator=generator) - 4
    return Mixture(weights / weights.sum(dim=1, keepdim=True), means, torch.full_like(means, 0.3))


def fit_mixture(
    points: Float[Tensor, "batch elements axes"],
    attention_mask: Mark = None,
    *,
    clusters: int = 4,
    starts: int = 5,
) -> Mixture:
    """The likeliest mixture for each set that expectation and maximization finds, without any training (Dempster et
    al. 1977).

    Args:
        starts: attempts, of which each set keeps the best. Each starts from points of the set as means, drawn far from
            each other (Arthur & Vassilvitskii 2007).

    Raises:
        ValueError: for no clusters, or no attempt.
    """
    if starts < 1 or clusters < 1:
        raise ValueError(f"starts={starts} and clusters={clusters} must be at least 1")
    generator, attempts = torch.Generator().manual_seed(0), []
    for _ in range(starts):
        fitted = first_guess(points, attention_mask, clusters, generator)
        for _ in range(50):
            fitted = fitted.improved(points, attention_mask)
        attempts.append(fitted)
    likelihoods = [mixture.log_likelihood(points, attention_mask) for mixture in attempts]
    best, row = torch.stack(likelihoods).argmax(dim=0), torch.arange(len(points))
    parts = zip(*((mixture.weights, mixture.means, mixture.deviations) for mixture in attempts), strict=True)
    return Mixture(*(torch.stack(part)[best, row] for part in parts))


def first_guess(
    points: Float[Tensor, "batch elements axes"], attention_mask: Mark, clusters: int, generator: torch.Generator
) -> Mixture:
    """Points of each set as means: each is drawn with a probability that grows with the square of its distance from
    those drawn before."""
    real = torch.ones(points.shape[:2]) if attention_mask is None else attention_mask.float()
    row, chosen, weight = torch.arange(len(points)), [], real
    for _ in range(clusters):
        index = (weight + 1e-10 * real).multinomial(1, generator=generator)[:, 0]
        chosen.append(points[row, index])
        distance = (points[:, :, None] - torch.stack(chosen, dim=1)[:, None]).square().sum(dim=-1)
        weight = distance.amin(dim=-1) * real
    means = torch.stack(chosen, dim=1)  # (batch, clusters, axes)
    return Mixture(means.new_full(means.shape[:2], 1 / clusters), means, torch.ones_like(means))
