"""Train the translators of lesson 02 on the bundled sentence pairs: checkpoints/games-*-rnn*.

    python data/recurrent_translators.py

Each is a run of the translation recipe with a recurrent model, in runs/. The script keeps its `model` folder, with the
weights in half precision. It skips finished runs, and resumes interrupted ones.
"""

from dataclasses import replace

from bundled import RUNS, bundle
from torch import nn

from txlib.data import Splits
from txlib.recipes.recipe import Preset, option
from txlib.recipes.run import run
from txlib.recipes.translation import PRESETS, Translation
from txlib.recipes.translators import TRANSLATORS, vocabulary
from txlib.text import Tokenizer

PAIR, STEPS = "de-en", 5_000


class Recurrent(Translation):
    """A recurrent encoder–decoder, with one context vector or with attention."""

    preset: str = option("lesson", "The one below.")
    model: str = option("rnn", "rnn or rnn-plain.")

    @property
    def chosen(self) -> Preset:
        tiny = PRESETS["tiny"]
        return replace(tiny, block=tiny.block.replace(d_model=160, dropout=0.15), batch_size=2_000)

    def make_model(self, splits: Splits, tokenizer: Tokenizer) -> nn.Module:
        """Of the preset's own width, not of its Transformer's size."""
        return TRANSLATORS[self.model].make(self.chosen.block.d_model, self.chosen, vocabulary(tokenizer))


def make(model: str) -> None:
    """Train, unless that has been done, and keep what a lesson needs."""
    out = RUNS / f"games-{PAIR}-{model}"
    if not (out / "model").is_dir():
        run(Recurrent, out, steps=STEPS, data="games", pair=PAIR, model=model, resume=(out / "run").is_dir())
    bundle(out)


if __name__ == "__main__":
    make("rnn-plain")
    make("rnn")
