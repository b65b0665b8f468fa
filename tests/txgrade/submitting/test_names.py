"""Names of every kind in one inbox: each submission gets exactly one of its own, soon, however they are made."""

import contextlib
import signal
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txgrade.records.people import Roster, lms_of, person, safe_name
from txgrade.submitting.finding import ONLINE_TEXT, find_submissions

CANVAS = ["lovelaceada_12345_678901_exercise_03_attention", "lovelaceada_12345_678902_exercise_03_attention-1"]
LATE = ["lovelaceada_LATE_12345_678901_exercise_03_attention", "rosebob_12346_678903_exercise_03_attention"]
MOODLE = [f"Ada Lovelace_502_assignsubmission_file_{each}" for each in ("a", "b")]
CLASS = ["ada_2026_03_attention", "bob_2026_03_attention", "zoë_2026_03_attention"]


@contextlib.contextmanager
def at_most(seconds):
    """Fail, rather than wait for ever."""

    def stop(number, frame):
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(inbox, *names, folder=False):
    """A notebook of each name."""
    for name in names:
        path = inbox / name / "03_sample.ipynb" if folder else inbox / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    return inbox


def found(inbox, roster=None):
    with at_most(10):
        return {each.file_name: each for each in find_submissions(inbox, "03_sample", roster)}


def kinds(each):
    return {note.kind + "!" * note.review for note in each.notes}


# What once never ended


@pytest.mark.parametrize("names", [CANVAS, [CANVAS[0], *LATE], MOODLE, CLASS, [*CLASS, CANVAS[0]]])
def test_it_ends(tmp_path, names):
    everybody = found(put(tmp_path, *names))
    assert set(everybody) == set(names)
    assert len({each.name for each in everybody.values()}) == len(names)


def test_two_files_of_one_learner_s_are_one_person_s(tmp_path):
    """Neither is lost, and a person is told what to do."""
    everybody = found(put(tmp_path, *CANVAS, LATE[1]))
    assert [everybody[name].name for name in CANVAS] == ["lovelaceada-12345-1", "lovelaceada-12345-2"]
    for name, other in (CANVAS, CANVAS[::-1]):
        [note] = everybody[name].notes
        assert note.kind == "same person" and note.review
        assert (
            note.text
            == f"the same learner's (number 12345) as `{other}.ipynb`: none of them counts until only one is left"
        )
    bob = everybody[LATE[1]]
    assert (bob.name, bob.notes, bob.number) == (LATE[1], (), "12346")
    everybody = found(put(tmp_path, LATE[0]))
    assert [kinds(everybody[name]) for name in (*CANVAS, LATE[0])] == [{"same person!"}] * 3


def test_a_class_that_calls_its_files_so(tmp_path):
    everybody = found(put(tmp_path, *CLASS))
    assert {name: (each.name, each.notes, each.number) for name, each in everybody.items()} == {
        name: (name, (), "") for name in CLASS
    }


def test_a_download_from_moodle(tmp_path):
    """A folder a learner; of one who typed a text online, too, it is the file that counts."""
    folders = ["Ada Lovelace_502_assignsubmission_file_", "Bob Rose_503_assignsubmission_file_"]
    put(tmp_path, *folders, folder=True)
    for number in (502, 504):
        (tmp_path / f"{'Ada Lovelace' if number == 502 else 'Cy'}_{number}{ONLINE_TEXT}").mkdir()
    everybody = found(tmp_path)
    assert {name: (each.number, each.problem, kinds(each)) for name, each in everybody.items()} == {
        folders[0]: ("502", None, set()),
        folders[1]: ("503", None, set()),
        f"Cy_504{ONLINE_TEXT}": ("504", "no notebook", set()),
    }


def test_long_names_keep_their_number(tmp_path):
    """Two people whose names are the same as far as a file's name has room."""
    names = [f"{'ก' * 34}_{number}_assignsubmission_file_x" for number in (501, 502)]
    everybody = found(put(tmp_path, *names))
    assert [kinds(everybody[name]) for name in names] == [set(), set()]
    assert all(f"_{everybody[name].number}_assignsubmission_" in everybody[name].name for name in names)
    assert len({each.name for each in everybody.values()}) == 2


