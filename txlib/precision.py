"""In how many bits to compute: autocast's 16, or at least 32."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_type(x: Tensor) -> torch.dtype | None:
    """Return the dtype of products on this device inside autocast; None outside, and on a device without it."""
    device = x.device.type
    inside = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if inside else None


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in autocast's dtype; outside of autocast, unchanged."""
    dtype = autocast_type(tensors[0])
    return tensors if dtype is None else tuple(tensor.to(dtype) for tensor in tensors)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context in which no product on this device is computed in 16 bits."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def at_least_float32(x: Tensor) -> Tensor:
    """Return a tensor in 32 bits or more, for what 16 bits would round."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
