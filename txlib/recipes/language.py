"""The language-model recipe: plays in, a model that writes on, and its loss on plays that it has not seen.

The models are small Llamas (Touvron et al. 2023, §2.2: RMSNorm, SwiGLU, rotary positions, no biases), so that what is
saved is a folder as `transformers` writes it: `txlib generate` needs to know nothing about this recipe, and
`transformers` reads it, too. Squared ReLUs with normalized queries and keys, which that format cannot say, came to the
same 1.58 nats per character of tiny Shakespeare with the preset `small` in about equal CPU time.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txlib.data import LazyDataset, Texts, shakespeare, text_file
from txlib.generation import TextGenerator
from txlib.labels import IGNORE_INDEX
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.models.outputs import auxiliary_loss
from txlib.recipes.recipe import Preset, Recipe, Show, option
from txlib.text import BytePairEncoder, Tokenizer
from txlib.training import TrainConfig, linear_cross_entropy

SOURCES = ("shakespeare", "tinyshakespeare")
TOKENS = ("characters", "bpe")


def llama(d_model: int, heads: int, d_ff: int, dropout: float = 0.0) -> BlockConfig:
    """Return the config of a Llama's block."""
    return BlockConfig.of_sizes(
        d_model=d_model,
        heads=heads,
        d_ff=d_ff,
        norm="rms",
        activation="swiglu",
        bias=False,
        dropout=dropout,
        position="rotary_half",
        zero_output=True,
    )


_MUON = TrainConfig(precision="auto", lr=4e-3, muon_lr=0.02, warmup=40, checkpoint_every=200, validate_every=500)
_LONG = replace(_MUON, lr=3e-3)

PRESETS: dict[str, Preset] = {
    "small": Preset(
        block=llama(128, 4, 328),
        layers=4,
        vocab_size=1_024,
        batch_size=32 * 64,
        context=64,
        training=_MUON,
        minutes=2.3,
    ),
    "medium": Preset(
        block=llama(256, 4, 688, 0.1),
        layers=6,
        vocab_size=2_048,
        batch_size=16 * 256,
        context=256,
        training=_LONG,
        minutes=30.0,
    ),
    "large": Preset(
        block=llama(384, 6, 1024, 0.2),
        layers=6,
        vocab_size=4_096,
        batch_size=64 * 256,
        context=256,
        training=replace(_LONG, warmup=100),
        minutes=3.0,
    ),
}
"""`small` (0.80 million parameters) is for minutes on one core, `medium` for half an hour of a laptop, `large` for a
GPU. `small` and `large` have the sizes of nanoGPT's two settings for characters, so that losses can be compared."""


