"""What is kept of the runs of lesson 20: those that its script makes."""

from functools import partial

import wardrobe


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = wardrobe.RUNS.kept()
    assert kept.keys() == {"mixers", "rates"} and kept["rates"].keys() == set(map(str, wardrobe.RATES))
    names = lesson["mixers"].keys() | {"convolution + non-local"} | lesson["rivals"].keys()
    for kinds in (kept["mixers"], *kept["rates"].values()):
        assert kinds.keys() == names
        assert all(seeds.keys() == {"0", "1", "2"} for seeds in kinds.values())
    right = [run["right"] for seeds in kept["mixers"].values() for run in seeds.values()]
    right += [each for kinds in kept["rates"].values() for seeds in kinds.values() for each in seeds.values()]
    assert all(0.1 < each < 1 for each in right)


def test_the_lessons_networks_are_those_that_were_run(lesson):
    networks = {name: partial(lesson["network"], mixer) for name, mixer in lesson["mixers"].items()}
    for name, make in {**networks, **lesson["rivals"]}.items():
        model, run = make(), wardrobe.RUNS.kept()["mixers"][name]["0"]
        assert run["parameters"] == sum(each.numel() for each in model.parameters())
        assert run["operations"] == lesson["work"](model.eval())
