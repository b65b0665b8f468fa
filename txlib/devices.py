"""Moving batches to a device and numbers back without waiting for a GPU, and what devices can compute."""

import math
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def default_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def to_device(batch: Any, device: torch.device | str) -> Any:
    """Return the batch with its tensors on a device.

    Dictionaries, tuples, lists and dataclasses are moved with all that they hold; an object with a method `to` moves
    itself; anything else stays as it is. A GPU receives tensors asynchronously, from pinned memory.
    """
    if isinstance(batch, Tensor):
        if torch.device(device).type != "cuda":
            return batch.to(device)
        return (batch.pin_memory() if batch.device.type == "cpu" else batch).to(device, non_blocking=True)
    if hasattr(batch, "to") and not isinstance(batch, type):
        return batch.to(device)
    return map_items(lambda item: to_device(item, device), batch) if is_container(batch) else batch


def is_container(batch: Any) -> bool:
    """Whether `map_items` takes the batch apart."""
    return isinstance(batch, dict | tuple | list) or (is_dataclass(batch) and not isinstance(batch, type))


def map_items(change: Callable[[Any], Any], container: Any) -> Any:
    """Return a dictionary, tuple, list or dataclass of the same type whose items are changed."""
    if isinstance(container, dict):
        items = {key: change(item) for key, item in container.items()}
        return items if type(container) is dict else type(container)(items)
    if is_dataclass(container):
        items = {field.name: change(getattr(container, field.name)) for field in fields(container)}
        return replace(container, **items)  # type: ignore[type-var]
    if hasattr(container, "_fields"):  # a named tuple
        return type(container)(*map(change, container))
    return type(container)(map(change, container))


class AsyncScalars:
    """Scalars of a training step that are read later, copied as soon as the device has computed them.

    `float(tensor)` would wait for everything that is queued, including the steps after this one.
    """

    def __init__(self, *scalars: Tensor):
        values = torch.stack([scalar.detach() for scalar in scalars])
        self.ready = None
        if values.device.type == "cuda":
            on_device, values = values, torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values.copy_(on_device, non_blocking=True)
            self.ready = torch.cuda.Event()
            self.ready.record(torch.cuda.current_stream(on_device.device))
        self.values = values

    def read(self) -> list[float]:
        """Return the scalars, after waiting for the device to reach them."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.values.tolist()


def supports_bf16(device: torch.device) -> bool:
    """Return whether a device has instructions for matrix products in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()


def supports_fp8(device: torch.device) -> bool:
    """Return whether a device has instructions for matrix products in 8 bits."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


PEAK_BF16_TFLOPS = {  # dense products: NVIDIA's data sheets quote twice as many, for sparse ones
    "H200": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
}


def peak_flops(device: torch.device, dtype: torch.dtype) -> tuple[float, str]:
    """Return how many floating-point operations per second a device can do, and the source of that number: a data
    sheet, or one large product that is measured here.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for model, tera in PEAK_BF16_TFLOPS.items():
            if model in name:
                return tera * 1e12, f"{model}'s data sheet"
    side = 8192 if device.type == "cuda" else 1024
    rng = torch.Generator(device).manual_seed(0)  # its own: profiling must not change a run's random numbers
    square = torch.randn(side, side, device=device, generator=rng).to(dtype)
    product = torch.empty_like(square)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(square, square, out=product)
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best, f"a product of {side} × {side}, measured"
