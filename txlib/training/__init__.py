"""Losses, schedules, optimizers, checkpoints, and one loop that uses them."""

from txlib.training.averaging import WeightAverage
from txlib.training.checkpoints import CheckpointError
from txlib.training.loop import Progress, TrainConfig, train, training_step
from txlib.training.losses import label_smoothed_cross_entropy, linear_cross_entropy
from txlib.training.optimizers import Optimizers, optimizers
from txlib.training.schedules import inverse_sqrt, noam, warmup_linear

__all__ = [
    "CheckpointError",
    "Optimizers",
    "Progress",
    "TrainConfig",
    "WeightAverage",
    "inverse_sqrt",
    "label_smoothed_cross_entropy",
    "linear_cross_entropy",
    "noam",
    "optimizers",
    "train",
    "training_step",
    "warmup_linear",
]
