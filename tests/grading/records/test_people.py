"""One person, one name; and rosters, whoever wrote them."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlib.grading.records.people import Roster, RosterError, person, read_roster, safe_name

SAME = [
    ("ada", "Ada", "ADA", " ada", "ada ", "ada."),
    ("Zoë", unicodedata.normalize("NFD", "Zoë"), "ZOË", "zoe\u0308"),
    ("Ada Lovelace", "ada  lovelace", "ADA\u00a0LOVELACE", "ａｄａ ｌｏｖｅｌａｃｅ"),
    ("straße", "STRASSE", "stra\u1e9ee"),
    ("ﬁona", "Fiona"),
    ("lovelaceada_1001_99887_03_attention", "lovelaceada_LATE_1001_99888_03_attention-2", "x_01001_5_y", "1001"),
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
    assert [each.casefold() for each in roster.missing(["Ada Lovelace"])] in (["rose, bob"], ["bob rose"])


def test_a_name_goes_before_a_number():
    roster = Roster.of(["Ada", "1001"], ["x_1001_5_y"])
    assert [each.name for each in roster.find("x_1001_5_y")] == ["x_1001_5_y"]
    assert [each.name for each in roster.find("z_1001_5_y")] == ["Ada"]


@pytest.mark.parametrize(
    "content, words",
    [(b"", "no column `name`"), (b"a,b\n", "no column `name`"), (b"\xff\xfe", "UTF-8"), (b'name\n"x', "not a CSV")],
)
def test_what_is_no_roster(tmp_path, content, words):
    (tmp_path / "roster.csv").write_bytes(content)
    with pytest.raises(RosterError, match=words):
        read_roster(tmp_path / "roster.csv")
