"""Regrade requests: a file asks, a person answers, the learner's page says so; nothing in the file is believed."""

import io
from dataclasses import replace

import pytest
from sample_results import ASSIGNMENT, HOSTILE, result, task

from txgrade.marking.desk import override
from txgrade.marking.terminal import review_at_terminal
from txgrade.pages.feedback import feedback_page
from txgrade.records.changes import Change
from txgrade.records.gradebook import Gradebook
from txgrade.records.history import histories_of
from txgrade.records.ledger import GradebookError
from txgrade.records.people import Roster
from txgrade.records.requests import MAX_FILE, decisions_of, read_requests


@pytest.fixture
def ask(out):
    """`ask("l001.md", "# scores\\n…")` leaves a file, and returns what is read: requests and problems."""
    (out / "requests").mkdir()

    def ask(name="", text="", data=None):
        if name:
            (out / "requests" / name).write_bytes(text.encode() if data is None else data)
        with Gradebook(out / "gradebook.sqlite", create=False) as book:
            requests, problems = read_requests(out, book)
            return [(each.submission, each.task, each.reason) for each in requests if not each.decision], problems

    return ask


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        ("l001.md", "# scores\nLook at line 3.\n\nPlease.\n", [("l001", "scores", "Look at line 3.\n\nPlease.")]),
        ("l001.md", "## Scores ##\r\na\r\n# `essay`\r\nb", [("l001", "scores", "a"), ("l001", "essay", "b")]),
        ("L001.md", "# scores\na\n# scores\na\n", [("l001", "scores", "a")]),
        ("l002.csv", 'task,reason\nscores,"one, two"\n', [("l002", "scores", "one, two")]),
        ("l002.csv", '\ufeffTask ;Reason\nscores;"one; two"\n', [("l002", "scores", "one; two")]),
        (
            "week.csv",
            "\ufeffname,task,reason\nl000,scores,a\nl002,essay,b\n",
            [("l000", "scores", "a"), ("l002", "essay", "b")],
        ),
    ],
)
def test_the_forms_of_a_request(ask, name, text, asked):
    assert ask(name, text) == (asked, [])


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("nobody.md", b"# scores\na", "nobody.md: no submission 'nobody' in .*; it has l000, l001, l002"),
        ("l001.md", b"# cake\na", "l001 has no task 'cake'; it has scores, essay"),
        ("l001.md", b"Please look again.", "asks for nothing: it needs `# TASK`"),
        ("l001.csv", b"name,why\nl001,a", "has no column `reason`"),
        ("l001.md", b"\xff\xfe", "can't be read: 'utf-8' codec"),
        ("l001.md", b"x" * (MAX_FILE + 1), "can't be read: .*too large"),
        ("l001.csv", b'task,reason\nscores,"open', "can't be read: it is not a CSV file: unexpected end of data"),
    ],
)
def test_a_file_that_makes_no_sense_is_a_line(ask, name, data, words):
    requests, (problem,) = ask(name, data=data)
    assert requests == []
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(problem)


def test_who_asks_may_be_said_as_the_roster_says_it(ask, out):
    roster = Roster.of(["Lovelace, Ada", "ada@example.edu", "al17"], ["Rose, Bob", "bob@example.edu", "al18"])
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        for name, one in zip(("l001", "l002"), roster.people, strict=True):
            known_as = tuple(sorted(one.names))
            book.add(1, replace(result(name, task("scores", "wrong")), learner=one.label, known_as=known_as))
    table = "email,login,task,reason\nADA@example.edu,,scores,a\n,al18,scores,b\n"
    assert ask("form.csv", table) == ([("l001", "scores", "a"), ("l002", "scores", "b")], [])
    assert ask("Ada Lovelace.md", "# scores\nc\n")[0][0] == ("l001", "scores", "c")
    assert ask("al17.md", "# scores\nc\n")[0][0] == ("l001", "scores", "c")
    for name in ("al17", "ada@example.edu", "Lovelace, Ada", "ada lovelace"):
        assert override(out, name, "scores", 1, "Yes.").startswith("l001 has 1 point")
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.add(1, replace(result("l009"), learner="Ada", known_as=("al17", "ada")))
        with pytest.raises(GradebookError, match="'al17' means several submissions: l001, l009; give one of these"):
            book.submission_named("al17")


