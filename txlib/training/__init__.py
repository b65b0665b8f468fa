"""Losses, schedules, optimizers, checkpoints, and one loop that uses them."""

from txlib.training.averaging import WeightAverage
from txlib.training.checkpoints import CheckpointError
from txlib.training.config import TrainConfig
from txlib.training.loop import train
from txlib.training.losses import label_smoothed_cross_entropy, linear_cross_entropy, linear_divergence
from txlib.training.optimizers import Optimizers, optimizers
from txlib.training.schedules import inverse_sqrt, noam, warmup_cosine, warmup_linear
from txlib.training.state import Progress
from txlib.training.step import training_step
from txlib.training.trainer import Trainer

__all__ = [
    "CheckpointError",
    "Optimizers",
    "Progress",
    "TrainConfig",
    "Trainer",
    "WeightAverage",
    "inverse_sqrt",
    "label_smoothed_cross_entropy",
    "linear_cross_entropy",
    "linear_divergence",
    "noam",
    "optimizers",
    "train",
    "training_step",
    "warmup_cosine",
    "warmup_linear",
]
