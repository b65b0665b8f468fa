"""From the download of an LMS to an inbox: whose each notebook is, and when it was submitted."""

import json
import stat
import zipfile
from dataclasses import replace

import lms
import pytest
from lms import ADA, CLASS, JOERG, NAMAE, OTHER_SMITH, SMITH, ZOFIA, Upload

from txgrade.records.people import read_roster
from txgrade.submitting import archive, collect
from txgrade.submitting.archive import ArchiveError
from txgrade.submitting.collect import CollectError, describe
from txgrade.submitting.finding import find_submissions
from txgrade.submitting.notebook import MAX_BYTES

SMITHS = ("John Smith (1005)", "John Smith (1006)")
NAMES = ("Ada Lovelace", "Jörg Müller", "Žofia Nováková", "太郎 名前", *SMITHS)


@pytest.fixture
def gather(tmp_path):
    """Collect uploads of one system; returns what was collected, and the inbox."""

    def run(system, uploads, roster=None, **options):
        path = tmp_path / "submissions.zip"
        if uploads is not None:
            makers = {"canvas": lms.canvas_zip, "moodle": lms.moodle_zip, "gradescope": lms.gradescope_zip}
            makers[system](path, uploads, **options.pop("form", {}))
        texts = {"canvas": lms.canvas_gradebook, "moodle": lms.moodle_worksheet, "gradescope": lms.gradescope_roster}
        (tmp_path / "people.csv").write_text(roster or texts[system](), encoding="utf-8")
        collected = collect.collect(system, path, tmp_path / "inbox", read_roster(tmp_path / "people.csv"), **options)
        return collected, tmp_path / "inbox"

    return run


def contents(inbox):
    """The bytes of each learner's notebooks."""
    return {
        folder.name: {path.name: path.read_bytes() for path in folder.glob("*.ipynb")}
        for folder in sorted(inbox.iterdir())
    }


def records(inbox):
    return {path.parent.name: json.loads(path.read_text()) for path in inbox.glob("*/*.collected.json")}


def of_class(**changes):
    return [replace(Upload(one, one.email.encode()), **changes) for one in CLASS]


@pytest.mark.parametrize(
    ("system", "form"),
    [("canvas", {}), ("moodle", {"folders": True}), ("moodle", {"folders": False}), ("gradescope", {})],
)
def test_everybody_has_a_folder_by_the_name_on_the_roster(gather, system, form):
    """Also with umlauts, in other scripts, and two people of one name."""
    collected, inbox = gather(system, of_class(), form=form)
    names = list(NAMES)
    if system == "moodle":
        names[4:] = ["John Smith (505)", "John Smith (506)"]
    elif system == "gradescope":
        names[4:] = ["John Smith (js1@example.edu)", "John Smith (js2@example.edu)"]
    assert contents(inbox) == {
        name: {"exercise_03_sample.ipynb": one.email.encode()} for name, one in sorted(zip(names, CLASS, strict=True))
    }
    assert (collected.learners, collected.notebooks, collected.left_out, collected.missing) == (6, 6, [], [])
    found = find_submissions(inbox, "03_sample", read_roster(inbox.parent / "people.csv"))
    assert {file.learner for file in found} == set(names) and not any(file.notes or file.problem for file in found)


# Time


def test_canvas_says_late_but_not_when(gather):
    collected, inbox = gather("canvas", [Upload(ADA, b"a", late=True), Upload(JOERG, b"j")])
    assert records(inbox)["Ada Lovelace"] == {
        "system": "canvas",
        "origin": "lovelaceada_LATE_1001_99001_exercise_03_sample.ipynb",
        "submitted": None,
        "late": True,
        "sha256": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
    }
    assert not records(inbox)["Jörg Müller"]["late"]
    line, remarks = describe(collected, inbox)
    assert "1 on time, 1 marked late without a time" in line
    assert any("by Canvas' own deadline" in remark for remark in remarks)
    assert "marked late, so collect with --times to take points off (1): Ada Lovelace" in remarks
    assert f"not handed in (4): {'; '.join(NAMES[2:])}" in remarks
    collected, inbox = gather("canvas", [Upload(ZOFIA, b"z")])
    assert collected.missing == [NAMES[3], *SMITHS], "earlier ones are in the inbox"
    collected, _ = gather("canvas", [Upload(ZOFIA, b"z", "exercise_04_other.ipynb")])
    assert len(collected.missing) == 5, "but not with another exercise"


