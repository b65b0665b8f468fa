"""Caches of every kind: they keep the protocol, follow the beams, and say what they cannot do."""

import pytest
import torch
from torch.testing import assert_close

from txlib.attention import (
    AttentionCache,
    KeyValueCache,
    MemoryCache,
    StateCache,
    StaticKeyValueCache,
    WindowKeyValueCache,
)
from txlib.attention.cache import make_cache

K, V = torch.randn(3, 2, 7, 4), torch.randn(3, 2, 7, 5)
ALL_KEPT = {
    "growing": KeyValueCache,
    "static": lambda: StaticKeyValueCache(9),
    "window of all": lambda: WindowKeyValueCache(9),
}
KINDS = {**ALL_KEPT, "window": lambda: WindowKeyValueCache(2), "state": StateCache, "memory": MemoryCache}


@pytest.mark.parametrize("kind", KINDS)
def test_caches_keep_the_protocol(kind):
    cache = KINDS[kind]()
    assert isinstance(cache, AttentionCache) and cache.length == 0
    cache.reorder(torch.tensor([1, 1]))  # nothing is held, nothing to do
    cache.crop(0)
    k, v = cache.update(K, V)
    assert cache.length == 7
    assert_close((k, v), (K, V))


@pytest.mark.parametrize("kind", ALL_KEPT)
def test_parts_equal_the_whole_after_crops_and_reorders(kind):
    cache = ALL_KEPT[kind]()
    cache.update(K[:, :, :4], V[:, :, :4])
    cache.update(K[:, :, :2], V[:, :, :2])  # rejected guesses
    cache.crop(4)
    assert cache.length == 4
    rows = torch.tensor([2, 0])
    cache.reorder(rows)
    k, v = cache.update(K[rows][:, :, 4:], V[rows][:, :, 4:])
    assert_close((k, v), (K[rows], V[rows]))
    assert cache.length == 7


def test_a_memory_is_kept_once_and_never_cropped():
    cache = MemoryCache()
    cache.update(K, V)
    cache.crop(2)
    cache.reorder(torch.tensor([2, 2]))
    assert_close((cache.k, cache.v, cache.length), (K[[2, 2]], V[[2, 2]], 7))


def test_the_cheapest_cache_is_made():
    assert type(make_cache()) is KeyValueCache
    assert type(make_cache(9)) is type(make_cache(9, window=9)) is StaticKeyValueCache
    assert type(make_cache(9, window=3)) is type(make_cache(window=3)) is WindowKeyValueCache


@pytest.mark.parametrize(
    "state, error, words",
    [
        (K, TypeError, r"a state is a tuple of tensors \(batch, …\), got Tensor; write \(tensor,\)"),
        ((K, 1), TypeError, "a tuple of tensors"),
        ((K, K[:2]), ValueError, r"shapes \(3, 2, 7, 4\), \(2, 2, 7, 4\); the first axis of each is the batch"),
        ((torch.tensor(1.0),), ValueError, "the first axis of each is the batch"),
    ],
)
def test_a_wrong_state_is_refused(state, error, words, unchecked):
    with pytest.raises(error, match=words):
        StateCache().state = state
