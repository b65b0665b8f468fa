"""One person, one name; and rosters, whoever wrote them."""

import os
import threading
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txgrade.records import people
from txgrade.records.people import (
    Roster,
    RosterError,
    file_name,
    lms_of,
    numbers_in,
    person,
    read_name,
    read_roster,
    safe_name,
    unlike_a_file,
)

SAME = [
    ("ada", "Ada", "ADA", " ada", "ada ", "ada."),
    ("Zoë", unicodedata.normalize("NFD", "Zoë"), "ZOË", "zoe\u0308"),
    ("Ada Lovelace", "ada  lovelace", "ADA\u00a0LOVELACE", "ａｄａ ｌｏｖｅｌａｃｅ"),
    ("straße", "STRASSE", "stra\u1e9ee"),
    ("ﬁona", "Fiona"),
]


@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_one_person_however_it_is_written(names):
    assert len({person(name) for name in names}) == 1


@pytest.mark.parametrize(
    "one, other",
    [("ada", "adam"), ("Zoë", "Zoe"), ("ada-2", "ada"), ("inf_2026_17", "inf_2026_18"), ("team_1_2", "group_1_2")],
)
def test_two_people(one, other):
    assert person(one) != person(other)


@given(st.text(max_size=100))
def test_folding_once_is_enough(name):
    assert person(person(name)) == person(name)
    assert person(safe_name(name)) == person(name) == person(f"  {name} ")
    assert person(unicodedata.normalize("NFD", name)) == person(name)


@given(st.text(st.characters(categories=["L", "M", "N"]), max_size=5))
def test_all_forms_are_one(name):
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert person(unicodedata.normalize(form, name)) == person(name)


# Names that Canvas and Moodle give to files

DOWNLOAD = [
    "lovelaceada_1001_99887_03_attention",
    "lovelaceada_LATE_1001_99888_03_attention-2",
    "rosebob_1002_99889_exercise_03_attention",
    "smithjohn_1003_99890_x",
    "smithjohn_1004_99891_x",  # two people of one name
]
MOODLES = [
    "Ada Lovelace_501_assignsubmission_file_",
    "名前_502_assignsubmission_file_",
    "A-Bob_503_assignsubmission_file_x",
]


def test_a_download_from_canvas():
    assert numbers_in(DOWNLOAD) == dict(zip(DOWNLOAD, ["1001", "1001", "1002", "1003", "1004"], strict=True))
    assert len(numbers_in([*DOWNLOAD, "by hand"])) == 5  # nearly all
    assert numbers_in([*DOWNLOAD, "by hand", "another"]) == {}
    assert numbers_in(["x_01001_5_y"]) == {"x_01001_5_y": "1001"}
    assert numbers_in([]) == {}


def test_a_download_from_moodle():
    assert list(numbers_in(sorted(MOODLES)).values()) and set(numbers_in(MOODLES).values()) == {"501", "502", "503"}
    assert set(numbers_in(MOODLES, folders=set(MOODLES)).values()) == {"501", "502", "503"}
    assert numbers_in([*MOODLES, "by hand", "another"]) == {}


@pytest.mark.parametrize(
    "names",
    [
        ["ada_2026_03_attention", "bob_2026_03_attention"],  # one number for several learners
        ["ada_1001_03_attention", "bob_1002_03_attention"],  # one file's number for several
        ["ada_2026_1001_attention", "bob_2026_1002_attention", "ada_2026_1003_attention"],
        ["inf_2026_17", "inf_2026_18"],
        ["ada", "bob", "y_102_5_exercise"],
        ["ada", "bob", "y_102_assignsubmission_file_"],
        ["x_１００１_5_y"],
    ],
)
def test_a_class_that_names_its_files_so(names):
    assert numbers_in(names) == {}


def test_canvas_gives_no_folders():
    assert numbers_in(DOWNLOAD, folders=DOWNLOAD) == {}


def test_what_learners_call_their_file_says_nothing():
    """Moodle puts it behind the learner's number, where it may look like another one's."""
    name = "Mallory Ray_503_assignsubmission_file_z_502_assignsubmission_file_"
    assert numbers_in([name]) == {name: "503"}
    name = "raymallory_1003_99887_9_1001_5_x"
    assert numbers_in([name]) == {name: "1003"}


PARTS = st.sampled_from(
    ["ada", "_", "LATE_", "12", "_5_", "_assignsubmission_", "file_", "x", "-1", " ", "ë", "＿", "."]
)


@given(st.lists(PARTS, max_size=12).map("".join) | st.text(max_size=30))
def test_what_is_made_of_a_name_is_never_read_as_a_file_s(name):
    assert not lms_of(f"{unlike_a_file(name)}-1")


def test_names_are_utf_8_in_every_locale():
    for name in ("Zoë", "名前", "ada", "half \udcff"):
        assert read_name(name) == file_name(name) == name  # here; see test_locale.py


CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
    Points Possible,,,,
"Lovelace, Ada",1001,S1,ada@example.edu,A
"Rose, Bob",1002,S2,bob,A
"Student, Test",1003,,,A
"""
MOODLE = """Identifier,Full name,Email address,Grade
Participant 501,Ada Lovelace,ada@example.edu,
Participant 502,Bob Rose,bob@example.edu,
"""
OWN = """Login,Name,Team
ada,Ada Lovelace,red
bob,Bob Rose,blue
"""


@pytest.mark.parametrize("text", [CANVAS, MOODLE, OWN, "\ufeff" + OWN])
def test_rosters(tmp_path, text):
    path = tmp_path / "roster.csv"
    path.write_text(text, encoding="utf-8")
    roster = read_roster(path)
    assert len(roster.people) == 2
    for names in (("ada", "ADA", "ada lovelace"), ("bob", "Bob  Rose")):
        assert len({roster.find(name)[0].row for name in names}) == 1
    assert roster.find("mallory") == []
    assert [each.casefold() for each in roster.missing([("Ada Lovelace", "")])] in (["rose, bob"], ["bob rose"])


def test_a_name_goes_before_a_number():
    roster = Roster.of(["Ada", "1001"], ["x_1001_5_y"])
    assert [each.name for each in roster.find("x_1001_5_y", "1001")] == ["x_1001_5_y"]
    assert [each.name for each in roster.find("z_1001_5_y", "1001")] == ["Ada"]
    assert roster.find("z_1001_5_y") == []  # what is only called so
    assert roster.missing([("z_1001_5_y", "1001")]) == ["x_1001_5_y"]


@pytest.mark.parametrize(
    "content, words",
    [(b"", "no column `name`"), (b"a,b\n", "no column `name`"), (b"\xff\xfe", "UTF-8"), (b'name\n"x', "not a CSV")],
)
def test_what_is_no_roster(tmp_path, content, words):
    (tmp_path / "roster.csv").write_bytes(content)
    with pytest.raises(RosterError, match=words):
        read_roster(tmp_path / "roster.csv")


def test_a_roster_may_come_through_a_pipe_and_has_a_largest_size(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("name\nada\n",))
    writer.start()
    assert [each.name for each in read_roster(pipe).people] == ["ada"]
    writer.join()
    monkeypatch.setattr(people, "MAX_ROSTER", 1000)
    with pytest.raises(RosterError, match="larger than"):
        read_roster("/dev/zero")
