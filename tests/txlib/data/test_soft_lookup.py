"""What is kept of the games of lesson 03: those that its script plays."""

import soft_lookup


def test_the_shipped_games_are_those_of_the_script():
    kept = soft_lookup.RUNS.kept()
    assert kept.keys() == soft_lookup.GAMES.keys()
    for name in soft_lookup.GAMES:
        assert kept[name].keys() == {"1", "2", "3"}
        for game in kept[name].values():
            assert 0 <= game["words right"] <= 40
            assert all(0 < weight < 1 for weight in game["best weight"])
