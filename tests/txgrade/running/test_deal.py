"""A variant for each learner: dealt by the course's secret, graded in one run, and of no use to anybody else."""

import csv
import json
import shutil
from pathlib import Path

import nbformat
import pytest

from txgrade.authoring.deal import DealError, make_deal, open_deal
from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.variant_proof import find_varied
from txgrade.records.people import read_roster
from txgrade.sandbox import probe

SOLUTIONS = Path(__file__).parents[3] / "solutions"
SECRET = "000000000000000000000000000000000000000000002ff3"  # deals two variants of each exercise, to Ada the first
PEOPLE = ["Ada Lovelace", "Bob Rose", "Cleo Stern", "Dan Vogt"]


@pytest.fixture
def people(tmp_path):
    """A roster with ids, and a secret beside it."""
    rows = [f"{name},{name.split()[0].lower()},{1000 + number}" for number, name in enumerate(PEOPLE)]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["name,login,id", *rows, ""]), encoding="utf-8")
    path.with_suffix(".secret").write_text(json.dumps({"secret": SECRET, "exercises": {}}), encoding="utf-8")
    return path


def copied(tmp_path, name="14_bert"):
    (tmp_path / "solutions").mkdir(exist_ok=True)
    return Path(shutil.copy(SOLUTIONS / f"{name}.py", tmp_path / "solutions"))


def test_a_deal_depends_on_the_secret_and_the_id_alone(tmp_path, people):
    source, secret = copied(tmp_path, "02_seq2seq"), people.with_suffix(".secret")
    roster = read_roster(people)
    deal = make_deal(source, secret, roster)
    numbers = [deal.variant(one) for one in roster.people]
    assert len(set(numbers)) == 4 and all(0 <= number < 16 for number in numbers)
    assert len({deal.mark(one) for one in roster.people}) == len(PEOPLE)
    again = open_deal(source, secret, roster)
    assert [again.variant(one) for one in roster.people] == numbers and again.without_notebook() == []
    assert SECRET not in repr(deal) and deal.made_for(deal.mark(roster.people[2])) == "Cleo Stern"
    text = people.read_text(encoding="utf-8")
    people.write_text(text.replace("name,", "name,", 1).replace("Ada Lovelace", "Ada King") + "Ida New,ida,2000\n")
    grown = open_deal(source, secret, read_roster(people))
    assert [grown.variant(one) for one in grown.roster.people[:-1]] == numbers
    assert grown.without_notebook() == ["Ida New"]
    other = tmp_path / "other.secret"
    assert [make_deal(source, other, roster).variant(one) for one in roster.people] != numbers
    assert other.stat().st_mode & 0o777 == 0o600 and open_deal(copied(tmp_path), other, roster) is None


def test_what_can_t_be_dealt_is_said_in_a_sentence(tmp_path, people, txgrade, course):
    source, secret, out = copied(tmp_path), people.with_suffix(".secret"), tmp_path / "handout"
    nameless = tmp_path / "nameless.csv"
    nameless.write_text("name\nAda\nBo\n", encoding="utf-8")
    status, _, words = txgrade("release", "--roster", nameless, "--out", out, source)
    assert status == 2 and "the roster has no id for Ada: variants are dealt by a column `id`" in words
    nameless.write_text("name,id\nAda,1\nBo,1\n", encoding="utf-8")
    status, _, words = txgrade("release", "--roster", nameless, "--out", out, source)
    assert status == 2 and "has the id 1 for Ada and Bo" in words and not out.exists()
    assert not nameless.with_suffix(".secret").exists()
    for arguments, sentence in [
        (("--roster", people, source), "give it --out FOLDER"),
        (("--roster", people, "--out", out, "--variant", "1", source), "and no --variant"),
        (("--secret", secret, source), "--secret is for --roster"),
        (("--roster", people, "--out", out, course.source), "nothing in it varies"),
    ]:
        status, _, words = txgrade("release", *arguments)
        assert status == 2 and sentence in words
    roster = read_roster(people)
    make_deal(source, secret, roster)
    source.write_text(source.read_text(encoding="utf-8").replace("(0.3, 0.7, 0.9)", "(0.3, 0.7, 0.95)"))
    with pytest.raises(DealError, match="14_bert.py: what varies has changed since it was released"):
        open_deal(source, secret, roster)
    secret.write_text("{}")
    with pytest.raises(DealError, match="is not a secret that `txgrade release --roster` made"):
        open_deal(source, secret, roster)
    with pytest.raises(DealError, match="no secret of the course at .*gone.secret: put back the one"):
        open_deal(source, tmp_path / "gone.secret", roster)
    with pytest.raises(ExerciseError, match="no variant 4: choose a whole number from 0 to 3"):
        read_exercise(source, 4, dealt=True)