def test_links_are_not_followed(ask, out, tmp_path):
    (tmp_path / "secret").write_text("# scores\nroot:x")
    (out / "requests" / "l001.md").symlink_to(tmp_path / "secret")
    requests, (problem,) = ask()
    assert requests == [] and "l001.md can't be read" in problem and "root" not in problem


def test_a_request_is_answered_on_the_page(ask, out, browser):
    ask("l001.md", "# scores\nBatches work too.\n")
    ann = browser("Ann")
    assert "Scores: regrade requests" in ann.text and "l001" not in ann.html
    ann.open(next(link for link in ann.links if "/mark/scores/" in link))
    assert "Batches work too." in ann.text and "The task has 0 of 2 points now." in ann.text
    ann.send(points="1.5", action="save")
    assert "Not saved: say why" in ann.text and ann.field("points") == "1.5"
    ben = browser("Ben").open(ann.url)
    ben.send(action="take") if "is marking this one" in ben.text else None
    ann.send(comment="You are right: half of it.", action="save")
    ben.send(points="2", comment="All of it", action="save")
    assert "Ann answered meanwhile: 1.5 points, You are right: half of it." in ben.text
    assert ben.field("comment") == "All of it"
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        graded = {result.submission: result for result in book.latest()}
        assert graded["l001"].tasks[0].points == 1.5 and graded["l002"].tasks[0].points == 0
        changes = [Change("l001", "scores", 0, 1.5, "marked by a person: You are right: half of it.", "2026")]
        history = histories_of(changes, decisions_of(book))["l001"]
    page = feedback_page(graded["l001"], ASSIGNMENT, history)
    assert "changed from 0 to 1.5" in page and "Batches work too." in page and "Ann" not in page
    assert page.count("half of it") == 1 and "Changed from" not in page
    assert ask() == ([], [])


def points(out) -> dict[str, float]:
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        return {result.submission: result.tasks[0].points for result in book.latest()}


def test_others_with_the_same_answer_and_the_same_points_get_the_same_if_asked_for(ask, out, browser):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.add(1, result("other", task("scores", "wrong", answer="another")))
        book.override("l000", "scores", 0.5, "Half.")
    ask("l001.md", "# scores\nPlease.\n")
    ask("l002.md", "# scores\nPlease, mine as well.\n")
    ann = browser("Ann", names=True)
    ann.open(next(link for link in ann.links if "/mark/scores/" in link))
    me, other = ("l001", "l002") if "Please." in ann.text else ("l002", "l001")
    assert f"Also for 1 other with the same answer and the same points, if it is more: {other}" in ann.text
    url = ann.url
    ann.send(points="1", comment="Right.", alike="1", action="queue").open(url)
    assert 'name="alike" value="1" checked' in ann.html
    ann.send(action="save")
    assert f"Saved: answered by Ann: 1 of 2 for {me} and 1 other" in ann.text
    assert points(out) == {"l000": 0.5, "l001": 1, "l002": 1, "other": 0}
    assert [name for name, *_ in ask()[0]] == [other], "nobody has read that one"
    ann.open(ann.url).send(points="2", comment="All right.", action="save")
    assert points(out)[me] == 1 and points(out)[other] == 2


def test_others_with_the_same_answer_at_the_terminal(ask, out, monkeypatch, capsys):
    ask("l001.md", "# scores\nPlease.\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n1\n1\nall 1.5 half is right\n"))
    review_at_terminal(out, by="Ann", names=True)
    said = capsys.readouterr().out
    assert "2 others with the same answer and the same points: l000, l002. Begin with `all`" in said
    assert points(out) == dict.fromkeys(("l000", "l001", "l002"), 1.5)
    said = override(out, "l002", "scores", 2, "All of it.")
    assert "2 others with the same answer keep 1.5: name l000, and say --alike." in said
    said = override(out, "l001", "scores", 2, "All of it.", also_alike=True)
    assert said.startswith("l001 and 1 other with the same answer have 2 points for scores now. Grade again")
    assert set(points(out).values()) == {2}


