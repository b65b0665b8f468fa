"""The marking page over HTTP: what was typed is never lost, and several browsers see the same."""

import http.client
import re
import sqlite3
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from sample_results import ASSIGNMENT, HOSTILE, result, task

from txgrade.marking.server import HEADERS, MAX_BODY
from txgrade.records import claims
from txgrade.records.gradebook import Gradebook


def marks(out) -> dict[str, tuple]:
    """Points, comment and reviewer of each essay, by the learner's name."""
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        return {
            answer.submissions[0]: (answer.review.points, answer.review.comment, answer.review.by)
            for answer in book.written()
            if answer.review
        }


def test_answers_are_marked_one_after_the_other(out, browser):
    ann = browser("Ann")
    assert "3 of 3 wait for a mark" in ann.text
    ann.begin()
    assert "1 of 3, 3 waiting" in ann.text and "Because of " in ann.text and "of 4 points" in ann.text
    ann.send(points="3,5", comment="Clear.\nBut why the root?", action="save")
    assert "Saved: 3.5 of 4 by Ann" in ann.text and "2 of 3, 2 waiting" in ann.text
    ann.send(points="4", action="save").send(points="0", action="save")
    assert "0 of 3 wait for a mark" in ann.text and "Nothing waits for you" in ann.text
    assert sorted(marks(out).values()) == [(0, "", "Ann"), (3.5, "Clear.\nBut why the root?", "Ann"), (4, "", "Ann")]


def test_learners_have_pseudonyms_that_stay(browser):
    pages = [browser("Ann").html, browser("Ben", task="essay").html]
    found = [re.findall(r"learner [A-Z0-9]{6}\b", page) for page in pages]
    assert found[0] == found[1] and len(set(found[0])) == 3
    assert not any(name in page for name in ("l000", "l001", "l002") for page in pages)
    assert "l000" in browser("Ben", names=True).html


def test_every_button_keeps_what_is_typed(out, browser):
    ann = browser("Ann").begin()
    first = ann.url
    for action in ("next", "previous", "queue", "add", "rubric"):
        ann.open(first).send(points="2", comment=f"Half a thought\n\n before {action}", action=action)
        assert ann.status == 200 and marks(out) == {}
        ann.open(first)
        assert ann.field("comment") == f"Half a thought\n\n before {action}" and ann.field("points") == "2"
    assert "your draft" in ann.open("../../").text and "not saved as a mark yet" in ann.open(first).text
    ann.send(action="save").open(first)
    assert "not saved as a mark yet" not in ann.text and [mark[0] for mark in marks(out).values()] == [2]


def test_enter_adds_the_item_that_was_typed_and_saves_otherwise(out, browser):
    ann = browser("Ann").begin().send(points_new="2", text_new="Derives it", action="enter")
    assert "ticked for this answer" in ann.text and marks(out) == {}
    ann.send(action="enter")
    assert "Saved: 2 of 4 by Ann" in ann.text


@pytest.mark.parametrize("points", ["5", "-1", "nan", "three", "1e999", "", "0x1"])
def test_points_that_make_no_sense_are_refused_and_kept(out, browser, points):
    ann = browser("Ann").begin().send(points=points, comment="Good.", action="save")
    assert "Not saved: " in ann.text and marks(out) == {}
    assert (ann.field("points"), ann.field("comment")) == (points, "Good.")


def test_a_second_browser_sees_the_marks_and_keeps_off_what_is_claimed(out, browser):
    ann, ben = browser("Ann").begin(), browser("Ben").begin()
    assert ann.url != ben.url, "the first free one"
    ben.open(ann.url)
    assert "Ann is marking this one" in ben.text and "comment" in ben.html
    assert "with Ann" in ben.open("../../").text
    ben.open(ann.url).send(action="take")
    assert "Ann is marking" not in ben.text
    ben.send(points="1", comment="Ben's", action="save")
    ann.send(points="3", comment="Ann's own words", action="save")
    assert "Ben gave 1 point meanwhile: Ben's. Yours is below, not saved" in ann.text
    assert ann.field("comment") == "Ann's own words" and marks(out)[next(iter(marks(out)))][2] == "Ben"
    ann.send(action="save")
    assert [mark for mark in marks(out).values()] == [(3, "Ann's own words", "Ann")]
    assert "3 of 4 by Ann" in ben.open("../../").text


