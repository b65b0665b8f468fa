"""What is kept of the twins of lesson 14: those that its script trains, and nothing is read past a shut eye."""

import one_eye
import pytest
import torch

from txlib import load_pretrained
from txlib.data import BatchDict, shipped


def test_the_shipped_runs_are_those_of_the_script():
    runs = one_eye.RUNS.kept()["right"]
    assert runs.keys() == {"0", "1", "2"}
    for run in runs.values():
        assert run.keys() == one_eye.SIDES.keys() | {"joined"}
        assert all(run[side].keys() == set(map(str, one_eye.MARKS)) for side in one_eye.SIDES)
        assert run["joined"].keys() == {str(one_eye.STEPS)}


@pytest.mark.parametrize(("side", "moved"), [("left", False), ("right", True), ("both sides", True)])
@torch.no_grad()
def test_a_twin_sees_what_its_mask_says(side, moved):
    model = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).eval()
    ids = torch.arange(6).repeat(2, 1)
    ids[1, -1] = 9  # the two rows differ in their last token
    batch = BatchDict(input_ids=ids, attention_mask=torch.ones_like(ids), token_type_ids=torch.zeros_like(ids))
    first, second = one_eye.logits_of(model, batch, side, torch.tensor([[False, False, True, *[False] * 3]] * 2))
    assert torch.equal(first, second) != moved
