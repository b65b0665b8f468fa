"""The label that is not counted, which data, models and training agree on."""

IGNORED = -100  # as everywhere in torch
