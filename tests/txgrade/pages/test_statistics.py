"""Numbers of tasks and of a term, against NumPy and against naive loops."""

import csv
import io
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from sample_results import ASSIGNMENT, POINTS, result, task

from txgrade.pages.course import CourseError, read_course, write_course
from txgrade.pages.statistics import FEWEST, correlation, item_statistics, mistakes_csv, statistics_csv
from txgrade.pages.summary import summary_page
from txgrade.records.gradebook import Gradebook
from txgrade.records.people import Roster

TASKS = ("scores", "causal-mask", "attention")


def class_of(count, seed=1):
    rng = random.Random(seed)
    results = []
    for number in range(count):
        able = rng.random()
        points = {
            id: rng.choice([0, POINTS[id] / 2, POINTS[id]]) if rng.random() > able else POINTS[id] for id in TASKS
        }
        tasks = [task(id, "right" if points[id] == POINTS[id] else "mistake", points[id]) for id in TASKS]
        sentences = (("It is *transposed*.", "No mask.")[number % 2],) if points["scores"] < POINTS["scores"] else ()
        tasks[0] = replace(tasks[0], sentences=sentences)
        results.append(result(f"l{number:02}", *tasks, task("essay", "pending")))
    return results


def test_difficulty_and_discrimination_are_those_of_numpy():
    results = class_of(40)
    items = {item.task: item for item in item_statistics([*results, result("broken", status="not json")])}
    points = np.array([[each.points for each in one.tasks[:3]] for one in results])
    for column, id in enumerate(TASKS):
        rest = points.sum(axis=1) - points[:, column]
        assert items[id].learners == 40
        assert items[id].difficulty == pytest.approx(points[:, column].mean() / POINTS[id])
        assert items[id].discrimination == pytest.approx(np.corrcoef(points[:, column], rest)[0, 1])
    assert items["essay"].learners == 0 and items["essay"].difficulty is items["essay"].discrimination is None


def test_mistakes_are_counted_as_a_loop_counts_them():
    results, counts = class_of(30, seed=2), {}
    for one in results:
        for each in one.tasks:
            for sentence in each.sentences:
                counts[sentence] = counts.get(sentence, 0) + 1
    rows = list(csv.DictReader(io.StringIO(mistakes_csv(item_statistics(results)))))
    assert {row["mistake"]: int(row["count"]) for row in rows} == counts and len(counts) == 2
    assert [int(row["count"]) for row in rows] == sorted(counts.values(), reverse=True)
    assert {row["task"] for row in rows} == {"scores"}


def test_too_few_learners_or_equal_points_give_no_correlation():
    assert all(item.discrimination is None for item in item_statistics(class_of(FEWEST - 1)))
    assert item_statistics(class_of(FEWEST))[0].learners == FEWEST
    assert correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert item_statistics([]) == [] and statistics_csv([]).startswith("task,title,points,learners,difficulty,")


def test_each_learner_counts_for_the_task_of_a_pool_that_was_dealt():
    results = [result(f"l{i}", task(("scores", "causal-mask")[i % 2], points=i % 3 * 0.5)) for i in range(12)]
    items = item_statistics(results)
    assert [item.learners for item in items] == [6, 6]
    assert items[0].difficulty == pytest.approx(np.mean([i % 3 * 0.5 / 2 for i in range(0, 12, 2)]))


def test_the_summary_shows_the_numbers():
    page = summary_page(class_of(20), ASSIGNMENT)
    assert "Discrimination" in page and 'id="numbers"' in page and "It needs 10 learners" in page


def graded(folder, results, name=""):
    folder.mkdir(parents=True)
    assignment = replace(ASSIGNMENT, name=name or f"{folder.name}_exercise")
    with Gradebook(folder / "gradebook.sqlite") as book:
        run = book.start_run(assignment, "Python", "sealed", (1, 2))
        for one in results:
            book.add(run, one)
    return folder


