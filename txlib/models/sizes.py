"""Every paper's table of sizes, as configs. A test counts their parameters on the meta device."""

from dataclasses import replace

from txlib.layers import BlockConfig
from txlib.models.transformer import TransformerConfig

_BASE = BlockConfig(
    d_model=512, heads=8, d_ff=2048, dropout=0.1, norm_first=False, activation="relu", position="sinusoidal"
)

VASWANI: dict[str, TransformerConfig] = {
    "base": TransformerConfig(vocab_size=37_000, block=_BASE),
    "big": TransformerConfig(vocab_size=37_000, block=replace(_BASE, d_model=1024, heads=16, d_ff=4096, dropout=0.3)),
}
"""The two models of Vaswani et al. 2017, Table 3, with the shared vocabulary of §5.1: 63.1 M and 214.2 M parameters."""
