"""Losses, summed over the labels that count."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlib.labels import IGNORE_INDEX
from txlib.precision import autocast_type, without_autocast

CHUNK_TOKENS = {"cpu": 512}  # whose logits fit into a cache, by device
VOCAB_MULTIPLE = {"cpu": 1, "meta": 1}  # of rows of the matrix: a GPU is slower where 64 does not divide them


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "*batch vocab"], labels: Int[Tensor, "*batch"], smoothing: float = 0.1
) -> Float[Tensor, ""]:
    """Return the cross-entropy with smoothed targets (Vaswani et al. 2017, §5.4), summed over the labels that count.

    The target gives 1 - smoothing to the label and divides the rest equally among the whole vocabulary (Szegedy et al.
    2016, §7), so that the model is not rewarded for infinite confidence.
    """
    logits, labels = counted_rows(logits, labels)
    log_p = logits.log_softmax(dim=-1)  # (counted, vocab)
    of_label = log_p.gather(-1, labels.clamp(min=0)[:, None])[:, 0]  # (counted,)
    log_likelihood = (1 - smoothing) * of_label + smoothing * log_p.mean(dim=-1)
    return -log_likelihood.masked_fill(labels == IGNORE_INDEX, 0).sum()


def counted_rows(
    x: Float[Tensor, "*batch width"], labels: Int[Tensor, "*batch"]
) -> tuple[Float[Tensor, "rows width"], Int[Tensor, "rows"]]:
    """Return the rows whose label counts, and those labels.

    Their number is not known without waiting for a GPU. A GPU therefore keeps all rows, with zeros in the others.
    """
    counted = labels != IGNORE_INDEX
    if labels.device.type in CHUNK_TOKENS:
        return x[counted], labels[counted]
    return x.masked_fill(~counted[..., None], 0).flatten(0, -2), labels.flatten()


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, "vocab d_model"],
    labels: Int[Tensor, "*batch"],
    smoothing: float = 0.1,
    *,
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """Return `label_smoothed_cross_entropy(hidden @ weight.T, labels)` without holding all logits at once.

    Logits are the largest tensor of a language model: tokens × vocabulary. Here they exist for one chunk of tokens at a
    time. The gradients are computed along with them, so that nothing is kept for the backward pass.

    Args:
        chunk: tokens at a time; by default 512 on a CPU and 4096 on a GPU, which fewer would not keep busy.
    """
    hidden, labels = counted_rows(hidden, labels)
    return _LinearCrossEntropy.apply(
        hidden, weight, labels, smoothing, chunk or CHUNK_TOKENS.get(hidden.device.type, 4096)
    )


class _LinearCrossEntropy(torch.autograd.Function):
    """With p the softmax of a token's logits and s the smoothing, the loss of that token is

        logsumexp(logits) - (1 - s) · logits[label] - s · mean(logits)

    and its gradient by the logits is p - (1 - s) · onehot(label) - s / vocab. The terms with the mean are the same for
    all tokens and linear, so they are left out of the loop: mean(logits) = hidden · mean(weight).
    """

    @staticmethod
    def forward(ctx, hidden, weight, labels, smoothing, chunk):
        half, vocab = autocast_type(weight) or weight.dtype, len(weight)
        missing = -vocab % VOCAB_MULTIPLE.get(weight.device.type, 64)
        matrix, mean = weight.to(half), weight.mean(dim=0)  # (vocab, d_model), (d_model,)
        matrix = F.pad(matrix, (0, 0, 0, missing)) if missing else matrix  # (padded, d_model)
        loss = torch.zeros((), dtype=weight.dtype, device=weight.device)
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(matrix, dtype=weight.dtype)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            x, label = hidden[part].to(half), labels[part, None].clamp(min=0)  # (chunk, d_model), (chunk, 1)
            logits = x @ matrix.T  # (chunk, padded)
            logits[:, vocab:] = -torch.inf
            with without_autocast(logits):  # which computes a softmax in 32 bits on a GPU and returns them
                p = logits.softmax(dim=-1)  # (chunk, padded)
            logsumexp = logits.amax(dim=-1) - p.amax(dim=-1).log()  # as p = exp(logits - logsumexp)
            losses = logsumexp - (1 - smoothing) * logits.gather(-1, label)[:, 0]  # (chunk,)
            loss += losses.masked_fill(labels[part] == IGNORE_INDEX, 0).sum(dtype=loss.dtype)
            p.scatter_add_(-1, label, p.new_full(label.shape, smoothing - 1))  # the gradient, but for s / vocab
            grad_hidden[part] = p @ matrix
            grad_weight += p.T @ x
        loss -= smoothing * (hidden.to(loss.dtype) @ mean).sum()
        grad_hidden -= smoothing * mean
        grad_weight = grad_weight[:vocab].sub_(smoothing / vocab * hidden.sum(dim=0))
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * upstream, grad_weight * upstream, None, None, None


def linear_divergence(
    first: Float[Tensor, "tokens d_model"],
    second: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    *,
    chunk: int = 512,
) -> Float[Tensor, ""]:
    """Return half of KL(p ‖ q) + KL(q ‖ p) of two passes over the same tokens, summed over the tokens.

    p and q are the softmax of `first @ weight.T` and of `second @ weight.T`. With dropout two passes differ; R-Drop
    (Liang et al. 2021, §2.2) asks the model to agree with itself. As in `linear_cross_entropy`, logits exist for one
    chunk of tokens at a time.
    """
    return _LinearDivergence.apply(first, second, weight, chunk)


class _LinearDivergence(torch.autograd.Function):
    """With a = log p - log q, both divergences of a token together are the sum over the vocabulary of (p - q) · a.

    The gradient of that sum by the logits of p is p · (a - KL(p ‖ q)) + p - q, and by those of q the same with p and q
    exchanged.
    """

    @staticmethod
    def forward(ctx, first, second, weight, chunk):
        half = autocast_type(weight) or weight.dtype
        matrix = weight.to(half)  # (vocab, d_model)
        divergence = torch.zeros((), dtype=weight.dtype, device=weight.device)
        grads, grad_weight = (torch.empty_like(first), torch.empty_like(second)), torch.zeros_like(weight)
        for start in range(0, len(first), chunk):
            part = slice(start, start + chunk)
            passes = [x[part].to(half) for x in (first, second)]  # (chunk, d_model) each
            log_p, log_q = ((x @ matrix.T).to(weight.dtype).log_softmax(dim=-1) for x in passes)  # (chunk, vocab)
            p, q, a = log_p.exp(), log_q.exp(), log_p.sub_(log_q)
            difference = p - q
            divergence += (difference * a).sum() / 2
            by_p = (p * (a - (p * a).sum(dim=-1, keepdim=True)) + difference) / 2
            by_q = (q * ((q * a).sum(dim=-1, keepdim=True) - a) - difference) / 2
            for x, by_logits, grad in zip(passes, (by_p.to(half), by_q.to(half)), grads, strict=True):
                grad[part] = by_logits @ matrix
                grad_weight += by_logits.T @ x
        ctx.save_for_backward(*grads, grad_weight)
        return divergence

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        return *(upstream * grad for grad in ctx.saved_tensors), None
