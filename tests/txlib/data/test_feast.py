"""What is kept of the runs of lesson 32: those that its script makes."""

import feast
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = feast.RUNS.kept()
    assert kept.keys() == {"guests", "heads"} and kept["guests"].keys() == set(map(str, feast.BATCHES))
    for runs, names, settings in (
        *((runs, lesson["NAMES"], feast.GUESTS) for runs in kept["guests"].values()),
        (kept["heads"], feast.BY_STATE, feast.HEADS),
    ):
        assert runs.keys() == set(names)
        for by_setting in runs.values():
            assert by_setting.keys() == set(map(str, settings))
            assert all(seeds.keys() == {"0", "1", "2"} for seeds in by_setting.values())
            assert all(0 <= right <= 1 for seeds in by_setting.values() for right in seeds.values())


def test_the_answer_is_the_room_of_the_guest_who_is_asked_for(lesson):
    torch.manual_seed(0)
    for who, room, asked, answer in zip(*lesson["feast"](20, 16), strict=True):
        rooms = dict(zip(who.tolist(), room.tolist(), strict=True))
        assert len(rooms) == 16
        assert [rooms[guest] for guest in asked.tolist()] == answer.tolist()
