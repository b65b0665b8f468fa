"""The rules that `check_mechanism` tests, and the mechanism under test with its inputs."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from txlib.attention.cache import KeyValueCache
from txlib.attention.masks import Mask, causal, padding, padding_from_mask
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    MechanismError,
    check_output,
    check_takes_mask,
)
from txlib.attention.multihead import MultiHeadAttention

BATCH = 3
MAX_LENGTH = 512  # of the model that a config makes its mechanism for
TOLERANCE = 1e-4  # relative and absolute, for numbers of size 1 in 32 bits
DROPOUT_P, DRAWS = 0.5, 200  # of the rule "dropout"

NO_MASK, CAUSAL = (None,), (causal(),)
BOTH = NO_MASK + CAUSAL


class Refusal(Exception):
    """The mechanism raised a ValueError that names it, which the contract allows."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of queries, keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    length: int


def plain_block(sizes: Sizes) -> Any:
    """Return what a config's `make` reads of a `BlockConfig`: that class is of the layers, which are built on this."""
    attention = SimpleNamespace(heads=sizes.heads, kv_heads=sizes.kv_heads, dropout=0.0)
    return SimpleNamespace(attention=attention, head_dim=sizes.head_dim, value_dim=sizes.value_dim, position=None)


def with_dropout(block: Any, dropout_p: float) -> Any:
    """Return a copy of a block's config with this attention dropout."""
    block, attention = copy.copy(block), copy.copy(block.attention)
    object.__setattr__(attention, "dropout", dropout_p)  # configs are frozen
    object.__setattr__(block, "attention", attention)
    return block


