"""A table's loss is the one that counting by hand gives."""

import math

import pytest
import torch

from txcourse.tables import loss_of_table


def test_a_table_looks_up_the_last_tokens():
    text = torch.tensor([0, 1, 0, 1, 0, 0])  # after 0: 1, 1, 0; after 1: 0, 0
    after = {0: (1.1, 2.1), 1: (2.1, 0.1)}
    losses = [-math.log(after[last][token] / sum(after[last])) for last, token in ((0, 1), (1, 0))]
    found = loss_of_table(text, torch.tensor([0, 1, 0]), last=1)
    assert found == pytest.approx(sum(losses) / 2, abs=1e-6)
    assert loss_of_table(text, torch.tensor([0, 1, 0]), last=2) == pytest.approx(-math.log(2.1 / 2.2), abs=1e-6)


@pytest.mark.parametrize(("last", "message"), [(0, "last >= 1, got 0"), (3, "more than 3 tokens, got 6 and 3")])
def test_impossible_tables_are_refused(last, message):
    with pytest.raises(ValueError, match=message):
        loss_of_table(torch.zeros(6).long(), torch.zeros(3).long(), last=last)
