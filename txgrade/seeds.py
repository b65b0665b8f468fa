"""Seeds: what a grader draws, and what of it enters the kernel of a submission."""

import hashlib

PUBLIC_SEEDS = 2**31  # a seed below is known to everybody; one that the grader draws is not
GRADING_SEEDS = 2**62  # a grader's seed lies between the two: too many to try them all


def derived_seed(*parts: object) -> int:
    """Return a seed for NumPy or torch from anything that has a text, e.g. a seed and a task's name."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def kernel_seed(seed: int) -> int:
    """Return the seed that enters the kernel: a public seed itself, of a grader's seed a hash.

    What the grader draws from its own seed (`show.private`, a measure's data) can't be computed from the hash.
    """
    return seed if seed < PUBLIC_SEEDS else derived_seed(seed, "kernel") % PUBLIC_SEEDS