class Subject:
    """The mechanism under test, with inputs for it."""

    def __init__(self, mechanism: nn.Module | MechanismConfig, sizes: Sizes, block: Any):
        self.sizes, self.block = sizes, block
        self.refused: list[str] = []
        self.bases: tuple[Mask | None, ...] = BOTH
        self.config = mechanism if isinstance(mechanism, MechanismConfig) else None
        self.names = {type(mechanism).__name__, type(mechanism).__name__.removesuffix("Config")}
        self.original = mechanism
        self.context: dict[str, Any] = {"max_length": MAX_LENGTH}
        try:
            self.mechanism = self.make()
        except ValueError:  # perhaps it is made for decoders only
            self.context["causal"] = True
            self.mechanism = self.make()
        self.names |= {type(module).__name__ for module in self.mechanism.modules()}
        self.name = type(self.mechanism).__name__

    def make(self, dropout_p: float | None = None, **context: Any) -> Any:
        """Return another mechanism of this kind, with other parameters where a config makes it."""
        if isinstance(self.original, MechanismConfig):
            block = self.block if dropout_p is None else with_dropout(self.block, dropout_p)
            made = self.original.make(block, LayerContext(**(self.context | context)))
        else:
            made = copy.deepcopy(self.original)
        return made.eval()

    def keeps(self, rule: str) -> bool:
        """Return whether the rule holds and was not refused for all masks."""
        check, bases = RULES[rule]
        self.rule, tried = rule, False
        for base in bases:
            if base in self.bases:
                try:
                    check(self, base)
                    tried = True
                except Refusal as refusal:
                    self.note(refusal)
                    if check is output_shape:  # nothing else can be tried with it
                        self.bases = tuple(other for other in self.bases if other != base)
        return tried

    def note(self, refusal: Refusal) -> None:
        """Record the sentence."""
        if str(refusal) not in self.refused:
            self.refused.append(str(refusal))

    def note_refused_layers(self) -> None:
        """Note whether a config refuses encoders, decoders or cross-attention."""
        self.rule = "made for a layer"
        for context in {"causal": False}, {"causal": True}, {"cross": True}:
            try:
                self.attempt(self.make, **context)
            except Refusal as refusal:
                self.note(refusal)

    def attempt(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return what a call returns.

        Raises:
            Refusal: for a ValueError that names the mechanism.
            MechanismError: for any other error.
        """
        try:
            return call(*args, **options)
        except MechanismError:
            raise
        except Exception as error:
            if isinstance(error, ValueError) and any(name in str(error) for name in self.names):
                raise Refusal(str(error)) from None
            masks = [str(mask) for mask in (*args, *options.values()) if isinstance(mask, Mask)]
            raise MechanismError(
                f"{self.name} raises {type(error).__name__} where {self.rule!r} is tried with "
                f"mask={', '.join(masks) or None}: {error}; what it can't do it should refuse with a ValueError that "
                "begins with its name"
            ) from error

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, mechanism: Any = None) -> Tensor:
        """Return the mechanism's output, of the right shape."""
        out = self.attempt(self.mechanism if mechanism is None else mechanism, q, k, v, mask)
        check_output(self.mechanism, out, q, v)
        return out

    def inputs(self, batch: int = BATCH, length: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return random queries, keys and values."""
        sizes, length = self.sizes, self.sizes.length if length is None else length
        return (
            torch.randn(batch, sizes.heads, length, sizes.head_dim),
            torch.randn(batch, sizes.kv_heads, length, sizes.head_dim),
            torch.randn(batch, sizes.kv_heads, length, sizes.value_dim),
        )

    def layer(self, kv_heads: int) -> MultiHeadAttention:
        """Return a layer with the mechanism in it."""
        heads, head_dim, value_dim = self.sizes.heads, self.sizes.head_dim, self.sizes.value_dim
        return MultiHeadAttention(
            heads * head_dim,
            heads,
            head_dim=head_dim,
            value_dim=value_dim,
            kv_heads=kv_heads,
            mechanism=self.mechanism,
        ).eval()

    def compare(self, out: Tensor, expected: Tensor, what: str, remedy: str) -> None:
        """Refuse outputs that differ.

        Raises:
            MechanismError: with the largest difference, and where it is.
        """
        error = (out - expected).abs()
        error = error.where(error == error, torch.inf)  # NaN is not equal to anything
        if not error.numel() or not (error > TOLERANCE * (1 + expected.abs())).any():
            return
        worst = torch.unravel_index(error.argmax(), error.shape)
        position = ", ".join(str(int(index)) for index in worst)
        raise MechanismError(
            f"{self.name} breaks the rule {self.rule!r}: {what}, yet its output is {out[worst]:.5g} instead of "
            f"{expected[worst]:.5g} at [{position}]; {remedy}"
        )


# The rules: each is tried with no mask, with causal(), or with both ---------------------------------------------------


def takes_a_mask(subject: Subject, base: Mask | None) -> None:
    check_takes_mask(subject.mechanism)


def output_shape(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    subject(q, k, v, base)
    q, k, v = subject.inputs(length=1)
    subject(q, k, v, base)


def no_leak(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    expected = subject(q, k, v, base)
    for position in (0, subject.sizes.length // 2, subject.sizes.length - 2):
        later = [x.clone() for x in (q, k, v)]
        for x in later:
            x[:, :, position + 1 :] = torch.randn_like(x[:, :, position + 1 :])
        subject.compare(
            subject(later[0], later[1], later[2], base)[:, :, : position + 1],
            expected[:, :, : position + 1],
            f"only positions after {position} changed under causal()",
            "let a query read keys of its own position and earlier only",
        )


def both_directions(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    first = subject(q, k, v, base)[:, :, 0]
    k[:, :, 1:], v[:, :, 1:] = torch.randn_like(k[:, :, 1:]), torch.randn_like(v[:, :, 1:])
    if torch.equal(subject(q, k, v, base)[:, :, 0], first):
        raise MechanismError(
            f"{subject.name} breaks the rule {subject.rule!r}: with mask=None the first query sees no later key; honor "
            "the mask, or, if it is always causal, refuse masks that are not: mask.is_causal(q.shape[-2], k.shape[-2])"
        )


def padding_is_absence(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    length = subject.sizes.length
    lengths = [length, length // 2, length - 1][:BATCH]
    out = subject(q, k, v, joined(base, padding(lengths)))
    for row, real in enumerate(lengths):
        alone = [x[row : row + 1, :, :real] for x in (q, k, v)]
        subject.compare(
            out[row : row + 1, :, :real],
            subject(alone[0], alone[1], alone[2], base),
            f"row {row} is the same text with {length - real} positions of padding",
            "leave hidden keys out of every sum, maximum and count",
        )


def hidden_keys(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    visible = torch.rand(BATCH, subject.sizes.length) < 0.6
    mask = joined(base, padding_from_mask(visible))
    expected = subject(q, k, v, mask)
    hidden = ~visible[:, None, :, None]
    k, v = (torch.where(hidden, torch.randn_like(x), x) for x in (k, v))
    out = subject(q, k, v, mask)
    subject.compare(
        out.where(~hidden, 0.0),
        expected.where(~hidden, 0.0),
        "only keys and values changed that the mask hides",
        "honor the mask, or refuse it with a ValueError",
    )


def number_of_keys(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    length = subject.sizes.length
    expected = subject(q, k, v, base)
    for more in (1, 37):
        longer = [torch.cat([x, 3 * torch.randn_like(x[:, :, :more])], dim=2) for x in (q, k, v)]
        subject.compare(
            subject(longer[0], longer[1], longer[2], joined(base, padding([length] * BATCH)))[:, :, :length],
            expected,
            f"only the number of keys changed, by {more} that padding hides",
            "let nothing depend on k.shape[-2]: count the keys that the mask allows",
        )


def fully_masked(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    visible = torch.ones(BATCH, subject.sizes.length, dtype=torch.bool)
    visible[0], visible[1, 0] = False, False  # a text of padding alone, and one that begins with it
    out = subject(q, k, v, joined(base, padding_from_mask(visible)))
    empty = out[0] if base is None else torch.cat([out[0], out[1, :, :1]], dim=1)
    subject.compare(
        empty,
        torch.zeros_like(empty),
        "the query may attend to nothing",
        "return zeros for it, e.g. by masked_fill after the softmax",
    )


def tensor_masks(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    length = subject.sizes.length
    lengths = [length, length // 2, length - 1]
    mask = joined(base, padding(lengths))
    out = subject(q, k, v, mask.dense(1 if mask.only_keys else length, length))
    real = padding(lengths).dense(1, length).mT  # what padding itself sees is of no use
    subject.compare(
        out.where(real, 0.0),
        subject(q, k, v, mask).where(real, 0.0),
        "the mask is the same, written out as a tensor",
        "read masks by as_dense(mask, q, k), or refuse tensors",
    )


def grouped_heads(subject: Subject, base: Mask | None) -> None:
    heads, kv_heads = subject.sizes.heads, subject.sizes.kv_heads
    x = torch.randn(BATCH, subject.sizes.length, heads * subject.sizes.head_dim)
    grouped, repeated = subject.layer(kv_heads), subject.layer(heads)
    weights = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        by_head = weights[name].unflatten(0, (kv_heads, -1))
        weights[name] = by_head.repeat_interleave(heads // kv_heads, dim=0).flatten(0, 1)
    out = subject.attempt(grouped, x, mask=base)
    repeated.load_state_dict(weights)
    subject.compare(
        out,
        subject.attempt(repeated, x, mask=base),
        f"{heads} heads that share {kv_heads} key heads are {heads} heads with equal keys",
        "write keys and values out with for_each_head(k, q.shape[1]), or group the queries",
    )


def cached_is_full(subject: Subject, base: Mask | None) -> None:
    length, layer = subject.sizes.length, subject.layer(subject.sizes.kv_heads)
    x = torch.randn(BATCH, length, layer.d_model)
    chunks, rows = (length - length // 2 - 3, 1, 1, 1, length // 2), torch.tensor([2, 0, 1])
    expected = subject.attempt(layer, x, mask=base)
    cache = layer.mechanism.new_cache() if hasattr(layer.mechanism, "new_cache") else KeyValueCache()
    remedy = (
        "make the state after each call cover all positions so far"
        if hasattr(layer.mechanism, "new_cache")
        else "let the mask alone say where queries are: they may be fewer than the keys"
    )
    start = 0
    for number, chunk in enumerate(chunks):
        if number == 3:  # as beam search does
            cache.reorder(rows)
            x, expected = x[rows], expected[rows]
        end = start + chunk
        subject.compare(
            subject.attempt(layer, x[:, start:end], mask=base, cache=cache),
            expected[:, start:end],
            f"positions {start} to {end - 1} were read with a cache of those before",
            remedy,
        )
        start = end


def batch_order(subject: Subject, base: Mask | None) -> None:
    q, k, v = subject.inputs()
    order, lengths = torch.tensor([1, 2, 0]), torch.tensor([subject.sizes.length, 5, subject.sizes.length // 2])
    for mask, moved in (base, base), (joined(base, padding(lengths)), joined(base, padding(lengths[order]))):
        subject.compare(
            subject(q[order], k[order], v[order], moved),
            subject(q, k, v, mask)[order],
            f"the rows of the batch are the same in the order {order.tolist()}",
            "let no row depend on another",
        )


def saving(subject: Subject, base: Mask | None) -> None:
    if subject.config is not None:
        again = MechanismConfig.from_dict(json.loads(json.dumps(subject.config.to_dict())))
        if again != subject.config:
            raise MechanismError(
                f"{subject.config} is {again} after to_dict, JSON and from_dict; keep numbers, strings, tuples and "
                "masks in its fields"
            )
    q, k, v = subject.inputs()
    twin = subject.make()
    for parameter in twin.parameters():
        parameter.add_(torch.randn_like(parameter))
    twin.load_state_dict(subject.mechanism.state_dict())
    subject.compare(
        subject(q, k, v, base, twin),
        subject(q, k, v, base),
        "another one loaded its state_dict",
        "keep all that it draws or learns in parameters and in buffers that are saved",
    )


def finite_gradients(subject: Subject, base: Mask | None) -> None:
    visible = torch.ones(BATCH, subject.sizes.length, dtype=torch.bool)
    visible[0], visible[1, :3] = False, False
    for mask in base, joined(base, padding_from_mask(visible)):
        inputs = dict(zip("qkv", (x.requires_grad_() for x in subject.inputs()), strict=True))
        with torch.enable_grad():
            out = subject(inputs["q"], inputs["k"], inputs["v"], mask)
            sources = inputs | dict(subject.mechanism.named_parameters())
            sources = {name: source for name, source in sources.items() if source.requires_grad}
            if not out.requires_grad:
                raise MechanismError(f"{subject.name} gives no gradient; compute its output from q, k and v by torch")
            gradients = torch.autograd.grad(out.square().sum(), list(sources.values()), allow_unused=True)
        for name, gradient in zip(sources, gradients, strict=True):
            if gradient is not None and not gradient.isfinite().all():
                raise MechanismError(
                    f"{subject.name} breaks the rule {subject.rule!r}: the gradient of {name} holds NaN or infinity "
                    f"with mask={mask}; a query that may attend to nothing must not divide by 0, nor subtract ∞"
                )


def dropout(subject: Subject, base: Mask | None) -> None:
    try:
        mechanism = subject.attempt(subject.make, DROPOUT_P)
    except Refusal as refusal:  # as `check_no_dropout` does
        subject.note(refusal)
        return
    mechanism.load_state_dict(subject.mechanism.state_dict())
    q, k, v = subject.inputs(batch=1, length=12)
    expected = subject(q, k, v, base)
    subject.compare(
        subject(q, k, v, base, mechanism),
        expected,
        "it is in evaluation",
        "drop weights in training only: F.dropout(weights, dropout, self.training)",
    )
    many_q, many_k, many_v = (x.expand(DRAWS, -1, -1, -1) for x in (q, k, v))
    draws = subject(many_q, many_k, many_v, base, mechanism.train())
    deviation, mean = draws.std(dim=0, keepdim=True), draws.mean(dim=0, keepdim=True)
    if subject.config is not None and deviation.max() < TOLERANCE:
        raise MechanismError(
            f"{subject.name} breaks the rule {subject.rule!r}: attention_dropout={DROPOUT_P} drops nothing in training;"
            " let the config's make pass block.attention.dropout on, or call check_no_dropout"
        )
    subject.compare(
        mean.where((mean - expected).abs() > 6 * deviation * DRAWS**-0.5 + TOLERANCE, expected),
        expected,
        f"it is the mean of {DRAWS} draws in training",
        "multiply the weights that are not dropped by 1 / (1 - dropout)",
    )


def joined(base: Mask | None, mask: Mask) -> Mask:
    """Return what both allow."""
    return mask if base is None else base & mask


RULES: dict[str, tuple[Callable[[Subject, Mask | None], None], tuple[Mask | None, ...]]] = {
    "takes a mask": (takes_a_mask, NO_MASK),
    "output shape": (output_shape, BOTH),
    "no leak from the future": (no_leak, CAUSAL),
    "no mask, no limits": (both_directions, NO_MASK),
    "padding equals absence": (padding_is_absence, BOTH),
    "hidden keys have no influence": (hidden_keys, BOTH),
    "independent of the number of keys": (number_of_keys, BOTH),
    "zeros for a query that sees nothing": (fully_masked, BOTH),
    "a tensor is a mask": (tensor_masks, BOTH),
    "grouped heads": (grouped_heads, BOTH),
    "cached equals full": (cached_is_full, CAUSAL),
    "order of the batch": (batch_order, BOTH),
    "saving": (saving, BOTH),
    "finite gradients": (finite_gradients, BOTH),
    "dropout": (dropout, BOTH),
}