def test_a_table_of_times(gather, tmp_path):
    times = tmp_path / "times.csv"
    times.write_text("email,submitted\nada@example.edu,2026-12-01 23:58\njm@example.edu,2026-12-02T10:00:00Z\n")
    _, inbox = gather("canvas", of_class(), times=times, timezone="Europe/Zurich")
    told = {name: record["submitted"] for name, record in records(inbox).items()}
    assert told["Ada Lovelace"] == "2026-12-01T22:58:00+00:00" and told["Jörg Müller"] == "2026-12-02T10:00:00+00:00"
    assert told["Žofia Nováková"] is None
    _, inbox = gather("canvas", of_class())
    assert {name: record["submitted"] for name, record in records(inbox).items()} == told, "what was known stays known"
    for text, words in (
        ("email,submitted\nada@example.edu,2026-12-01 23:58\n", "line 2: the time .* names no zone"),
        ("email,submitted\nada@example.edu,soon\n", "line 2: 'soon' is not a time"),
        ("email,submitted\nmallory,2026-12-01T10:00Z\n", "line 2: 'mallory' is not on the roster"),
        ("email\nada\n", "no table of times"),
    ):
        times.write_text(text)
        with pytest.raises(CollectError, match=words):
            gather("canvas", of_class(), times=times)


@pytest.mark.parametrize("words", ["Tuesday, 1 December 2026, 11:58\u202fPM", "Tuesday, December 1, 2026, 11:58 PM"])
def test_moodle_s_worksheet_says_when_in_its_reader_s_zone(gather, words):
    roster = lms.moodle_worksheet(times={ADA: words, JOERG: "mardi 1 décembre"})
    collected, inbox = gather("moodle", of_class(), roster, timezone="Europe/Zurich")
    assert records(inbox)["Ada Lovelace"]["submitted"] == "2026-12-01T22:58:00+00:00"
    assert collected.times == 1 and any("Moodle's worksheet in English" in remark for remark in collected.remarks)
    before = records(inbox)
    with pytest.raises(CollectError, match="names no zone: say --timezone.*; nothing was collected"):
        gather("moodle", [replace(upload, data=b"newer") for upload in of_class()], roster)
    assert records(inbox) == before


@pytest.mark.parametrize(("zone", "hour"), [("Z", "12"), ("-07:00", "19"), ("+01:00", "11")])
def test_gradescope_says_when(gather, zone, hour):
    _, inbox = gather("gradescope", of_class(), form={"zone": zone})
    assert {record["submitted"] for record in records(inbox).values()} == {f"2026-12-01T{hour}:00:00+00:00"}


# Several files, several times


def test_of_what_was_submitted_again_the_newest_counts(gather):
    uploads = [
        Upload(ADA, b"second", "exercise_03_sample-1.ipynb"),
        Upload(ADA, b"first", number=98_000),
        Upload(JOERG, b"draft", "Untitled.ipynb"),
        Upload(JOERG, b"done"),
        Upload(ZOFIA, b"one", "task-1.ipynb"),
        Upload(ZOFIA, b"two", "task-2.ipynb"),
    ]
    collected, inbox = gather("canvas", uploads)
    assert contents(inbox) == {
        "Ada Lovelace": {"exercise_03_sample.ipynb": b"second"},
        "Jörg Müller": {"exercise_03_sample.ipynb": b"done", "Untitled.ipynb": b"draft"},
        "Žofia Nováková": {"task-1.ipynb": b"one", "task-2.ipynb": b"two"},
    }
    (kept,) = (inbox / "Ada Lovelace" / ".versions").iterdir()
    assert kept.read_bytes() == b"first"
    counts = [remark.rpartition(": ")[2] for remark in collected.remarks if "2 notebooks" in remark]
    assert counts == [
        "exercise_03_sample.ipynb counts; delete it if another should",
        "none is named like an exercise, so delete those that don't count",
    ]
    problems = {file.name: file.problem for file in find_submissions(inbox, "03_sample")}
    assert problems == {"Ada Lovelace": None, "Jörg Müller": None, "Žofia Nováková": "several notebooks"}
    gather("canvas", [Upload(ADA, b"third", "exercise_03_sample-2.ipynb")])
    assert contents(inbox)["Ada Lovelace"] == {"exercise_03_sample.ipynb": b"third"}
    assert {path.read_bytes() for path in (inbox / "Ada Lovelace" / ".versions").iterdir()} == {b"first", b"second"}


def test_a_learner_who_submitted_twice_to_gradescope(gather):
    """Alone, and before that in a group."""
    uploads = [Upload(ADA, b"ours", members=(ADA, JOERG)), Upload(ADA, b"mine", "mine.ipynb")]
    collected, inbox = gather("gradescope", uploads)
    assert contents(inbox) == {
        "Ada Lovelace": {"mine.ipynb": b"mine"},
        "Jörg Müller": {"exercise_03_sample.ipynb": b"ours"},
    }
    assert any("mine.ipynb counts, not the earlier" in remark for remark in collected.remarks)


