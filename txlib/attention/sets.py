"""Attention among the elements of a set, which have no order: MAB, SAB, ISAB and PMA (Lee et al. 2019).

Nothing here uses positions, so a set in another order gives the same rows in that order (SAB, ISAB) or the same output
(PMA). A batch can have sets of different sizes, padded, with a mask: `padding(sizes)` or
`padding_from_mask(attention_mask)`.
"""

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.masks import Mask, MaskLike, check_mask
from txlib.attention.mechanism import check_sizes
from txlib.attention.multihead import MultiHeadAttention

Formula = Literal["code", "paper"]


class MAB(nn.Module):
    """Multihead attention block: x attends to y, then each row is transformed separately (eq. 6 and 7).

    The authors' module (github.com/juho-lee/set_transformer) differs from their paper. Here W^Q is the projection of
    queries, and heads(q, y) the heads' outputs for them, concatenated:

        "code"    q = W^Q x,  h = q + heads(q, y),          out = h + relu(W h)
        "paper"               h = x + W^O heads(W^Q x, y),  out = h + relu(W h)

    So the code adds to the *projected* query, of any width, and has no W^O. The paper allows "any row-wise feed-forward
    layer"; the code uses relu(W h), and so do both formulas here. The norms of eq. 6 and 7, after each of the two sums,
    are an option in the code: `norm`. Both divide scores by √d_model, the width of all heads together (§2.2); the
    Transformer divides by the root of one head's width: `scale=head_dim**-0.5`.

    Args:
        d_model: width of the output.
        heads: number of heads.
        d_query, d_memory: widths of x and y; d_model unless given.
        formula: "code" or "paper".
        norm: layer-normalize both sums.
        scale: what scores are multiplied by; 1 / √d_model unless given.
        mechanism: as in `MultiHeadAttention`.

    Raises:
        ValueError: for an unknown formula, and for a width of x that the paper's formula can't add.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        d_query: int | None = None,
        d_memory: int | None = None,
        formula: Formula = "code",
        norm: bool = False,
        scale: float | None = None,
        mechanism: nn.Module | None = None,
    ):
        super().__init__()
        if formula not in get_args(Formula):
            raise ValueError(f"formula={formula!r} is unknown; choose 'code' or 'paper'")
        self.d_query = d_model if d_query is None else d_query
        if formula == "paper" and self.d_query != d_model:
            raise ValueError(
                f"formula='paper' adds x itself, so its width d_query={d_query} must be d_model={d_model}; project x "
                "first, or take formula='code'"
            )
        scale = d_model**-0.5 if scale is None else scale
        self.attention = MultiHeadAttention(d_model, heads, mechanism=mechanism, scale=scale, memory_dim=d_memory)
        self.query: Any = nn.Identity()
        if formula == "code":
            self.query = nn.Linear(self.d_query, d_model)
            for name in ("query", "output"):
                setattr(self.attention, name, nn.Identity())
        self.linear = nn.Linear(d_model, d_model)
        self.attention_norm, self.linear_norm = (nn.LayerNorm(d_model) if norm else nn.Identity() for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "batch query d_query"],
        y: Float[Tensor, "batch key d_memory"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Return one row for each row of x; a row that sees nothing of y gets zeros from attention.

        Args:
            mask: which rows of x may see which of y.
        """
        if x.shape[-1] != self.d_query:
            raise ValueError(f"x has width {x.shape[-1]}, this block takes d_query={self.d_query}")
        x = self.query(x)  # (batch, query, d_model)
        h = self.attention_norm(x + self.attention(x, y, mask))
        return self.linear_norm(h + F.relu(self.linear(h)))


class SAB(nn.Module):
    """Set attention block: each element attends to all, MAB(x, x) (eq. 8). It costs n² scores.

    Args:
        d_in: width of the elements; d_model unless given.
        d_model, heads, others: as for `MAB`.
    """

    def __init__(self, d_model: int, heads: int, *, d_in: int | None = None, **others: Any):
        super().__init__()
        self.mab = MAB(d_model, heads, d_query=d_in, d_memory=d_in, **others)

    def forward(
        self, x: Float[Tensor, "batch elements d_in"], mask: MaskLike = None
    ) -> Float[Tensor, "batch elements d_model"]:
        """Return the elements after attention to each other. Rows of padding are meaningless.

        Args:
            mask: which elements may see which.
        """
        return self.mab(x, x, mask)


