"""What is kept of the runs of lesson 37: those that its script makes, each within its budget."""

import ladder
import pytest


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = ladder.RUNS.kept()
    assert list(kept) == [f"{budget:.1e}" for budget in lesson["BUDGETS"]]
    for budget, runs in kept.items():
        assert list(runs) == [str(width) for width in lesson["LADDER"] if lesson["pays"](float(budget), width)]
        for width, rates in runs.items():
            assert list(rates) == [str(rate) for rate in lesson["rates"](float(budget), int(width))]
            assert all(seeds.keys() == {"0", "1", "2"} for seeds in rates.values())
            assert all(1 < loss < 3 for seeds in rates.values() for loss in seeds.values())


def test_no_run_spends_more_than_its_budget(lesson):
    for budget in lesson["BUDGETS"]:
        for width in lesson["LADDER"]:
            letters = lesson["steps_for"](budget, width) * lesson["ROWS"] * lesson["CONTEXT"]
            assert 6 * lesson["size"](width) * letters == pytest.approx(budget, rel=0.01) or not lesson["pays"](
                budget, width
            )


def test_windows_overlap_by_the_letter_that_is_to_be_told(lesson):
    context, cut = lesson["CONTEXT"], lesson["windows"](lesson["text"], 0)
    starts = {tuple(window.tolist()) for window in cut[:, :context]}
    assert cut.shape[1] == context + 1 and len(starts) == len(cut)
    whole = tuple(lesson["text"][:context].tolist())
    assert whole in starts
