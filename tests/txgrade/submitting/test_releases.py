"""A check that was corrected is nothing to look at in anybody's submission; one that a learner changed still is."""

from dataclasses import replace

import pytest
from sample_results import ADA, BROKEN

from txgrade.pages.exports import review_csv
from txgrade.records.result import Note
from txgrade.submitting.reading import Submission
from txgrade.submitting.releases import Releases, earlier_releases

CHECK = Note("changed check", "the check `check-scores` is changed: the original was run", "scores")
GIVEN = Note("changed cell", "the cell `given` is changed: the original was run")
DELETED = Note("changed check", "the check `check-scores` is deleted: the original was run", "scores")


def submission(name: str, **changed: str) -> Submission:
    return Submission(name, "graded", {}, changed={id.replace("_", "-"): hash for id, hash in changed.items()})


def flagged(releases: Releases, name: str, *notes: Note) -> list[bool]:
    return [note.review for note in releases.notes(name, notes)]


def test_a_cell_that_was_graded_before_is_no_flag():
    releases = Releases([submission("a", check_scores="old", given="own")], {("check-scores", "old")})
    assert flagged(releases, "a", CHECK, GIVEN) == [False, True]


def test_a_cell_that_many_have_alike_is_no_flag():
    class_of = [submission(f"s{i}", check_scores="old") for i in range(4)] + [submission("x", check_scores="own")]
    releases = Releases(class_of, ())
    assert flagged(releases, "s0", CHECK) == [False] and flagged(releases, "x", CHECK) == [True]


@pytest.mark.parametrize("count", [2, 9])
def test_few_with_the_same_change_are_flagged(count):
    """Two of two, and nine of a hundred: it may be a ring of copies."""
    others = [submission(f"o{i}") for i in range(91 if count == 9 else 0)]
    releases = Releases([*(submission(f"s{i}", check_scores="same") for i in range(count)), *others], ())
    assert flagged(releases, "s0", CHECK) == [True]


def test_a_deleted_check_stays_a_flag():
    assert flagged(Releases([submission("a")], {("check-scores", "old")}), "a", DELETED) == [True]


def test_the_class_has_one_line():
    releases = Releases([submission(f"s{i}", check_scores="old") for i in range(10)], {("check-scores", "old")})
    results = [replace(ADA, submission=f"s{i}", notes=releases.notes(f"s{i}", [CHECK])) for i in range(10)]
    words = "in 10 submissions the cell `check-scores` is that of an earlier release: the current one was run"
    assert earlier_releases([*results, BROKEN]) == [("scores", words)]
    assert review_csv(results).splitlines()[1:] == [f",scores,earlier release,{words}"]
