"""What is kept of the long runs of lesson 19: those that its script makes."""

import pytest
import rumors


def test_the_shipped_runs_are_those_of_the_script(lesson):
    settings, kept = rumors.settings(lesson), rumors.RUNS.kept()
    readers = kept.pop("Shakespeare")
    assert kept.pop("guessing") == pytest.approx(rumors.guessing(lesson), abs=1e-4)
    assert readers.keys() == {"0", "1", "2"} and all(-1 <= run["correlation"] <= 1 for run in readers.values())
    assert kept.keys() == settings.keys()
    for name, runs in kept.items():
        body, width = settings[name]["make"](), settings[name].get("d_model", 64)
        assert runs.keys() == {"0", "1", "2"}
        for run in runs.values():
            assert run["parameters"] == lesson["parameters"](lesson["Reader"](body, width))
            assert ("steps" in run) == isinstance(body, lesson["Halting"])
            assert ("same steps" in run) == (name in ("loop", "mean of six steps", "halting"))


def test_without_halting_the_block_and_its_answers_stay(lesson):
    torch = lesson["torch"]
    torch.manual_seed(0)
    model = lesson["Reader"](lesson["Loop"](64, 3, clock=False))
    who, source, _, _ = lesson["rumors"](2, deepest=5)
    halting = lesson["Reader"](lesson["Halting"](64, 3, clock=False, after=True))
    halting.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(rumors.same_steps(lesson, halting, 3)(who, source), model(who, source))


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
