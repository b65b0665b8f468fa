"""What is kept of the readers of lesson 05: those that its script trains."""

import positions
import pytest


def test_the_shipped_runs_are_those_of_the_script():
    kept = positions.RUNS.kept()
    assert kept.keys() >= {"none", "Shaw", "ALiBi, 16 × as steep", "sinusoidal, drowned", "sinusoidal, shorter"}
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


@pytest.mark.slow
@pytest.mark.parametrize(("control", "word", "length"), [("Drowned", 1 / 33, 96), ("Shorter", 64 / 96, 33)])
def test_a_control_changes_the_words_part_or_the_length(lesson, control, word, length):
    torch, reader = lesson["torch"], lesson[control]()
    ones = torch.ones(1, 6, 64)  # squared length 64, as of a scaled word
    position = reader.add(0 * ones)
    squares = [each.square().sum(dim=-1) for each in (reader.add(ones) - position, position)]
    torch.testing.assert_close(squares[0] + squares[1], torch.full((1, 6), float(length)))
    torch.testing.assert_close(squares[0] / length, torch.full((1, 6), word))
