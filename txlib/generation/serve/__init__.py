"""Many requests at once: a paged cache, continuous batching, shared prefixes; and an endpoint over HTTP."""

from txlib.generation.serve.blocks import BlockPool
from txlib.generation.serve.check import check_servable
from txlib.generation.serve.engine import Engine, QueueFull, Request

__all__ = ["BlockPool", "Engine", "QueueFull", "Request", "check_servable"]
