"""Values that were seen before earn nothing, and where they do the author is told."""

import re

import pytest

from txgrade.authoring.hardcoding import FRESH_SEEDS, hardcoded_shares, hardcoding_problems

pytestmark = pytest.mark.slow

CHECK = """    for n in (1, 2, show.random_size(3, 9), show.random_size(10, 40), show.random_size(10, 40)):
        show(causal_mask(n), f"n = {n}")
    ### BEGIN HIDDEN TESTS
    show(causal_mask(17), "n = 17")
    ### END HIDDEN TESTS"""


def how(path) -> set[str]:
    return {each["how"] for each in hardcoded_shares(path)["causal-mask"]}


def test_the_sample_has_no_such_case(course):
    assert hardcoded_shares(course.source) == {"causal-mask": [], "attention": []}
    assert hardcoding_problems([]) == []


@pytest.mark.parametrize(
    ("check", "table"),
    [
        ("    show(causal_mask(4))", "the public values in their order"),
        ("    show(causal_mask(show.random_size(3, 9)))", "those of another seed, as a page of feedback tells them"),
        (
            "    first = show.random_size(1, 2)\n    show(causal_mask(first))\n    show(causal_mask(3 - first))",
            "the public values, moved by 1",
        ),
        (
            "    for n in show.permutation(3).tolist():\n        show(causal_mask(n + 1), f'n = {n}')",
            "the public value of the same label",
        ),
        (
            "    for n in show.permutation(3).tolist():\n        show(causal_mask(n + 1))",
            "a table from public arguments to public values",
        ),
        ("    show(bool(causal_mask(show.random_size(1, 10**9) % 9 + 1).all()))", "one public value everywhere"),
    ],
)
def test_each_table_is_tried(variant, check, table):
    path = variant((CHECK, check))
    earning = hardcoded_shares(path)["causal-mask"]
    assert table in {each["how"] for each in earning}
    (line,) = hardcoding_problems(earning)
    assert re.search(
        r"such as (True|False|a tensor of shape \(\d, \d\) \((True|False).*\)) for “.+” on seed 1\d\d\. Let", line
    )
    assert line.startswith("on ") and f" of {len(FRESH_SEEDS)} fresh seeds" in line


def test_hidden_tests_count_as_the_grader_runs_them(variant):
    """A fixed public case, and a hidden one that varies: a table does not pass."""
    hidden = "    ### BEGIN HIDDEN TESTS\n    show(causal_mask(show.random_size(5, 50)))\n    ### END HIDDEN TESTS"
    assert how(variant((CHECK, f"    show(causal_mask(4))\n{hidden}"))) == set()