def test_three_who_open_the_list_together_get_three_answers(out, browser):
    people = [browser(name) for name in ("Ann", "Ben", "Eve")]
    people = [person.begin() for person in people]
    assert len({person.url for person in people}) == 3
    assert not any("is marking this one" in person.text for person in people)
    zoe = browser("Zoe")
    assert "3 of 3 wait for a mark; 3 are with Ann and Ben and Eve." in zoe.text
    assert "Mark the next one" not in zoe.text and "Grade again" not in zoe.text
    people[0].send(points="1", action="save")  # nothing is left for Ann
    assert "2 of 3 wait for a mark; 2 are with Ben and Eve." in people[0].text
    freed = people[1].url
    people[1].send(comment="Later", action="queue")
    assert "2 of 3 wait for a mark; 1 is with Eve." in people[0].open("").text
    assert people[0].begin().url == freed and people[1].open(freed).field("comment") == "Later"


def test_a_claim_ends_by_itself_and_its_draft_stays(out, browser, monkeypatch):
    ann = browser("Ann").begin().send(comment="Before lunch", action="add")
    monkeypatch.setattr(claims, "CLAIM_MINUTES", 0)
    ben = browser("Ben").begin()
    assert ben.url == ann.url and "is marking this one" not in ben.text and ben.field("comment") == ""
    assert ann.open(ann.url).field("comment") == "Before lunch"


def test_rubric_items_apply_retroactively_and_the_changed_grades_are_listed(out, browser):
    ann = browser("Ann").begin()
    ann.send(points_new="2", text_new="Derives <the> variance", comment="Kept", action="add")
    assert len(re.findall(r'value="1" checked', ann.html)) == 1 and ann.field("comment") == "Kept"
    assert "Item 1, “Derives <the> variance” (+2), is in the rubric now, and ticked for this answer." in ann.text
    ann.send(points_new="2", text_new="Derives <the> variance", action="add")
    assert len(re.findall(r'name="item"', ann.html)) == 1
    assert "Derives &lt;the&gt; variance" in ann.html
    ann.send(action="save").send(item="1", points="-0.5", comment="Late", action="save")
    assert sorted(mark[0] for mark in marks(out).values()) == [1.5, 2]
    ann.send(action="rubric")
    assert "Item 1 · 2 answers" in ann.text
    ann.send(points_1="3", action="save")
    assert re.search(r"2 grades changed: learner \w{6}: (2 → 3|1.5 → 2.5); learner", ann.text)
    assert sorted(mark[0] for mark in marks(out).values()) == [2.5, 3]
    stale = browser("Ben").open(ann.url)
    ann.send(text_1="Derives it", action="save")
    stale.send(text_1="Something else", action="save")
    assert "“3 Something else” is not saved" in stale.text and "it is “Derives it” (+3) now" in stale.text
    ann.open(ann.url).send(text_1="", action="back")
    assert "2 grades changed" in ann.text and sorted(mark[0] for mark in marks(out).values()) == [0, 0]


def test_a_busy_gradebook_gives_the_text_back(out, server, browser, monkeypatch):
    ann = browser("Ann").begin()
    outside = sqlite3.connect(out / "gradebook.sqlite", isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(
        server.page.book._engine.dialect, "connect", _impatient(server.page.book._engine.dialect.connect)
    )
    ann.send(points="3", comment="Long\nand <clever>", action="save")
    assert ann.status == 503 and "in use by others" in ann.text and "Long and <clever>" in ann.text
    outside.execute("ROLLBACK")
    ann.send()  # try again
    assert ann.status == 200 and [mark[:2] for mark in marks(out).values()] == [(3, "Long\nand <clever>")]


def _impatient(connect):
    return lambda *arguments, **options: connect(*arguments, **options | {"timeout": 0})


def test_a_form_of_an_earlier_start_gives_the_text_back(out, served, browser):
    ann = browser("Ann").begin()
    action, fields = ann.form()
    ann.url = served().url  # another start has another token
    ann.request("POST", action, "comment=What+I+typed&action=save&points=3")
    assert ann.status == 403 and "What I typed" in ann.text and "the one that the terminal shows" in ann.text
    assert fields and marks(out) == {}


# What is refused, and what can't be done


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Content-Type": "text/plain"},
    ],
)
def test_forms_of_other_pages_do_nothing(out, browser, headers):
    ann = browser("Ann").begin()
    action, fields = ann.form()
    body = "&".join(f"{name}={value}" for name, value in fields if name not in ("points", "comment"))
    ann.request("POST", action, f"{body}&points=3&action=save", **headers)
    assert ann.status == 403 and marks(out) == {}


