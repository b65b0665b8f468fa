"""A paged cache: the keys and values of many texts in blocks of one size, which need not be neighbors.

A text has a table of its blocks, as a process has a table of its pages, and takes a block more when the last is full
(Kwon et al. 2023, §4.1–4.2). Texts that begin alike may have the same blocks in their tables.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from txlib.attention.cache import BlockCache, DecoderCache
from txlib.attention.dense import DenseAttention
from txlib.attention.masks import Mask, MaskLike, causal
from txlib.attention.masks.shared import once

ATTENTION, CAUSAL = DenseAttention(), causal()


@dataclass(frozen=True, eq=False)
class Rows:
    """Texts with the same number of new tokens, which attention computes together.

    tokens: where theirs are among the step's tokens. positions: where these are in their texts.
    blocks: their tables, filled up to the longest by the last block of each.
    """

    tokens: Int[Tensor, "text new"]
    positions: Int[Tensor, "text new"]
    blocks: Int[Tensor, "text blocks"]


class PagedStep:
    """The new tokens of several texts, one text after another, which a model reads in one step.

    Args:
        texts: of each, its table, the position of its first new token, and how many there are.
        size: tokens in a block.
    """

    def __init__(self, texts: Sequence[tuple[list[int], int, int]], size: int, device: torch.device | None = None):
        self.size, self.device = size, device
        positions = [range(start, start + new) for _, start, new in texts]
        self.positions = torch.tensor([place for places in positions for place in places], device=device)  # (token,)
        blocks = [table[place // size] for table, start, new in texts for place in range(start, start + new)]
        self.blocks = torch.tensor(blocks, device=device)  # (token,), where its key and value go
        alike: dict[tuple[int, int], list[tuple[int, list[int]]]] = defaultdict(list)
        first = 0
        for table, _, new in texts:
            alike[new, max(4, len(table).bit_length())].append((first, table))  # from 16 blocks on by length
            first += new
        self.rows = [self.join(group, new) for (new, _), group in alike.items()]

    def join(self, group: list[tuple[int, list[int]]], new: int) -> Rows:
        """Return texts as `Rows`; each is given by the number of its first token, and its table."""
        longest = max(len(table) for _, table in group)
        tables = [[*table, *table[-1:] * (longest - len(table))] for _, table in group]
        tokens = torch.tensor([[first] for first, _ in group]) + torch.arange(new)
        return Rows(tokens.to(self.device), self.positions[tokens], torch.tensor(tables, device=self.device))


class Memory:
    """The keys, or the values, of one layer in blocks.

    Args:
        content: zeros, (block, kv_heads, size, width).
    """

    def __init__(self, content: Num[Tensor, "block kv_heads size width"]):
        self.content = content

    def write(self, where: Any, x: Float[Tensor, "token kv_heads width"]) -> None:
        """Put vectors of tokens at an index into (block, kv_heads, size)."""
        self.content[where] = x

    def read(self, index: Int[Tensor, "text kv_heads blocks"]) -> Float[Tensor, "text kv_heads key width"]:
        """Return what the blocks of each text hold."""
        return gather(self.content, index)


class Int8Memory(Memory):
    """Likewise in 8 bits: each vector in whole multiples, -127 to 127, of its own step."""

    def __init__(self, content: Float[Tensor, "block kv_heads size width"]):
        super().__init__(torch.zeros_like(content, dtype=torch.int8))
        self.step = content.new_zeros(*content.shape[:3], 1)

    def write(self, where: Any, x: Float[Tensor, "token kv_heads width"]) -> None:
        step = (x.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=torch.finfo(x.dtype).tiny)
        self.content[where], self.step[where] = (x / step).round().to(torch.int8), step

    def read(self, index: Int[Tensor, "text kv_heads blocks"]) -> Float[Tensor, "text kv_heads key width"]:
        return gather(self.content, index) * gather(self.step, index)


MEMORIES: dict[str, type[Memory]] = {"auto": Memory, "int8": Int8Memory}


class PagedCache:
    """The keys and values of one layer, in blocks.

    Args:
        blocks: how many there are; memory for them is allocated when the first token comes.
        size: tokens in a block.
        kind: how keys and values are stored: as they come, or rounded.
    """

    length = 0  # texts have a length each: see `step.positions`
    step: PagedStep  # what the model reads next

    def __init__(self, blocks: int, size: int, kind: type[Memory] = Memory):
        self.blocks, self.size, self.kind = blocks, size, kind
        self.k: Memory | None = None
        self.v: Memory | None = None

    def update(
        self, k: Float[Tensor, "1 kv_heads token head_dim"], v: Float[Tensor, "1 kv_heads token value_dim"]
    ) -> tuple[Any, Any]:
        """Put the keys and values of the step's tokens into the blocks of their texts; return a `Memory` of each."""
        if self.k is None or self.v is None:
            self.k, self.v = (self.kind(x.new_zeros(self.blocks, x.shape[1], self.size, x.shape[-1])) for x in (k, v))
        where = self.step.blocks, slice(None), self.step.positions % self.size
        self.k.write(where, k[0].transpose(0, 1))
        self.v.write(where, v[0].transpose(0, 1))
        return self.k, self.v

    def attend(
        self,
        q: Float[Tensor, "1 heads token head_dim"],
        k: Tensor,
        v: Tensor,
        masks: Sequence[MaskLike],
        **options: Any,
    ) -> Float[Tensor, "1 heads token value_dim"]:
        """Keep new keys and values; return what each token gets from its own text."""
        keys, values = self.update(k, v)
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        for rows in self.step.rows:
            allowed, index = once(allowed_keys, rows, self.size, *masks), once(block_index, rows, k.shape[1])
            queries = q[0, :, rows.tokens].transpose(0, 1)  # (text, heads, new, head_dim)
            attended = ATTENTION(queries, keys.read(index), values.read(index), allowed, **options)
            out[0, :, rows.tokens] = attended.transpose(0, 1)
        return out

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Refuse: a text's keys and values are where its table says."""
        raise ValueError("a paged cache has no rows to reorder; take model.new_cache()")

    def crop(self, length: int) -> None:
        """Refuse, likewise."""
        raise ValueError("a paged cache has no length to crop; take model.new_cache()")


