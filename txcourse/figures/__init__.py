"""Figures that a lesson or two of the course show; the charts of `txlib.plots` are for everybody.

Each function returns a `txlib.plots.Picture`.
"""

from txcourse.figures.bert import architectures, head_maps, input_sum, pretraining, readers, task_heads
from txcourse.figures.decoder import checkpoint, decoders, latent_attention, rotary_layouts, shared_heads
from txcourse.figures.decoding import cached_steps, checked_guesses, fewer_bits, overlap, padding_sides, token_grid
from txcourse.figures.diagrams import memory_tape, multihead
from txcourse.figures.experts import busiest_expert, expert_layouts, experts, loads, specialties, two_of_four
from txcourse.figures.flash import causal_walk, roofline, tiles, two_memories
from txcourse.figures.generation import (
    answers,
    beam_tree,
    beams,
    candidates,
    choices,
    clipped_counts,
    draws,
    label_smoothing,
    nucleus,
    reshaped,
    schedules,
    sources,
)
from txcourse.figures.inside import births, one_stream, planes
from txcourse.figures.judging import drawn_answers
from txcourse.figures.language import falling_losses, induction, loss_by_past, next_token, picked_rows, plane
from txcourse.figures.layers import block, loss_landscapes, vectors
from txcourse.figures.learning import (
    before_and_after,
    ellipses,
    guessing_game,
    seeds,
    seeds_by_rate,
    training,
    valley,
)
from txcourse.figures.long_context import loss_along, needles, slower_pairs
from txcourse.figures.low_rank import (
    errors_of_heads,
    four_products,
    neighbor_head,
    products,
    random_feature_errors,
    ranks_by_length,
    ranks_of_heads,
    remembered_guests,
)
from txcourse.figures.music import by_shift, lag_curve, loss_by_bar, position_costs, preferred_distances, skewing
from txcourse.figures.positions import beyond, dials, entrances, picking, reader, sinusoids, turns, weight_by_distance
from txcourse.figures.recurrent import four_readers, gradients_back, reach, recurrent_translator
from txcourse.figures.rewards import pushed_answers
from txcourse.figures.scale import cuts, isoflops, magnitudes, memory, ring, shards, split_network, timetable
from txcourse.figures.serving import batches, pages
from txcourse.figures.sets import clusters
from txcourse.figures.sparse import big_bird, by_distance, causal_forms, circle, cone, longformer
from txcourse.figures.state import Touch, chunks, state_steps
from txcourse.figures.transformer import costs, encoder_decoder, three_masks
from txcourse.figures.universal import beliefs, chains, depth_table, halting, recurrence, right_by_depth
from txcourse.figures.vision import vision_transformer
from txcourse.figures.wall import areas, clock, exponents, fractions_of_a_block, in_view, longest_paths, ways_round

__all__ = [
    "Touch",
    "answers",
    "architectures",
    "areas",
    "batches",
    "beam_tree",
    "beams",
    "before_and_after",
    "beliefs",
    "beyond",
    "big_bird",
    "births",
    "block",
    "busiest_expert",
    "by_distance",
    "by_shift",
    "cached_steps",
    "candidates",
    "causal_forms",
    "causal_walk",
    "chains",
    "checked_guesses",
    "checkpoint",
    "choices",
    "chunks",
    "circle",
    "clipped_counts",
    "clock",
    "clusters",
    "cone",
    "costs",
    "cuts",
    "decoders",
    "depth_table",
    "dials",
    "drawn_answers",
    "draws",
    "ellipses",
    "encoder_decoder",
    "entrances",
    "errors_of_heads",
    "expert_layouts",
    "experts",
    "exponents",
    "falling_losses",
    "fewer_bits",
    "four_products",
    "four_readers",
    "fractions_of_a_block",
    "gradients_back",
    "guessing_game",
    "halting",
    "head_maps",
    "in_view",
    "induction",
    "input_sum",
    "isoflops",
    "label_smoothing",
    "lag_curve",
    "latent_attention",
    "loads",
    "longest_paths",
    "longformer",
    "loss_along",
    "loss_by_bar",
    "loss_by_past",
    "loss_landscapes",
    "magnitudes",
    "memory",
    "memory_tape",
    "multihead",
    "needles",
    "neighbor_head",
    "next_token",
    "nucleus",
    "one_stream",
    "overlap",
    "padding_sides",
    "pages",
    "picked_rows",
    "picking",
    "plane",
    "planes",
    "position_costs",
    "preferred_distances",
    "pretraining",
    "products",
    "pushed_answers",
    "random_feature_errors",
    "ranks_by_length",
    "ranks_of_heads",
    "reach",
    "reader",
    "readers",
    "recurrence",
    "recurrent_translator",
    "remembered_guests",
    "reshaped",
    "right_by_depth",
    "ring",
    "roofline",
    "rotary_layouts",
    "schedules",
    "seeds",
    "seeds_by_rate",
    "shards",
    "shared_heads",
    "sinusoids",
    "sinusoids",
    "skewing",
    "slower_pairs",
    "sources",
    "specialties",
    "split_network",
    "state_steps",
    "task_heads",
    "three_masks",
    "tiles",
    "timetable",
    "token_grid",
    "training",
    "turns",
    "two_memories",
    "two_of_four",
    "valley",
    "vectors",
    "vision_transformer",
    "ways_round",
    "weight_by_distance",
]
