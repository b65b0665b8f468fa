"""AdamW, or Muon for the matrices inside the blocks and AdamW for the rest, behind one object."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from txlib.devices import supports_bf16
from txlib.training.distributed import SINGLE_PROCESS, DistributedContext, distribute_like, is_sharded

BLOCKS = "layers."  # in the name of every parameter of a block


class Optimizers(Optimizer):
    """Several optimizers that step as one, also for torch's schedulers, gradient scalers and checkpoints.

    Args:
        parts: the optimizers, made of named parameters; their initial learning rates are the peaks.
    """

    def __init__(self, parts: list[Optimizer]):
        groups = [group for part in parts for group in part.param_groups]
        super().__init__(groups, {})
        self.parts = parts
        for part in parts:
            self.state.update(part.state)
        for group in groups:
            group.setdefault("initial_lr", group["lr"])  # where torch's schedulers keep the peak
        self._share_state()

    def _share_state(self) -> None:
        """Let the parts work on this object's groups and state."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to its peak times the factor."""
        for group in self.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let every part make its step, and return the result of the closure, if there is one."""
        loss = evaluate(closure)
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._share_state()

    @property
    def name(self) -> str:
        """The classes of the parts, such as "Muon + AdamW"."""
        return " + ".join(type(part).__name__ for part in self.parts)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state of all optimizers, as "parameter name|kind" → tensor.

        Raises:
            ValueError: when it holds anything but tensors.
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter, _ in self._named():
            for kind, value in self.state[parameter].items():
                if not isinstance(value, Tensor | None):
                    raise ValueError(
                        f"{self.name} keeps {kind!r} as a {type(value).__name__}, and checkpoints hold tensors only; "
                        "train without out, or with another optimizer"
                    )
                if value is not None:
                    tensors[f"{name}|{kind}"] = value
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_tensors` returned."""
        owners = {name: (parameter, group) for name, parameter, group in self._named()}
        for key, tensor in tensors.items():
            name, _, kind = key.partition("|")
            parameter, group = owners[name]
            on_device = kind != "step" or group.get("fused") or group.get("capturable")  # as torch keeps them
            value = tensor.to(parameter.device if on_device else "cpu")
            self.state[parameter][kind] = distribute_like(value, parameter)

    def _named(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        for group in self.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                yield name, parameter, group

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """Return the result of a step's closure, if there is one; it computes gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Muon(torch.optim.Muon):
    """torch's Muon (Jordan et al. 2024) with a faster iteration.

    It runs in 16 bits on devices with instructions for it, and on a GPU for all matrices of one shape at once. Ranks
    that have the same gradients divide the matrices among themselves and exchange the results.
    """

    def __init__(self, params: Any, context: DistributedContext = SINGLE_PROCESS, **options: Any):
        super().__init__(params, **options)
        self.context = context

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "context": self.context}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move each matrix in the direction of the orthogonal matrix nearest to its momentum."""
        loss = evaluate(closure)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            updates = []
            for parameter in parameters:
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                momentum = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                updates.append(parameter.grad.lerp(momentum, group["momentum"]))  # Nesterov's
            for parameter, update in zip(parameters, orthogonalize_on_ranks(updates, self.context), strict=True):
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)
        return loss


def orthogonalize_on_ranks(matrices: list[Tensor], context: DistributedContext) -> list[Tensor]:
    """Return `orthogonalize(matrices)`, of which each rank computes some; every rank has, and gets, all matrices."""
    if not context.is_distributed or not matrices:
        return orthogonalize(matrices)
    costs = [matrix.numel() * min(matrix.shape) for matrix in matrices]
    indices_of_rank = balanced(costs, context.world_size)
    sizes_of_rank = [[matrices[index].numel() for index in indices] for indices in indices_of_rank]
    results = orthogonalize([matrices[index] for index in indices_of_rank[context.rank]])
    message = matrices[0].new_zeros(max(map(sum, sizes_of_rank)), dtype=dtype_of_iteration(matrices[0]))
    if results:
        message[: sum(sizes_of_rank[context.rank])] = torch.cat([result.flatten() for result in results])
    messages = [torch.empty_like(message) for _ in indices_of_rank]
    dist.all_gather(messages, message)
    gathered: list[Any] = [None] * len(matrices)
    for indices, sizes, values in zip(indices_of_rank, sizes_of_rank, messages, strict=True):
        for index, flat in zip(indices, values[: sum(sizes)].split(sizes), strict=True):
            gathered[index] = flat.view(matrices[index].shape)
    return gathered


def balanced(costs: list[int], world_size: int) -> list[list[int]]:
    """Return the indices of the costs that each rank takes: the most expensive first, to the least loaded rank."""
    indices_of_rank: list[list[int]] = [[] for _ in range(world_size)]
    load = [0] * world_size
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        rank = load.index(min(load))
        indices_of_rank[rank].append(index)
        load[rank] += costs[index]
    return indices_of_rank


