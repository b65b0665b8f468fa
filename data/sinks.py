"""Write sinks.json: what lesson 31's small models lose when their first word is evicted, three seeds each.

    python data/sinks.py 0 1 2

24 words follow each other with fixed probabilities; but after one of the words 0, 1, 2 the word before it is repeated.
So attention has something to do after three words, and should be quiet after the others. About a minute and a half.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from recorded import Runs, record_seeds
from torch import Tensor, nn

from txlib.attention import MultiHeadAttention, causal, global_tokens, recording, sliding_window
from txlib.layers import LayerNorm

RUNS = Runs(__file__, "31_sparse")
WORDS, REPEATING, START, LENGTH, WIDTH = 24, 3, 24, 48, 48
LAST = causal() & sliding_window(11)
CACHES = {
    "all words": causal(),
    "the last 12": LAST,
    "the last 12 and the first": causal() & (LAST | global_tokens([0])),
}
KINDS: dict[str, dict[str, bool]] = {"plain": {}, "learned sink": {"sinks": True}, "output gate": {"gate": True}}


def draw(size: int) -> Int[Tensor, "size length"]:
    """Return texts; each begins with `START`."""
    follows = torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(0))
    follows = (2 * follows).softmax(dim=-1)  # (word, next word)
    text = [torch.full((size,), START), torch.randint(WORDS, (size,))]
    for _ in range(LENGTH - 1):
        by_chance = torch.multinomial(follows[text[-1]], 1)[:, 0]
        repeats = (text[-1] < REPEATING) & (text[-2] != START)
        text.append(torch.where(repeats, text[-2], by_chance))
    return torch.stack(text, dim=1)


class Repeater(nn.Module):
    """One layer of attention with two heads, and nothing else."""

    def __init__(self, **options: bool):
        super().__init__()
        self.word, self.position = nn.Embedding(WORDS + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm_1, self.norm_2 = LayerNorm(WIDTH), LayerNorm(WIDTH)
        self.attention = MultiHeadAttention(WIDTH, 2, bias=False, **options)
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Int[Tensor, "batch n"], mask: Any) -> Float[Tensor, "batch n words"]:
        x = self.word(ids) + self.position.weight[: ids.shape[1]]
        return self.output(self.norm_2(x + self.attention(self.norm_1(x), mask=mask)))


def train(options: dict[str, bool], seed: int, steps: int = 600) -> Repeater:
    """Return a model that was trained with all words in view."""
    torch.manual_seed(seed)
    model, texts = Repeater(**options), draw(6000)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, step / 20) * (1 - step / steps)
        ids = texts[torch.randint(len(texts), (32,))]
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1], causal()).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
    return model


@torch.no_grad()
def measure(model: Repeater) -> dict[str, Any]:
    """Return the loss from position 20 on for each cache, and the heads' weights on the first word."""
    torch.manual_seed(99)
    ids = draw(400)
    read, after = ids[:, :-1], ids[:, 21:].flatten()
    found: dict[str, Any] = {
        name: F.cross_entropy(model(read, mask)[:, 20:].flatten(0, 1), after).item() for name, mask in CACHES.items()
    }
    with recording(model) as seen:
        model(read, causal())
    first = seen["attention"][0][:, :, 20:, 0].transpose(1, 2)  # (text, position, head)
    repeats = read[:, 20:] < REPEATING
    return found | {"quiet": first[~repeats].mean(dim=0).tolist(), "repeats": first[repeats].mean(dim=0).tolist()}


def record(seed: int) -> None:
    """Train each kind of model with this seed, and record what it loses."""
    torch.set_num_threads(1)
    for name, options in KINDS.items():
        RUNS.record(lambda options=options: measure(train(options, seed)), name, seed)


if __name__ == "__main__":
    record_seeds(record)
