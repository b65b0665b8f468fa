"""What byte-pair encoding learns, and how it is used: the merges (Sennrich et al. 2016, §3.2).

`train_merges` finds the pairs of tokens to join, `merge` joins them in a new word. Both change only what stands around
a merge, where the paper's own program counts everything anew.
"""

from collections import defaultdict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from random import Random

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts text into pieces: 's, a word or a number with the space before it, other signs, further spaces."""

Pair = tuple[bytes, bytes]

BOUNDARY, GONE = -1, -2  # in training: between two words; merged into the token on the left
LAST_FIRST = bytes(range(255, -1, -1))


def train_merges(words: Mapping[bytes, int], count: int) -> list[Pair]:
    """The `count` pairs of tokens to merge, in order; fewer where no pair is left.

    Each time, the pair is taken that occurs most often in `words` (each with the number of times it occurs); of equally
    frequent ones, the greatest in the order of byte strings. Counts are kept up to date around each merge, so its
    cost is the number of places that it changes.
    """
    tokens = [bytes([byte]) for byte in range(256)]
    order = [_greatest_first(token) for token in tokens]

    # All words stand in one chain of symbols (token ids); after and before link what is left of it.
    symbols, times = [BOUNDARY], [0]
    for word, number in words.items():
        symbols += [*word, BOUNDARY]
        times += [number] * (len(word) + 1)
    after, before = list(range(1, len(symbols) + 1)), list(range(-1, len(symbols) - 1))
    counts: dict[tuple[int, int], int] = defaultdict(int)
    indices: dict[tuple[int, int], list[int]] = defaultdict(list)  # where a pair's left token stands, or once stood
    for index, pair in enumerate(pairwise(symbols)):
        if BOUNDARY not in pair:
            counts[pair] += times[index]
            indices[pair].append(index)

    def entry(pair: tuple[int, int]) -> tuple:
        return -counts[pair], order[pair[0]], order[pair[1]], pair  # the smallest comes first

    merges: list[Pair] = []
    queue = [entry(pair) for pair in counts]
    heapify(queue)
    while queue and len(merges) < count:
        number, _, _, pair = heappop(queue)
        if counts[pair] != -number:  # it has lost places since it was put here: back into the queue
            if counts[pair]:
                heappush(queue, entry(pair))
            continue
        left, right = pair
        new = len(tokens)
        merges.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
        order.append(_greatest_first(tokens[new]))
        merged = set()  # pairs with the new token
        for index in indices.pop(pair):
            neighbor = after[index]
            if symbols[index] != left or symbols[neighbor] != right:
                continue  # an earlier merge has taken one of the two
            number, following, previous = times[index], after[neighbor], before[index]
            symbols[index], symbols[neighbor] = new, GONE
            after[index], before[following] = following, index
            if (symbol := symbols[previous]) != BOUNDARY:
                counts[symbol, left] -= number
                pair_before = symbol, new
                counts[pair_before] += number
                indices[pair_before].append(previous)
                merged.add(pair_before)
            if (symbol := symbols[following]) != BOUNDARY:
                counts[right, symbol] -= number
                pair_after = new, symbol
                counts[pair_after] += number
                indices[pair_after].append(index)
                merged.add(pair_after)
        del counts[pair]
        for pair in merged:
            if counts[pair]:  # a run of one letter can make a pair and take it away again
                heappush(queue, entry(pair))
    return merges


def _greatest_first(token: bytes) -> str:
    """A key that sorts byte strings from the greatest to the smallest; the end mark sorts "ab" behind "abc"."""
    return token.translate(LAST_FIRST).decode("latin-1") + "\u0100"


def merge(
    ids: list[int],
    merges: Mapping[tuple[int, int], tuple[int, int]],
    dropout: float = 0.0,
    rng: Random | None = None,
) -> list[int]:
    """Join pairs in `ids` until none is left that was learned: always the one learned first, from left to right.

    `merges` gives for a pair of ids its rank and the id of both together. n ids take n log n time, also in a "word"
    of a million letters.

    With `dropout`, each time a pair is chosen, every pair is left out with this probability (Provilkov et al. 2020,
    BPE-dropout, §3.1), as `rng` decides: 0 leaves out none, 1 all.
    """
    if len(ids) < 2:
        return ids
    symbols: list = [*ids, None]  # None: the end, or joined to the one on its left
    after, before = list(range(1, len(symbols) + 1)), list(range(-1, len(symbols) - 1))
    queue = [(merges[pair][0], index) for index, pair in enumerate(pairwise(ids)) if pair in merges]
    heapify(queue)
    left_out: list[tuple[int, int]] = []
    while queue:
        rank, index = heappop(queue)
        right = after[index]
        merged = merges.get((symbols[index], symbols[right]))
        if merged is None or merged[0] != rank:
            continue  # one of the two has been joined to another
        if rng and rng.random() < dropout:
            left_out.append((rank, index))
            continue
        symbols[index], symbols[right] = merged[1], None
        after[index] = after[right]
        before[after[right]] = index
        for left in (before[index], index):
            if left >= 0 and (pair := (symbols[left], symbols[after[left]])) in merges:
                heappush(queue, (merges[pair][0], left))
        while left_out:  # the next choice is among all pairs again
            heappush(queue, left_out.pop())
    return [symbol for symbol in symbols if symbol is not None]
