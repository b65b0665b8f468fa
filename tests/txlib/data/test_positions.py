"""What is kept of the readers of lesson 05: those that its script trains."""

import positions
import pytest


def test_the_shipped_runs_are_those_of_the_script():
    kept = positions.RUNS.kept()
    assert kept.keys() >= {"none", "Shaw", "ALiBi, 16 × as steep", "sinusoidal, not scaled"}
    for seeds in kept.values():
        assert seeds.keys() == {"0", "1", "2"}
        assert all(len(run["long"]) == len(run["window"]) == 128 // positions.WINDOW for run in seeds.values())


def test_a_window_changes_nothing_within_the_trained_length():
    for seeds in positions.RUNS.kept().values():
        for run in seeds.values():
            assert run["window"][:4] == pytest.approx(run["long"][:4], abs=1e-3)


@pytest.mark.slow
def test_steeper_slopes_scale_the_bias(lesson):
    query = lesson["torch"].zeros(1, 4, 6, 16)
    gentle, steep = lesson["Alibi"]().bias(query), lesson["SteepAlibi"]().bias(query)
    lesson["torch"].testing.assert_close(steep, 16 * gentle)
