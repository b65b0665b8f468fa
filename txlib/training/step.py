"""One optimizer step: gradients of several batches, divided by the tokens of all of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from txlib.training.distributed import (
    SINGLE_PROCESS,
    DistributedContext,
    LossFunction,
    SummedLoss,
    full_tensor,
    group_by_placement,
    no_sync,
)


def training_step(
    model: nn.Module,
    batches: Sequence[Any],
    loss: LossFunction,
    optimizer: Optimizer,
    *,
    clip: float | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    context: DistributedContext = SINGLE_PROCESS,
    flags: Callable[[], Sequence[float]] = tuple,
    mark: Callable[[str], object] = lambda part: None,
) -> tuple[Float[Tensor, ""], ...]:
    """Learn from several batches as if they were one.

    Batches have different numbers of tokens, so the mean of their mean losses is not the mean over all tokens. Here the
    sums are added up, and the gradients are divided once by the number of all tokens, those of other ranks included.

    Nothing in here waits for a GPU: it gets its work now, and the returned tensors have values some time later.

    Args:
        clip: largest norm of all gradients together; None: no limit.
        context: the processes that step together; each of them calls this.
        flags: called after the last backward pass, for more numbers to sum over the ranks in the same message.
        mark: called when "forward", "backward" and "optimizer" end.

    Returns:
        the loss per token and the number of tokens, of all ranks (not a number and 0 if no token counts), then the
        summed flags.
    """
    loss_sum: Any = 0.0
    tokens: Any = 0
    for number, batch in enumerate(batches, start=1):
        with nullcontext() if number == len(batches) else no_sync(loss):
            with autocast():
                batch_loss, batch_tokens = check_loss(loss(model, batch))
            mark("forward")
            batch_loss.backward()
            mark("backward")
        loss_sum, tokens = loss_sum + batch_loss.detach(), tokens + batch_tokens
    loss_sum, tokens, *summed = context.all_reduce_sum(loss_sum, tokens, *flags(), device=loss_sum.device)
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    if parameters:
        divide_gradients(parameters, tokens.clamp(min=1) / context.world_size)  # they are means over the ranks
    if clip is not None:
        clip_gradients(parameters, clip)
    optimizer.step()
    optimizer.zero_grad()
    mark("optimizer")
    return loss_sum / tokens, tokens, *summed


def divide_gradients(parameters: Sequence[Tensor], divisor: Tensor) -> None:
    """Divide the gradients of parameters in place."""
    for group in group_by_placement(gradients_of(parameters)):
        torch._foreach_div_(group, divisor.to(group[0].dtype))


def clip_gradients(parameters: Sequence[Tensor], largest: float) -> None:
    """Scale the gradients of parameters in place, so that their norm together is at most the largest."""
    norms = [full_tensor(nn.utils.get_total_norm(group)) for group in group_by_placement(gradients_of(parameters))]
    for group in group_by_placement(parameters):
        nn.utils.clip_grads_with_norm_(group, largest, torch.stack(norms).norm())


def gradients_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def check_loss(result: Any) -> SummedLoss:
    """Return what a loss function returned.

    Raises:
        ValueError: unless it is a pair of a scalar tensor and a count.
    """
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise ValueError(
            f"loss(model, batch) gave a {type(result).__name__}; it has to give a pair: the loss summed over what it "
            "counts, and how many those are, e.g. return losses.sum(), losses.numel()"
        )
    if result[0].dim():
        raise ValueError(f"loss(model, batch) gave losses of shape {tuple(result[0].shape)}; sum them: losses.sum()")
    return result
