"""Masks of every kind, and all that can be made of them, for hypothesis: three sentences, four heads."""

import torch
from hypothesis import strategies as st

from txlib.attention import (
    Mask,
    bigbird,
    block_local,
    blocks,
    causal,
    dilated,
    documents,
    full,
    global_blocks,
    global_tokens,
    padding,
    padding_from_mask,
    random_blocks,
    sliding_window,
    sparse_fixed,
    strided_keys,
    summary_columns,
    window_2d,
)


def every_third(batch, head, query, key):
    """A rule of one's own, for four heads."""
    return (query + key) % 4 != head


written = st.sampled_from(
    [
        causal(),
        full(),
        sliding_window(2),
        sliding_window(0),
        dilated(2, 3),
        dilated(4, 1),
        dilated(1, 9),
        global_tokens([]),
        global_tokens([1, 6]),
        block_local(3),
        blocks(4, torch.tensor([[1, 0, 1], [0, 1, 1]]).bool()),
        padding([2, 5, 0]),
        padding([4]),
        padding_from_mask(torch.tensor([[0, 0, 1, 1, 1, 1, 0, 1], [1] * 8, [0] * 8])),
        padding_from_mask(torch.tensor([[0, 1, 1, 0, 1]])),
        block_local(2, 1),
        strided_keys(3),
        summary_columns(4, 2),
        global_blocks(2, 1, 1),
        random_blocks(2, 2, seed=1),
        random_blocks(3, 1, 4, 1, 1, 1),
        documents([3, 0, 1, 4]),
        documents([[2, 5], [8], [1, 1, 1]]),
        sparse_fixed(5, 2),
        window_2d(3, 1),
        window_2d(2, 3),
        bigbird(2, 1, 3, 2, seed=3),
        bigbird(2, 1, 1, 1, seed=3, extra_tokens=2),
    ]
)
own = st.just(Mask(every_third, heads=4)) | st.just(random_blocks(2, 1, 5, heads=4))


def trees(leaves):
    """Everything that can be made of these masks."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(lambda mask: ~mask),
            inner.map(lambda mask: mask.transposed()),
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
            st.tuples(inner, st.integers(-3, 5), st.integers(-3, 3)).map(lambda three: three[0].shift(*three[1:])),
        ),
        max_leaves=5,
    )


masks = trees(written | own)
