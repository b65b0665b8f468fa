"""Write rumors.json: how far the models of lesson 19 follow a chain, three seeds each.

    python data/rumors.py 0 1 2

It takes about three CPU-minutes per seed. `recorded.py` does the work.
"""

import time
from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from recorded import Runs, record_seeds
from torch import Tensor, nn

from txlib.attention import causal
from txlib.data import shakespeare

RUNS = Runs(__file__, "19_universal")


def settings(names: dict) -> dict:
    """Return for each name the options of the lesson's `train`; "make" makes the body."""
    stack_of, Loop, Halting = (names[name] for name in ("stack_of", "Loop", "Halting"))
    NoRemainder = names["NoRemainder"]

    def mean_of_states(x: Tensor, blocks: Iterable[nn.Module]) -> Tensor:  # (batch, n, d_model)
        states = [x := block(x) for block in blocks]
        return torch.stack(states).mean(dim=0)

    class MeanLoop(Loop):  # without a clock
        def forward(self, x: Tensor) -> Tensor:
            return mean_of_states(x, [self.block] * self.steps)

    class MeanStack(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return mean_of_states(x, self)

    def priced(model: nn.Module, price: float) -> Tensor:
        return names["rumor_loss"](model) + price * (model.body.N + model.body.R).mean()

    def halting(price: float, **signals) -> dict:
        return {"make": partial(Halting, 64, 10, **signals), "loss_of": partial(priced, price=price)}

    def loop(steps: int) -> dict:
        return {"make": partial(Loop, 64, steps, clock=False)}

    return {
        "loop": loop(6),
        "halting": halting(0.01, after=True, clock=False),
        "wide stack": {"make": partial(stack_of, 6)},
        "thin stack": {"make": partial(stack_of, 6, d_model=26, heads=2), "d_model": 26},
        "one block": {"make": partial(stack_of, 1)},
        "halting, clock": halting(0.01),
        "halting, clock, 400": halting(0.01) | {"steps": 400},
        "halting, before": halting(0.01, clock=False),
        "halting, expensive": halting(1, after=True, clock=False),
        "halting, free": halting(0, after=True, clock=False),
        "loop, ten steps": loop(10),
        "mean of six steps": {"make": partial(MeanLoop, 64, 6, clock=False)},
        "mean of six blocks": {"make": lambda: MeanStack(*stack_of(6))},
        "no remainder": halting(0.01, after=True, clock=False, account=NoRemainder),
    }


def same_steps(names: dict, model: nn.Module, steps: int) -> nn.Module:
    """The model's weights in a plain loop that takes the same steps for every line."""
    plain = names["Reader"](names["Loop"](64, steps, clock=model.body.clock))
    weights = model.state_dict().items()
    plain.load_state_dict({name: weight for name, weight in weights if "halting" not in name})
    return plain


def read_shakespeare(names: dict, seed: int) -> dict:
    """How many steps a character model takes at each kind of character, and its loss there."""
    texts = shakespeare()
    alphabet = sorted(set(texts.train))
    number = {character: id for id, character in enumerate(alphabet)}

    class Speaker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(len(alphabet), 64)
            self.body = names["Halting"](64, 6, after=True, clock=False, positions=True)
            nn.init.constant_(self.body.halting.bias, -1.0)  # four steps, at first
            self.output = nn.Linear(64, len(alphabet))

        def forward(self, ids: Tensor) -> Tensor:  # (batch, length)
            return self.output(self.body(self.embedding(ids), causal()))

    def encode(text: str) -> Tensor:
        return torch.tensor([number[character] for character in text])

    def windows(ids: Tensor, size: int, length: int = 64) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(ids) - length, (size,))  # (size,)
        rows = ids[starts[:, None] + torch.arange(length + 1)]  # (size, length + 1)
        return rows[:, :-1], rows[:, 1:]  # read, to predict: (size, length) each

    train_ids = encode(texts.train)

    def loss_of(model: nn.Module) -> Tensor:
        read, following = windows(train_ids, 16)
        loss = F.cross_entropy(model(read).mT, following)
        return loss + 0.01 * (model.body.N + model.body.R).mean()

    torch.manual_seed(seed)
    speaker = names["fit"](Speaker(), loss_of, steps=300, what="Shakespeare")
    torch.manual_seed(1)
    read, following = windows(encode(texts.validation), 200)  # (batch, length)
    with torch.no_grad():
        loss = F.cross_entropy(speaker(read).mT, following, reduction="none")
    N = speaker.body.N  # (batch, length), as is the loss
    letter = torch.tensor([character.isalpha() for character in alphabet])[read]
    first = letter & ~letter.roll(1, dims=1)  # (batch, length): a word's first letter
    kinds = {
        "space": read == number[" "],
        "line break": read == number["\n"],
        "first letter": first,
        "later letter": letter & ~first,
    }
    both = torch.stack([N.flatten(), loss.flatten()])  # (2, batch · length)
    found: dict = {kind: [N[chosen].mean().item(), loss[chosen].mean().item()] for kind, chosen in kinds.items()}
    return found | {"correlation": torch.corrcoef(both)[0, 1].item()}


def guessing(names: dict) -> list[float]:
    """How often a guess is right, from depth 1 on, among the authors that have listeners: one line of depth 1 each."""
    torch.manual_seed(99)
    depth = names["rumors"](600, deepest=names["n"])[3]  # (size, n)
    chance = 1 / (depth == 1).sum(dim=1, keepdim=True).expand_as(depth)
    return [chance[depth == k].mean().item() for k in range(1, 11)]


def record(seed: int) -> None:
    """Train each body with this seed; record its parameters, and its right answers and steps taken at each depth."""
    names = RUNS.lesson()

    def result(name: str, options: dict) -> dict:
        start = time.process_time()
        model = names["train"](seed=seed, **options)
        run = {"parameters": names["parameters"](model), "seconds": round(time.process_time() - start, 1)}
        run["right"] = names["by_depth"](model)
        if hasattr(model.body, "N"):
            run["steps"] = names["by_depth"](model, "steps")
        if name in ("loop", "halting", "mean of six steps"):
            runs = [names["by_depth"](same_steps(names, model, steps)) for steps in range(1, 11)]
            run["same steps"] = runs  # (steps, depth)
        return run

    for name, options in settings(names).items():
        RUNS.record(partial(result, name, options), name, seed)
    RUNS.record(partial(read_shakespeare, names, seed), "Shakespeare", seed)


if __name__ == "__main__":
    RUNS.record(lambda: guessing(RUNS.lesson()), "guessing")
    record_seeds(record)