def test_names_that_grow_when_they_are_compared(tmp_path):
    """One character of some scripts is eighteen once it is compared: the number behind it needs room."""
    names = ["\ufdfa" * 33, "\ufdfa" * 34, "\ufdfa" * 35, "a" + "\u2026" * 33, "a" + "\u2026" * 34]
    everybody = found(put(tmp_path, *names))
    assert len({person(each.name) for each in everybody.values()}) == len(names)


def test_a_folder_that_is_called_like_a_receipt_is_graded(tmp_path):
    assert set(found(put(tmp_path, "ada.receipt.json", folder=True))) == {"ada.receipt.json"}


# Any names

PEOPLE = st.sampled_from(
    ["ada", "Ada", " ada", "zoë", "Zoe\u0308", "ﬁ", "fi", "名前", "\ufdfa" * 33, "a" * 120, "row 0", "0", "12", "ada-1"]
    + ["x_1_2_", "a_b", "ada.receipt.json", "-", "ada…", "ＡＤＡ", "y＿12＿5＿x"]
) | st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
NUMBERS = st.sampled_from(["0", "1", "12", "012", "2026", "12345"])
CANVAS_NAMES = st.builds("{}_{}{}_{}_{}".format, PEOPLE, st.sampled_from(["", "LATE_"]), NUMBERS, NUMBERS, PEOPLE)
MOODLE_NAMES = st.builds(
    "{}_{}_assignsubmission_{}_{}".format,
    PEOPLE,
    NUMBERS,
    st.sampled_from(["file", "onlinetext"]),
    PEOPLE | st.just(""),
)
CLASS_NAMES = st.builds("{}_2026_03_attention".format, PEOPLE)
ANY_NAMES = PEOPLE | CANVAS_NAMES | MOODLE_NAMES | CLASS_NAMES
INBOXES = st.one_of(
    *(st.lists(st.tuples(names, st.sampled_from(["file", "folder", "empty", "link"])), max_size=12)
      for names in (ANY_NAMES, CANVAS_NAMES, MOODLE_NAMES, CLASS_NAMES, PEOPLE))
)  # fmt: skip
ROSTERS = st.lists(st.lists(PEOPLE | NUMBERS, min_size=1, max_size=3), max_size=4)


@settings(max_examples=300, deadline=None)
@given(INBOXES, ROSTERS)
def test_every_submission_has_one_name_of_its_own(names, people):
    roster = Roster.of(*people) if people else None
    with tempfile.TemporaryDirectory() as folder:
        inbox, paths = Path(folder), set()
        for name, what in names:
            path = inbox / (name if what in ("folder", "empty") else f"{name}.ipynb")
            if name.startswith(".") or len(path.name.encode()) > 250 or path.exists() or path.is_symlink():
                continue
            if what == "link":
                path.symlink_to("nowhere")
            elif what == "file":
                path.write_text("{}")
            else:
                path.mkdir()
                if what == "folder":
                    path = path / "03_sample.ipynb"
                    path.write_text("{}")
            paths.add(path)
        with at_most(5):
            submissions = find_submissions(inbox, "03_sample", roster)
        left = paths - {each.path for each in submissions}
        assert all(path.name.endswith(ONLINE_TEXT) and path.is_dir() for path in left)
        assert len(submissions) == len(paths) - len(left)
    assert len({person(each.name) for each in submissions}) == len(submissions)
    for each in submissions:
        assert safe_name(each.name) == each.name
        if {note.kind for note in each.notes} >= {"same person"} and each.name != safe_name(each.file_name):
            assert not lms_of(each.name), "a name made here is read as a file's"
        assert unicodedata.is_normalized("NFC", each.name)


@pytest.mark.parametrize(
    "name_of",
    [
        lambda number: "a" * 120 + str(number),
        lambda number: f"x_12_{number}_" + "a" * 120,
        lambda number: f"{'a' * 91}{chr(0xC0 + number % 20)}{number % 2000:04}" + "b" * 60 + str(number),
        lambda number: f"{'a' * 93}{'aA'[number % 2]}{number // 2:05}",
        lambda number: f"ada-{number}" + " " * (number % 2),
    ],
)
def test_four_thousand_names(tmp_path, name_of):
    """Of one person, or of 2,000 whose names hardly differ, some of them with numbers already."""
    for number in range(4000):
        (tmp_path / name_of(number)).mkdir()
    with at_most(30):
        submissions = find_submissions(tmp_path)
    assert len({person(each.name) for each in submissions}) == 4000
