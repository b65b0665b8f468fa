"""Read and replace activations by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from txlib.attention import MultiHeadAttention
from txlib.hints import did_you_mean
from txlib.layers import TransformerBlock

HEADS = ".heads"
Change = Tensor | Callable[[Tensor], Tensor]


def activation_names(model: nn.Module) -> list[str]:
    """Return the names of all activations that can be read and replaced, in the model's order."""
    names = []
    for name, module in model.named_modules():
        if name and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            names.append(name)
            if isinstance(module, MultiHeadAttention):
                names.append(name + HEADS)
                names += [f"{name}{HEADS}.{head}" for head in range(module.heads)]
    return names


@contextmanager
def activations(model: nn.Module, *patterns: str) -> Iterator[dict[str, Tensor]]:
    """Inside, each call of the model fills the dictionary that this gives: name → activation.

    The tensors are those of the computation, so gradients flow through them; under `torch.no_grad()` there are none. A
    later call, or a module's later call, replaces them.

    Args:
        patterns: names, or patterns with * for any text; see `activation_names`.

    Raises:
        ValueError: for a pattern that fits no activation, with the nearest name, and for compiled blocks.
    """
    seen: dict[str, Tensor] = {}

    def keeping(name: str) -> Callable[[Tensor], Tensor]:
        def keep(x: Tensor) -> Tensor:
            seen[name] = x
            return x

        return keep

    with hooked(model, {name: keeping(name) for name in matching(model, patterns)}):
        yield seen


