"""Arrays for Perceivers: of pixels with their positions, and of several modalities as one."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.layers import fourier_features, grid_positions


def pixel_array(
    pixel_values: Float[Tensor, "batch channels *size"], bands: int | None = None
) -> Float[Tensor, "batch points features"]:
    """Return an image, a sound or a video as an array: the channels and position of each point.

    Args:
        bands: of the positions' `fourier_features`, 2 bands + 1 for each dimension; None: no positions.
    """
    size = pixel_values.shape[2:]
    points = pixel_values.flatten(2).transpose(1, 2)  # (batch, points, channels)
    if bands is None:
        return points
    position = fourier_features(grid_positions(*size), bands, size).to(points)  # (points, features)
    return torch.cat([points, position.expand(len(points), -1, -1)], dim=-1)


class Modalities(nn.Module):
    """Concatenates arrays of several modalities, each padded to one width by its modality's learned embedding
    (Jaegle et al. 2021, §4.2).

    Args:
        widths: of each modality's array, by its name.
        d_input: width of the joint array, larger than any of theirs, to leave room for the embeddings.
        init_std: standard deviation of the initial embeddings; small, as the norm before attention sees them next to
            the array's values, which large ones would drown.
    """

    def __init__(self, widths: Mapping[str, int], d_input: int, *, init_std: float = 0.02):
        super().__init__()
        for name, width in widths.items():
            if not 0 < width < d_input:
                raise ValueError(
                    f"the array of {name!r} is {width} wide, which leaves no room for a modality's embedding in "
                    f"d_input={d_input}; choose at least {width + 1}"
                )
        self.embedding = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(d_input - width) * init_std) for name, width in widths.items()}
        )

    def forward(self, arrays: Mapping[str, Float[Tensor, "batch _ _"]]) -> Float[Tensor, "batch length d_input"]:
        """Return the arrays concatenated in the given order; any may be missing."""
        if not arrays or (unknown := arrays.keys() - self.embedding.keys()):
            names = ", ".join(self.embedding)
            raise ValueError(f"give arrays of {names}, got {', '.join(sorted(unknown)) if arrays else 'none'}")
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"the arrays belong to different numbers of examples, {sizes}; give as many of each")
        padded = [
            torch.cat([array, self.embedding[name].expand(*array.shape[:2], -1)], dim=-1)
            for name, array in arrays.items()
        ]
        return torch.cat(padded, dim=1)
