"""What is kept of the games of lesson 03: those that its script plays."""

import soft_lookup


def test_the_shipped_games_are_those_of_the_script():
    kept = soft_lookup.RUNS.kept()
    assert kept.keys() == soft_lookup.GAMES.keys()
    for name, options in soft_lookup.GAMES.items():
        assert kept[name].keys() == {"1", "2", "3"}
        windows = options.get("steps", 600) // soft_lookup.WINDOW
        assert all(len(game["loss"]) == len(game["best share"]) == windows for game in kept[name].values())
        assert all(0 <= game["words right"] <= 40 for game in kept[name].values())
