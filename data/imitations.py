"""Write imitations.json: how well two ways of lesson 32 imitate the heads of a trained model, three seeds each.

    python data/imitations.py 0 1 2

Each way has 16,384 parameters per head, and learns from the same queries, keys and values. The rate is the better of
two, layer by layer. It takes a few minutes.
`recorded.py` does the work.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from recorded import Runs, record_seeds
from torch import Tensor

from txlib import load_pretrained
from txlib.attention import MultiHeadAttention
from txlib.data import shakespeare, shipped
from txlib.text import BytePairEncoder

RUNS = Runs(__file__, "32_low_rank")
LENGTH, TEST, STEPS, BATCH = 256, 12, 150, 4
RATES = 0.003, 0.01


@cache
def heads() -> list[tuple[Tensor, ...]]:
    """Return the queries, keys and values of each layer, (text, head, LENGTH, d) each."""
    bert = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).base
    encoder = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
    ids = torch.tensor(encoder.encode(shakespeare().validation))
    texts = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    kept: list[list[tuple[Tensor, ...]]] = []

    def keep(_: Any, qkv: tuple[Tensor, ...]) -> None:
        kept[-1].append(qkv[:3])

    for layer in bert.modules():
        if isinstance(layer, MultiHeadAttention):
            layer.mechanism.register_forward_pre_hook(keep)
    with torch.no_grad():
        for part in texts.split(16):
            kept.append([])
            bert(part)
    return [tuple(map(torch.cat, zip(*layer, strict=True))) for layer in zip(*kept, strict=True)]


def imitate(names: dict[str, Any], way: str, seed: int) -> list[list[float]]:
    """Return the error of each head of each layer on unseen texts, fitted at the rate that fits the others best."""
    errors = []
    for q, k, v in heads():
        fits = [fit(names, way, seed, rate, q, k, v) for rate in RATES]
        errors.append(min(fits, key=lambda fit: fit[0])[1])
    return errors


def fit(
    names: dict[str, Any], way: str, seed: int, rate: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[float, list[float]]:
    """Return the mean error on the texts of the fit, and each head's on the first `TEST` texts."""
    torch.manual_seed(seed)
    weights, compute = names["imitator"](way)
    error: Callable[..., Tensor] = names["error"]
    exact = names["attention"](q, k, v)
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=rate)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / STEPS)
        texts = TEST + torch.randint(len(q) - TEST, (BATCH,))
        optimizer.zero_grad()
        error(compute(q[texts], k[texts], v[texts]), exact[texts]).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        fitted = error(compute(q[TEST:], k[TEST:], v[TEST:]), exact[TEST:])
        unseen = error(compute(q[:TEST], k[:TEST], v[:TEST]), exact[:TEST])
    return fitted.mean().item(), unseen.tolist()


def record(seed: int) -> None:
    """Fit each way with this seed."""
    torch.set_num_threads(1)
    names = RUNS.lesson()
    for way in names["WAYS"]:
        RUNS.record(partial(imitate, names, way, seed), way, seed)


if __name__ == "__main__":
    record_seeds(record)
