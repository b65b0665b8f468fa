"""The masks of FlashAttention: a band along the diagonal, and keys that are hidden from all queries."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from txlib.attention.masks import MaskLike, check_mask
from txlib.attention.masks.spans import ALWAYS, hull, intersection, within

MAX_HEAD_DIM = 256  # the widest keys and values whose tiles fit into the Triton kernels


@dataclass(frozen=True)
class Band:
    """A mask that tiles can honor: a query sees the keys that are `least` to `greatest` positions before it.

    Args:
        visible: (batch | 1, key), False for keys that are hidden from all queries, such as padding; None: none.
    """

    least: int
    greatest: int
    visible: Bool[Tensor, "sentences key"] | None = None

    @classmethod
    def of(cls, mask: MaskLike, queries: int, keys: int, device: torch.device | str | None = None) -> "Band":
        """Return the band of a mask for this number of queries and keys.

        Raises:
            ValueError: for a mask that is not a band of distances, a mask on keys alone, or these joined by `&`.
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
                allowed = part.dense(1, keys, device=device)[:, 0, 0]  # (batch | 1, key)
                visible = allowed if visible is None else visible & allowed
            else:
                raise refusal(part)
        if len(spans) > 1:
            raise refusal(mask)
        least, greatest = hull(spans) if spans else (1, 0)  # nothing is allowed
        return cls(int(least), int(greatest), visible)

    @classmethod
    def plain(cls, queries: int, keys: int, is_causal: bool) -> "Band":
        """Return the band of all keys, or of those up to the query's own position."""
        return cls(0 if is_causal else 1 - keys, queries - 1)

    def seen(self, first: int, last: int, keys: int) -> range:
        """Return the keys that some query at positions first to last may see."""
        return range(max(0, first - self.greatest), min(keys, last - self.least + 1))

    def whole(self, first: int, last: int, columns: slice) -> bool:
        """Return whether all of these queries see all of these keys."""
        near, far = first - columns.stop + 1, last - columns.start
        return self.visible is None and self.least <= near and far <= self.greatest


def refusal(mask: MaskLike) -> ValueError:
    """Return the error for a mask that is not a band."""
    return ValueError(
        f"FlashAttention honors causal(), sliding windows and padding, joined by &, and not {mask}; "
        "use BlockSparseAttention"
    )
