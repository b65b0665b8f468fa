"""Batches of sentences of like length: little padding, and about the same number of tokens in each."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from txlib.devices import to_device
from txlib.labels import IGNORE_INDEX

Ids = Sequence[int]
PairOfIds = Sequence[Ids]  # (source ids, target ids)


@dataclass(frozen=True)
class Batch:
    """What an encoder–decoder Transformer is trained on, with the field's argument names."""

    input_ids: Int[Tensor, "batch source"]
    attention_mask: Int[Tensor, "batch source"]  # 1 = a token, 0 = padding
    decoder_input_ids: Int[Tensor, "batch target"]
    labels: Int[Tensor, "batch target"]  # decoder_input_ids one step later; padding is IGNORE_INDEX

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(*(to_device(getattr(self, field.name), device) for field in fields(self)))


class BatchDict(dict):
    """A batch: tensors under the names of the model's arguments."""

    def to(self, device: torch.device | str) -> "BatchDict":
        """Return the same batch on another device."""
        return BatchDict({name: to_device(tensor, device) for name, tensor in self.items()})


class LazyDataset(Dataset[Any], Sequence[Any]):
    """A dataset whose items are made when they are accessed: `make(item)` for each.

    An epoch of batches is one, so that only one batch at a time is in memory. With a `DataLoader` that has
    `batch_size=None`, other processes can make them.
    """

    def __init__(self, items: Sequence | Tensor, make: Callable):
        self.items, self.make = items, make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index):
        return self.make(self.items[index])


def pad(sequences: Sequence[Ids], pad_id: int) -> Int[Tensor, "batch length"]:
    """Put sequences into one tensor, each filled up with `pad_id` at the end to the length of the longest."""
    if not sequences:
        raise ValueError("no sequences to pad: give at least one")
    length = max(map(len, sequences))
    return torch.tensor([[*ids, *[pad_id] * (length - len(ids))] for ids in sequences], dtype=torch.long)


def collate(pairs: Sequence[PairOfIds], bos_id: int, eos_id: int, pad_id: int) -> Batch:
    """Make a batch of (source ids, target ids): the source ends with eos, the decoder reads bos + target and is to
    write target + eos.
    """
    input_ids = pad([[*source, eos_id] for source, _ in pairs], pad_id)
    length = torch.tensor([len(source) + 1 for source, _ in pairs])  # (batch,)
    attention_mask = (torch.arange(input_ids.shape[1]) < length[:, None]).long()  # (batch, source)
    decoder_input_ids = pad([[bos_id, *target] for _, target in pairs], pad_id)
    labels = pad([[*target, eos_id] for _, target in pairs], IGNORE_INDEX)
    return Batch(input_ids, attention_mask, decoder_input_ids, labels)


def batches_by_length(
    lengths: Sequence[int | tuple[int, int]], max_tokens: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> list[list[int]]:
    """Group examples of like length; returns the indices of each batch.

    A batch, padded, has at most `max_tokens` tokens. Every index occurs in exactly one batch. Wherever there are enough
    examples, a batch holds a single length, so that it has no padding at all; of pairs, a single source length, and
    targets that are neighbors in length.

    Args:
        lengths: tokens of each example, marks included; of a pair, those of the source and of the target, which are
            padded apart.
        seed, epoch: decide which examples of equal length meet in a batch, and the order of the batches: the same two
            numbers always give the same list.
        shuffle: False leaves everything sorted, e.g. to validate.

    Raises:
        ValueError: where an example is longer than `max_tokens`; drop such examples beforehand.
    """
    length = [(size, 0) if isinstance(size, int) else size for size in lengths]
    if too_long := [index for index, sizes in enumerate(length) if sum(sizes) > max_tokens]:
        worst = max(too_long, key=lambda index: sum(length[index]))
        raise ValueError(
            f"{len(too_long)} of {len(length)} examples exceed max_tokens={max_tokens} (the longest, number {worst}, "
            f"has {sum(length[worst])}); raise max_tokens or drop them"
        )
    rng = random.Random(f"{seed} {epoch}")
    order = list(range(len(length)))
    if shuffle:
        rng.shuffle(order)  # sorting is stable: it keeps this order among equals

    batches: list[list[int]] = []
    batch: list[int] = []
    longest_target = 0  # target in the batch
    down = False
    for source, group in groupby(sorted(order, key=lambda index: length[index][0]), lambda index: length[index][0]):
        if (
            batch and 2 * len(batch) * (source - 1 + longest_target) > max_tokens
        ):  # half full or more: don't mix source lengths
            batches.append(batch)
            batch, longest_target = [], 0
        # Targets go up in one source length and down in the next, so that a batch that spans both stays even.
        for index in sorted(group, key=lambda index: length[index][1], reverse=down):
            new_longest = max(longest_target, length[index][1])
            if (len(batch) + 1) * (source + new_longest) > max_tokens:
                batches.append(batch)
                batch, new_longest = [], length[index][1]
            batch.append(index)
            longest_target = new_longest
        down = not down
    if batch:
        batches.append(batch)
    if shuffle:
        rng.shuffle(batches)
    return batches


def padding_share(batches: Iterable[Batch]) -> float:
    """The share of padding among all source and target positions of the batches: 0 is none, 0.5 is every other one."""
    padding = total = 0
    for batch in batches:
        padding += int((batch.attention_mask == 0).sum() + (batch.labels == IGNORE_INDEX).sum())
        total += batch.input_ids.numel() + batch.labels.numel()
    if not total:
        raise ValueError("no batches to measure: give at least one")
    return padding / total