def handed_in(notebook, exercise, path):
    """A learner's notebook with the right answers of a variant."""
    filled = nbformat.read(notebook, as_version=4)
    answers = {task.id: exercise.notebook.cells[task.answer].source for task in exercise.tasks}
    for cell in filled.cells:
        cell.source = answers.get(cell.id, cell.source)
    nbformat.write(filled, path)


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason="no sealed sandbox here")
def test_another_learner_s_right_answers_lose_exactly_the_tasks_that_vary(tmp_path, people, txgrade):
    source, out, inbox = copied(tmp_path), tmp_path / "handout", tmp_path / "inbox"
    inbox.mkdir()
    status, words, _ = txgrade("release", "--roster", people, "--out", out, source)
    assert status == 0 and f"{out}/: 4 notebooks, of 4 variants; tasks that vary: " in words
    roster = read_roster(people)
    deal = open_deal(source, people.with_suffix(".secret"), roster)
    variants = {one.name: deal.variant(one) for one in roster.people}
    notebooks = {one: out / one / "exercise_14_bert.ipynb" for one in PEOPLE}
    assert all(SECRET not in path.read_text(encoding="utf-8") for path in notebooks.values())
    ada, copier, twin, _ = PEOPLE
    assert variants[copier] != variants[ada] == variants[twin]
    for one in PEOPLE:
        whose = {copier: ada, twin: ada}.get(one, one)
        handed_in(notebooks[whose], read_exercise(source, variants[whose]), inbox / f"{one}.ipynb")
    of_another_variant = next(one for one in PEOPLE if one != copier and variants[one])
    shutil.copy(inbox / f"{of_another_variant}.ipynb", inbox / "Nobody Known.ipynb")
    results = tmp_path / "results"
    arguments = ("grade", "--assignment", source, "--submissions", inbox, "--out", results, "--seeds", "1")
    status, _, words = txgrade(*arguments)
    assert status == 2 and "5 of 5 notebooks were made for one learner each" in words
    status, words, _ = txgrade(*arguments, "--roster", people)
    assert status == 0 and "5 submissions, 5 graded now" in words
    exercise = read_exercise(source)
    varied = find_varied(exercise).tasks.keys()
    rows = {row["submission"]: row for row in table(results / "grades.csv")}
    for one in PEOPLE:
        lost = {task.id for task in exercise.tasks if float(rows[one][task.id]) < task.points}
        assert lost == (varied if one == copier else set()), one
    assert rows["Nobody Known"]["status"] == "unknown learner" and rows["Nobody Known"]["score"] == "0"
    reasons = {(row["submission"], row["kind"]): row["text"] for row in table(results / "review.csv")}
    assert reasons[copier, "other copy"] == reasons[twin, "other copy"] == "the notebook was made for Ada Lovelace"
    assert "is judged by variant" in reasons[copier, "other variant"]
    assert {one for one, kind in reasons if kind.startswith("other")} == {copier, twin}
    assert {kind for one, kind in reasons if one == "Nobody Known"} == {"not graded", "roster"}
    assert not [kind for _, kind in reasons if kind == "earlier release"], "its checks were compared with no variant"
    gradebook = (results / "gradebook.sqlite").read_bytes()
    assert SECRET.encode() not in gradebook
    status, words, _ = txgrade(*arguments, "--roster", people)
    assert status == 0 and ", 0 graded now" in words
