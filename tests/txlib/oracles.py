"""Independent ways to compute what txlib computes: plain loops, and torch's modules with txlib's weights."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def shake(module: nn.Module, size: float = 0.3) -> nn.Module:
    """The module with noise on every parameter: zeros, ones and symmetric starts hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return module


def keep(lengths: list[int], longest: int, left: bool = False) -> Tensor:
    """An attention mask: 1 = a real token; padding stands at the end, or on the left."""
    mask = torch.tensor([[int(i < length) for i in range(longest)] for length in lengths])
    return mask.flip(1) if left else mask


def head_labels(head: str, x: Tensor) -> dict[str, Tensor]:
    """Labels for three texts, or choices, x, of the task in a head's name; some of them do not count."""
    masked = x.masked_fill(x % 3 > 0, -100)
    return {
        "": {},
        "PreTraining": {"labels": masked, "next_sentence_label": torch.tensor([0, 1, 1])},
        "MaskedLM": {"labels": masked},
        "SequenceClassification": {"labels": torch.tensor([4, 0, 2])},
        "QuestionAnswering": {
            "start_positions": torch.tensor([10, 13, 7]),
            "end_positions": torch.tensor([12, 16, 99]),
        },
        "TokenClassification": {"labels": (x % 5).masked_fill(x % 3 > 0, -100)},
        "MultipleChoice": {"labels": torch.tensor([3, 0, 2])},
    }[head.partition("For")[2]]


def assert_same_output(mine: Any, other: Any) -> None:
    """All fields, also of padding."""
    for field, value in vars(mine).items():
        expected = getattr(other, field)
        assert (value is None) == (expected is None), field
        if value is not None:
            assert_close(value, expected, rtol=1e-5, atol=1e-5, msg=lambda text, field=field: f"{field}: {text}")


def assert_chunks_are_the_whole(model: nn.Module, source: Tensor, target: Tensor, chunks: list[int]) -> None:
    """Three sentences decoded in chunks with a cache, five beams from the second on: as decoded all at once."""
    mask = keep([5, 2, 4], 5)
    memory, cache = model.encode(source, mask), model.new_cache()
    assert cache.length == 0
    first, *later = target.split(chunks, dim=1)
    outs = [model.decode(first, memory, mask, cache)]
    rows = torch.tensor([1, 1, 2, 0, 2])  # five beams out of three sentences
    cache.reorder(rows)
    outs = [outs[0][rows]] + [model.decode(chunk[rows], memory[rows], mask[rows], cache) for chunk in later]
    assert cache.length == sum(chunks)
    assert_close(model.logits(torch.cat(outs, dim=1)), model(source, mask, target).logits[rows])


def loop_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention by its definition: one query, one key at a time. Returns (out, weights)."""
    q, k, v = q.detach(), k.detach(), v.detach()
    batch, heads, queries, head_dim = q.shape
    keys = k.shape[-2]
    full = (batch, heads, queries, keys)
    allowed = torch.ones(full, dtype=torch.bool) if allowed is None else allowed.expand(full)
    bias = torch.zeros(full, dtype=q.dtype) if bias is None else bias.expand(full)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    out, weights = q.new_zeros(*full[:3], v.shape[-1]), q.new_zeros(full)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                seen = [j for j in range(keys) if allowed[b, h, i, j]]
                scores = [float(q[b, h, i] @ k[b, h, j]) * scale + float(bias[b, h, i, j]) for j in seen]
                total = sum(math.exp(score - max(scores)) for score in scores)
                for j, score in zip(seen, scores, strict=True):
                    weights[b, h, i, j] = math.exp(score - max(scores)) / total
                    out[b, h, i] += weights[b, h, i, j] * v[b, h, j]
    return out, weights


def torch_attention(ours, memory_dim: int | None = None) -> nn.MultiheadAttention:
    """`nn.MultiheadAttention` with the weights of our `MultiHeadAttention` (all heads with their own keys)."""
    d_model = ours.output.out_features
    biases = ours.query.bias is not None
    theirs = nn.MultiheadAttention(
        d_model, ours.heads, bias=biases, batch_first=True, kdim=memory_dim, vdim=memory_dim
    ).to(ours.query.weight.dtype)
    load_attention(theirs, ours)
    return theirs


def load_attention(theirs: nn.MultiheadAttention, ours) -> None:
    """Copy our projections into torch's, which stacks those of queries, keys and values."""
    projections = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
        else:
            for name, projection in zip(("q", "k", "v"), projections, strict=True):
                getattr(theirs, f"{name}_proj_weight").copy_(projection.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
            theirs.out_proj.bias.copy_(ours.output.bias)
        theirs.out_proj.weight.copy_(ours.output.weight)


def load_norm(theirs: nn.LayerNorm, ours) -> None:
    """Copy a layer norm."""
    theirs.load_state_dict({"weight": ours.weight, "bias": ours.bias})


def torch_layer(block) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
    """torch's encoder or decoder layer with the weights of our block."""
    config, cross = block.config, block.cross_attention is not None
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    theirs = kind(
        config.d_model,
        config.attention.heads,
        config.ffn.d_ff,
        dropout=0.0,
        activation=config.ffn.activation,
        norm_first=config.norm.placement == "pre",
        layer_norm_eps=config.norm.eps,
        batch_first=True,
    ).to(block.feed_forward.up_proj.weight.dtype)
    load_attention(theirs.self_attn, block.self_attention)
    norms = [block.self_attention_norm, block.feed_forward_norm]
    if cross:
        load_attention(theirs.multihead_attn, block.cross_attention)
        norms.insert(1, block.cross_attention_norm)
    for number, norm in enumerate(norms, start=1):
        load_norm(getattr(theirs, f"norm{number}"), norm)
    theirs.linear1.load_state_dict(block.feed_forward.up_proj.state_dict())
    theirs.linear2.load_state_dict(block.feed_forward.down_proj.state_dict())
    return theirs


class Largest(TorchDispatchMode):
    """Inside this context, notes how many numbers the largest tensor has that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self.largest = max(self.largest, each.untyped_storage().nbytes() // each.element_size())
        return result
