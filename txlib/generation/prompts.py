"""What generation reads: the models that can write, prompts of different lengths as one tensor, tokens that end."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

TokenIds = Int[Tensor, "batch length"] | Sequence[Sequence[int]]


@runtime_checkable
class Decoder(Protocol):
    """What generation needs of a decoder-only model; see `txlib.models.GPT`."""

    config: Any

    def decode(self, input_ids: Tensor, attention_mask: Tensor | None, cache: Any) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def new_cache(self, capacity: int | None = None) -> Any: ...
    def parameters(self) -> Iterator[Tensor]: ...


@runtime_checkable
class EncoderDecoder(Protocol):
    """What generation needs of an encoder–decoder; see `txlib.models.Transformer`."""

    config: Any

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor: ...
    def decode(
        self, decoder_input_ids: Tensor, memory: Tensor, attention_mask: Tensor | None, cache: Any
    ) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def new_cache(self) -> Any: ...


def as_tensor(
    input_ids: TokenIds, attention_mask: Tensor | None, *, left: bool
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"] | None]:
    """Return the tokens as one tensor with its attention mask; lists are padded on the left or on the right.

    Raises:
        TypeError: `input_ids` is not a list of lists of tokens.
    """
    check_lists("input_ids", input_ids)
    if isinstance(input_ids, Tensor):
        return input_ids, attention_mask
    if left:
        return pad_left(input_ids)
    ids, mask = pad_left([list(reversed(tokens)) for tokens in input_ids])
    return ids.flip(1), None if mask is None else mask.flip(1)


def pad_left(input_ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Return prompts of different lengths as one tensor that ends with each one's last token, and its attention mask.

    The mask is None when there is no padding.
    """
    longest = max((len(tokens) for tokens in input_ids), default=0)
    ids = torch.tensor([[0] * (longest - len(tokens)) + list(tokens) for tokens in input_ids], dtype=torch.long)
    mask = torch.tensor([[0] * (longest - len(tokens)) + [1] * len(tokens) for tokens in input_ids])
    rows = len(input_ids)
    return ids.view(rows, longest), None if mask.all() and mask.numel() else mask.view(rows, longest)


def end_tokens(config: Any, eos_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the tokens that end a text: `eos_id`, or the config's."""
    eos_id = config.eos_id if eos_id is None else eos_id
    return () if eos_id is None else (eos_id,) if isinstance(eos_id, int) else tuple(eos_id)


def without_end(tokens: list[int], ends: list[list[int]]) -> list[int]:
    """Return the tokens without the end that stopped them."""
    for end in ends:
        if end and tokens[-len(end) :] == end:
            return tokens[: -len(end)]
    return tokens


def check_decoder(model: Any) -> None:
    """Raise a TypeError unless the model is a decoder."""
    if not isinstance(model, Decoder):
        raise TypeError(
            f"{type(model).__name__} can't write: generation needs a decoder-only model, such as txlib.models.GPT, or "
            "an encoder–decoder"
        )


def check_lists(name: str, lists: Any) -> None:
    """Raise a TypeError unless this is a list of lists of tokens, or a tensor."""
    if isinstance(lists, Tensor):
        if lists.ndim != 2:
            raise TypeError(
                f"{name} has shape {tuple(lists.shape)} and must be (batch, length); for one text ids[None]"
            )
        if lists.is_floating_point():
            raise TypeError(f"{name} are {lists.dtype} and must be whole numbers; convert them with ids.long()")
        return
    items = [lists] if isinstance(lists, str) else lists
    wrong = next((item for item in items if isinstance(item, int) or any(isinstance(part, str) for part in item)), None)
    if wrong is not None:
        raise TypeError(
            f"{name} must be a list of lists of tokens, such as [[5, 6]], and holds {wrong!r}; for text use "
            "TextGenerator(model, tokenizer)"
        )


def check_prompts(ids: Tensor, mask: Tensor | None, context: int, max_new_tokens: int) -> None:
    """Raise a ValueError for prompts that cannot be continued."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be at least 1")
    if not isinstance(mask, Tensor | None):
        raise TypeError(f"attention_mask={mask!r:.80} must be a tensor (batch, length) with 1 = keep, or None")
    if ids.numel() == 0 or (mask is not None and not mask.any(dim=1).all()):
        raise ValueError("a prompt is empty; give at least one token, such as the one that begins a text")
    if ids.shape[1] > context:
        raise ValueError(f"a prompt has {ids.shape[1]} tokens, the context holds {context}; shorten it")
    if mask is not None and mask.shape != ids.shape:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(ids.shape)}")
    if mask is not None and not mask[:, -1].all():
        raise ValueError(
            "input_ids must be padded on the left, so that each prompt ends where its new tokens begin; "
            "lists of tokens are padded so"
        )
