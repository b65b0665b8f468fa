"""The Music Transformer: a decoder for voices that take turns."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.models.gpt import GPT, GPTConfig


@dataclass(frozen=True)
class MusicConfig(GPTConfig):
    """Sizes of a Music Transformer. Its block's position is "skewed"; another one makes a rival of it.

    Args:
        voices: how many take turns: token i belongs to voice i mod voices.
    """

    voices: int = 4

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("voices")
        if self.max_length % self.voices:
            raise ValueError(
                f"max_length={self.max_length} is no whole number of steps of {self.voices} voices; "
                f"choose e.g. {-(-self.max_length // self.voices) * self.voices}"
            )


class MusicTransformer(GPT, config=MusicConfig):
    """A GPT with relative attention by skewing (Huang et al. 2019, §3.4), which is told whose turn it is.

    On the grid of `GridTokenizer` a distance is an interval in time and voice, and each head learns a vector for each.
    Which voice a token belongs to no distance says, and most tokens are `hold`, which says it least; so each voice has
    a vector that is added to its tokens, in place of absolute positions. (The paper's model has to learn to count.)
    """

    config: MusicConfig

    def __init__(self, config: MusicConfig):
        super().__init__(MusicConfig.checked(config))
        self.voice = nn.Parameter(torch.randn(config.voices, config.block.d_model) * config.init_std)

    def embed(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Tensor | None = None, past: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """Token vectors, plus those of their voices. Padding takes no turn."""
        if attention_mask is None:
            place = torch.arange(past, past + input_ids.shape[1], device=input_ids.device)  # (length,)
        else:
            place = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, past:]  # (batch, length)
        return super().embed(input_ids, attention_mask, past) + self.voice[place % self.config.voices]
