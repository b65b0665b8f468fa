"""Ticks: few, round, and written so that they can be read."""

import pytest

from txlib import plots
from txlib.plots.ticks import MOST, LogTicks, plain


def written(picture: plots.Picture, axis: str) -> list[str]:
    (axes,) = picture.axes
    picture.figure.draw_without_rendering()
    low, high = sorted(getattr(axes, f"get_{axis}lim")())
    axis = getattr(axes, f"{axis}axis")
    return [
        label.get_text()
        for place, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
        if low <= place <= high
    ]


def drawn(x: list, y: list, **options) -> plots.Picture:
    return plots.lines({"a": (x, y)}, title="", alt="", xlabel="", ylabel="", **options)


def test_powers_of_two_are_named_as_such():
    picture = drawn([1, 2, 4, 8, 16, 32], [1, 2, 3, 4, 5, 6], xscale="log")
    assert written(picture, "x") == ["1", "2", "4", "8", "16", "32"]


def test_a_logarithmic_axis_has_plain_numbers_in_round_steps():
    picture = drawn([1, 2, 3], [3.0, 50.0, 400.0], yscale="log")
    assert written(picture, "y") == ["2", "5", "10", "20", "50", "100", "200", "500"]
    assert written(drawn([2e3, 9e4], [1.0, 2.0], xscale="log"), "x") == ["2k", "5k", "10k", "20k", "50k", "100k"]


@pytest.mark.parametrize(
    ("low", "high"), [(2, 4.5), (20, 45), (0.9, 1.1), (1, 10), (0.1, 1e3), (1e-7, 1), (3e5, 2e12), (1e-40, 1e40)]
)
@pytest.mark.parametrize("doubling", [False, True])
def test_never_none_and_never_many(low, high, doubling):
    ticks = LogTicks(doubling=doubling).tick_values(low, high)
    assert 3 <= len(ticks) <= MOST
    assert all(low <= tick * (1 + 1e-6) and tick <= high * (1 + 1e-6) for tick in ticks)


def test_sparse_powers_of_ten_go_through_one():
    assert 1.0 in LogTicks(doubling=False).tick_values(1e-13, 1e5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 1.0, 10.0], ["0.1", "1", "10"]),
        ([256.0, 1024.0], ["256", "1,024"]),
        ([500.0, 1000.0, 20_000.0], ["500", "1k", "20k"]),
        ([1024.0, 16_384.0], ["1,024", "16,384"]),
        ([1e5, 1e6], ["100k", "1M"]),
        ([1e-4, 1e-2, 1.0], ["0.0001", "0.01", "1"]),
        ([1e-6, 1e-3, 1.0], ["10⁻⁶", "10⁻³", "1"]),
        ([0.0, 1e9], ["0", "10⁹"]),
        ([2e9, 1e10], ["2·10⁹", "10¹⁰"]),
    ],
)
def test_ticks_of_one_axis_are_written_alike(values, expected):
    assert plain(values) == expected


def test_a_linear_axis_counts_in_round_steps():
    picture = drawn([20, 400], [1.8, 3.4])
    assert written(picture, "x") == ["100", "200", "300", "400"]
    assert written(picture, "y") == ["2.0", "2.5", "3.0", "3.5"]
    assert written(drawn([1, 2, 3], [0, 1, 2]), "x") == ["1", "2", "3"]
    assert written(drawn([0, 2400], [0, 20_000]), "x") == ["0", "500", "1,000", "1,500", "2,000", "2,500"]
    assert written(drawn([0, 2400], [0, 20_000]), "y") == ["0", "5k", "10k", "15k", "20k"]


def test_bars_keep_their_names_and_have_plain_numbers():
    picture = plots.bars({"a": 3.0, "b": 40_000.0}, title="", alt="", xlabel="", log=True)
    assert written(picture, "y") == ["a", "b"]
    assert written(picture, "x") == ["1", "10", "100", "1k", "10k", "100k"]


def test_bars_can_be_held_against_a_limit():
    (axes,) = plots.bars({"a": 3.0, "b": 9.0}, title="", alt="", xlabel="", mark=("the limit", 8)).axes
    (line,) = axes.lines
    assert list(line.get_xdata()) == [8, 8]
    assert [text.get_text() for text in axes.texts] == ["3.00", "9.00", "the limit"]
