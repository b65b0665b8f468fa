"""AdamW, or Muon for the matrices inside the blocks and AdamW for the rest, behind one object."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from txlib.training.distributed import part_like

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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        super().load_state_dict(state_dict)
        self._share()

    def state_tensors(self) -> dict[str, Tensor]:
        """All that the optimizers remember, as "parameter name|kind" → tensor."""
        return {
            f"{name}|{kind}": value
            for name, parameter in self._named()
            for kind, value in self.state[parameter].items()
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `state_tensors` gave."""
        parameters = dict(self._named())
        for key, tensor in tensors.items():
            name, _, kind = key.partition("|")
            own = parameters[name]
            self.state[own][kind] = part_like(tensor.to(own.device), own)

    def _named(self) -> list[tuple[str, Tensor]]:
        groups = self.param_groups
        return [pair for group in groups for pair in zip(group["param_names"], group["params"], strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}


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
    """
    hidden = hidden_matrices(model)
    rest = [named for named in model.named_parameters() if named[1].requires_grad and named[0] not in hidden]
    groups = [{"params": rest, "weight_decay": 0.0}]
    parts: list[Optimizer] = []
    if muon_lr is None:
        groups.append({"params": list(hidden.items()), "weight_decay": weight_decay})
    elif hidden:
        parts.append(Muon(list(hidden.items()), lr=muon_lr, momentum=0.95, weight_decay=weight_decay))
    parts.append(AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, fused=True))
    return Optimizers(parts)
