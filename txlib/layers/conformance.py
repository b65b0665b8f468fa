"""`check_mixer`: whether a mixer keeps the contract of `MixerConfig` in a decoder, tried on random numbers."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from txlib.attention.cache import KeyValueCache
from txlib.attention.conformance import MechanismReport, checked_exceptions
from txlib.attention.conformance_rules import TOLERANCE
from txlib.attention.masks import MaskLike, causal, padding, padding_from_mask
from txlib.attention.mechanism import LayerContext, MechanismError
from txlib.layers.config import BlockConfig, MixerConfig
from txlib.layers.mixer import make_mixer

BATCH, MAX_LENGTH = 3, 512


def check_mixer(
    mixer: MixerConfig | BlockConfig, *, length: int = 50, exceptions: Mapping[str, str] | None = None
) -> MechanismReport:
    """Try the rules that a mixer keeps in a decoder; see `check_mechanism` for what mixes queries, keys and values.

        print(check_mixer(DeltaConfig(gated=True)))

    Args:
        mixer: its config, which is tried in a block of width 32 with 4 heads; or a block's config that has one.
        length: of the sequences; choose more than the chunks that the mixer works in.
        exceptions: rules that the mixer may break → why it does.

    Raises:
        MechanismError: naming the broken rule and the numbers seen.
        TypeError: for anything but a config.
        ValueError: for an exception to an unknown rule.
    """
    if isinstance(mixer, MixerConfig):
        mixer = BlockConfig.of_sizes(32, 4, 32, position="none", mixer=mixer)
    if not isinstance(mixer, BlockConfig):
        raise TypeError(f"check_mixer takes a MixerConfig or a BlockConfig, got {mixer!r}; give an instance")
    exceptions = checked_exceptions(exceptions, RULES)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        subject = MixerSubject(mixer, length)
        kept = [rule for rule in RULES if rule not in exceptions]
        for rule in kept:
            subject.rule = rule
            RULES[rule](subject)
    return MechanismReport(subject.name, tuple(kept), (), (), exceptions)


class MixerSubject:
    """The mixer under test, with inputs for it."""

    def __init__(self, block: BlockConfig, length: int):
        self.block, self.length, self.rule = block, length, ""
        self.mixer = self.make()
        self.name = type(self.mixer).__name__

    def make(self) -> nn.Module:
        """Return another mixer of this config, with other parameters."""
        return make_mixer(self.block, LayerContext(max_length=MAX_LENGTH, causal=True)).eval()

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that act on the output, not those that learn from an auxiliary loss alone."""
        apart = [part for part in self.mixer.modules() if hasattr(part, "auxiliary_loss")]
        left_out = {id(weight) for part in apart for weight in part.parameters()}
        return {name: weight for name, weight in self.mixer.named_parameters() if id(weight) not in left_out}

    def inputs(self, batch: int = BATCH) -> Tensor:
        """Return random inputs (batch, length, d_model)."""
        return torch.randn(batch, self.length, self.block.d_model)

    def __call__(self, x: Tensor, mask: MaskLike, cache: Any = None, mixer: nn.Module | None = None) -> Tensor:
        """Return the mixer's output, of the right shape.

        Raises:
            MechanismError: for any error of the mixer, and for an output of another shape.
        """
        try:
            out = (self.mixer if mixer is None else mixer)(x, mask=mask, cache=cache)
        except Exception as error:
            raise MechanismError(
                f"{self.name} raises {type(error).__name__} where {self.rule!r} is tried with mask={mask}: {error}"
            ) from error
        if not isinstance(out, Tensor) or out.shape != x.shape:
            returned = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise MechanismError(
                f"{self.name} returned {returned}, expected (batch, length, d_model) = {tuple(x.shape)}"
            )
        return out

    def compare(self, out: Tensor, expected: Tensor, what: str) -> None:
        """Refuse outputs that differ.

        Raises:
            MechanismError: with the largest difference.
        """
        error = (out - expected).abs()
        error = error.where(error == error, torch.inf)  # NaN is not equal to anything
        if (error > TOLERANCE * (1 + expected.abs())).any():
            raise MechanismError(
                f"{self.name} breaks the rule {self.rule!r}: {what}, yet its output differs by {error.max():.3g}"
            )