class Language(Recipe[Texts, GPT]):
    """Train a language model that writes plays, or on a text of your own."""

    command = "train shakespeare"
    presets = PRESETS

    source: str = option(
        "shakespeare", "shakespeare: fourteen plays that are bundled; tinyshakespeare; or a text FILE of your own."
    )
    tokens: str = option("characters", "characters, or bpe: byte pairs learned from the text.")
    preset: str = option("small", "Size: small or medium; large for a GPU.")

    @property
    def folder_name(self) -> str:
        return f"{Path(self.source).stem}-{self.tokens}-{self.preset}"

    def check(self) -> None:
        super().check()
        if self.source not in SOURCES and not self.is_own_text:
            raise ValueError(f"unknown source {self.source!r}; choose {', '.join(SOURCES)}, or a text file")
        if self.tokens not in TOKENS:
            raise ValueError(f"tokens={self.tokens!r} is unknown; choose {' or '.join(TOKENS)}")

    @property
    def is_own_text(self) -> bool:
        return Path(self.source).is_file()

    def load(self) -> Texts:
        return text_file(self.source) if self.is_own_text else shakespeare(self.source)

    def make_tokenizer(self, splits: Texts) -> Tokenizer:
        return make_tokenizer(self.tokens, splits.train, self.chosen.vocab_size)

    def make_model(self, splits: Texts, tokenizer: Tokenizer) -> GPT:
        return make_model(self.chosen, len(tokenizer))

    def make_batches(
        self, splits: Texts, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[Tensor]]:
        ids = torch.tensor(tokenizer.encode(getattr(splits, part)))
        context = self.chosen.context
        return window_batches(ids, context, self.chosen.batch_size // context, seed=self.seed)

    def inputs(self, batch: Tensor) -> dict[str, Tensor]:
        return {"input_ids": batch[:, :-1]}

    def loss(self, model: GPT, batch: Tensor) -> tuple[Tensor, Tensor]:
        return window_loss(model, batch)

    def make_validation(self, splits: Texts, tokenizer: Tokenizer) -> Callable[[GPT], float]:
        ids = torch.tensor(tokenizer.encode(splits.validation))
        return lambda model: validation_loss(model, ids, self.chosen.context)

    def measure(self, model: GPT, splits: Texts, tokenizer: Tokenizer, loss: float, show: Show) -> dict[str, Any]:
        prompt = splits.train.split(maxsplit=1)[0] if self.is_own_text else "ROMEO:"
        written = TextGenerator(model, tokenizer).generate(
            prompt, max_new_tokens=300, do_sample=True, temperature=0.8, seed=self.seed
        )
        bits = bits_per_byte(loss, tokenizer.encode(splits.validation), tokenizer)
        return {"bits_per_byte": bits, "prompt": prompt, "sample": prompt + written[0]}

    def report(self, result: Mapping[str, Any], out: str) -> str:
        return f'\n{result["sample"]}\n\nTry it: txlib generate --model {out} "{result["prompt"]}"'


def make_tokenizer(tokens: str, text: str, vocab_size: int) -> Tokenizer:
    """ "bpe" learns `vocab_size` tokens from the text, "characters" are bytes, without merges.

    A byte is a character in English, and further characters have two to four: none is ever unknown.
    """
    if tokens == "bpe":
        return Tokenizer.of(BytePairEncoder.train([text], vocab_size))
    return Tokenizer.of(BytePairEncoder({bytes([byte]): byte for byte in range(256)}, []))


def make_model(preset: Preset, vocab_size: int) -> GPT:
    """An untrained model of the preset's shape."""
    return GPT(GPTConfig(vocab_size, preset.block, layers=preset.layers, max_length=preset.context))


def window_batches(
    ids: Int[Tensor, "length"], context: int, batch: int, *, seed: int = 0
) -> Callable[[int], Sequence[Tensor]]:
    """The batches that `train` wants: (batch, context + 1) tokens, of which all but the last are read, all but the
    first predicted.

    In each epoch the text is cut anew, from another first token on, into windows that overlap by the one token; they
    come in another order. What does not fill a window or a batch is left out until the next epoch.

    Raises:
        ValueError: when the text is too short for one window.
    """
    if len(ids) < 2 * context:
        raise ValueError(f"the text has {len(ids)} tokens, too few for windows of {context}; give at least twice that")

    def batches(epoch: int) -> Sequence[Tensor]:
        rng = random.Random(f"{seed} {epoch}")
        first = rng.randrange(context)
        starts = list(range(first, len(ids) - context, context))
        rng.shuffle(starts)
        size = min(batch, len(starts))
        groups = torch.tensor(starts[: len(starts) // size * size]).view(-1, size)  # (batches, batch)
        return LazyDataset(groups, lambda group: ids[group[:, None] + torch.arange(context + 1)])

    return batches


def window_loss(model: GPT, windows: Int[Tensor, "batch length"]) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The loss that `train` wants: summed over all predicted tokens, and their number. -100 fills up short windows.

    While training, `auxiliary_loss` is added.
    """
    return labeled_loss(model, windows.clamp(min=0), windows)


def labeled_loss(
    model: GPT, input_ids: Int[Tensor, "batch length"], labels: Int[Tensor, "batch length"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The loss of each token but the first where `labels` are not -100, summed, and how many they are."""
    hidden, labels = model.decode(input_ids[:, :-1]), labels[:, 1:]
    if model.config.logit_softcap is None:  # which needs all logits at once
        divisor = model.config.logit_divisor
        hidden = hidden if divisor == 1 else hidden / divisor
        total = linear_cross_entropy(hidden, model.output_weight, labels, 0.0)
    else:
        total = F.cross_entropy(model.logits(hidden).flatten(0, 1).float(), labels.flatten(), reduction="sum")
    tokens = (labels != IGNORE_INDEX).sum()
    return (total + tokens * auxiliary_loss(model) if model.training else total), tokens


@torch.no_grad()
def validation_loss(model: GPT, ids: Int[Tensor, "length"], context: int, *, batch: int = 64) -> float:
    """Mean cross-entropy of a token, in nats, over all windows of a text.

    The rule: the text is cut, from its first token on, into windows of `context` tokens, one after the other; the last
    may be shorter. At each place of a window the model predicts the next token of the text from those of this window
    up to there. So each token but the text's first is predicted exactly once, from 1 to `context` tokens before it.

    Raises:
        ValueError: when there is nothing to predict.
    """
    if len(ids) < 2:
        raise ValueError(f"a text of {len(ids)} tokens has nothing to predict; give at least 2")
    device = next(model.parameters()).device
    whole = (len(ids) - 1) // context
    windows = ids[: whole * context + 1].unfold(0, context + 1, context) if whole else ids.new_empty(0, 2)
    total = 0.0
    for part in [*windows.split(batch), ids[None, whole * context :]]:
        part = part.to(device)  # (batch, context + 1)
        if part.numel() and part.shape[1] > 1:
            logits = model(part[:, :-1]).logits.float()  # (batch, context, vocab)
            total += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
    return total / (len(ids) - 1)


def bits_per_byte(loss: float, ids: Sequence[int], tokenizer: Tokenizer) -> float:
    """Nats a token as bits for each byte of the text, which tokenizers of any kind can be compared by.

    In plain English a byte is a character.
    """
    predicted = ids[1:]
    return loss * len(predicted) / math.log(2) / sum(len(tokenizer.token_bytes(token)) for token in predicted)
