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

BLOCKS = "layers."  # a parameter whose name holds this belongs to a block, in every model of the course


class Optimizers(Optimizer):
    """Several optimizers that step as one: torch's schedulers, gradient scalers and checkpoints take it for one.

    Args:
        parts: the optimizers, made of named parameters; the learning rates that they were made with are their peaks.
    """

    def __init__(self, parts: list[Optimizer]):
        groups = [group for part in parts for group in part.param_groups]
        super().__init__(groups, {})
        self.parts = parts
        for part in parts:
            self.state.update(part.state)
        for group in groups:
            group.setdefault("initial_lr", group["lr"])  # where torch's schedulers, too, keep the peak
        self._share()

    def _share(self) -> None:
        """The parts work on this object's own groups and state."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to its peak times the factor."""
        for group in self.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let every part make its step; what the closure gives, if there is one, comes back."""
        loss = computed(closure)
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        super().load_state_dict(state_dict)
        self._share()

    @property
    def name(self) -> str:
        """The classes of the parts."""
        return " + ".join(type(part).__name__ for part in self.parts)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return everything that the optimizers remember, as "parameter name|kind" → tensor.

        Raises:
            ValueError: when they remember anything but tensors.
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


def computed(closure: Callable[[], Any] | None) -> Any:
    """What a step's closure gives, if there is one; it computes gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Muon(torch.optim.Muon):
    """torch's Muon (Jordan et al. 2024), with the iteration done where and as it is fast.

    It runs in 16 bits where the device multiplies in them, on a GPU for all matrices of one shape at once; and of
    several ranks that have the same gradients, each does its share, and they exchange the results.
    """

    def __init__(self, params: Any, context: DistributedContext = SINGLE_PROCESS, **options: Any):
        super().__init__(params, **options)
        self.context = context

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "context": self.context}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Momentum, its nearest orthogonal matrix, and a step in that direction."""
        loss = computed(closure)
        for group in self.param_groups:
            held = [parameter for parameter in group["params"] if parameter.grad is not None]
            ahead = []
            for parameter in held:
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                momentum = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                ahead.append(parameter.grad.lerp(momentum, group["momentum"]))  # Nesterov's
            for parameter, direction in zip(held, shared_out(ahead, self.context), strict=True):
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)
        return loss


def shared_out(matrices: list[Tensor], context: DistributedContext) -> list[Tensor]:
    """`orthogonal` of each matrix, of which each rank computes some; all of them have all matrices."""
    if not context.is_distributed or not matrices:
        return orthogonal(matrices)
    shares: list[list[int]] = [[] for _ in range(context.world_size)]
    work = [0] * context.world_size
    costs = [matrix.numel() * min(matrix.shape) for matrix in matrices]
    for place in sorted(range(len(matrices)), key=lambda place: -costs[place]):
        idle = work.index(min(work))
        shares[idle].append(place)
        work[idle] += costs[place]
    sizes = [[matrices[place].numel() for place in share] for share in shares]
    own = orthogonal([matrices[place] for place in shares[context.rank]])
    sent = matrices[0].new_zeros(max(map(sum, sizes)), dtype=dtype_of_iteration(matrices[0]))
    if own:
        sent[: sum(sizes[context.rank])] = torch.cat([each.flatten() for each in own])
    found = [torch.empty_like(sent) for _ in shares]
    dist.all_gather(found, sent)
    done: list[Any] = [None] * len(matrices)
    for share, lengths, values in zip(shares, sizes, found, strict=True):
        for place, flat in zip(share, values[: sum(lengths)].split(lengths), strict=True):
            done[place] = flat.view(matrices[place].shape)
    return done


def orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """Of each matrix the nearest orthogonal one, roughly: singular values between 0.7 and 1.2."""
    alike: dict[Any, list[int]] = {}
    for place, matrix in enumerate(matrices):
        alone = matrix.device.type == "cpu" or is_sharded(matrix)  # no gain, or spread over ranks
        alike.setdefault(place if alone else matrix.shape, []).append(place)
    done: list[Any] = [None] * len(matrices)
    for places in alike.values():
        if len(places) == 1:
            done[places[0]] = newton_schulz(matrices[places[0]])
            continue
        for place, each in zip(places, newton_schulz(torch.stack([matrices[place] for place in places])), strict=True):
            done[place] = each
    return done


def newton_schulz(matrix: Float[Tensor, "*stack rows columns"]) -> Float[Tensor, "*stack rows columns"]:
    """Five steps of Newton and Schulz's iteration, with a polynomial of degree 5 that brings singular values close to 1
    from wherever they start (Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.to(dtype_of_iteration(matrix))
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # no singular value above 1
    plus: Any = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(5):
        gram = x @ x.mT
        x = plus(x, plus(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def dtype_of_iteration(matrix: Tensor) -> torch.dtype:
    """16 bits where the device multiplies in them: the iteration forgives."""
    return torch.bfloat16 if supports_bf16(matrix.device) else torch.float32


def hidden_matrices(model: nn.Module) -> dict[str, Tensor]:
    """The matrices inside the blocks by name: what Muon takes, and what weights decay in.

    Not among them: embeddings, output projections, norms, biases, frozen parameters.
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
    """AdamW (Loshchilov & Hutter 2019) for all parameters, or Muon for the matrices of the blocks.

    Muon replaces a matrix's momentum by the nearest orthogonal matrix, so that all its directions learn at one speed
    (Jordan et al. 2024). It is meant for hidden matrices; embeddings, output projection, norms and biases stay with
    AdamW.

    Args:
        lr: AdamW's peak learning rate.
        muon_lr: Muon's; None for AdamW alone.
        betas: AdamW's; the paper's are 0.9 and 0.98 (Vaswani et al. 2017, §5.3).
        weight_decay: applied to the matrices of the blocks (`hidden_matrices`) only.
        context: the processes that have the same gradients, and may share Muon's work.

    Weights, gradients and what is remembered of them stay in 32 bits, or whatever the model is made of: autocast
    computes with copies in 16 bits, whose rounding never adds up.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"optimizers(…) got a {type(model).__name__}; give the model itself, whose parameters have names: "
            "optimizers(model, lr=1e-3)"
        )
    hidden = hidden_matrices(model)
    rest = [named for named in model.named_parameters() if named[1].requires_grad and named[0] not in hidden]
    groups = same_kind(rest, weight_decay=0.0)
    parts: list[Optimizer] = []
    if muon_lr is None:
        groups += same_kind(hidden.items(), weight_decay=weight_decay)
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


def same_kind(named: Iterable[tuple[str, Tensor]], **options: Any) -> list[dict[str, Any]]:
    """Parameter groups, none of them empty: whole parameters, and those of which each rank holds a part."""
    kinds = [[pair for pair in named if is_sharded(pair[1]) == shared] for shared in (False, True)]
    return [{"params": pairs, **options} for pairs in kinds if pairs]
