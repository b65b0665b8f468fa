"""Write experts.json: what the models of lesson 18 store and where their tokens go, three seeds each.

    python data/experts.py 0 1 2

It takes about three CPU-minutes per seed. `recorded.py` does the work.
"""

from collections.abc import Callable
from functools import partial

import torch
from recorded import Runs, record_seeds
from torch import Tensor, nn

RUNS = Runs(__file__, "18_experts")
WINDOW = 5  # steps
LOOKED_INTO = ("Switch, 1 of 8 × 64", "router frozen", "no gate")  # whose experts tell kinds and languages?
ALPHA = 0.01  # the weight of the balance loss


def settings(names: dict) -> dict:
    """Task → model → how to make its networks, and what differs from a training without balance loss."""
    dense, switch, two_of_eight, wide = (names[name] for name in ("dense", "switch", "two_of_eight", "wide"))
    ungated, vectors = names["ungated"], ("town", "good", "norm_1")

    class Centered(names["Mixture"]):
        """Its router reads what differs between the tokens of a batch: their mean is subtracted."""

        def forward(self, x: Tensor) -> Tensor:  # (batch, n, d_model)
            tokens = x.flatten(0, 1)
            self.p, g, self.chosen = names["route"](tokens - tokens.mean(dim=0), self.router, self.k)
            return names["dispatch"](tokens, self.experts, g, self.chosen).view_as(x)

    def frozen(make: Callable = switch) -> nn.Module:
        layer = make()
        nn.init.normal_(layer.router.weight)
        layer.router.weight.requires_grad_(False)
        return layer

    def twins() -> nn.Module:
        layer = switch()
        layer.experts = nn.ModuleList([layer.experts[0]] * 8)
        return layer

    return {
        "facts": {
            "dense, 64": {"make": dense},
            "Switch, 1 of 8 × 64": {"make": switch},
            "2 of 8 × 32": {"make": two_of_eight},
            "dense, 512": {"make": wide},
            "Switch, router frozen": {"make": frozen},
            "router and vectors frozen": {"make": frozen, "freeze": vectors},
            "dense, 64, vectors frozen": {"make": dense, "freeze": vectors},
            "dense, 64, 2,400 steps": {"make": dense, "steps": 2400},
            "dense, 16, 2,400 steps": {"make": partial(names["FeedForward"], 64, 16), "steps": 2400},
            "Switch, 1 of 8 × 16, 2,400": {
                "make": partial(names["Mixture"], 64, 16, 8),
                "balanced": True,
                "steps": 2400,
            },
        },
        "text": {
            "dense, 64": {"make": dense},
            "Switch, 1 of 8 × 64": {"make": switch, "balanced": True},
            "2 of 8 × 32": {"make": two_of_eight, "balanced": True},
            "dense, 512": {"make": wide},
            "no balance loss": {"make": switch},
            "no balance loss, eight twins": {"make": twins},
            "no balance loss, mean subtracted": {"make": partial(Centered, 64, 64, 8)},
            "router frozen": {"make": frozen},
            "router frozen, no gate": {"make": partial(frozen, ungated)},
            "no gate": {"make": ungated, "balanced": True},
            "no gate, no balance loss": {"make": ungated},
        },
    }


def train(
    names: dict, model: nn.Module, loss_of: Callable, *, balanced: bool = False, freeze: tuple = (), steps: int = 300
) -> list[list[Tensor]]:
    """Train with the lesson's `fit`; return for each step and mixture what fraction of the tokens each expert got."""
    mixtures = [part for part in model.modules() if isinstance(part, names["Mixture"])]
    shares = []
    for part in freeze:
        getattr(model, part).requires_grad_(False)

    def loss(model: nn.Module) -> Tensor:
        own = loss_of(model)
        shares.append([mixture.shares() for mixture in mixtures])
        if not balanced:
            return own
        return own + ALPHA * sum(names["balance"](mixture.p, mixture.chosen) for mixture in mixtures)

    names["fit"](model, loss, steps, "training")
    return shares


def busiest(shares: list) -> list[list[float]]:
    """For every few steps and each block, the largest fraction of the tokens that an expert got."""
    steps = torch.stack([torch.stack(blocks) for blocks in shares])  # (step, block, expert)
    return steps.unflatten(0, (-1, WINDOW)).mean(dim=1).amax(dim=-1).tolist()


def record(seed: int) -> None:
    """Train every model with this seed; record what it knows or its test loss, and where tokens go."""
    names = RUNS.lesson()

    def facts(name: str, make: Callable, *, steps: int = 600, **options) -> float:
        torch.manual_seed(seed)
        model = names["FactModel"](make())
        train(names, model, names["fact_loss"], steps=steps, **options)
        return names["known"](model)

    @torch.no_grad()
    def looked_into(model: nn.Module) -> dict:
        model(names["read"])
        return {
            label: [names["guessed"](block.network.chosen[:, 0], names[f"{label}_of"]) for block in model.blocks]
            for label in ("kind", "language")
        }

    def text(name: str, make: Callable, **options) -> dict:
        torch.manual_seed(seed)
        model = names["CharacterModel"](make)
        shares = train(names, model, names["text_loss"], **options)
        run = {"loss": names["loss_on"](model, names["read"], names["following"]).item()}
        if shares[0]:
            run["busiest"] = busiest(shares)
        return run | (looked_into(model) if name in LOOKED_INTO else {})

    for task, how in {"facts": facts, "text": text}.items():
        for name, options in settings(names)[task].items():
            RUNS.record(partial(how, name, **options), task, name, seed)


if __name__ == "__main__":
    record_seeds(record)