@pytest.fixture
def term(tmp_path):
    full = [task(id) for id in (*TASKS, "plot")]
    first = [result("ada", *full), result("bo", *full[:2], penalty=1)]
    second = [result("ada", full[0]), result("Bo", *full), result("stranger", task("scores"), task("essay", "pending"))]
    third = [result("ada", *full[:3])]
    names = ("01", "02", "03")
    return [graded(tmp_path / name, each) for name, each in zip(names, (first, second, third), strict=True)]


ROSTER = Roster.of(["Ada Lovelace", "ada"], ["Bo Rose", "bo"], ["Cleo Absent", "cleo"])


def naive_total(fractions, weights, drop):
    order = sorted(range(len(fractions)), key=lambda index: fractions[index])[drop:]
    return 100 * sum(weights[i] * fractions[i] for i in order) / sum(weights[i] for i in order)


@pytest.mark.parametrize("drop", [0, 1, 2])
def test_a_term_adds_up_and_loses_nobody(term, tmp_path, drop):
    weights = tmp_path / "weights.csv"
    weights.write_text("exercise,weight\n02,3\n03,1.5\n", encoding="utf-8")
    course = read_course(term, ROSTER, weights, drop)
    rows = {row.name: row for row in course.rows}
    assert list(rows) == ["Ada Lovelace", "Bo Rose", "Cleo Absent", "stranger"]
    most = ASSIGNMENT.points
    fractions = {"Ada Lovelace": (8, 2, 7), "Bo Rose": (4, 8, 0), "Cleo Absent": (0, 0, 0), "stranger": (0, 2, 0)}
    for name, scores in fractions.items():
        expected = naive_total([score / most for score in scores], [most, 3, 1.5], drop)
        assert rows[name].total == pytest.approx(expected), name
    assert rows["Bo Rose"].late == 1 and rows["stranger"].waiting == 1
    assert course.missing(rows["Bo Rose"]) == ["03"] and course.missing(rows["Cleo Absent"]) == ["01", "02", "03"]
    table_path, page_path = write_course(course, tmp_path / "course")
    with open(table_path, encoding="utf-8", newline="") as file:
        written = {row["learner"]: row for row in csv.DictReader(file)}
    assert written["Bo Rose"]["03"] == "" and written["Bo Rose"]["missing"] == "03" and len(written) == 4
    assert len(written["Ada Lovelace"]["dropped"].split()) == drop
    page = page_path.read_text(encoding="utf-8")
    second = page[page.index(">02<") :]
    second = re.findall(r'class="number">([^<]*)</td>', second[: second.index("</tr>")])
    assert second[2:] == ["3", "36 %", "1"], "2 and 8 of 12 points, 2 of the 8 that are marked"
    assert "Cleo Absent</bdi>: none of them" in page and "<script" not in page
    assert table_path.stat().st_mode & 0o077 == 0


def test_a_table_of_weights_may_have_semicolons_and_decimal_commas(term, tmp_path):
    weights = tmp_path / "weights.csv"
    weights.write_text("\ufeffExercise ; Weight\n02;3\n03 ;1,5\n", encoding="utf-8")
    assert [one.weight for one in read_course(term, ROSTER, weights).exercises] == [ASSIGNMENT.points, 3, 1.5]


def test_a_folder_that_is_not_there_is_named(term, tmp_path):
    (tmp_path / "notes.txt").touch()
    assert len(read_course([*term, tmp_path / "notes.txt"]).exercises) == 3
    with pytest.raises(CourseError, match=f"no folder {tmp_path}/04: give the results folder of each exercise"):
        read_course([*term, tmp_path / "04"])


@pytest.fixture
def retaken(tmp_path):
    """Two exercises; ada and bo retake the first, which was dealt to cleo."""
    full = [task(id) for id in (*TASKS, "plot")]
    folders = {
        "11-retake": ([result("ada", *full), result("bo", full[0])], "14_bert_variant_1"),
        "11": ([result("ada", full[0]), result("bo", *full[:2]), result("dan", full[0])], "14_bert"),
        "11-dealt": ([result("cleo", *full[:3])], "14_bert"),
        "12": ([result(name, full[0]) for name in ("ada", "bo", "cleo", "dan")], "12_gpt"),
    }
    return [graded(tmp_path / folder, results, name) for folder, (results, name) in folders.items()]


