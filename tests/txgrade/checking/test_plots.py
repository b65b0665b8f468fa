"""Plots as evidence."""

import base64
import json

import numpy as np
import pytest

from txgrade.checking.checks import Checks, collecting
from txgrade.checking.plots import DATA, WORDS, is_plot, picture, plot
from txgrade.evidence.compare import compare
from txgrade.evidence.validation import bundle_problem
from txgrade.evidence.values import MIME, evidence

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture
def axes():
    plt.switch_backend("agg")
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def arrays(found):
    """The arrays in a plot's evidence as lists."""
    if isinstance(found, np.ndarray):
        return found.tolist()
    if isinstance(found, dict):
        return {key: arrays(value) for key, value in found.items()}
    return [arrays(each) for each in found] if isinstance(found, list) else found


def test_lines_and_dots(axes):
    axes.plot([1, 2], [3, 4], label="up")
    axes.plot([5], [6])
    axes.scatter([1, 2, 3], [4, 5, 6], label="dots")
    assert arrays(plot(axes)) == {
        "lines": [{"x": [1, 2], "y": [3, 4]}, {"x": [5], "y": [6]}],
        "scatters": [{"offsets": [[1, 4], [2, 5], [3, 6]]}],
        "bars": [],
        "images": [],
    }
    found = plot(axes, ("lines", "scatters", "legend"))
    assert [each["label"] for each in (*found["lines"], *found["scatters"])] == ["up", "", "dots"]
    assert found["legend"] == []
    axes.legend()
    assert plot(axes, ("legend",)) == {"legend": ["up", "dots"]}


def test_bars(axes):
    axes.bar([1, 2], [3, 4], width=0.5)
    axes.barh([7], [8])
    axes.hist([0, 0, 1], bins=[0, 1, 2])
    upright, lying, histogram = arrays(plot(axes))["bars"]
    assert upright == {"positions": [1, 2], "heights": [3, 4], "lying": False}
    assert lying == {"positions": [7], "heights": [8], "lying": True}
    assert histogram == {"positions": [0.5, 1.5], "heights": [2, 1], "lying": False}


def test_images(axes):
    axes.imshow([[1, 2], [3, np.nan]])
    axes.pcolormesh([[5.0, 6.0]])
    first, second = plot(axes)["images"]
    np.testing.assert_array_equal(first, [[1, 2], [3, np.nan]])
    np.testing.assert_array_equal(second.reshape(-1), [5, 6])


def test_words(axes):
    axes.set(xlabel="steps", ylabel="loss", title="It falls", xlim=(1, 10), ylim=(0, 2), xscale="log")
    assert plot(axes, ("labels", "limits", "scales", "title")) == {
        "labels": ["steps", "loss"],
        "limits": [[1, 10], [0, 2]],
        "scales": ["log", "linear"],
        "title": "It falls",
    }


def test_a_figure_is_a_list_of_its_axes(axes):
    other = axes.figure.add_subplot()
    other.plot([1], [2])
    assert [len(each["lines"]) for each in plot(axes.figure)] == [0, 1]


@pytest.mark.parametrize("what", [("pixels",), ("lines", "colour"), ()])
def test_unknown_parts_are_refused(axes, what):
    with pytest.raises(ValueError, match="choose among lines, scatters"):
        plot(axes, what)


def test_evidence_is_plain_and_the_same_each_time(axes):
    axes.plot([1, 2], [3, np.nan], label="a")
    found = json.loads(json.dumps(evidence(plot(axes, DATA + WORDS)), allow_nan=False))
    assert compare(found, evidence(plot(axes, DATA + WORDS))) is None
    axes.lines[0].set_ydata([3, 5])
    assert compare(evidence(plot(axes)), found | evidence(plot(axes))) is None
    assert "lines" in compare(found, evidence(plot(axes, DATA + WORDS)))


@pytest.mark.parametrize("value", [None, 3, "axes", [1]])
def test_what_is_no_plot_shows_as_what_it_is(value):
    with collecting() as collected, Checks()("t") as show:
        show.axes(value, points=2)
    assert collected.bundles[0]["shown"] == [{"label": None, "value": evidence(value), "points": 2}]
    assert not is_plot(value)


def test_grading_draws_the_figure_for_people(axes, capsys, graded_checks):
    axes.plot([1, 2], [3, 4])
    axes.set(title="It rises", xlabel="steps", ylabel="height")
    source = "with check('t') as show:\n    show.axes(axes)"
    exec(source, {"__name__": "__main__", "check": graded_checks(5), "axes": axes})
    drawn, bundle = map(json.loads, capsys.readouterr().out.splitlines())
    assert base64.b64decode(drawn["image/png"]).startswith(b"\x89PNG")
    assert bundle_problem(bundle[MIME], "t", 5) is None
    assert not plt.fignum_exists(axes.figure.number)
    assert picture(axes)[1] == "It rises: height over steps"


def test_what_can_not_be_drawn_is_judged_all_the_same(axes):
    axes.set_title("$\\broken$")
    assert picture(axes) is None
    axes.set_title("")
    axes.figure.set_size_inches(500, 500)
    assert picture(axes) is None
    assert plot(axes, ("title",)) == {"title": ""}