def test_what_a_group_submitted_is_each_member_s(gather):
    teams = {ADA: "Team_1", JOERG: "Team_1"}
    roster = lms.moodle_worksheet(teams=teams)
    upload = Upload(ADA, b"ours", team=("Team_1", ZOFIA.participant))  # a team's number may be somebody's
    collected, inbox = gather("moodle", [upload, Upload(NAMAE, b"mine")], roster)
    assert {name: list(files.values()) for name, files in contents(inbox).items()} == {
        "Ada Lovelace": [b"ours"],
        "Jörg Müller": [b"ours"],
        "太郎 名前": [b"mine"],
    }
    assert "the group Team 1 is Ada Lovelace, Jörg Müller" in collected.remarks
    people = "name,id,group\nAda Lovelace,1001,Team_1\nJörg Müller,1002,team_1\nBo,1009,\n"
    _, inbox = gather("canvas", [replace(upload, data=b"in canvas")], people)
    assert [contents(inbox)[name]["exercise_03_sample.ipynb"] for name in NAMES[:2]] == [b"in canvas"] * 2


def test_files_in_folders_of_a_submission(gather):
    uploads = [Upload(ADA, b"1", folder="src"), Upload(ADA, b"2", "x.ipynb", folder="src/.ipynb_checkpoints")]
    _, inbox = gather("moodle", [*uploads, Upload(JOERG, b"3")])
    assert contents(inbox)["Ada Lovelace"] == {"src_exercise_03_sample.ipynb": b"1"}


# What is left out, and bad input


def link(archive):
    info = zipfile.ZipInfo("lovelaceada_1001_99500_exercise.ipynb")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(info, "/etc/passwd")


def test_everything_that_is_left_out_is_listed(gather):
    def more(archive):
        link(archive)
        archive.writestr("../lovelaceada_1001_99501_x.ipynb", b"out")
        archive.writestr("/lovelaceada_1001_99502_x.ipynb", b"out")
        archive.writestr("C:\\lovelaceada_1001_99503_x.ipynb", b"out")
        archive.writestr("müllerjörg_1002_text.html", b"typed")
        archive.writestr("notes.txt", b"")
        archive.writestr("__MACOSX/._lovelaceada_1001_99504_x.ipynb", b"")

    uploads = [*of_class(), Upload(ADA, b"", "all.zip"), Upload(SMITH, b"", "photo.jpg")]
    collected, inbox = gather("canvas", uploads, form={"more": more})
    why = {path: words for path, words in collected.left_out}
    assert set(why.values()) == {
        "a link",
        "its path leads out of the zip file",
        "it is no notebook",
        "it is not named as Canvas names files",
        "it is a packed file: ask for the notebook itself",
    }
    assert len(why) == 8 and not any("MACOSX" in path for path in why)
    assert {path.name for path in inbox.parent.rglob("*.ipynb")} == {"exercise_03_sample.ipynb"}
    assert sum("left out: " in remark for remark in describe(collected, inbox)[1]) == 8
    assert all(path.read_bytes() != b"out" for path in inbox.rglob("*") if path.is_file())


def test_a_learner_without_a_notebook_is_not_lost(gather):
    collected, inbox = gather("canvas", [*of_class()[1:], Upload(ADA, b"%PDF", "answers.pdf")])
    assert (collected.learners, collected.notebooks, collected.missing) == (5, 5, [])
    assert "Ada Lovelace: no notebook in what was handed in" in collected.remarks
    problems = {file.name: file.problem for file in find_submissions(inbox, "03_sample")}
    assert problems["Ada Lovelace"] == "no notebook"


def test_damaged_encrypted_and_huge_files(gather, tmp_path):
    huge = Upload(JOERG, b"0" * (MAX_BYTES + 50))
    path = lms.canvas_zip(tmp_path / "submissions.zip", [*of_class()[2:], Upload(ADA, b"%" * 500), huge])
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as opened:
        ada = next(info for info in opened.infolist() if "1001" in info.filename)
    data[ada.header_offset + 30 + len(ada.filename) + 2] ^= 0xFF
    path.write_bytes(data)
    collected, inbox = gather("canvas", None)
    assert [why for _, why in collected.left_out] == ["it is damaged, or compressed in an unknown way"]
    assert len(contents(inbox)["Jörg Müller"]["exercise_03_sample.ipynb"]) == MAX_BYTES + 1, "graded as too large"
    assert any("larger than 10 MB" in remark for remark in collected.remarks)
    central = data.rindex(b"PK\x01\x02", 0, data.rindex(b"smithjohn_1005"))
    data[central + 8] |= 1
    path.write_bytes(data)
    assert "it is encrypted" in {why for _, why in gather("canvas", None)[0].left_out}


