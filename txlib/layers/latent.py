"""Latent attention: keys and values of all heads come from one short vector per token, which is all that is cached."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention import BlockSparseConfig, DenseConfig, FlashConfig, LayerContext, Mask, MaskLike
from txlib.attention.cache import KeyValueCache
from txlib.attention.multihead import check_does_not_grow, four_biases, join_masks
from txlib.layers.config import BlockConfig, MixerConfig
from txlib.layers.norm import RMSNorm
from txlib.layers.position_config import NoPosition

EXACT = DenseConfig, BlockSparseConfig, FlashConfig  # a function of the scores, so that W can change sides


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", §2.1).

    c = norm(W x) is a token's latent vector and r = rotate(R x) its shared key. In each head k = [K c; r], v = V c and
    q = [a; rotate(b)], so that scores are aᵀ K c + rotate(b)ᵀ r. A cache keeps c and r only: rank + rotary_dim numbers
    for each token, instead of heads · (head_dim + value_dim).

    While decoding, no keys and values are computed of the past: aᵀ K c = (Kᵀ a)ᵀ c, and an average of V c is V times
    the average of c. That is attention with one key head, whose queries are [Kᵀ a; rotate(b)] and whose values are c.

    Args:
        rank: width of the latent vectors.
        query_rank: width of a latent vector of queries as well; None: queries are projected directly.
        head_dim: width of the part of a head's queries and keys that is not rotated.
        rotary_dim: width of the part that is.
        value_dim: width of a head's values.
        mechanism: softmax attention, see `txlib.attention.mechanism`.
        rotary: module that rotates; None: nothing is.
        mask: a rule of the layer, joined with each call's mask by `&`.
        scale: what scores are multiplied by; 1 / √(head_dim + rotary_dim) unless given.
        bias: whether the projections to the query's latent vector, the latent vector and the output have biases.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        rank: int,
        query_rank: int | None,
        head_dim: int,
        rotary_dim: int,
        value_dim: int,
        mechanism: nn.Module,
        rotary: nn.Module | None = None,
        mask: Mask | None = None,
        scale: float | None = None,
        bias: tuple[bool, bool, bool] = (False, False, False),
    ):
        super().__init__()
        self.heads, self.widths = heads, (head_dim, rotary_dim)
        self.scale = (head_dim + rotary_dim) ** -0.5 if scale is None else scale
        query_bias, latent_bias, output_bias = bias
        self.query_latent: nn.Linear | None = None
        self.query_norm: nn.Module | None = None
        if query_rank is not None:
            self.query_latent = nn.Linear(d_model, query_rank, bias=query_bias)
            self.query_norm = RMSNorm(query_rank, eps=1e-6)
        self.query = nn.Linear(d_model if query_rank is None else query_rank, heads * sum(self.widths), bias=False)
        self.latent = nn.Linear(d_model, rank, bias=latent_bias)
        self.shared_key = nn.Linear(d_model, rotary_dim, bias=latent_bias)
        self.latent_norm = RMSNorm(rank, eps=1e-6)
        self.key = nn.Linear(rank, heads * head_dim, bias=False)
        self.value = nn.Linear(rank, heads * value_dim, bias=False)
        self.output = nn.Linear(heads * value_dim, d_model, bias=output_bias)
        self.mechanism, self.rotary, self.mask = mechanism, rotary, mask

    def forward(
        self, x: Float[Tensor, "batch length d_model"], mask: MaskLike = None, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Return what is added to the residual stream.

        Args:
            mask: True = may attend; joined with the layer's own.
            cache: for decoding step by step; x then holds the new positions only.

        Raises:
            ValueError: for a cache that does not keep keys and values.
        """
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise ValueError(f"LatentAttention needs a KeyValueCache, got a {type(cache).__name__}")
        if cache is not None and self.mask is not None:
            check_does_not_grow(self.mask)
        offset = 0 if cache is None else cache.length
        queries = x if self.query_latent is None or self.query_norm is None else self.query_norm(self.query_latent(x))
        q = self.query(queries).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, query, both widths)
        plain, rotated = q.split(self.widths, dim=-1)
        latent, shared = self.latent_norm(self.latent(x))[:, None], self.shared_key(x)[:, None]  # (batch, 1, query, …)
        if self.rotary is not None:
            rotated, shared = self.rotary(rotated, offset=offset), self.rotary(shared, offset=offset)
        if cache is not None:
            latent, shared = cache.update(latent, shared)  # (batch, 1, key, rank), (batch, 1, key, rotary_dim)
        keys = latent.shape[-2]
        mask = join_masks(mask, self.mask, offset, 0 if cache is None else cache.length - keys, x.shape[1], keys)
        attend = self.attend if keys == x.shape[1] else self.attend_to_latent
        return self.output(attend(plain, rotated, latent, shared, mask).transpose(1, 2).flatten(2))

    def attend(
        self, plain: Tensor, rotated: Tensor, latent: Tensor, shared: Tensor, mask: MaskLike
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return each head's output from its keys and values."""
        k, v = (layer(latent[:, 0]).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.key, self.value))
        k = torch.cat([k, shared.expand(-1, self.heads, -1, -1)], dim=-1)
        return self.softmax(torch.cat([plain, rotated], dim=-1), k, v, mask)

    def attend_to_latent(
        self, plain: Tensor, rotated: Tensor, latent: Tensor, shared: Tensor, mask: MaskLike
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return the same from the latent vectors, whose projections are applied to queries and to the average."""
        key, value = (layer.weight.unflatten(0, (self.heads, -1)) for layer in (self.key, self.value))
        queries = torch.einsum("bhqd,hdr->bhqr", plain, key)
        q, k = torch.cat([queries, rotated], dim=-1), torch.cat([latent, shared], dim=-1)
        return torch.einsum("bhqr,hvr->bhqv", self.softmax(q, k, latent, mask), value)

    def softmax(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike) -> Tensor:
        """Return the mechanism's output, whose scores have the layer's scale."""
        return self.mechanism(q * (self.scale * q.shape[-1] ** 0.5), k, v, mask)  # it divides by √width


@dataclass(frozen=True, kw_only=True)
class LatentConfig(MixerConfig, name="latent"):
    """`LatentAttention` in a block's config, with heads, widths, biases, scale, mask, mechanism of its attention.

    Args:
        rank: width of the latent vectors.
        query_rank: width of a latent vector of queries; None: queries are projected directly.
        rotary_dim: width of the rotated part of queries and keys, besides head_dim; half of that unless given.
    """

    rank: int
    query_rank: int | None = None
    rotary_dim: int | None = None

    def __post_init__(self):
        self.check_at_least_one("rank", "query_rank", "rotary_dim")

    def make(self, block: BlockConfig, layer: LayerContext) -> LatentAttention:
        """Return the layer.

        Raises:
            ValueError: for what needs the keys of each head: positions other than rotary ones, and mechanisms that are
                not softmax attention; and for settings of the block's attention that it lacks.
        """
        attention, position = block.attention, block.position or NoPosition()
        for name in ("kv_heads", "qk_norm", "softcap", "sinks", "gate"):
            value = getattr(attention, name)
            if value not in (None, False) and not (name == "kv_heads" and value == attention.heads):
                raise ValueError(f"LatentConfig has no {name}, got {name}={value!r}; leave it out")
        inside: tuple[Any, ...] = position.make_bias(block, layer), position.make_mechanism(block, layer)
        if inside != (None, None) or position.shared:
            raise ValueError(f"LatentConfig takes rotary positions or none in its scores, not {position.name!r}")
        mechanism = DenseConfig() if attention.mechanism is None else attention.mechanism
        if not isinstance(mechanism, EXACT):
            raise ValueError(
                f"LatentConfig applies projections to queries, which only softmax attention allows, not {mechanism}; "
                "choose DenseConfig(), BlockSparseConfig() or FlashConfig()"
            )
        rotary_dim = max(2, block.head_dim // 2) if self.rotary_dim is None else self.rotary_dim
        query_bias, key_bias, _, output_bias = four_biases(attention.bias)
        return LatentAttention(
            block.d_model,
            attention.heads,
            rank=self.rank,
            query_rank=self.query_rank,
            head_dim=block.head_dim,
            rotary_dim=rotary_dim,
            value_dim=block.value_dim,
            mechanism=mechanism.make(block, layer),
            rotary=position.make_rotary(rotary_dim),
            mask=attention.mask,
            scale=attention.scale,
            bias=(query_bias, key_bias, output_bias),
        )
