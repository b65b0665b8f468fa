"""The music recipe: Bach's chorales in, a Music Transformer that writes on, and its loss on tunes that are new to it.

Nobody can compare losses per token between representations: on this grid three of four tokens are `hold`. So what a
whole piece costs, its rests and holds included, is also divided by the number of its notes.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txlib.data import LazyDataset, Splits, chorales
from txlib.labels import IGNORE_INDEX
from txlib.layers import BlockConfig
from txlib.layers.position_config import POSITIONS
from txlib.models import MusicConfig, MusicTransformer
from txlib.music import GridTokenizer, Piece
from txlib.recipes.language import window_loss
from txlib.recipes.recipe import Preset, Recipe, Show, option
from txlib.training import TrainConfig

ORDERS = {"Markov chain": 8, "note frequencies": 0, "uniform": -1}
"""Rivals that are counted, not trained, by how many tokens `Markov` looks back: at two steps of four voices, which did
best of up to 9 tokens on the validation split; at none but whose turn it is; at nothing at all."""


def _block(d_model: int, heads: int, dropout: float) -> BlockConfig:
    return BlockConfig.of_sizes(
        d_model,
        heads,
        4 * d_model,
        norm="rms",
        activation="gelu",
        bias=False,
        dropout=dropout,
        position="skewed",
        zero_output=True,
    )


_MUON = TrainConfig(precision="auto", lr=4e-3, muon_lr=0.02, warmup=40, checkpoint_every=100, validate_every=500)
_GRID = GridTokenizer()

PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        block=_block(128, 4, 0.1),
        layers=3,
        vocab_size=len(_GRID),
        batch_size=16 * 256,
        context=256,
        training=_MUON,
        minutes=5.0,
    ),
    "small": Preset(
        block=_block(256, 8, 0.2),
        layers=6,
        vocab_size=len(_GRID),
        batch_size=16 * 512,
        context=512,
        training=replace(_MUON, lr=3e-3),
        minutes=20.0,
    ),
}
"""`tiny` (0.7 million parameters, four bars in sight) is for minutes on one core, `small` (5.5 million, eight bars) for
a GPU."""


class Music(Recipe[Splits, MusicTransformer]):
    """Train a Music Transformer on Bach's chorales."""

    command = "train music"
    presets = PRESETS

    preset: str = option("tiny", "Size: tiny; small for a GPU.")
    positions: str = option("skewed", "skewed: relative; or a rival: sinusoidal, learned, rotary, alibi, shaw, none …")
    transpose: bool = option(True, "Play each piece in all keys that its voices can sing.")

    @property
    def folder_name(self) -> str:
        return f"chorales-{self.preset}" + ("" if self.positions == "skewed" else f"-{self.positions}")

    def check(self) -> None:
        super().check()
        if self.positions not in POSITIONS:
            raise ValueError(f"positions={self.positions!r} is unknown; choose one of {', '.join(POSITIONS)}")

    def load(self) -> Splits:
        return chorales()

    def make_model(self, splits: Splits, tokenizer: None) -> MusicTransformer:
        return make_model(self.chosen, self.positions)

    def make_batches(self, splits: Splits, tokenizer: None, part: str = "train") -> Callable[[int], Sequence[Tensor]]:
        context = self.chosen.context
        size = max(1, self.chosen.batch_size // context)
        return piece_batches(getattr(splits, part), context, size, transpose=self.transpose, seed=self.seed)

    def inputs(self, batch: Tensor) -> dict[str, Tensor]:
        return {"input_ids": batch[:, :-1].clamp(min=0)}

    def loss(self, model: MusicTransformer, batch: Tensor) -> tuple[Tensor, Tensor]:
        return window_loss(model, batch)

    def make_validation(self, splits: Splits, tokenizer: None) -> Callable[[MusicTransformer], float]:
        return lambda model: loss_of(lambda ids: token_losses(model, ids), splits.validation).per_token

    def measure(
        self, model: MusicTransformer, splits: Splits, tokenizer: None, loss: float, show: Show
    ) -> dict[str, Any]:
        losses = {"Music Transformer": loss_of(lambda ids: token_losses(model, ids), show(splits.test, "listening"))}
        heard = (
            _GRID.encode(piece.transposed(move))
            for piece in splits.train
            for move in (piece.transpositions() if self.transpose else [0])
        )
        chain = Markov(heard, max(ORDERS.values()), _GRID.voices, len(_GRID))
        for name, chain.order in ORDERS.items():
            losses[name] = loss_of(chain.token_losses, splits.test)
        return {
            "nats_per_token": {name: loss.per_token for name, loss in losses.items()},
            "nats_per_note": {name: loss.per_note for name, loss in losses.items()},
        }

    def report(self, result: Mapping[str, Any], out: str) -> str:
        lines = [
            "On tunes that it has not heard; a token is one voice at one sixteenth, a note carries the holds and rests "
            "that follow it."
        ]
        if self.positions == "skewed":
            lines.append("To compare absolute positions: txlib train music --positions sinusoidal")
        return "\n".join([*lines, f"\nHear it: txlib compose --model {out} chorale.mid"])


def make_model(preset: Preset, positions: str = "skewed") -> MusicTransformer:
    """An untrained model of the preset's shape, its positions skewed or a rival's."""
    block = preset.block.replace(position=positions)
    return MusicTransformer(MusicConfig(preset.vocab_size, block, layers=preset.layers, max_length=preset.context))


def piece_batches(
    pieces: Sequence[Piece], context: int, batch: int, *, transpose: bool = True, seed: int = 0
) -> Callable[[int], Sequence[Int[Tensor, "batch length"]]]:
    """The batches that `train` wants: (batch, context + 1) tokens, of which all but the last are read, all but the
    first predicted; -100 fills up pieces that are shorter.

    In each epoch each piece is played in one of the keys that its voices can sing, and as many windows are cut out of
    it as it is windows long, each beginning at a step of its own; many are its first and its last.

    Raises:
        ValueError: when there are no pieces.
    """
    if not pieces:
        raise ValueError("there are no pieces to train on; give at least one")
    moves = [piece.transpositions() if transpose else [0] for piece in pieces]

    def batches(epoch: int) -> Sequence[Tensor]:
        rng = random.Random(f"{seed} {epoch}")
        windows = []
        for piece, possible in zip(pieces, moves, strict=True):
            ids, last = _GRID.encode(piece.transposed(rng.choice(possible))), (len(piece) + 1) * _GRID.voices
            for _ in range(math.ceil(len(ids) / context)):
                step = rng.randrange(-context, len(ids)) // _GRID.voices
                start = max(0, min(step * _GRID.voices, last - context))
                cut = ids[start : start + context + 1]
                windows.append(cut + [IGNORE_INDEX] * (context + 1 - len(cut)))
        rng.shuffle(windows)
        size = min(batch, len(windows))
        groups = torch.tensor(windows[: len(windows) // size * size]).view(-1, size, context + 1)
        return LazyDataset(groups, lambda group: group)

    return batches


@torch.no_grad()
def token_losses(model: MusicTransformer, ids: Sequence[int]) -> Float[Tensor, "tokens"]:
    """What each token of a piece costs, `<end>` included and `<begin>` not, in nats.

    The rule: windows of the model's context overlap by half, and each token is predicted once, from the window that
    shows more of its past. So at least half a context stands before it, or all that there is.
    """
    context, voices = model.config.max_length, model.config.voices
    half = context // 2 // voices * voices
    starts = list(range(0, max(len(ids) - 1 - (context - half), 1), half))
    padded = torch.tensor([*ids, *[0] * (starts[-1] + context + 1 - len(ids))], device=next(model.parameters()).device)
    windows = torch.stack([padded[start : start + context + 1] for start in starts])  # (window, context + 1)
    logits = model(windows[:, :-1]).logits.float()
    losses = F.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none")  # (window, context)
    return torch.cat([losses[0], *losses[1:, context - half :]])[voices - 1 : len(ids) - 1]


class Markov:
    """A chain that knows whose turn it is and looks `order` tokens back (Witten and Bell 1991, method C).

    What was never seen is left to the chain that looks one token less far back: p = (count + kinds · p_shorter) /
    (all counts + kinds), where kinds is how many different tokens followed here. At order 0 there are the frequencies
    of each voice's tokens, at -1 all tokens are equally likely.

    Args:
        pieces: tokens, from `<begin>` to `<end>`.
        order: may be lowered later.
    """

    def __init__(self, pieces: Iterable[Sequence[int]], order: int, voices: int, vocab_size: int):
        self.order, self.voices, self.vocab_size = order, voices, vocab_size
        self.counts: dict[tuple, Counter] = defaultdict(Counter)
        for ids in pieces:
            for index in range(voices, len(ids)):
                for length in range(order + 1):
                    self.counts[self.key(ids, index, length)][ids[index]] += 1

    def key(self, ids: Sequence[int], index: int, length: int) -> tuple:
        """The voice, and the tokens before."""
        return index % self.voices, *ids[max(0, index - length) : index]

    def probability(self, ids: Sequence[int], index: int) -> float:
        """Of the token at this place, given those before."""
        p = 1 / self.vocab_size
        for length in range(self.order + 1):
            followed = self.counts.get(self.key(ids, index, length))
            if followed is None:
                break
            p = (followed[ids[index]] + len(followed) * p) / (followed.total() + len(followed))
        return p

    def token_losses(self, ids: Sequence[int]) -> Float[Tensor, "tokens"]:
        """As `token_losses` of a model."""
        return torch.tensor([-math.log(self.probability(ids, index)) for index in range(self.voices, len(ids))])


@dataclass(frozen=True)
class PieceLoss:
    """What pieces cost: nats in all, tokens that were predicted, notes that they hold."""

    nats: float
    tokens: int
    notes: int

    @property
    def per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def per_note(self) -> float:
        return self.nats / self.notes


def loss_of(losses: Callable[[Sequence[int]], Tensor], pieces: Iterable[Piece]) -> PieceLoss:
    """What pieces cost a model, as they stand in the scores.

    Args:
        losses: of each token of a piece.
    """
    nats, tokens, notes = 0.0, 0, 0
    for piece in pieces:
        loss = losses(_GRID.encode(piece))
        nats, tokens, notes = nats + float(loss.sum()), tokens + len(loss), notes + int(piece.onset.sum())
    return PieceLoss(nats, tokens, notes)
