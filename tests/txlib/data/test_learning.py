"""What is kept of the runs of lesson 07: those that its script makes."""

import learning


def test_the_shipped_runs_are_those_of_the_script(lesson):
    runs, kept = learning.runs(lesson), learning.RUNS.kept()
    assert {question: [*settings] for question, settings in kept.items()} == {
        question: [*settings] for question, settings in runs.items()
    }
    for question, settings in runs.items():
        for setting, rates in settings.items():
            assert [*kept[question][setting]] == [str(rate) for rate in rates]
            for seeds, options in zip(kept[question][setting].values(), rates.values(), strict=True):
                windows = options.get("steps", 600) // learning.WINDOW
                assert seeds.keys() == {"0", "1", "2"}
                assert all(len(run["loss"]) == len(run["apart"]) == windows for run in seeds.values())
                assert all(0 <= value <= 1 for run in seeds.values() for value in run["apart"])


def test_only_the_chosen_blocks_are_slower(lesson):
    model = lesson["CharacterModel"]()
    for first, end in ((0, 2), (2, 4), (4, 6)):
        chosen = model.blocks[first:end]
        rest, slow = (optimizer.param_groups[0] for optimizer in lesson["slower"](model, 1.0, first, end))
        assert (rest["lr"], slow["lr"]) == (1.0, 0.1)
        assert {id(weight) for weight in slow["params"]} == {id(weight) for weight in chosen.parameters()}
        assert len(rest["params"]) + len(slow["params"]) == len(list(model.parameters()))
