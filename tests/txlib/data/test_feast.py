"""What is kept of the runs of lesson 32: those that its script makes."""

import feast
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    assert feast.RUNS.kept().keys() == set(lesson["NAMES"])
    for runs in feast.RUNS.kept().values():
        assert runs.keys() == {str(guests) for guests in feast.GUESTS}
        assert all(seeds.keys() == {"0", "1", "2"} for seeds in runs.values())
        assert all(0 <= right <= 1 for seeds in runs.values() for right in seeds.values())


def test_the_answer_is_the_room_of_the_guest_who_is_asked_for(lesson):
    torch.manual_seed(0)
    for who, room, asked, answer in zip(*lesson["feast"](20, 16), strict=True):
        rooms = dict(zip(who.tolist(), room.tolist(), strict=True))
        assert len(rooms) == 16
        assert [rooms[guest] for guest in asked.tolist()] == answer.tolist()