def test_others_with_the_same_answer_lose_nothing(ask, out, browser, monkeypatch, capsys):
    ask("l001.md", "# scores\nPlease.\n")
    override(out, "l001", "scores", 1.5, "Half.", also_alike=True)
    said = override(out, "l002", "scores", 1, "Copied.", also_alike=True)
    assert "l002 has 1 point for scores now. 2 others with the same answer keep 1.5: --alike only raises" in said
    override(out, "l002", "scores", 1.5, "Not copied.")
    ask("l001.csv", "task,reason\nscores,Again please.\n")
    ann = browser("Ann", names=True)
    ann.open([link for link in ann.links if "/mark/scores/" in link][-1])
    ann.send(points="0.5", comment="Less.", alike="1", action="save")
    assert "2 others not changed: only more points are given to all" in ann.text
    assert points(out) == {"l000": 1.5, "l001": 0.5, "l002": 1.5}
    override(out, "l001", "scores", 1.5, "Half.")
    ask("l001.md", "# scores\nOnce more.\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n1\n1\nall 0 wrong\n"))
    review_at_terminal(out, by="Ben", names=True)
    assert "2 others not changed: `all` only raises points." in capsys.readouterr().out
    assert points(out) == {"l000": 1.5, "l001": 0, "l002": 1.5}


def test_alike_without_a_name_is_refused(out, txgrade):
    status, _, words = txgrade("review", "--alike", "--out", out)
    assert status == 2 and "--alike change one submission's points: name it" in words


def test_an_answer_and_its_points_are_one_transaction(ask, out, monkeypatch):
    ask("l001.md", "# scores\nPlease.\n")

    def fail(*arguments, **values):
        raise GradebookError("the disk is full")

    monkeypatch.setattr("txgrade.records.requests.insert", fail)
    with pytest.raises(GradebookError, match="the disk is full"):
        override(out, "l001", "scores", 1, "Yes.")
    assert points(out)["l001"] == 0


def test_a_request_is_answered_by_override_and_may_be_kept(ask, out):
    ask("l001.md", "# scores\nPlease.\n")
    said = override(out, "l001", "scores", 0, "The shape is wrong, as the page says.")
    assert said.startswith("l001 has 0 points for scores now; 1 request answered.")
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        (decision,) = decisions_of(book)
        assert (decision.old, decision.new) == (0, 0) and book.latest()[1].tasks[0].verdict == "wrong"
        page = feedback_page(book.latest()[1], ASSIGNMENT, histories_of([], [decision])["l001"])
    assert "kept at 0" in page and "as the page says" in page
    assert ask("l001.md", "# scores\nPlease, again.\n")[0] == [("l001", "scores", "Please, again.")]


def test_requests_follow_the_answers_at_the_terminal(ask, out, monkeypatch, capsys):
    ask("l001.md", "# scores\nPlease.\x1b[2J\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n3\n1\n1 because half is right\n"))
    review_at_terminal(out, by="Ann")
    said = capsys.readouterr().out
    assert "3 answers and 1 request to read" in said and "A request to grade this again:" in said
    assert "say why: the learner's page shows it" in said and "4 marked, 0 left" in said and "\x1b" not in said
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        assert book.latest()[1].tasks[0].points == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_request_is_text(ask, out, browser, text):
    ask("l001.md", data=f"# scores\n{text}\n".encode("utf-8", "replace"))
    ann = browser("Ann")
    ann.open(next(link for link in ann.links if "/mark/scores/" in link))
    assert not any(tag in ann.html for tag in ("<script", "<img", "<svg", "<base")) and "\x1b" not in ann.html
    ann.send(points="1", comment=text.encode("utf-8", "replace").decode(), action="save")
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        page = feedback_page(book.latest()[1], ASSIGNMENT, histories_of([], decisions_of(book))["l001"])
    assert not any(tag in page for tag in ("<script", "<img", "<svg", "<base")) and "\x1b" not in page