@contextmanager
def replace(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Inside, the model computes on with other activations.

    Args:
        changes: name, or a pattern → the tensor that takes the activation's place, or a function that returns it: of
            the activation.

    Raises:
        ValueError: for a name that the model doesn't have, with the nearest, and for compiled blocks; when the model is
            called, for a tensor of another shape.
    """

    def changing(name: str, change: Change) -> Callable[[Tensor], Tensor]:
        def changed(x: Tensor) -> Tensor:
            new = change if isinstance(change, Tensor) else change(x)
            if not isinstance(new, Tensor) or new.shape != x.shape:
                shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
                raise ValueError(f"{name} has shape {tuple(x.shape)} in this call, and would be replaced by {shape}")
            return new

        return changed

    names = matching(model, list(changes)) if changes else []
    named = {name: change for pattern, change in changes.items() for name in names if fnmatchcase(name, pattern)}
    with hooked(model, {name: changing(name, change) for name, change in named.items()}):
        yield


def ablate(*heads: int, by: str = "zero") -> Callable[[Tensor], Tensor]:
    """Return a change, for `replace`, that removes what some heads of an attention layer say, or a whole activation.

    Args:
        heads: their numbers; none: all, or an activation that has none, such as a feed-forward network's.
        by: what takes its place: "zero"; "mean", of the batch and its positions; "resample", what the head says in the
            batch's next text, which leaves everything typical but the content (Wang et al. 2022, §2).

    Raises:
        ValueError: for another `by`; when the model is called, for a head that isn't there, or to resample one text.
    """
    kinds = ("zero", "mean", "resample")
    if by not in kinds:
        raise ValueError(f"by={by!r} is unknown; choose one of {', '.join(kinds)}")

    def ablated(activation: Tensor) -> Tensor:
        if heads and activation.ndim != 4:
            raise ValueError(f"heads {heads} are an attention layer's: name it with {HEADS!r}, or leave them out")
        x = activation if activation.ndim == 4 else activation[:, None]  # (batch, heads, length, head_dim)
        if wrong := [head for head in heads if not 0 <= head < x.shape[1]]:
            raise ValueError(f"head {wrong[0]} is not there: the layer has heads 0 to {x.shape[1] - 1}")
        if by == "resample" and len(x) < 2:
            raise ValueError("resampling takes what the head says in another text; give a batch of two or more")
        chosen = list(heads) or list(range(x.shape[1]))
        new = x.clone()
        if by == "zero":
            new[:, chosen] = 0
        elif by == "mean":
            new[:, chosen] = x[:, chosen].mean(dim=(0, 2), keepdim=True)
        else:
            new[:, chosen] = x.roll(1, dims=0)[:, chosen]
        return new.view_as(activation)

    return ablated


@torch.no_grad()
def patching(
    model: nn.Module,
    clean: Int[Tensor, "batch length"],
    corrupted: Int[Tensor, "_batch _length"],
    names: Sequence[str],
    measure: Callable[[Any], float],
) -> dict[str, float]:
    """Return, for each activation, what a measure of the output becomes when the model reads the corrupted texts with
    this one activation as it was in the clean ones (Meng et al. 2022, §2).

    Args:
        clean, corrupted: texts of the same length.
        names: activations, or patterns; see `activation_names`.
        measure: of the model's output, such as the logit of the right answer minus that of the wrong one.

    Raises:
        ValueError: when the texts differ in shape, or as `activations`.
    """
    check_same_shape(clean, corrupted)
    with activations(model, *names) as seen:
        model(clean)
    results = {}
    for name, activation in seen.items():
        with replace(model, {name: activation}):
            results[name] = float(measure(model(corrupted)))
    return results


@torch.no_grad()
def path_patching(
    model: nn.Module,
    clean: Int[Tensor, "batch length"],
    corrupted: Int[Tensor, "_batch _length"],
    senders: Sequence[str],
    receivers: Sequence[str],
    measure: Callable[[Any], float],
) -> dict[str, float]:
    """Return, for each sender, what a measure of the output becomes when the model reads the corrupted texts, and the
    receivers get what the sender writes into the residual stream for the clean ones (Wang et al. 2022, §3.1).

    Only direct paths count: all other heads, mixers and feed-forward networks keep what they say of the corrupted texts
    (Goldowsky-Dill et al. 2023, §2), until the receivers are read. After them nothing is kept.

    Args:
        clean, corrupted: texts of the same length.
        senders: what writes into the stream: "embedding", heads, feed-forward networks; names or patterns.
        receivers: what reads it, such as "decoder.layers.1.self_attention.key", or "decoder.norm" for the logits.
        measure: of the model's output.

    Raises:
        ValueError: as `patching`.
    """
    check_same_shape(clean, corrupted)
    with activations(model, *senders) as sent:
        model(clean)
    with activations(model, *writers(model)) as kept:
        model(corrupted)
    results = {}
    for name, activation in sent.items():
        with activations(model, *receivers) as received, replace(model, {**kept, name: activation}):
            model(corrupted)
        with replace(model, dict(received)):
            results[name] = float(measure(model(corrupted)))
    return results


def writers(model: nn.Module) -> list[str]:
    """Return the names of what blocks write into the residual stream: heads or other mixers, feed-forward networks."""
    names = []
    for block_name, block in model.named_modules():
        if isinstance(block, TransformerBlock):
            for part in ("self_attention", "cross_attention", "feed_forward"):
                module = getattr(block, part)
                if module is not None:
                    heads = HEADS if isinstance(module, MultiHeadAttention) else ""
                    names.append(f"{block_name}.{part}{heads}")
    return names


def check_same_shape(clean: Tensor, corrupted: Tensor) -> None:
    """Raise a ValueError unless the texts have the same shape."""
    if clean.shape != corrupted.shape:
        raise ValueError(f"clean has shape {tuple(clean.shape)}, corrupted {tuple(corrupted.shape)}; make them equal")


def matching(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the names that some pattern fits.

    Raises:
        ValueError: for a pattern that fits none, and without patterns.
    """
    names = activation_names(model)
    if not patterns:
        raise ValueError(
            'name the activations to look at, such as "decoder.layers.*"; activation_names(model) lists all'
        )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = did_you_mean(pattern, names) or "; activation_names(model) lists what there is"
            raise ValueError(f"{type(model).__name__} has no activation {pattern!r}{hint}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


@contextmanager
def hooked(model: nn.Module, functions: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Inside, each activation passes through its function.

    Raises:
        ValueError: when blocks are compiled, inside which nothing can be seen.
    """
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
        raise ValueError("the model is compiled, and nothing inside can be seen; look at one that is not")
    with ExitStack() as stack:
        for name, function in functions.items():
            layer, heads, head = name.partition(HEADS)
            module: Any = model.get_submodule(layer)
            if heads:
                number = int(head[1:]) if head else None
                hook = module.output.register_forward_pre_hook(of_heads(module.heads, function, number))
            else:
                hook = module.register_forward_hook(of_output(function))
            stack.callback(hook.remove)
        yield


def of_heads(heads: int, function: Callable[[Tensor], Tensor], head: int | None = None) -> Callable[..., tuple[Tensor]]:
    """Return a hook on the input of an output projection, for a function of its heads, or of one."""

    def hook(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        split = inputs[0].unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, heads, length, head_dim)
        if head is None:
            split = function(split)
        else:
            said = split.unbind(dim=1)
            split = torch.stack([*said[:head], function(said[head]), *said[head + 1 :]], dim=1)
        return (split.transpose(1, 2).flatten(start_dim=2),)

    return hook


def of_output(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Return a hook for a function of what a module returns, of its first tensor where it returns several."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return function(output)
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (function(output[0]), *output[1:])
        return output

    return hook