def no_leak(subject: MixerSubject) -> None:
    x, mask = subject.inputs(), causal()
    expected = subject(x, mask)
    for position in (0, subject.length // 2, subject.length - 2):
        later = x.clone()
        later[:, position + 1 :] = torch.randn_like(later[:, position + 1 :])
        end = position + 1
        subject.compare(subject(later, mask)[:, :end], expected[:, :end], f"only positions after {position} changed")


def padding_is_absence(subject: MixerSubject) -> None:
    x, lengths = subject.inputs(), [subject.length, subject.length // 2, subject.length - 1]
    right = subject(x, causal() & padding(lengths))
    for row, real in enumerate(lengths):
        what = f"row {row} is the same text with {subject.length - real} positions of padding"
        expected = subject(x[row : row + 1, :real], causal())
        subject.compare(right[row : row + 1, :real], expected, what)


def hidden_positions(subject: MixerSubject) -> None:
    x, visible = subject.inputs(), torch.rand(BATCH, subject.length) < 0.6
    mask = causal() & padding_from_mask(visible)
    changed = torch.where(visible[..., None], x, torch.randn_like(x))
    subject.compare(
        subject(changed, mask)[visible], subject(x, mask)[visible], "only positions changed that the mask hides"
    )


def cached_is_full(subject: MixerSubject) -> None:
    x, mixer = subject.inputs(), subject.mixer
    expected = subject(x, causal())
    new_cache = getattr(mixer, "new_cache", None) or getattr(getattr(mixer, "mechanism", None), "new_cache", None)
    cache = KeyValueCache() if new_cache is None else new_cache()
    start, rows = 0, torch.tensor([2, 0, 1])
    for number, chunk in enumerate((subject.length - subject.length // 2 - 3, 1, 1, 1, subject.length // 2)):
        if number == 3:  # as beam search does
            cache.reorder(rows)
            x, expected = x[rows], expected[rows]
        end = start + chunk
        subject.compare(
            subject(x[:, start:end], causal(), cache),
            expected[:, start:end],
            f"positions {start} to {end - 1} were read with a cache of those before",
        )
        start = end
        if cache.length != end:
            raise MechanismError(f"{subject.name} has read {end} positions, yet cache.length is {cache.length}")


def batch_order(subject: MixerSubject) -> None:
    x, order = subject.inputs(), torch.tensor([1, 2, 0])
    subject.compare(subject(x[order], causal()), subject(x, causal())[order], "only the batch's order changed")


def saving(subject: MixerSubject) -> None:
    again = BlockConfig.from_dict(json.loads(json.dumps(subject.block.to_dict())))
    if again != subject.block:
        raise MechanismError(f"{subject.block.mixer} is {again.mixer} after to_dict, JSON and from_dict")
    x, twin = subject.inputs(), subject.make()
    twin.load_state_dict(copy.deepcopy(subject.mixer.state_dict()))
    subject.compare(subject(x, causal(), mixer=twin), subject(x, causal()), "another one loaded its state_dict")


def finite_gradients(subject: MixerSubject) -> None:
    visible = torch.ones(BATCH, subject.length, dtype=torch.bool)
    visible[0], visible[1, :3] = False, False
    for mask in causal(), causal() & padding_from_mask(visible):
        x = subject.inputs().requires_grad_()
        sources = {"x": x, **subject.parameters()}
        with torch.enable_grad():
            loss = subject(x, mask).square().sum()
            gradients = torch.autograd.grad(loss, list(sources.values()), allow_unused=True)
        for name, gradient in zip(sources, gradients, strict=True):
            if gradient is None or not gradient.isfinite().all():
                what = "does not act on the output" if gradient is None else "has NaN or infinity in its gradient"
                raise MechanismError(f"{subject.name} breaks the rule {subject.rule!r}: {name} {what} with mask={mask}")


RULES: dict[str, Callable[[MixerSubject], None]] = {
    "no leak from the future": no_leak,
    "padding equals absence": padding_is_absence,
    "hidden positions have no influence": hidden_positions,
    "cached equals full": cached_is_full,
    "order of the batch": batch_order,
    "saving": saving,
    "finite gradients": finite_gradients,
}
