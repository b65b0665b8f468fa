"""`txcourse publish`: the learners' repository holds everything that they need, no answer, and no history of one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from small_course import ANSWER, EXERCISE, LESSON, SAMPLE, change, sources, write_lesson

from txcourse.publish import PublishError, publish
from txcourse.update import update
from txgrade.authoring.cells import SOLUTION, is_answer, region_text
from txgrade.authoring.exercise import read_exercise

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")
COURSE = Path(__file__).parents[2]
SHARED = ("Makefile", "docs/index.md")  # of which learners get a part


def git(folder, *words):
    named = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.org")


@pytest.fixture
def teacher(course):
    """The instructor's clone: with a source, a page for instructors, and a test that knows answers."""
    shutil.copy(SAMPLE, course / "solutions")
    (course / "docs").mkdir()
    index = "# Course\n<!-- instructors: begin -->\n```{toctree}\nteaching\n```\n<!-- instructors: end -->\nThe end.\n"
    (course / "docs" / "index.md").write_text(index)
    (course / "docs" / "teaching.md").write_text("# Teaching\n")
    for name in ("people.secret", "exercises/people.secret", "exercises/dealt/ada/exercise_03_sample.ipynb"):
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        (course / name).write_text("{}")
    (course / "tests").mkdir()
    (course / "tests" / "test_answers.py").write_text(ANSWER)
    (course / ".gitignore").write_text("my_work/\n")
    git(course, "init", "--quiet", "--initial-branch", "main")
    git(course, "add", "--all")
    git(course, "commit", "--quiet", "--message", "A course")
    return course


@pytest.fixture
def learners(teacher):
    """The learners' repository, published once."""
    folder = teacher.parent / "learners"
    publish(teacher, folder)
    return folder


def files(folder):
    return set(git(folder, "ls-files").split())


def test_learners_get_the_course_without_answers(teacher, learners):
    assert files(learners) == {
        *(".gitignore", ".learners", "AGENTS.md", "HELP.md", "README.md", "docs/index.md", "pyproject.toml"),
        *(LESSON, EXERCISE),
    }
    assert (learners / "docs" / "index.md").read_text() == "# Course\nThe end.\n"
    assert publish(teacher, learners) == [f"{learners} is up to date."]
    assert git(learners, "log", "--format=%s") == "Publish the course\n"


def test_a_new_version_is_one_commit_which_learners_update_to(teacher, learners):
    git(learners, "clone", "--quiet", "--bare", ".", "../server.git")
    git(learners, "remote", "add", "origin", "../server.git")
    git(learners.parent, "clone", "--quiet", "server.git", "clone")
    update(learners.parent / "clone")
    write_lesson(teacher / LESSON, "print(2)")
    (teacher / "HELP.md").unlink()
    said = publish(teacher, learners)
    assert said == [f"{learners}: 2 files changed, in one commit.", f"Let learners have it: git -C {learners} push"]
    assert git(learners, "show", "--format=%s", "--name-only").split("\n") == [
        "Update HELP.md and 1 other file",
        "",
        "HELP.md",
        LESSON,
        "",
    ]
    git(learners, "push", "--quiet", "origin", "main")
    update(learners.parent / "clone")
    assert sources(learners.parent / "clone" / "my_work" / LESSON) == {"cell-0": "print(2)"}
    assert (learners.parent / "clone" / "my_work" / "AGENTS.md").is_file()


def copied_answer(teacher, learners):
    answer = next(cell for cell in read_exercise(SAMPLE).notebook.cells if is_answer(cell))
    text = region_text(answer.source, SOLUTION).replace('"', "'").replace("\n", "  # so\n\n")
    (teacher / "notebooks" / "hints.md").write_text(f"Like this:\n{text}")


def filled_in_exercise(teacher, learners):
    change(teacher / EXERCISE, "causal-mask", ANSWER)


def own_change(teacher, learners):
    (learners / "README.md").write_text("mine")


def another_repository(teacher, learners):
    git(learners, "rm", "--quiet", ".learners")
    git(learners, "commit", "--quiet", "--message", "Mine")


@pytest.mark.parametrize(
    "spoil, problem",
    [
        (copied_answer, r"notebooks/hints.md holds the answer of task [\w-]+ in solutions/03_sample.py"),
        (filled_in_exercise, f"{EXERCISE} is filled in \\(causal-mask\\): txgrade release it again"),
        (own_change, r"has changes that are not committed \(README.md, …\): commit or discard them"),
        (another_repository, "was not made by txcourse publish: its files would be replaced; choose another folder"),
    ],
)
def test_what_is_refused_changes_nothing(teacher, learners, spoil, problem):
    spoil(teacher, learners)
    before = git(learners, "rev-parse", "HEAD"), git(learners, "status", "--porcelain")
    with pytest.raises(PublishError, match=problem):
        publish(teacher, learners)
    assert (git(learners, "rev-parse", "HEAD"), git(learners, "status", "--porcelain")) == before


