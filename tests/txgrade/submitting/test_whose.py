"""Whose a submission is: names that are one, accounts that are not the name's, and a roster."""

import os
import unicodedata

import pytest

from txgrade.records.people import Roster
from txgrade.submitting import finding
from txgrade.submitting.finding import find_submissions

LOGINS = {61001: "ada", 61002: "mallory", 61003: "bob", 61004: "zoe"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Make a learner's folder with a notebook in it, belonging to somebody."""
    monkeypatch.setattr(finding, "account", lambda uid: LOGINS.get(uid, f"uid {uid}"))
    inbox = tmp_path / "inbox"
    inbox.mkdir()

    def put(name, uid=None, inner=None):
        folder = inbox / name
        folder.mkdir()
        (folder / "03_sample.ipynb").write_text("{}")
        if uid is not None:
            os.chown(folder, uid, uid)
            os.chown(folder / "03_sample.ipynb", uid if inner is None else inner, uid)
        return inbox

    return put


def found(inbox, roster=None):
    """For each submission, by its folder's name: its own, and what is noted, with `!` where somebody has to look."""
    return {
        each.file_name: (each.name, {note.kind + "!" * note.review for note in each.notes})
        for each in find_submissions(inbox, "03_sample", roster)
    }


PAIRS = [("ada", "Ada"), ("bob", " bob"), ("Zoë", unicodedata.normalize("NFD", "Zoë")), ("ada", "ada "), ("ﬁ", "fi")]


@pytest.mark.parametrize("names", PAIRS)
def test_of_two_that_are_one_nobody_has_the_name(put, names):
    """Whoever makes the other folder can't give its grade to the name, nor take the name's grade away unseen."""
    for name in names:
        inbox = put(name)
    both = found(inbox)
    given = [both[name][0] for name in names]
    assert len({name.casefold() for name in given}) == 2
    assert not {name.casefold() for name in given} & {name.strip().casefold() for name in names}
    assert all(notes == {"same person!"} for _, notes in both.values())


@as_root
@pytest.mark.parametrize("names", PAIRS[:2])
def test_whose_account_it_is_has_the_name(put, names):
    own, other = names
    put(own, uid={"ada": 61001, "bob": 61003}[own])
    both = found(put(other, uid=61002))
    assert both[own] == (own, set())
    assert both[other][0] == f"{own}-1" and both[other][1] == {"same person!", "owner!"}


@as_root
def test_names_of_accounts(put):
    """Where names are login names, another one is seen; where learners give full names, they are not bothered."""
    put("ada", uid=61001)
    put("bob", uid=61002)
    assert found(put("zoe", uid=61004)) == {
        "ada": ("ada", set()),
        "bob": ("bob", {"owner!"}),
        "zoe": ("zoe", set()),
    }


@as_root
def test_full_names_need_no_look(put):
    put("Ada Lovelace", uid=61001)
    assert {notes for _, (_, notes) in found(put("Bob Rose", uid=61003)).items() if not notes} == set()
    assert all(notes == {"owner"} for _, notes in found(put("Zoë", uid=61004)).values())


@as_root
def test_one_account_for_several_people(put):
    put("Ada Lovelace", uid=61001)
    put("Bob Rose", uid=61002)
    assert found(put("Mallory Ray", uid=61002)) == {
        "Ada Lovelace": ("Ada Lovelace", {"owner"}),
        "Bob Rose": ("Bob Rose", {"owner!"}),
        "Mallory Ray": ("Mallory Ray", {"owner!"}),
    }


@as_root
def test_containers_where_all_are_one_user_say_nothing(put):
    for name in ("ada", "bob"):
        inbox = put(name, uid=1000)
    assert all(notes == set() for _, notes in found(inbox).values())


@as_root
def test_a_notebook_in_somebody_else_s_folder(put):
    put("ada", uid=61001, inner=61002)
    assert found(put("bob", uid=61003))["ada"] == ("ada", {"owner!"})


ROSTER = Roster.of(["Lovelace, Ada", "ada", "1001"], ["Rose, Bob", "bob", "1002"], ["Ray, Mallory", "mallory", "1003"])


def missing(inbox):
    return ROSTER.missing((each.file_name, each.number) for each in find_submissions(inbox, "03_sample", ROSTER))


def test_a_roster_says_who_is_one(put):
    """Ada by her login, and by her full name: two submissions of one person."""
    put("ada")
    put("Ada Lovelace")
    inbox = put("nobody")
    assert found(inbox, ROSTER) == {
        "Ada Lovelace": ("Ada Lovelace-1", {"same person!"}),
        "ada": ("Ada Lovelace-2", {"same person!"}),
        "nobody": ("nobody", {"roster!"}),
    }
    assert missing(inbox) == ["Bob Rose", "Mallory Ray"]


def test_what_is_only_named_like_a_file_of_canvas(put):
    """Somebody's hand-in with Ada's or Bob's number in its name, where learners hand in: it is nobody's."""
    for name in ("ada", "x_1001_77_y"):
        put(name)
    inbox = put("x_1002_78_y")
    assert found(inbox, ROSTER) == {
        "ada": ("ada", set()),
        "x_1001_77_y": ("x_1001_77_y", {"roster!"}),
        "x_1002_78_y": ("x_1002_78_y", {"roster!"}),
    }
    assert missing(inbox) == ["Bob Rose", "Mallory Ray"]


def test_nobody_is_a_row_of_the_roster_by_its_number(put):
    put("ada")
    assert found(put("row 0"), ROSTER) == {"ada": ("ada", set()), "row 0": ("row 0", {"roster!"})}


@as_root
def test_a_roster_says_whose_account_it_is(put):
    put("Ada Lovelace", uid=61001)
    put("Bob Rose", uid=61002)
    assert found(put("x_1003_1_y", uid=61002), ROSTER) == {
        "Ada Lovelace": ("Ada Lovelace", set()),
        "Bob Rose": ("Bob Rose", {"owner!"}),
        "x_1003_1_y": ("x_1003_1_y", {"owner!", "roster!"}),  # it is only named like a file of Canvas'
    }