class PagedDecoderCache(DecoderCache):
    """A `PagedCache` for each layer of a decoder."""

    def __init__(self, layers: int, blocks: int, size: int, kind: type[Memory] = Memory):
        self.layers = [PagedCache(blocks, size, kind) for _ in range(layers)]
        super().__init__(BlockCache(layer) for layer in self.layers)

    def begin(self, step: PagedStep) -> None:
        """Tell all layers what the model reads next."""
        for layer in self.layers:
            layer.step = step


def allowed_keys(rows: Rows, size: int, *masks: MaskLike) -> Bool[Tensor, "_ _ new key"]:
    """Return which keys the new tokens may attend to: none after the token, where a block may be empty, and what all
    of these rules allow."""
    query = rows.positions[:, None, :, None]  # (text, 1, new, 1)
    key = torch.arange(rows.blocks.shape[1] * size, device=query.device)
    allowed = key <= query
    for mask in (mask for mask in masks if isinstance(mask, Mask) and mask != CAUSAL):
        head = torch.arange(mask.heads, device=query.device)[:, None, None]
        allowed = allowed & mask.at(torch.zeros_like(query), head, query, key)
    return allowed


def block_index(rows: Rows, kv_heads: int) -> Int[Tensor, "text kv_heads blocks"]:
    """Return where each text's blocks of each head are, if all heads' blocks are counted."""
    return rows.blocks[:, None] * kv_heads + torch.arange(kv_heads, device=rows.blocks.device)[:, None]


def gather(
    memory: Num[Tensor, "block kv_heads size width"], index: Int[Tensor, "text kv_heads blocks"]
) -> Num[Tensor, "text kv_heads key width"]:
    """Return the keys or values in the blocks of each text."""
    blocks = memory.flatten(0, 1).flatten(1)  # (block · kv_heads, size · width)
    return blocks.index_select(0, index.flatten()).view(*index.shape[:2], -1, memory.shape[-1])
