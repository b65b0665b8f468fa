"""What is kept of the runs of lesson 33: those that its script makes, and what its tasks ask."""

import json

import state
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept, mixers = state.RUNS.kept(), json.loads(state.RACE.read_text())["rows"]
    assert kept["race"].keys() == kept["plays"].keys() == mixers.keys()
    assert kept["overwriting"].keys() == lesson["rules"].keys()
    by_kernel = [seeds for row in kept["recall"].values() for seeds in row.values()]
    assert len(by_kernel) == 4
    rows = [*by_kernel, *kept["overwriting"].values()]
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in rows)
    assert all(0 < right <= 1 for seeds in rows for right in seeds.values())


def test_the_answer_is_the_last_value_of_a_key(lesson):
    torch.manual_seed(0)
    for task in ("recalling", "overwriting"):
        for ids, answers in zip(*lesson[task](20), strict=True):
            asked = ids[-len(answers) :]
            pairs = ids[: -len(answers)].view(-1, 2).tolist()
            last = dict(map(tuple, pairs))  # a later value replaces an earlier one
            assert [last[key] for key in asked.tolist()] == answers.tolist()
