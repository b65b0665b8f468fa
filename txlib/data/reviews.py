"""Clothing reviews with their stars: single-sentence classification (Devlin et al. 2018, §4.1)."""

import os
from typing import NamedTuple

from txlib.data.files import Splits, find, read_columns, split_by

HELD_OUT = 10  # percent of the reviews that go to test, and as many to validation


class Review(NamedTuple):
    """What a customer wrote, and the class it belongs to."""

    text: str
    label: int


def reviews(labels: str = "sentiment", folder: str | os.PathLike | None = None) -> Splits:
    """Reviews of women's clothing as `Splits(train, validation, test)` of `Review(text, label)`.

    `labels="sentiment"`: 0 for one or two stars, 1 for four or five; three stars are left out. `"stars"`: 0 to 4 for
    one to five stars. Each number of stars is equally frequent in the file, so guessing gives 50% or 20%. Split by a
    hash of the text, 80 : 10 : 10.

    Raises ValueError for unknown labels or a damaged file, FileNotFoundError where it is missing.
    """
    if labels not in ("sentiment", "stars"):
        raise ValueError(f"labels={labels!r} is unknown; choose sentiment or stars")
    path = find("reviews", "reviews.tsv.gz", folder)
    examples = []
    for number, (stars, text) in enumerate(read_columns(path, 2), 1):
        if stars not in ("1", "2", "3", "4", "5"):
            raise ValueError(f"{path}, line {number}: {stars!r} is not 1 to 5 stars; restore the file")
        if labels == "stars":
            examples.append(Review(text, int(stars) - 1))
        elif stars != "3":
            examples.append(Review(text, int(stars > "3")))
    return split_by(lambda review: review.text, examples, HELD_OUT)
