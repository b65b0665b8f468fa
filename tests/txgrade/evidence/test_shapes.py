"""The usual slips of shape, each told from what NumPy and torch make of a right value."""

import pytest
import torch

from txgrade.evidence.shapes import slip
from txgrade.evidence.values import evidence

X = torch.arange(24.0).reshape(2, 3, 4).sin()
M = torch.arange(12.0).reshape(3, 4).sin()
SQUARE = torch.arange(9.0).reshape(3, 3)


def said(yours, expected):
    return slip(evidence(yours), evidence(expected), 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("yours", "expected", "words"),
    [
        (M.T, M, "It is the expected one, transposed: all values are there, in the other order."),
        (SQUARE.T, SQUARE, "It is the expected one, transposed: all values are there, in the other order."),
        (X.transpose(0, 2), X, "Its axes 0 and 2 are exchanged: all values are there, in the other order."),
        (torch.zeros(4, 3), M, "The sizes of axes 0 and 1 are exchanged: is a `transpose` missing, or one too many?"),
        (
            M[None],
            M,
            "Yours has one dimension more, of size 1, in front: is a `squeeze` missing, or a batch of one too",
        ),
        (M[:, :, None], M, "Yours has one dimension more, of size 1, at the end:"),
        (X, M, "Yours has one dimension more, of size 2, in front: is a sum, a mean or an index over it missing?"),
        (X[0], X, "Yours lacks the first dimension, of size 2: did the batch get lost"),
        (X.sum(1), X, "Yours lacks dimension 1, of size 3: did a sum"),
        (X.sum(2), X, "Yours lacks the last dimension, of size 4:"),
        (M[:-1], M, "It is right except for a missing entry along axis 0, the last."),
        (M, M[:, 1:], "It is right except for one entry too many along axis 1, the first."),
        (torch.arange(4), torch.arange(5), "It is right except for a missing entry, the last."),
        (
            torch.zeros(4),
            torch.arange(1.0, 6),
            "One entry too few: does a range end one too early, or begin one too late",
        ),
        ([1, 2], [1, 2, 3], "It is right except for a missing item, the last."),
        ([0, 1, 2, 3], [1, 2, 3], "It is right except for one item too many, the first."),
        ([M, X[0].T], [M, X[0]], "It is the expected one, transposed"),
    ],
)
def test_a_usual_slip_is_named(yours, expected, words):
    assert said(yours, expected).startswith(words)


@pytest.mark.parametrize(
    ("yours", "expected"),
    [
        (M + 1, M),  # of the right shape, and wrong
        (SQUARE + 1, SQUARE),
        (torch.zeros(5, 7), M),
        (torch.zeros(1, 1, 3, 4), M),
        (torch.ones(3, 3), torch.zeros(3, 3)),
        (M, [1.0]),
        ([], [1]),
        ({"a": 1}, {"b": 1}),
        (torch.full((2, 2), float("nan")), torch.zeros(2, 2)),
        (torch.zeros(2, 3, dtype=torch.complex64), torch.zeros(3, 2, dtype=torch.complex64)),
        (3, 4),
    ],
)
def test_nothing_is_said_of_anything_else(yours, expected):
    assert said(yours, expected) is None
