"""`txcourse update`: work, an update, nothing lost; and where it can't be done, one line, and nothing is touched."""

import shutil
import subprocess

import pytest
from small_course import ANSWER, EXERCISE, LESSON, change, sources, write_exercise, write_lesson

from txcourse import paths
from txcourse.copies import Copies
from txcourse.update import UpdateError, update

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def git(folder, *words):
    named = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A version")


@pytest.fixture
def teacher(course):
    """The clone of whoever writes the course; the server is a bare repository beside it."""
    (course / ".gitignore").write_text("my_work/\n")
    git(course, "init", "--quiet", "--initial-branch", "main")
    commit(course)
    git(course, "clone", "--quiet", "--bare", ".", "../server.git")
    git(course, "remote", "add", "origin", "../server.git")
    return course


@pytest.fixture
def clone(teacher):
    """A learner's clone, opened once, in which a lesson was run and a task answered."""
    folder = teacher.parent / "clone"
    git(teacher, "clone", "--quiet", "../server.git", folder)
    copies = Copies(folder)
    assert copies.refresh() == []
    change(copies.folder / LESSON, "cell-0", "print('mine')")
    change(copies.folder / EXERCISE, "causal-mask", ANSWER)
    return folder


@pytest.fixture
def publish(teacher):
    """Bring out a new version, in which lesson, exercise and more files may have changed."""

    def publish(*more):
        write_lesson(teacher / LESSON, "print(2)")
        write_exercise(teacher / EXERCISE, ("Task 1", "Task one"))
        for name in more:
            (teacher / name).write_text("new")
        commit(teacher)
        git(teacher, "push", "--quiet", "origin", "main")

    return publish


def everything(folder):
    """Each file below a folder, with its bytes, but for what git keeps for itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def kept(folder):
    """What lies in `earlier/`, by name."""
    return {
        name.split("/", 3)[3]: data for name, data in everything(folder).items() if name.startswith("my_work/earlier")
    }


def test_work_then_an_update(clone, teacher, publish):
    before = everything(clone)
    publish()
    said = update(clone)
    assert said[-1].startswith("The course is new.") and "with your answers" in "".join(said)
    for name in (LESSON, EXERCISE):
        assert (clone / name).read_bytes() == (teacher / name).read_bytes()
        assert kept(clone)[name] == before[f"my_work/{name}"]
    assert sources(clone / "my_work" / LESSON) == {"cell-0": "print(2)"}
    assert sources(clone / "my_work" / EXERCISE) == sources(teacher / EXERCISE) | {"causal-mask": ANSWER}
    after = everything(clone)
    assert update(clone) == ["The course is up to date."] and everything(clone) == after
    assert git(clone, "status", "--porcelain") == ""


def test_git_pull_does_as_well(clone, teacher, publish):
    publish()
    git(clone, "pull", "--quiet")
    Copies(clone).refresh()
    assert sources(clone / "my_work" / EXERCISE) == sources(teacher / EXERCISE) | {"causal-mask": ANSWER}


def test_work_in_the_courses_own_files(clone, teacher, publish):
    """As who opens them in VS Code: there is no copy yet, or one without answers."""
    shutil.rmtree(clone / "my_work")
    change(clone / LESSON, "cell-0", "print('mine')")
    change(clone / EXERCISE, "causal-mask", ANSWER)
    before = everything(clone)
    publish("notebooks/04_new.ipynb")
    (clone / "notebooks/04_new.ipynb").write_text("mine")
    said = update(clone)
    assert f"{LESSON} was changed outside my_work; it is kept as my_work/earlier/" in said[1]
    assert kept(clone)[LESSON] == before[LESSON] and kept(clone)["notebooks/04_new.ipynb"] == b"mine"
    assert sources(clone / "my_work" / EXERCISE) == sources(teacher / EXERCISE) | {"causal-mask": ANSWER}
    assert git(clone, "status", "--porcelain") == ""


def test_answers_in_both_places(clone, publish):
    change(clone / EXERCISE, "causal-mask", "def causal_mask(n):\n    return n")
    before = everything(clone)
    publish()
    update(clone)
    assert sources(clone / "my_work" / EXERCISE)["causal-mask"] == ANSWER
    (first, second) = sorted((clone / "my_work/earlier").rglob("exercise_*"))
    assert {first.read_bytes(), second.read_bytes()} == {before[EXERCISE], before[f"my_work/{EXERCISE}"]}


def test_a_copy_without_answers_gives_way_and_is_kept(clone, publish):
    copy = clone / "my_work" / EXERCISE
    copy.write_bytes((clone / EXERCISE).read_bytes())
    change(copy, "cell-1", "# Notes of mine")
    notes = copy.read_bytes()
    change(clone / EXERCISE, "causal-mask", ANSWER)
    publish()
    update(clone)
    assert sources(copy)["causal-mask"] == ANSWER
    assert notes in [path.read_bytes() for path in (clone / "my_work/earlier").rglob("exercise_*")]


def test_own_changes_that_are_not_in_the_way(clone, publish):
    (clone / "pyproject.toml").write_text("[tool.txgrade]\n# mine\n")
    publish()
    update(clone)
    assert "# mine" in (clone / "pyproject.toml").read_text()


def no_git(clone, monkeypatch):
    monkeypatch.setenv("PATH", str(clone))


def unpacked(clone, monkeypatch):
    shutil.rmtree(clone / ".git")


def no_server(clone, monkeypatch):
    git(clone, "remote", "set-url", "origin", "../gone.git")


def own_branch(clone, monkeypatch):
    git(clone, "checkout", "--quiet", "-b", "mine")


def own_commits(clone, monkeypatch):
    (clone / "mine.txt").write_text("mine")
    commit(clone)


def changed_code(clone, monkeypatch):
    (clone / "HELP.md").write_text("mine")
    change(clone / LESSON, "cell-0", "print('mine')")


def own_file(clone, monkeypatch):
    (clone / "new.txt").write_text("mine")


@pytest.mark.parametrize(
    ("obstacle", "remedy"),
    [
        (no_git, "install it, or unpack a newer version"),
        (unpacked, "unpack a newer version over it; my_work, with your notebooks, stays"),
        (no_server, "git fetch: fatal: .*gone.git"),
        (own_branch, "git checkout main, then txcourse update"),
        (own_commits, "git pull --rebase, then txcourse update"),
        (changed_code, r"^HELP.md: changed by you and .* git stash -u, then txcourse update"),
        (own_file, r"^new.txt: changed by you"),
    ],
)
def test_what_stands_in_the_way(clone, publish, monkeypatch, obstacle, remedy):
    publish("HELP.md", "new.txt")
    obstacle(clone, monkeypatch)
    before = everything(clone)
    with pytest.raises(UpdateError, match=remedy) as reason:
        update(clone)
    assert "\n" not in str(reason.value)
    assert everything(clone) == before


def test_the_commands(txcourse, clone, teacher, publish, monkeypatch):
    monkeypatch.setattr(paths, "COURSE", clone)
    publish()
    status, out, err = txcourse("update")
    assert (status, err) == (0, "") and "with your answers" in out and "The course is new." in out
    status, out, err = txcourse("fresh", EXERCISE, "--keep-answers")
    assert (status, err) == (0, "") and "with your answers; yours is kept as my_work/earlier/" in out
    status, out, err = txcourse("fresh", "nowhere.ipynb")
    assert (status, out, err.count("\n")) == (2, "", 1) and "give e.g. exercises/" in err
    shutil.rmtree(clone / ".git")
    status, out, err = txcourse("update")
    assert (status, out, err.count("\n")) == (2, "", 1) and "was not cloned by git" in err