@pytest.mark.parametrize(
    ("retake", "scores"),
    [("best", {"ada": 8, "bo": 4, "cleo": 7, "dan": 2}), ("latest", {"ada": 8, "bo": 2, "cleo": 7, "dan": 2})],
)
def test_a_retake_is_no_exercise_of_its_own(retaken, tmp_path, txgrade, retake, scores):
    status, words, _ = txgrade("course", *retaken, "--out", tmp_path / "course", "--retake", retake)
    assert status == 0 and f"11, 11-dealt, 11-retake: one exercise, each learner's {retake} result counts" in words
    assert "did not hand in" not in words
    with open(tmp_path / "course" / "course.csv", encoding="utf-8", newline="") as file:
        rows = {row["learner"]: row for row in csv.DictReader(file)}
    most = ASSIGNMENT.points
    for name, score in scores.items():
        assert (float(rows[name]["11"]), rows[name]["missing"]) == (score, "")
        assert float(rows[name]["total %"]) == pytest.approx(100 * (score + 2) / (2 * most), abs=0.01)
    bo = {"best": "", "latest": "11-retake"}[retake]
    assert [rows[name]["retakes"] for name in scores] == ["11-retake", bo, "11-dealt", ""]
    page = (tmp_path / "course" / "course.html").read_text(encoding="utf-8")
    assert "with 11-dealt, 11-retake" in page


def test_a_retake_that_waits_for_a_person_leaves_the_total_open(retaken, tmp_path):
    waits = graded(tmp_path / "11-second", [result("dan", task("essay", "pending"))], "14_bert_variant_2")
    row = next(row for row in read_course([*retaken, waits]).rows if row.name == "dan")
    assert row.results["11"].score == 2 and row.waiting == 1


def test_two_exercises_of_one_name_without_a_common_task_stay_two(tmp_path):
    weeks = {"week1": "scores", "week2": "plot"}
    folders = [graded(tmp_path / week, [result("ada", task(id))], "homework") for week, id in weeks.items()]
    assert [exercise.folders for exercise in read_course(folders).exercises] == [("week1",), ("week2",)]


def test_two_submissions_of_one_person_stay_two_rows(tmp_path):
    folder = graded(tmp_path / "01", [result("ada", task("scores")), result("Ada Lovelace", task("plot"))])
    assert len(read_course([folder], ROSTER).rows) == 4


def test_the_command_says_who_is_missing(term, tmp_path, txgrade):
    roster = tmp_path / "people.csv"
    roster.write_text("name,login\nAda Lovelace,ada\nBo Rose,bo\n", encoding="utf-8")
    status, words, _ = txgrade("course", *term, "--out", tmp_path / "course", "--roster", roster)
    assert status == 0 and "2 learners did not hand in every exercise" in words and "course.csv" in words


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("exercise,weight\n04,1\n", "weighs '04', but the exercises are 01, 02, 03"),
        ("name,weight\n01,1\n", "must have the columns exercise and weight"),
        ("exercise,weight\n01,-1\n", "a weight is a number from 0 on"),
        ("exercise,weight\n01,nan\n", "a weight is a number from 0 on"),
    ],
)
def test_wrong_weights_are_refused(term, tmp_path, weights, words):
    path = tmp_path / "weights.csv"
    path.write_text(weights, encoding="utf-8")
    with pytest.raises(CourseError, match=words):
        read_course(term, None, path)


def test_wrong_folders_are_refused(term):
    for folders, drop in (([], 0), ([term[0], term[0]], 0), (term, 3)):
        with pytest.raises(CourseError):
            read_course(folders, drop_lowest=drop)
