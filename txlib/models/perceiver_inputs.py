"""Arrays for Perceivers: of pixels with their positions, and of several modalities as one."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.layers import fourier_features, grid_positions


def pixel_array(
    pixel_values: Float[Tensor, "batch channels *size"], bands: int | None = None
) -> Float[Tensor, "batch points features"]:
    """An image, a sound or a video as an array: of each point its channels, and where it stands.

    Args:
        bands: of the positions' `fourier_features`, 2 bands + 1 for each dimension; None: no positions.
    """
    size = pixel_values.shape[2:]
    points = pixel_values.flatten(2).transpose(1, 2)  # (batch, points, channels)
    if bands is None:
        return points
    where = fourier_features(grid_positions(*size), bands, size).to(points)  # (points, features)
    return torch.cat([points, where.expand(len(points), -1, -1)], dim=-1)


class Modalities(nn.Module):
    """Arrays of several kinds as one: a learned vector, the modality's embedding, pads each to one width, and they
    follow one another (Jaegle et al. 2021, §4.2).

    Args:
        widths: of each modality's array, by its name.
        d_input: width of the one array; more than any of theirs, for the latents must tell them apart.
        init_std: spread of the first embeddings. Small: the norm before attention sees them beside what the array
            says, and large ones would drown it.
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
        """The arrays that are there, one after another in the given order; any may be left out."""
        if not arrays or (unknown := arrays.keys() - self.embedding.keys()):
            known = ", ".join(self.embedding)
            raise ValueError(f"give arrays of {known}, got {', '.join(sorted(unknown)) if arrays else 'none'}")
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"the arrays belong to different numbers of examples, {sizes}; give as many of each")
        padded = [
            torch.cat([array, self.embedding[name].expand(*array.shape[:2], -1)], dim=-1)
            for name, array in arrays.items()
        ]
        return torch.cat(padded, dim=1)
