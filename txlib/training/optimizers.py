"""AdamW, or Muon for the matrices inside the blocks and AdamW for the rest, behind one object."""

from torch import Tensor, nn
from torch.optim import AdamW, Muon


class Optimizers:
    """Several optimizers that step as one.

    Args:
        parts: the optimizers; each keeps the learning rate it was built with as its peak.
        names: the name of each parameter, under which its state is saved.
    """

    def __init__(self, parts: list[AdamW | Muon], names: dict[Tensor, str]):
        self.parts, self.names = parts, names
        self.peaks = [[group["lr"] for group in part.param_groups] for part in parts]

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to its peak times the factor."""
        for part, peaks in zip(self.parts, self.peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["lr"] = peak * factor

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """All that the optimizers remember, as "parameter name|kind" → tensor."""
        return {
            f"{self.names[parameter]}|{kind}": value
            for part in self.parts
            for parameter, state in part.state.items()
            for kind, value in state.items()
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `state_tensors` gave."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        owners = {each: part for part in self.parts for group in part.param_groups for each in group["params"]}
        for key, tensor in tensors.items():
            name, _, kind = key.partition("|")
            parameter = parameters[name]
            owners[parameter].state[parameter][kind] = tensor.to(parameter.device)


def optimizers(
    model: nn.Module,
    *,
    lr: float,
    muon_lr: float | None = None,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.0,
    matrices: str = "layers.",
) -> Optimizers:
    """AdamW (Loshchilov & Hutter 2019) for all parameters, or Muon for the matrices of the blocks.

    Muon replaces a matrix's momentum by the nearest orthogonal matrix, so that all its directions learn at one speed
    (Jordan et al. 2024). It is meant for hidden matrices; embeddings, output projection, norms and biases stay with
    AdamW.

    Args:
        lr: AdamW's peak learning rate.
        muon_lr: Muon's; None for AdamW alone.
        betas: AdamW's; the paper's are 0.9 and 0.98 (Vaswani et al. 2017, §5.3).
        weight_decay: applied to matrices only, not to biases, norms and embeddings.
        matrices: a two-dimensional parameter whose name holds this belongs to a block.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    hidden = [parameter for name, parameter in named if parameter.dim() == 2 and matrices in name]
    chosen = set(hidden)
    rest = [parameter for _, parameter in named if parameter not in chosen]
    groups = [{"params": rest, "weight_decay": 0.0}]
    parts: list[AdamW | Muon] = []
    if muon_lr is None:
        groups.append({"params": hidden, "weight_decay": weight_decay})
    elif hidden:
        parts.append(Muon(hidden, lr=muon_lr, momentum=0.95, weight_decay=weight_decay))
    parts.append(AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, fused=True))
    return Optimizers(parts, {parameter: name for name, parameter in named})
