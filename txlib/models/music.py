"""The Music Transformer: a decoder for voices that take turns."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.models.gpt import GPT, GPTConfig
from txlib.models.inputs import unpadded_positions


@dataclass(frozen=True)
class MusicConfig(GPTConfig):
    """Sizes of a Music Transformer. Its block's position is "skewed"; others serve as baselines.

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
    """A GPT with relative attention by skewing (Huang et al. 2019, §3.4) and a learned vector for each voice.

    On the grid of `GridTokenizer` a distance is an interval in time and voice, and each head learns a vector for each.
    Distances do not reveal the voice of a token, and most tokens are `hold`, which does not either. So each voice has a
    vector that is added to its tokens instead of absolute positions. (The paper's model has to learn to count.)
    """

    config: MusicConfig

    def __init__(self, config: MusicConfig):
        super().__init__(MusicConfig.checked(config))
        self.voice = nn.Parameter(torch.randn(config.voices, config.block.d_model) * config.init_std)

    def embed(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        past: int = 0,
        position_ids: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return token vectors, plus those of their voices. Padding does not count as a turn."""
        if attention_mask is not None:
            position_ids = unpadded_positions(attention_mask, past)
        x = super().embed(input_ids, past=past, position_ids=position_ids)
        if position_ids is None:
            position_ids = torch.arange(past, past + input_ids.shape[1], device=input_ids.device)[None]
        return x + self.voice[position_ids % self.config.voices]
