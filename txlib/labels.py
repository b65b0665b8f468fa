"""The label that no loss counts, shared by data, models and training."""

IGNORE_INDEX = -100  # the default of torch.nn.functional.cross_entropy