class ISAB(nn.Module):
    """Induced set attention block: a few points attend to all elements, then each element attends to these points,
    MAB(x, MAB(points, x)) (eq. 9 and 10). It costs 2nm scores for m points: linear in n.

    Args:
        points: number of points, whose vectors are learned.
        d_in: width of the elements; d_model unless given.
        mechanism: of both; or a pair, one for each, as needed if it has parameters.
        d_model, heads, others: as for `MAB`.

    Raises:
        ValueError: when there are no points.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        points: int,
        *,
        d_in: int | None = None,
        mechanism: nn.Module | tuple[nn.Module | None, nn.Module | None] | None = None,
        **others: Any,
    ):
        super().__init__()
        self.points = learned_rows("points", points, d_model)
        inner, outer = mechanism if isinstance(mechanism, tuple) else (mechanism, mechanism)
        self.inner = MAB(d_model, heads, d_memory=d_in, mechanism=inner, **others)
        self.outer = MAB(d_model, heads, d_query=d_in, mechanism=outer, **others)

    def forward(
        self, x: Float[Tensor, "batch elements d_in"], mask: MaskLike = None
    ) -> Float[Tensor, "batch elements d_model"]:
        """Return the elements after attention to each other through the points. Rows of padding are meaningless.

        Args:
            mask: which elements are real, e.g. `padding(sizes)`.

        Raises:
            ValueError: for a mask that differs from query to query: all see the same few points.
        """
        check_same_for_all(self, mask)
        return self.outer(x, self.inner(self.points.expand(len(x), -1, -1), x, mask))


class PMA(nn.Module):
    """Pooling by multihead attention: k learned seeds attend to all elements, MAB(seeds, x): a set of any size becomes
    k vectors (eq. 11). The paper's formula has a row-wise layer before it, MAB(seeds, relu(W x)).

    Args:
        seeds: number of seeds, whose vectors are learned.
        d_in: width of the elements; d_model unless given.
        d_model, heads, others: as for `MAB`.

    Raises:
        ValueError: when there are no seeds.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        seeds: int = 1,
        *,
        d_in: int | None = None,
        formula: Formula = "code",
        **others: Any,
    ):
        super().__init__()
        self.seeds = learned_rows("seeds", seeds, d_model)
        self.mab = MAB(d_model, heads, d_memory=d_in, formula=formula, **others)
        width = d_model if d_in is None else d_in
        self.before: Any = nn.Sequential(nn.Linear(width, width), nn.ReLU()) if formula == "paper" else nn.Identity()

    def forward(
        self, x: Float[Tensor, "batch elements d_in"], mask: MaskLike = None
    ) -> Float[Tensor, "batch seeds d_model"]:
        """Return one vector for each seed.

        Args:
            mask: which elements are real, e.g. `padding(sizes)`. All empty sets get the same vectors, as the seeds see
                nothing of them.

        Raises:
            ValueError: for a mask that differs from query to query: the queries are seeds, not elements.
        """
        check_same_for_all(self, mask)
        return self.mab(self.seeds.expand(len(x), -1, -1), self.before(x), mask)


def learned_rows(name: str, rows: int, width: int) -> nn.Parameter:
    """Return initial vectors, drawn as the authors draw them.

    Raises:
        ValueError: when there are none.
    """
    check_sizes(**{name: rows})
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(rows, width)))


def check_same_for_all(block: nn.Module, mask: MaskLike) -> None:
    """Refuse a mask that says more than which elements are real.

    Raises:
        ValueError: naming it.
    """
    check_mask(mask)
    if mask is None or (mask.only_keys if isinstance(mask, Mask) else mask.dim() == 4 and mask.shape[2] == 1):
        return
    description = str(mask) if isinstance(mask, Mask) else f"a tensor of shape {tuple(mask.shape)}"
    raise ValueError(
        f"{type(block).__name__} hides elements from all alike, and this mask differs from query to query: "
        f"{description}; give padding(sizes), padding_from_mask(attention_mask), a tensor (batch, 1, 1, elements), or "
        "use SAB"
    )
