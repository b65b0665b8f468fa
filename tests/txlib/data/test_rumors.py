"""What is kept of the long runs of lesson 19: those that its script makes."""

import rumors


def test_the_shipped_runs_are_those_of_the_script(lesson):
    bodies = rumors.bodies(lesson)
    assert rumors.RUNS.kept().keys() == bodies.keys()
    for name, runs in rumors.RUNS.kept().items():
        width, body, _ = bodies[name]
        assert runs.keys() == {"0", "1", "2"}
        for run in runs.values():
            assert run["parameters"] == lesson["parameters"](lesson["Reader"](body(), width))
            assert ("steps" in run) == isinstance(body(), lesson["Halting"])


def test_a_story_begins_with_whom_the_sources_lead_to(lesson):
    for who, source, begun_by, depth in zip(*lesson["rumors"](20, deepest=4), strict=True):
        heard = dict(zip(who.tolist(), source.tolist(), strict=True))
        assert len(heard) == lesson["n"] and sum(a == b for a, b in heard.items()) == 4
        for person, first, hops in zip(who.tolist(), begun_by.tolist(), depth.tolist(), strict=True):
            assert hops <= 4
            for _ in range(hops):
                assert heard[person] != person
                person = heard[person]
            assert person == heard[person] == first
