"""Sets to learn from: numbers of which one is the largest, points out of a few clusters, pictures as clouds of points.

A batch is `BatchDict` with inputs (batch, elements, width), attention_mask (batch, elements), 1 = an element and 0 =
padding at the end, and mostly labels. All are generated: the same seed gives the same sets.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txlib.data.batching import BatchDict
from txlib.data.mixtures import Mixture, random_mixtures

HIGHEST = 100  # number in a set; models get shares of it


def pad_sets(
    sets: Sequence[Float[Tensor, "_ width"]],
) -> tuple[Float[Tensor, "batch elements width"], Int[Tensor, "batch elements"]]:
    """Sets of different sizes as one tensor, and the mask that says what is an element: 1, padding is 0.

    Raises:
        ValueError: for no sets, an empty one, and elements of different widths.
    """
    if not len(sets):
        raise ValueError("no sets to put together: give at least one")
    widths = [elements.shape[1:] for elements in sets]
    for number, elements in enumerate(sets):
        if not len(elements):
            raise ValueError(f"set {number} is empty; leave it out, or give it an element that means nothing")
        if elements.dim() != 2 or elements.shape[1:] != widths[0]:
            shape = tuple(elements.shape)
            raise ValueError(f"set {number} has shape {shape}, expected (elements, width) = (any, {widths[0].numel()})")
    return torch.nn.utils.rnn.pad_sequence(list(sets), batch_first=True), marked([len(elements) for elements in sets])


def marked(sizes: Sequence[int] | Int[Tensor, "batch"]) -> Int[Tensor, "batch elements"]:
    """The attention mask of sets of these sizes."""
    sizes = torch.as_tensor(sizes)
    return (torch.arange(int(sizes.max())) < sizes[:, None]).long()


def largest_numbers(count: int, *, sizes: tuple[int, int] = (1, 10), seed: int = 0) -> BatchDict:
    """Sets of whole numbers from 1 to 100, and the largest of each (Lee et al. 2019, §5.1). All, labels too, are
    divided by 100.

    Args:
        sizes: of the smallest and of the largest set.

    Returns:
        inputs (count, elements, 1), attention_mask, labels (count,).
    """
    generator = torch.Generator().manual_seed(seed)
    mask = marked(draw_sizes(count, sizes, generator))
    numbers = mask * torch.randint(1, HIGHEST + 1, mask.shape, generator=generator) / HIGHEST  # (count, elements)
    return BatchDict(inputs=numbers[..., None], attention_mask=mask, labels=numbers.amax(dim=1))


def clustered_points(
    count: int, *, clusters: int = 4, sizes: tuple[int, int] = (100, 500), seed: int = 0
) -> tuple[BatchDict, Mixture]:
    """Points in a plane, and the mixtures of Gaussians that they were drawn from (Lee et al. 2019, §5.3).

    Args:
        sizes: of the smallest and of the largest set.

    Returns:
        inputs (count, elements, 2) and attention_mask; and the mixtures.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = marked(draw_sizes(count, sizes, generator))
    mixture = random_mixtures(count, clusters, generator=generator)
    points = mixture.draw(mask.shape[1], generator) * mask[..., None]
    return BatchDict(inputs=points, attention_mask=mask), mixture


def point_clouds(
    pixel_values: Float[Tensor, "batch 1 height width"], *, sizes: tuple[int, int] = (50, 100), seed: int = 0
) -> BatchDict:
    """Pictures as sets of points: each stands somewhere in a pixel that was drawn with its brightness as probability.

    Args:
        sizes: of the smallest and of the largest set.

    Returns:
        inputs (batch, elements, 2): x to the right and y upwards, from -1 to 1; attention_mask.

    Raises:
        ValueError: for a picture that is black, or has colors.
    """
    if pixel_values.dim() != 4 or pixel_values.shape[1] != 1:
        raise ValueError(f"pixel_values have shape {tuple(pixel_values.shape)}, expected (batch, 1, height, width)")
    generator = torch.Generator().manual_seed(seed)
    batch, _, height, width = pixel_values.shape
    brightness = pixel_values.flatten(1)
    if not (brightness.sum(dim=1) > 0).all():
        raise ValueError(f"picture {int(brightness.sum(dim=1).argmin())} is black: it has nowhere to put a point")
    mask = marked(draw_sizes(batch, sizes, generator))
    pixel = brightness.multinomial(mask.shape[1], replacement=True, generator=generator)  # (batch, elements)
    corner = torch.stack([pixel % width, pixel // width], dim=-1)
    inside = torch.rand(corner.shape, generator=generator)
    points = (corner + inside) / torch.tensor([width, height]) * 2 - 1  # (batch, elements, 2): x, and y downwards
    return BatchDict(inputs=points * torch.tensor([1, -1]) * mask[..., None], attention_mask=mask)


def draw_sizes(count: int, sizes: tuple[int, int], generator: torch.Generator) -> Int[Tensor, "count"]:
    """How large each set is.

    Raises:
        ValueError: when a set would be empty, or there are none.
    """
    least, most = sizes
    if not 1 <= least <= most:
        raise ValueError(f"sizes={sizes} must be those of the smallest and of the largest set, at least 1")
    if count < 1:
        raise ValueError(f"count={count} must be at least 1")
    return torch.randint(least, most + 1, (count,), generator=generator)