def test_a_bomb_is_refused(gather, monkeypatch):
    monkeypatch.setattr(archive, "MAX_TOTAL", 5000)
    with pytest.raises(ArchiveError, match="holds more than"):
        gather("canvas", of_class(data=b"0" * 1000))
    monkeypatch.setattr(archive, "MAX_ENTRIES", 5)
    with pytest.raises(ArchiveError, match="holds 6 files, more than 5"):
        gather("canvas", of_class())


@pytest.mark.parametrize("system", ["canvas", "moodle", "gradescope"])
def test_a_zip_of_another_system(gather, system, tmp_path):
    other = {"canvas": "moodle", "moodle": "gradescope", "gradescope": "canvas"}[system]
    gather(other, of_class())
    with pytest.raises(ArchiveError, match=f"is a download from {other.title()}: txgrade collect {other}"):
        gather(system, None)
    with zipfile.ZipFile(tmp_path / "submissions.zip", "w") as opened:
        opened.writestr("holiday/beach.jpg", b"")
        opened.writestr("holiday/lovelaceada_1001_99001_x.ipynb", b"")
        opened.writestr("ada.ipynb", b"")
    with pytest.raises(ArchiveError, match=f"no download from {system.title()}"):
        gather(system, None)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no file at"), (b"PK\x03\x04", "not a zip file"), ("", "a folder")]
)
def test_what_is_no_zip(gather, tmp_path, content, words):
    path = tmp_path / "submissions.zip"
    if content == "":
        path.mkdir()
    elif content:
        path.write_bytes(content)
    with pytest.raises(ArchiveError, match=words):
        gather("canvas", None)
    with pytest.raises(CollectError, match="choose canvas, moodle, gradescope"):
        gather("blackboard", None, "name\nada\n")


@pytest.mark.parametrize("text", ["- a\n", "a: b\n", ": : :\n\t", "[" * 3000, "submission_1:\n  :submitters: 3\n"])
def test_metadata_that_gradescope_did_not_write(gather, tmp_path, text):
    with zipfile.ZipFile(tmp_path / "submissions.zip", "w") as opened:
        opened.writestr("export/submission_metadata.yml", text)
        opened.writestr("export/submission_1/x.ipynb", b"")
    with pytest.raises((ArchiveError, CollectError), match="not as Gradescope writes it|nobody in the download"):
        gather("gradescope", None)


def test_who_is_not_on_the_roster_is_collected_all_the_same(gather):
    collected, _ = gather("canvas", of_class()[:1], lms.canvas_gradebook())
    assert collected.missing[0] == "Jörg Müller" and len(collected.missing) == 5
    collected, inbox = gather("canvas", of_class(), lms.canvas_gradebook(CLASS[1:]))
    assert contents(inbox)["lovelaceada (1001)"] == {"exercise_03_sample.ipynb": b"ada@example.edu"}
    assert "lovelaceada (1001): not on the roster; collected under this name" in collected.remarks


def test_a_roster_without_ids(gather):
    """Names do, unless two people have one."""
    roster = "name\n" + "".join(f"{one.name}\n" for one in CLASS[:5]) + "John Smith (the other)\n"
    _, inbox = gather("canvas", of_class()[:5], roster)
    assert set(contents(inbox)) == {*NAMES[:4], "John Smith"}
    with pytest.raises(CollectError, match="nobody in the download is on the roster"):
        gather("canvas", of_class(), "name,id\nAda Lovelace,77\n")


def test_a_name_takes_nothing_over(gather):
    """Mallory, with Ada's name but her own address, is not Ada; nor does the name of a file make her so."""
    mallory = replace(ADA, email="mallory@example.org", sid="0666", id=1666)
    collected, inbox = gather("gradescope", [Upload(mallory, b"forged"), Upload(JOERG, b"j")])
    assert "Ada Lovelace" not in contents(inbox) and "Lovelace" in collected.missing[0]
    _, inbox = gather("canvas", [Upload(JOERG, b"j", "x_1001_5_y.ipynb"), Upload(ZOFIA, b"z")])
    assert contents(inbox)["Jörg Müller"] == {"exercise_03_sample.ipynb": b"j", "x_1001_5_y.ipynb": b"j"}
    assert "Ada Lovelace" not in contents(inbox)


def test_nothing_is_written_through_a_link(gather, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "Ada Lovelace").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        gather("canvas", of_class())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_two_people_of_one_id_are_refused(gather):
    with pytest.raises(ValueError, match="the id 1001 for Ada and Bo"):
        gather("canvas", of_class(), "name,id\nAda,1001\nBo,1001\n")


def test_smiths_are_two(gather):
    _, inbox = gather("canvas", [Upload(OTHER_SMITH, b"2"), Upload(SMITH, b"1")])
    assert {name: list(files.values()) for name, files in contents(inbox).items()} == {
        SMITHS[0]: [b"1"],
        SMITHS[1]: [b"2"],
    }
