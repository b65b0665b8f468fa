"""What is kept of the runs of lesson 10: those that its script makes, and what the lesson says of them."""

import next_character


def test_the_shipped_runs_are_those_of_the_script_and_show_what_the_lesson_says():
    kept = next_character.RUNS.kept()
    assert kept.keys() == next_character.SETTINGS.keys()
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in kept.values())
    for seed in "012":
        small, large, unplaced, small_few, large_few, longer = (kept[name][seed] for name in next_character.SETTINGS)
        assert large["unseen"] < min(small["unseen"], unplaced["unseen"]) and unplaced["unseen"] < 2.5
        assert large_few["training"] < small_few["training"] and large_few["unseen"] > small_few["unseen"]
        assert longer["unseen"] < 1.865  # the table of three characters
        assert sum(longer["by position"][16:]) / 48 < longer["by position"][2] - 0.05
