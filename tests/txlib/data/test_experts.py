"""What is kept of the runs of lesson 18: those that its script makes."""

import experts
import pytest


def test_the_shipped_runs_are_those_of_the_script(lesson):
    settings, kept = experts.settings(lesson), experts.RUNS.kept()
    assert {task: {*runs} for task, runs in kept.items()} == {task: {*models} for task, models in settings.items()}
    for task, models in kept.items():
        for name, seeds in models.items():
            assert seeds.keys() == {"0", "1", "2"}
            has_experts = "router" in dict(settings[task][name]["make"]().named_children())
            for run in seeds.values():
                if task == "facts":
                    assert 0 <= run <= 1
                    continue
                assert ("busiest" in run) == has_experts
                if has_experts:
                    assert len(run["busiest"]) == 300 // experts.WINDOW


def test_twins_are_one_network(lesson):
    twins = experts.settings(lesson)["text"]["no balance loss, eight twins"]["make"]()
    assert len({id(expert) for expert in twins.experts}) == 1 and len(twins.experts) == 8


def test_a_fact_model_that_knows_all_prices_knows_every_fact(lesson):
    torch, prices = lesson["torch"], lesson["prices"]

    def oracle(town, good):
        return torch.nn.functional.one_hot(prices[town, good], 64).float()

    assert lesson["known"](oracle) == 1
    assert lesson["known"](lambda town, good: oracle(town, good).roll(1, dims=-1)) == pytest.approx(0)
