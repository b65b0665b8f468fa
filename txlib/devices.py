"""Work for a GPU is queued, and nobody waits: numbers are sent to it ahead, and read when they have come back."""

import math
import time

import torch
from torch import Tensor


def default_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device; to a GPU it travels in its turn, from memory that does not move meanwhile."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return (tensor.pin_memory() if tensor.device.type == "cpu" else tensor).to(device, non_blocking=True)


class Numbers:
    """Some numbers of a step, which are read later: copied as soon as the device has them, while it goes on.

    `float(tensor)` would wait for all that is queued, the steps after this one included.
    """

    def __init__(self, *numbers: Tensor):
        kept = torch.stack([each.detach() for each in numbers])
        self.ready = None
        if kept.device.type == "cuda":
            there, kept = kept, torch.empty(kept.shape, dtype=kept.dtype, pin_memory=True)
            kept.copy_(there, non_blocking=True)
            self.ready = torch.cuda.Event()
            self.ready.record(torch.cuda.current_stream(there.device))
        self.kept = kept

    def read(self) -> list[float]:
        """The numbers; waits until they are there."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.kept.tolist()


def multiplies_in_bf16(device: torch.device) -> bool:
    """Whether a device has instructions for products in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()


def multiplies_in_fp8(device: torch.device) -> bool:
    """Whether a device has instructions for products in 8 bits."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


DENSE_BF16 = {  # TFLOP/s of products without sparsity, which NVIDIA's data sheets count twice
    "H200": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
}


def peak_flops(device: torch.device, dtype: torch.dtype) -> tuple[float, str]:
    """How many floating-point operations a device can do in a second, and where that is from: a data sheet, or, where
    there is none, one large product, measured here."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for known, tera in DENSE_BF16.items():
            if known in name:
                return tera * 1e12, f"{known}'s data sheet"
    side = 8192 if device.type == "cuda" else 1024
    chance = torch.Generator(device).manual_seed(0)  # its own: a run that is profiled draws the same as any other
    square = torch.randn(side, side, device=device, generator=chance).to(dtype)
    product = torch.empty_like(square)
    best = math.inf
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(square, square, out=product)
        float(product[0, 0])  # waits
        best = min(best, time.perf_counter() - began)
    return 2 * side**3 / best, f"a product of {side} × {side}, measured"
