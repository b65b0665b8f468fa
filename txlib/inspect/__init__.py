"""Look inside a model: read activations by name, replace them, and measure what each part contributes.

A name is that of a module, for what it returns, or of an attention layer and ".heads", for what each head hands to the
output projection, such as "decoder.layers.0.self_attention.heads", or with ".heads.3" for one. Nothing is slower while
nothing is looked at.
"""

from txlib.inspect.attribution import logit_attribution, logit_lens
from txlib.inspect.autoencoder import SparseAutoencoder, dead_features, fit_autoencoder
from txlib.inspect.hooks import ablate, activation_names, activations, patching, path_patching, replace

__all__ = [
    "SparseAutoencoder",
    "ablate",
    "activation_names",
    "activations",
    "dead_features",
    "fit_autoencoder",
    "logit_attribution",
    "logit_lens",
    "patching",
    "path_patching",
    "replace",
]