def test_a_form_without_its_secret_does_nothing(out, browser):
    ann = browser("Ann").begin().send(drop=("secret",), points="3", action="save")
    assert ann.status == 403 and marks(out) == {}


@pytest.mark.parametrize("path", ["/", "/x/", "/../etc/passwd", "//", "/%00", "/favicon.ico"])
def test_without_the_token_there_is_nothing(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    words = answer.read().decode()
    assert answer.status == 403 and "learner" not in words and server.token not in words


def test_it_listens_on_this_machine_only_and_requests_nothing(server, browser):
    assert server.server_address[0] == "127.0.0.1" and len(urlsplit(server.url).path) > 30
    ann = browser("Ann")
    assert HEADERS.items() <= ann.headers.items() and "script" not in HEADERS["Content-Security-Policy"]
    assert "<script" not in ann.html and "http" not in ann.html.replace("http-equiv", "")


@pytest.mark.parametrize("text", [*HOSTILE, "W" * 50_000, "\n" * 2000, ""])
def test_a_hostile_answer_is_text(tmp_path, out, browser, text):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.add(1, result("a<b>", task("essay", "pending", answer=text + "answer")))
    ann = browser("<i>Ann</i>")
    links = {link for link in ann.links if "/mark/" in link}
    assert len(links) == 4 and "<i>" not in ann.html
    for link in links:
        html = ann.open(link).html
        assert not re.search(
            r"<(script|img|svg|base|i>|b>)|on\w+=alert", re.sub(r"<pre.*?</pre>", "", html, flags=re.S)
        )
        assert len(html) < 60_000 and not set("\x1b\x07\u202e\ud800") & set(html)
    ann.send(points="1", comment=text.encode("utf-8", "replace").decode(), action="save")
    assert ann.status == 200 and len(marks(out)) == 1


def test_too_much_text_is_refused(server, browser):
    ann = browser("Ann").begin()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest("POST", urlsplit(ann.url).path)
    connection.putheader("Content-Length", str(MAX_BODY + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413


def test_a_share_is_a_fixed_part_of_all_answers(out, browser):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        for i in range(20):
            book.add(1, result(f"more {i}", task("essay", "pending", answer=f"More {i}.")))
    parts = [set(browser("Ann", share=(part, 2)).links) for part in (1, 2)]
    parts = [{link.rpartition("/")[2] for link in part} for part in parts]
    assert len(parts[0]) + len(parts[1]) == 23 and not parts[0] & parts[1] and min(map(len, parts)) > 3


def test_what_nobody_wrote_waits_for_nobody_and_can_be_marked(out, browser):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.add(1, result("empty", task("essay", "unanswered", answer="")))
    ann = browser("Ann", names=True)
    assert "3 of 4 wait for a mark" in ann.text and "0 of 4: nothing was written" in ann.text
    ann.open(next(link for link in ann.links if link.endswith(task("essay", answer="").answer_hash)))
    assert "empty · " in ann.text and "(empty)" in ann.text
    ann.send(points="1", comment="It is in your code.", action="save")
    assert marks(out)["empty"] == (1, "It is in your code.", "Ann")
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        assert {each.submission: each.score for each in book.latest()}["empty"] == 1


def test_the_author_s_rubric_is_there_to_click(out, browser):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        lines = "1 point: the variance. 2 points: the softmax."
        assignment = replace(ASSIGNMENT, tasks=(replace(ASSIGNMENT.task("essay"), rubric=lines),), hash="b" * 64)
        run = book.start_run(assignment, "Python", "sealed", (1, 2))
        book.take_over_rubrics()
        book.add(run, replace(result("a", task("essay", "pending")), assignment_hash="b" * 64))
    ann = browser("Ann").begin()
    assert "+1 The variance" in ann.text and "<details><summary>How to mark it" in ann.html
    ann.send(item=["1", "2"], action="save")
    assert marks(out)["a"][0] == 3


def test_nothing_to_mark(browser):
    assert "There are no written answers" in browser("Ann", task="nothing").text
