"""A sparse autoencoder: activations as sums of a few out of many directions."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from txlib.training import TrainConfig, train


class SparseAutoencoder(nn.Module):
    """f = relu(E (x − c) / s + b); x is nearly c + s · Σ fᵢ dᵢ, with directions dᵢ of length 1.

    See Bricken et al. 2023 and Cunningham et al. 2023.

    Args:
        features: how many directions, usually more than the width of x.
    """

    scale: Tensor

    def __init__(self, d_model: int, features: int):
        super().__init__()
        self.encoder = nn.Linear(d_model, features)
        self.decoder = nn.Parameter(F.normalize(torch.randn(features, d_model), dim=-1))
        self.center = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("scale", torch.ones(()))
        with torch.no_grad():  # each feature begins by looking for its own direction
            self.encoder.weight.copy_(self.decoder)
            self.encoder.bias.zero_()

    @property
    def directions(self) -> Float[Tensor, "features d_model"]:
        """The direction of each feature, of length 1."""
        return F.normalize(self.decoder, dim=-1)

    def encode(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch features"]:
        """Return how strong each feature is, 0 for most."""
        return self.encoder((x - self.center) / self.scale).relu()

    def decode(self, features: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch d_model"]:
        """Return the sum of the directions, each as strong as its feature."""
        return features @ self.directions * self.scale + self.center

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return what the features keep of x."""
        return self.decode(self.encode(x))


def fit_autoencoder(
    x: Float[Tensor, "n d_model"],
    features: int,
    *,
    sparsity: float,
    steps: int = 1000,
    batch: int = 512,
    lr: float = 2e-3,
    seed: int = 0,
    quiet: bool = False,
) -> SparseAutoencoder:
    """Return a sparse autoencoder trained on activations, on their device.

    The loss is |x − x̂|² / s² + sparsity · Σ fᵢ, averaged over rows; s² is the variance of x, summed over d_model. So
    `sparsity` means the same whatever the length of the activations: at 2 nothing is left of a row of length s.

    Raises:
        ValueError: for fewer rows than a batch, or a sparsity below 0.
    """
    if len(x) < batch:
        raise ValueError(f"x has {len(x)} rows, fewer than batch={batch}; collect more, or make batches smaller")
    if sparsity < 0:
        raise ValueError(f"sparsity={sparsity} must be 0 or more")
    x = x.detach()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        autoencoder = SparseAutoencoder(x.shape[1], features).to(x)
    with torch.no_grad():
        autoencoder.center.copy_(x.mean(dim=0))
        autoencoder.scale.copy_((x - autoencoder.center).square().sum(dim=-1).mean().sqrt())

    def batches(epoch: int) -> Sequence[Tensor]:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        return x[order.to(x.device)].split(batch)

    def loss(model: Any, rows: Tensor) -> tuple[Tensor, int]:
        encoded = model.encode(rows)
        error = (rows - model.decode(encoded)).square().sum() / model.scale**2
        return error + sparsity * encoded.sum(), len(rows)

    train(autoencoder, batches, loss, TrainConfig(lr=lr), steps=steps, quiet=quiet)
    return autoencoder.eval()


@torch.no_grad()
def dead_features(autoencoder: SparseAutoencoder, x: Float[Tensor, "*batch d_model"]) -> Bool[Tensor, "features"]:
    """Return which features are 0 for all of these activations."""
    return ~(autoencoder.encode(x) > 0).flatten(end_dim=-2).any(dim=0)