def test_a_folder_that_is_no_place_for_it(teacher, monkeypatch):
    monkeypatch.setattr("txcourse.publish.need_no_answers", lambda *given: pytest.fail("the long search came first"))
    with pytest.raises(PublishError, match="lies in the course, or around it: choose a folder beside it"):
        publish(teacher, teacher / "learners")
    (teacher.parent / "full").mkdir()
    (teacher.parent / "full" / "thesis.tex").touch()
    with pytest.raises(PublishError, match="is no git repository: choose an empty folder"):
        publish(teacher, teacher.parent / "full")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The learners' repository of this course."""
    if not (COURSE / ".git").exists():
        pytest.skip("not a clone")
    folder = tmp_path_factory.mktemp("published") / "learners"
    named = {f"GIT_{role}_{what}": "ada" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    run = [sys.executable, "-c", "from txcourse.cli import main; main()", "publish", "--to", str(folder)]
    subprocess.run(run, cwd=COURSE, env=os.environ | named, check=True, capture_output=True)
    return folder


def code(text):
    """A text's Python tokens, joined: neither layout nor comments nor kinds of quotes make a difference."""
    return re.sub(r"\s+|#.*", "", text).replace('"', "'")


@pytest.mark.slow
def test_no_answer_of_any_exercise_is_in_it_or_in_its_history(published):
    names = files(published)
    assert git(published, "rev-list", "--count", "--all") == "1\n"
    texts = {}
    for name in names:
        path = published / name
        if path.suffix == ".ipynb":
            cells = nbformat.read(path, as_version=4).cells
            texts[name] = "\n\n".join(cell.source for cell in cells)
        elif path.suffix in (".py", ".md", ".js", ".toml", ".yml"):
            texts[name] = path.read_text(encoding="utf-8")
    searched = {name: code(text) for name, text in texts.items()}
    answers = 0
    for source in sorted((COURSE / "solutions").glob("*.py")):
        for cell in read_exercise(source).notebook.cells:
            if is_answer(cell):
                answer = code(region_text(cell.source, SOLUTION) or cell.source)
                assert [name for name, text in searched.items() if answer in text] == [], cell.metadata.nbgrader
                answers += 1
    assert answers > 140
    assert not [name for name in names if name.startswith(("solutions", "tests", "benchmarks"))]
    for name in SHARED:
        assert "solutions" not in (published / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_lab_and_the_checks_work_there_without_a_network(published, tmp_path):
    script = (
        "from pathlib import Path; import txcourse, txcourse.lab; txcourse.lab.prepare(); "
        "assert Path(txcourse.__file__).parents[1] == Path.cwd().parent, txcourse.__file__; "
        "import sys; sys.argv = ['txgrade', 'check', 'exercises/exercise_03_attention.ipynb']; "
        "from txgrade.cli import main; main()"
    )
    offline = ["bwrap", "--dev-bind", "/", "/", "--unshare-net"] if shutil.which("bwrap") else []
    environment = os.environ | {"PYTHONPATH": str(published), "HOME": str(tmp_path), "TXGRADE_HOME": str(tmp_path)}
    run = subprocess.run(
        [*offline, sys.executable, "-c", script], cwd=published, env=environment, capture_output=True, text=True
    )
    assert "0 of 12 points" in run.stdout and "not yet answered" in run.stdout, run.stdout + run.stderr
    assert (published / "my_work" / "AGENTS.md").is_file() and git(published, "status", "--porcelain") == ""


@pytest.mark.slow
def test_its_pages_lead_to_pages_that_are_there(published):
    pages = {name for name in files(published) if re.fullmatch(r"docs/.*\.md|README\.md|HELP\.md", name)}
    assert {"docs/index.md", "docs/library.md"} <= pages
    assert not pages & {"docs/teaching.md", "docs/exercises.md", "docs/grading.md", "docs/releasing.md"}
    for page in pages:
        for link in re.findall(r"\]\((?!http)([\w/.]+\.md)[)#]", (published / page).read_text(encoding="utf-8")):
            folder = published if link == "HELP.md" else (published / page).parent
            assert (folder / link).resolve().is_file(), (page, link)
