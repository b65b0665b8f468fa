"""Initial weights of single blocks, and of models whose config has init_std."""

from typing import Any

from torch import nn

from txlib.layers.embedding import TokenEmbedding

LAST_IN_SUBLAYER = (
    "attention.output",
    "out_proj",
    "down_proj",
)  # the layers whose output is added to the residual stream


def initialize_block(block: nn.Module, *, zero_output: bool) -> None:
    """Draw matrices as Glorot & Bengio (2010) do; with zero_output, the last of each sub-layer starts at zero."""
    for name, linear in block.named_modules():
        if isinstance(linear, nn.Linear):
            nn.init.xavier_uniform_(linear.weight)
            if zero_output and name.endswith(LAST_IN_SUBLAYER):
                nn.init.zeros_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)


def initialize(module: nn.Module, config: Any, residual_std: float | None = None) -> None:
    """Draw all matrices and token vectors from N(0, init_std²), set biases to zero, as in BERT's and GPT-2's code.

    Args:
        config: of the model, with init_std and block; with block.zero_output, zero matrices stay zero.
        residual_std: of the matrices whose output is added to the residual stream; init_std unless given.
    """
    for name, part in module.named_modules():
        if isinstance(part, TokenEmbedding):
            nn.init.normal_(part.weight, std=config.init_std)
        elif isinstance(part, nn.Linear):
            last = name.endswith(LAST_IN_SUBLAYER)
            if last and config.block.zero_output:
                continue
            nn.init.normal_(part.weight, std=config.init_std if residual_std is None or not last else residual_std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
