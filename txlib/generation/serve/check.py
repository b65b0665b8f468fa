"""Which models can be served."""

from typing import Any

from txlib.attention import BlockSparseAttention, DenseAttention, FlashAttention, MultiHeadAttention

EXACT = DenseAttention, BlockSparseAttention, FlashAttention  # the same function, however it is computed


def check_servable(model: Any) -> None:
    """Refuse a model whose texts cannot be read side by side from a paged cache.

    Raises:
        ValueError: naming the part that is in the way.
    """
    name = type(model).__name__
    decoder: Any = getattr(model, "decoder", None)
    if not all(hasattr(model, part) for part in ("embed", "logits")) or not hasattr(decoder, "layers"):
        raise ValueError(f"{name} can't be served: that takes a decoder-only model, such as txlib.models.GPT")
    for number, block in enumerate(decoder.layers):
        reason = obstacle(block, model.config.max_length)
        if reason is not None:
            raise ValueError(f"{name} can't be served: layer {number} has {reason}; use generate")


def obstacle(block: Any, max_length: int) -> str | None:
    """Return what keeps a block from being served; None if nothing does."""
    layer = block.self_attention
    if block.cross_attention is not None:
        return "cross-attention to a source"
    if type(layer).attend is not MultiHeadAttention.attend if isinstance(layer, MultiHeadAttention) else True:
        return f"{type(layer).__name__}, which keeps something else than keys and values"
    if not isinstance(layer.mechanism, EXACT):
        return f"{type(layer.mechanism).__name__}, and the paged cache computes softmax attention"
    if layer.position_bias is not None:
        return f"{type(layer.position_bias).__name__}, which is added for texts of one length"
    if layer.mask is not None and (layer.mask.batch > 1 or layer.mask.sized(1) is not layer.mask):
        return f"the mask {layer.mask}, which depends on the number of keys or on the text"
    scaling: Any = getattr(layer.rotary, "scaling", None)
    if getattr(scaling, "long", None) is not None and max_length > scaling.context:
        return f"longrope, whose angles change beyond {scaling.context} tokens of max_length={max_length}"
    if getattr(block.feed_forward, "config", None) and getattr(block.feed_forward.config, "capacity_factor", None):
        return "experts with a capacity_factor, whose choice depends on the other texts"
    return None
