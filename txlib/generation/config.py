"""How to generate, in the words of Hugging Face's `GenerationConfig`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txlib.generation.sampling import Sampling, check_at_least

ONLY_DRAWN = ("temperature", "top_k", "top_p", "min_p")  # options that change nothing unless tokens are drawn


@dataclass(frozen=True)
class GenerationConfig(Sampling):
    """How to choose the next tokens, and when to stop.

    `GenerationConfig()` takes the likeliest token at each step; with `do_sample=True` tokens are drawn as `Sampling`
    says, whose options these are too; with `num_beams` above 1 there is a beam search.

    Args:
        max_new_tokens: stop after this many.
        do_sample: draw tokens instead of taking the likeliest. Temperature 0 takes the likeliest all the same.
        num_beams, length_penalty: see `beam_search`; 1 beam is greedy search.
        stop: a text ends when it ends with one of these lists of tokens.
        eos_id: tokens that end a text; the model config's by default, none if it is ().
        seed: the same seed draws the same tokens.
        use_cache: False computes all positions again at each step, which is slow and gives the same tokens.

    Raises:
        ValueError: when a number is out of range, or an option has no effect.
    """

    max_new_tokens: int = 64
    do_sample: bool = False
    num_beams: int = 1
    length_penalty: float = 0.6
    stop: Sequence[Sequence[int]] = ()
    eos_id: int | Sequence[int] | None = None
    seed: int | None = None
    use_cache: bool = True

    def __post_init__(self):
        super().__post_init__()
        for name, least in ("max_new_tokens", 1), ("num_beams", 1), ("length_penalty", 0):
            check_at_least(name, getattr(self, name), least)
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"num_beams={self.num_beams} searches and do_sample=True draws; choose one of them")
        default = {field.name: field.default for field in fields(self)}
        for name in ONLY_DRAWN:
            value = getattr(self, name)
            if not self.do_sample and value != default[name] and (name, value) != ("temperature", 0):
                raise ValueError(f"{name}={value} has no effect without do_sample=True; add that, or leave {name} out")

    @classmethod
    def of(cls, config: "GenerationConfig | None", options: dict[str, Any]) -> "GenerationConfig":
        """Return the config with some options changed; None is the default config.

        Raises:
            TypeError: `config` is something else, or it has no such field.
        """
        if config is not None and not isinstance(config, cls):
            raise TypeError(
                f"config={config!r} must be a GenerationConfig, such as GenerationConfig(do_sample=True, "
                "temperature=0.8)"
            )
        if "sampling" in options:
            value = options["sampling"]
            raise TypeError(f"sampling={value!r} is not an option; to draw tokens give do_sample=True, temperature=0.8")
        return replace(config or cls(), **options)

    def next_token(
        self,
        logits: Float[Tensor, "batch vocab"],
        seen: Tensor | None,
        written: Tensor | None,
        generator: torch.Generator | None,
    ) -> Int[Tensor, "batch"]:
        """Draw the next token of each text, or take the likeliest; arguments as in `Sampling`."""
        logits = self(logits, seen, written)
        if not self.do_sample:
            return logits.argmax(dim=-1)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]
