"""The settings of a training run."""

from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal

import torch

from txlib.devices import supports_bf16
from txlib.hints import FieldHints
from txlib.training.blocks import check_policy
from txlib.training.distributed import ENGINES
from txlib.training.schedules import inverse_sqrt, warmup_cosine, warmup_linear

Precision = Literal["auto", "fp32", "bf16", "fp8"]
Compile = bool | Literal["reduce-overhead"]
CHANGEABLE_ON_RESUME = ("checkpoint_every", "validate_every", "compile", "checkpoint_activations", "parallel")


@dataclass(frozen=True)
class TrainConfig(FieldHints):
    """Settings of a training run.

    Args:
        lr, muon_lr, weight_decay: see `optimizers`; the rates are peaks. An optimizer of your own ignores them.
        schedule: after the warm-up, "linear" (see `warmup_linear`), "cosine" (`warmup_cosine`), or the paper's
            "inverse_sqrt".
        warmup: steps until the peak.
        clip: largest norm of all gradients together; None: no limit.
        accumulate: batches whose gradients are added up for one step.
        precision: "fp32", "bf16" (autocast), "fp8" (bf16, and the blocks' linear layers multiply in 8 bits, see
            `in_fp8`), or "auto": bf16 on devices with instructions for it, else fp32.
        compile: compile the blocks: False, True or "reduce-overhead", see `compiled`.
        checkpoint_activations: what to compute twice to save memory: "none", "blocks", "every-2" or "matmuls", see
            `checkpointed`.
        average: decay of `WeightAverage`; None: no average.
        checkpoint_every, validate_every: in steps; None: only at the end. A checkpoint is also due after a minute.
        parallel: how several processes work together: "ddp", each with all weights, or "fsdp", each with a shard of
            them, on different rows; or "tp", all on the same rows, each with some heads (see `tensor_parallel`).
        seed: of dropout.
    """

    lr: float = 1e-3
    muon_lr: float | None = None
    weight_decay: float = 0.0
    schedule: Literal["linear", "cosine", "inverse_sqrt"] = "linear"
    warmup: int = 40
    clip: float | None = 1.0
    accumulate: int = 1
    precision: Precision = "fp32"
    compile: Compile = False
    checkpoint_activations: str = "none"
    average: float | None = None
    checkpoint_every: int | None = None
    validate_every: int | None = None
    parallel: str = "ddp"
    seed: int = 0

    def __post_init__(self):
        for name in ("lr", "warmup", "clip", "accumulate", "checkpoint_every", "validate_every"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be more than 0")
        check_policy(self.checkpoint_activations)
        if self.parallel not in ENGINES:
            raise ValueError(f"parallel={self.parallel!r} is unknown; choose {' or '.join(map(repr, ENGINES))}")

    def uses_bf16(self, device: torch.device) -> bool:
        """Return whether `train` computes under bf16 autocast on a device."""
        return supports_bf16(device) if self.precision == "auto" else self.precision != "fp32"

    def lr_factor(self, step: int, total: int | None) -> float:
        """Return the factor of the peak learning rates in a step, counted from 1.

        Args:
            total: steps of the run; None in the first steps of a run of given minutes, which only warm up.
        """
        if self.schedule == "inverse_sqrt":
            return inverse_sqrt(step, self.warmup)
        if total is None:
            return min(1.0, step / self.warmup)
        shape = warmup_cosine if self.schedule == "cosine" else warmup_linear
        return shape(step, total, self.warmup)

    def fixed_settings(self) -> dict[str, Any]:
        """Return the settings that must be the same when a run is resumed."""
        return {name: value for name, value in asdict(self).items() if name not in CHANGEABLE_ON_RESUME}


def check_length(steps: int | None, minutes: float | None) -> None:
    """Check the length of a run.

    Raises:
        ValueError: unless exactly one of both is given, and is more than 0.
    """
    if (steps is None) == (minutes is None):
        raise ValueError(f"steps={steps} and minutes={minutes}: give one of them, to say how long the run is")
    for name, value, kind in (("steps", steps, Integral), ("minutes", minutes, Real)):
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name}={value!r} is no {'whole ' if kind is Integral else ''}number")
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value} must be more than 0")
