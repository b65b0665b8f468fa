"""A draft head: it guesses a decoder's next tokens from what the decoder itself has just computed."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.generation.sampling import check_at_least


class DraftHead(nn.Module):
    """A draft for `speculate`: a small recurrent network that starts from the decoder's last state.

    The decoder's state after a text holds what it knows about the next token. Together with the vector of the token
    that was then chosen, it makes a state for the token after that, and so on: sₜ₊₁ = sₜ + W₂ gelu(W₁ [sₜ; x]), with
    both parts normalized. Embedding and output are the decoder's. (Cheng et al. 2024, *Recurrent Drafter*; DeepSeek-AI
    2024, *DeepSeek-V3*, §2.2, has a whole block instead.)

    Args:
        model: the decoder, such as a GPT. It is not copied; its parameters are frozen.
        d_ff: width of the hidden layer; d_model if None.
    """

    def __init__(self, model: Any, d_ff: int | None = None):
        super().__init__()
        d_model = model.config.block.d_model
        d_ff = d_model if d_ff is None else d_ff
        check_at_least("d_ff", d_ff, 1)
        self.decoder = (model.eval().requires_grad_(False),)  # in a tuple, so that its parameters are not the head's
        weight = next(model.parameters())
        self.wide = nn.Linear(2 * d_model, d_ff, device=weight.device, dtype=weight.dtype)
        self.narrow = nn.Linear(d_ff, d_model, device=weight.device, dtype=weight.dtype)

    def forward(
        self, state: Float[Tensor, "batch length d_model"], ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the state after one more token."""
        token = self.decoder[0].embedding(ids)
        both = torch.cat([F.rms_norm(x, x.shape[-1:]) for x in (state, token)], dim=-1)
        return state + self.narrow(F.gelu(self.wide(both)))

    def logits(self, state: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Return the logits of the token after a state."""
        return self.decoder[0].logits(state)

    def loss(self, input_ids: Int[Tensor, "batch length"], ahead: int = 4) -> Float[Tensor, ""]:
        """Return how far the guesses 1 to `ahead` tokens further are from the decoder's own distributions.

        It is the cross-entropy in nats, the mean over positions and distances.

        Raises:
            ValueError: when the texts have at most ahead + 1 tokens.
        """
        check_at_least("ahead", ahead, 1)
        length = input_ids.shape[1]
        if length <= ahead + 1:
            raise ValueError(f"ahead={ahead} needs texts of at least {ahead + 2} tokens; these have {length}")
        model = self.decoder[0]
        with torch.no_grad():
            states = model.decode(input_ids, None, None)
            targets = model.logits(states).float().softmax(dim=-1)  # (batch, length, vocab)
        rows = length - ahead
        state, losses = states[:, :rows], []
        for step in range(1, ahead + 1):
            state = self(state, input_ids[:, step : step + rows])
            log_q = self.logits(state).float().log_softmax(dim=-1)
            losses.append(-(targets[:, step : step + rows] * log_q).sum(dim=-1).mean())
        return torch.stack(losses).mean()
