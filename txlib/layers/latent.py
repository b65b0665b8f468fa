"""Latent attention: keys and values of all heads come from one short vector per token, which is all that is cached.

With an indexer, each query chooses the tokens that it attends to.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from txlib.attention import BlockSparseConfig, DenseConfig, FlashConfig, LayerContext, Mask, MaskLike, attention_weights
from txlib.attention.cache import KeyValueCache
from txlib.attention.masks import as_dense
from txlib.attention.multihead import check_does_not_grow, four_biases, join_masks
from txlib.layers.config import BlockConfig, MixerConfig
from txlib.layers.norm import RMSNorm
from txlib.layers.position_config import NoPosition, RotaryConfig

EXACT = DenseConfig, BlockSparseConfig, FlashConfig  # a function of the scores, so that W can change sides


class Indexer(nn.Module):
    """Chooses the keys that each query attends to (DeepSeek-AI 2025, "DeepSeek-V3.2", §2.1).

    A few narrow heads share one key per token: the score of query t and key s is Σ_h w_th · ReLU(q_th · k_s), and each
    query takes the `top_k` keys with the largest. The choice passes no gradient on, so while training the indexer
    learns to imitate the attention that comes of it: its loss is KL(p ‖ softmax(scores)), where p is the mean over
    heads of the attention weights. Only the indexer gets that loss's gradient.

    Args:
        d_query: width of the vectors that queries are made of.
        rotary: module that rotates the first numbers of queries and keys; None: nothing is.
        rotary_dim: how many it rotates.
        loss: factor of the loss.
    """

    def __init__(
        self,
        d_model: int,
        d_query: int,
        *,
        top_k: int,
        heads: int,
        head_dim: int,
        rotary: nn.Module | None,
        rotary_dim: int,
        loss: float,
    ):
        super().__init__()
        self.top_k, self.heads, self.loss, self.rotary = top_k, heads, loss, rotary
        self.widths = (rotary_dim, head_dim - rotary_dim)
        self.query = nn.Linear(d_query, heads * head_dim, bias=False)
        self.key = nn.Linear(d_model, head_dim, bias=False)
        self.key_norm = nn.LayerNorm(head_dim, eps=1e-6)
        self.weight = nn.Linear(d_model, heads, bias=False)
        self.divergence: Tensor | None = None  # of the last batch

    def make_key(
        self, x: Float[Tensor, "batch length d_model"], offset: int
    ) -> Float[Tensor, "batch 1 length head_dim"]:
        """Return the key of each token."""
        return self.rotated(self.key_norm(self.key(x.detach()))[:, None], offset)

    def rotated(self, x: Tensor, offset: int) -> Tensor:
        """Return the vectors with their first part rotated."""
        if self.rotary is None:
            return x
        turned, plain = x.split(self.widths, dim=-1)
        return torch.cat([self.rotary(turned, offset=offset), plain], dim=-1)

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        queries: Float[Tensor, "batch query d_query"],
        key: Float[Tensor, "batch 1 key head_dim"],
        offset: int,
    ) -> Float[Tensor, "batch 1 query key"]:
        """Return the scores.

        Args:
            queries: what queries are made of.
            key: what `make_key` has returned, of the past as well.
            offset: position of the first query.
        """
        q = self.query(queries.detach()).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, query, …)
        products = F.relu(self.rotated(q, offset).float() @ key.float().mT * key.shape[-1] ** -0.5)
        weight = self.weight(x.detach()).float() * self.heads**-0.5  # (batch, query, heads)
        return torch.einsum("bqh,bhqk->bqk", weight, products)[:, None]

    def choose(
        self, scores: Float[Tensor, "batch 1 query key"], allowed: Bool[Tensor, "_ _ _ key"] | None
    ) -> Bool[Tensor, "batch 1 query key"]:
        """Return which keys each query attends to: of those allowed, the `top_k` with the largest scores.

        Of equal scores, such as zeros of all heads, the earlier ones, so that a cache changes nothing.
        """
        scores = scores.detach() if allowed is None else scores.detach().masked_fill(~allowed, -torch.inf)
        index = scores.argsort(dim=-1, descending=True, stable=True)[..., : self.top_k]
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, index, True)
        return chosen if allowed is None else chosen & allowed

    def imitate(
        self,
        scores: Float[Tensor, "batch 1 query key"],
        weights: Float[Tensor, "batch heads query key"],
        chosen: Bool[Tensor, "batch 1 query key"],
    ) -> None:
        """Keep how far the scores are from the attention weights, on average over the queries that see a key."""
        target = weights.detach().float().mean(dim=1, keepdim=True)
        log_weight = scores.masked_fill(~chosen, -torch.inf).log_softmax(dim=-1).masked_fill(~chosen, 0.0)
        divergence = (torch.xlogy(target, target) - target * log_weight).sum(dim=-1)  # (batch, 1, query)
        self.divergence = divergence.sum() / chosen.any(dim=-1).sum().clamp(min=1)

    def auxiliary_loss(self) -> Float[Tensor, ""] | float:
        """Return the last batch's loss times its factor."""
        return 0.0 if self.divergence is None else self.loss * self.divergence

    def __getstate__(self) -> dict:
        """Leave out the last divergence, which belongs to an autograd graph and cannot be copied."""
        return {**self.__dict__, "divergence": None}


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
        indexer: chooses each query's keys; None: it attends to all.
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
        indexer: Indexer | None = None,
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
        self.mechanism, self.rotary, self.mask, self.indexer = mechanism, rotary, mask, indexer

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
        if self.indexer is not None:  # its keys are cached next to the shared ones
            shared = torch.cat([shared, self.indexer.make_key(x, offset)], dim=-1)
        if cache is not None:
            latent, shared = cache.update(latent, shared)  # (batch, 1, key, rank), (batch, 1, key, rotary_dim)
        keys = latent.shape[-2]
        mask = join_masks(mask, self.mask, offset, 0 if cache is None else cache.length - keys, x.shape[1], keys)
        attend = self.attend if keys == x.shape[1] else self.attend_to_latent
        if self.indexer is None:
            return self.output(attend(plain, rotated, latent, shared, mask).transpose(1, 2).flatten(2))
        shared, index_key = shared.split([self.widths[1], shared.shape[-1] - self.widths[1]], dim=-1)
        scores = self.indexer(x, queries, index_key, offset)
        chosen = self.indexer.choose(scores, as_dense(mask, scores, latent))
        if self.training:
            weights = attention_weights(
                *self.queries_and_keys(plain, rotated, latent, shared), chosen, scale=self.scale
            )
            self.indexer.imitate(scores, weights, chosen)
        return self.output(attend(plain, rotated, latent, shared, chosen).transpose(1, 2).flatten(2))

    def queries_and_keys(self, plain: Tensor, rotated: Tensor, latent: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Return each head's queries and keys."""
        k = self.key(latent[:, 0]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return torch.cat([plain, rotated], dim=-1), torch.cat([k, shared.expand(-1, self.heads, -1, -1)], dim=-1)

    def attend(
        self, plain: Tensor, rotated: Tensor, latent: Tensor, shared: Tensor, mask: MaskLike
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return each head's output from its keys and values."""
        v = self.value(latent[:, 0]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.softmax(*self.queries_and_keys(plain, rotated, latent, shared), v, mask)

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
        index_top_k: keys that each query attends to, chosen by an `Indexer`; None: all, and no indexer.
        index_heads, index_dim: heads of the indexer, and their width, at least rotary_dim.
        index_loss: factor of the loss by which the indexer learns. Trained with an `index_top_k` as large as the
            context it imitates dense attention, as the paper does at first.
    """

    rank: int
    query_rank: int | None = None
    rotary_dim: int | None = None
    index_top_k: int | None = None
    index_heads: int = 4
    index_dim: int = 32
    index_loss: float = 1.0

    def __post_init__(self):
        self.check_at_least_one("rank", "query_rank", "rotary_dim", "index_top_k", "index_heads", "index_dim")

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
        if self.index_top_k is not None and not isinstance(mechanism, DenseConfig):
            raise ValueError(f"an indexer chooses keys for each query, which needs DenseConfig(), not {mechanism}")
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
            indexer=self.make_indexer(block, rotary_dim),
        )

    def make_indexer(self, block: BlockConfig, rotary_dim: int) -> Indexer | None:
        """Return the module that chooses keys, if there is one.

        Raises:
            ValueError: for vectors narrower than their rotated part.
        """
        if self.index_top_k is None:
            return None
        if self.index_dim < rotary_dim:
            raise ValueError(f"index_dim={self.index_dim} must be at least rotary_dim={rotary_dim}")
        position = block.position or NoPosition()
        if isinstance(position, RotaryConfig):
            position = replace(position, layout="half")
        return Indexer(
            block.d_model,
            self.query_rank or block.d_model,
            top_k=self.index_top_k,
            heads=self.index_heads,
            head_dim=self.index_dim,
            rotary=position.make_rotary(rotary_dim),
            rotary_dim=rotary_dim,
            loss=self.index_loss,
        )
