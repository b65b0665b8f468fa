"""Figures that a lesson or two of the course show; the charts of `txlib.plots` are for everybody.

Each function returns a `txlib.plots.Picture`.
"""

from txcourse.figures.bert import architectures, head_kinds, input_sum, readers, task_heads
from txcourse.figures.decoder import checkpoint, decoders, latent_attention, rotary_layouts, shared_heads
from txcourse.figures.decoding import overlap, token_grid
from txcourse.figures.diagrams import influence, memory_tape, multihead
from txcourse.figures.experts import expert_layouts, experts
from txcourse.figures.flash import roofline, tiles
from txcourse.figures.generation import answers, beams, candidates, choices, nucleus
from txcourse.figures.language import next_token, plane
from txcourse.figures.layers import block, loss_landscapes, stream, vectors
from txcourse.figures.learning import ablation, before_and_after, guessing_game, singular_values, training, valley
from txcourse.figures.low_rank import products
from txcourse.figures.positions import entrances, rearranging, turns, weight_by_distance
from txcourse.figures.recurrent import four_readers, reach, recurrent_translator
from txcourse.figures.scale import isoflops, magnitudes, pipeline, ring, shards, split_network
from txcourse.figures.sets import clusters
from txcourse.figures.transformer import costs, encoder_decoder
from txcourse.figures.universal import beliefs, chains, halting, recurrence
from txcourse.figures.wall import areas, ways_round

__all__ = [
    "ablation",
    "answers",
    "architectures",
    "areas",
    "before_and_after",
    "beams",
    "beliefs",
    "block",
    "candidates",
    "checkpoint",
    "chains",
    "choices",
    "clusters",
    "costs",
    "decoders",
    "encoder_decoder",
    "entrances",
    "expert_layouts",
    "experts",
    "four_readers",
    "guessing_game",
    "halting",
    "head_kinds",
    "influence",
    "input_sum",
    "isoflops",
    "latent_attention",
    "loss_landscapes",
    "magnitudes",
    "memory_tape",
    "multihead",
    "next_token",
    "nucleus",
    "overlap",
    "pipeline",
    "plane",
    "products",
    "reach",
    "readers",
    "rearranging",
    "recurrence",
    "recurrent_translator",
    "ring",
    "roofline",
    "rotary_layouts",
    "shards",
    "shared_heads",
    "singular_values",
    "split_network",
    "stream",
    "task_heads",
    "tiles",
    "token_grid",
    "training",
    "turns",
    "valley",
    "vectors",
    "ways_round",
    "weight_by_distance",
]