def orthogonalize(matrices: list[Tensor]) -> list[Tensor]:
    """Return roughly the nearest orthogonal matrix to each: its singular values lie between 0.7 and 1.2."""
    stacks: dict[Any, list[int]] = {}
    for index, matrix in enumerate(matrices):
        single = matrix.device.type == "cpu" or is_sharded(matrix)  # a stack is no faster, or not possible
        stacks.setdefault(index if single else matrix.shape, []).append(index)
    results: list[Any] = [None] * len(matrices)
    for indices in stacks.values():
        if len(indices) == 1:
            results[indices[0]] = newton_schulz(matrices[indices[0]])
            continue
        stack = newton_schulz(torch.stack([matrices[index] for index in indices]))
        for index, result in zip(indices, stack, strict=True):
            results[index] = result
    return results


def newton_schulz(matrix: Float[Tensor, "*stack rows columns"]) -> Float[Tensor, "*stack rows columns"]:
    """Return five steps of Newton and Schulz's iteration, with a polynomial of degree 5 that brings any singular value
    close to 1 (Jordan et al. 2024).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.to(dtype_of_iteration(matrix))
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # singular values of at most 1
    add_product: Any = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(5):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def dtype_of_iteration(matrix: Tensor) -> torch.dtype:
    """Return bfloat16 on devices with instructions for it: the iteration tolerates the rounding."""
    return torch.bfloat16 if supports_bf16(matrix.device) else torch.float32


def hidden_matrices(model: nn.Module) -> dict[str, Tensor]:
    """Return the matrices inside the blocks by name: those that Muon updates and that weight decay applies to.

    They do not include embeddings, output projections, norms, biases, frozen parameters.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.dim() == 2 and BLOCKS in name
    }


def optimizers(
    model: nn.Module,
    *,
    lr: float,
    muon_lr: float | None = None,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.0,
    context: DistributedContext = SINGLE_PROCESS,
) -> Optimizers:
    """Return AdamW (Loshchilov & Hutter 2019) for all parameters, or Muon for the matrices of the blocks.

    Muon replaces a matrix's momentum by the nearest orthogonal matrix, so that all its directions learn at one speed
    (Jordan et al. 2024). It is meant for hidden matrices; embeddings, output projection, norms and biases stay with
    AdamW.

    Args:
        lr: AdamW's peak learning rate.
        muon_lr: Muon's; None for AdamW alone.
        betas: AdamW's; the paper's are 0.9 and 0.98 (Vaswani et al. 2017, §5.3).
        weight_decay: applied to the matrices of the blocks (`hidden_matrices`) only.
        context: the processes that have the same gradients, and may share Muon's work.

    Weights, gradients and the optimizer's state keep the model's dtype, usually 32 bits: autocast computes with copies
    in 16 bits, so that rounding errors do not accumulate.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"optimizers(…) got a {type(model).__name__}; give the model itself, whose parameters have names: "
            "optimizers(model, lr=1e-3)"
        )
    hidden = hidden_matrices(model)
    rest = [named for named in model.named_parameters() if named[1].requires_grad and named[0] not in hidden]
    groups = parameter_groups(rest, weight_decay=0.0)
    parts: list[Optimizer] = []
    if muon_lr is None:
        groups += parameter_groups(hidden.items(), weight_decay=weight_decay)
    elif hidden:
        parts.append(Muon(list(hidden.items()), context, lr=muon_lr, momentum=0.95, weight_decay=weight_decay))
    parts.append(AdamW(groups, lr=lr, betas=betas, fused=True))
    return Optimizers(parts)


def as_optimizers(optimizer: Optimizer | Callable[[nn.Module], Optimizer], model: nn.Module) -> Optimizers:
    """Return an optimizer, or the one that a function makes of the model, as `Optimizers`.

    Raises:
        TypeError: when it is no torch optimizer.
        ValueError: when it has parameters that the model lacks.
    """
    made = optimizer if isinstance(optimizer, Optimizer) else optimizer(model) if callable(optimizer) else optimizer
    if not isinstance(made, Optimizer):
        raise TypeError(
            f"optimizer gave a {type(made).__name__}; give a torch optimizer, or a function from the model to one: "
            "lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in made.param_groups:
        if any(id(parameter) not in names for parameter in group["params"]):
            raise ValueError(
                f"{type(made).__name__} has parameters that the model lacks; make it of model.parameters() after the "
                "model is on its device"
            )
        group["param_names"] = [names[id(parameter)] for parameter in group["params"]]
    return made if isinstance(made, Optimizers) else Optimizers([made])


def parameter_groups(named: Iterable[tuple[str, Tensor]], **options: Any) -> list[dict[str, Any]]:
    """Return groups of named parameters, without empty ones: those that are not sharded, and those that are."""
    kinds = [[pair for pair in named if is_sharded(pair[1]) == sharded] for sharded in (False, True)]
    return [{"params": pairs, **options} for pairs in kinds if pairs]
