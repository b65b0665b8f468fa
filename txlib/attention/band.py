"""The masks of FlashAttention, which come to a band along the diagonal and keys that nobody sees."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from txlib.attention.masks import MaskLike, check_mask
from txlib.attention.masks.spans import ALWAYS, hull, intersection, within

MAX_HEAD_DIM = 256  # the widest keys and values whose tiles fit into the Triton kernels


@dataclass(frozen=True)
class Band:
    """The masks that tiles can honour: a query sees the keys that stand `least` to `greatest` positions before it.

    Args:
        visible: (batch | 1, key), False for keys that nobody may see, such as padding; None: all are seen.
    """

    least: int
    greatest: int
    visible: Bool[Tensor, "sentences key"] | None = None

    @classmethod
    def of(cls, mask: MaskLike, queries: int, keys: int, device: torch.device | str | None = None) -> "Band":
        """What a mask comes to for so many queries and keys.

        Raises:
            ValueError: naming a mask that is no band of distances, nor about keys alone, nor these joined by `&`.
        """
        check_mask(mask)
        if isinstance(mask, Tensor):
            raise ValueError(
                f"FlashAttention takes masks as rules, got a tensor of shape {tuple(mask.shape)}; "
                "write e.g. causal() & padding(lengths), or use DenseAttention"
            )
        spans, visible = within(ALWAYS, 1 - keys, queries - 1), None
        for part in () if mask is None else mask.conjuncts():
            distances = part.distances()
            if distances is not None:
                spans = intersection(spans, distances)
            elif part.only_keys and part.heads == 1:
                kept = part.dense(1, keys, device=device)[:, 0, 0]  # (batch | 1, key)
                visible = kept if visible is None else visible & kept
            else:
                raise refusal(part)
        if len(spans) > 1:
            raise refusal(mask)
        least, greatest = hull(spans) if spans else (1, 0)  # nothing is allowed
        return cls(int(least), int(greatest), visible)

    @classmethod
    def plain(cls, queries: int, keys: int, is_causal: bool) -> "Band":
        """All keys, or those up to the query's own position."""
        return cls(0 if is_causal else 1 - keys, queries - 1)

    def seen(self, first: int, last: int, keys: int) -> range:
        """The keys that some query at the positions from first to last may see."""
        return range(max(0, first - self.greatest), min(keys, last - self.least + 1))

    def whole(self, first: int, last: int, columns: slice) -> bool:
        """Whether all of these queries see all of these keys."""
        near, far = first - columns.stop + 1, last - columns.start
        return self.visible is None and self.least <= near and far <= self.greatest


def refusal(mask: MaskLike) -> ValueError:
    """The error for a mask that is no band."""
    return ValueError(
        f"FlashAttention honours causal(), sliding windows and padding, joined by &, and not {mask}; "
        "use BlockSparseAttention"
    )
