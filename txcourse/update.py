"""`txcourse update`: git brings the newest version of the course, and the learner's copies follow."""

import os
import shutil
import subprocess
from pathlib import Path

from txcourse.copies import FOLDER, PARTS, Copies

NEWEST = "@{upstream}"


class UpdateError(ValueError):
    """Why nothing was changed; the message is one line."""


def update(course: Path) -> list[str]:
    """Fetch, check that no local change conflicts, then change files. Return the lines to print.

    Raises:
        UpdateError: no git, no clone, no connection, local commits, or changed files that aren't notebooks.
    """
    if shutil.which("git") is None:
        raise UpdateError(
            "txcourse update needs git: install it, or unpack a newer version of the course over this one"
        )
    if not (course / ".git").exists():
        raise UpdateError(
            f"{course} was not cloned by git: unpack a newer version over it; {FOLDER}, with your notebooks, stays"
        )
    git, copies = Git(course), Copies(course)
    git("fetch", "--quiet")
    if git.is_ancestor(NEWEST, "HEAD"):
        return [*copies.refresh(), "The course is up to date."]
    if not git.is_ancestor("HEAD", NEWEST):
        raise UpdateError("you have commits of your own here: git pull --rebase, then txcourse update again")
    coming, changed = git.names("diff", "--name-only", "HEAD", NEWEST), git.names("diff", "--name-only", "HEAD")
    conflicts = sorted(coming & (changed | git.names("ls-files", "--others")))
    if others := [name for name in conflicts if not (name.startswith(PARTS) and name.endswith(".ipynb"))]:
        raise UpdateError(
            f"{', '.join(others)}: changed by you and by the new version; git stash -u, then txcourse update again"
        )
    messages = [copies.adopt(name) for name in conflicts if (course / name).exists()]
    for name in conflicts:
        (course / name).unlink(missing_ok=True)
    if changed & set(conflicts):
        git("checkout", "--quiet", "HEAD", "--", *(changed & set(conflicts)))
    git("merge", "--quiet", "--ff-only", NEWEST)
    return [*messages, *copies.refresh(), "The course is new. Start it as before: make lab, or txcourse lab."]


class Git:
    """git in one folder. Returns what it prints."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, *arguments: str) -> str:
        process = self._run(*arguments)
        if process.returncode:
            errors = [line for line in process.stderr.splitlines() if line.startswith(("fatal:", "error:"))]
            raise UpdateError(f"git {arguments[0]}: {errors[0] if errors else process.stderr.strip()[-200:]}")
        return process.stdout

    def names(self, *arguments: str) -> set[str]:
        """The names of files that it prints."""
        return set(self(*arguments, "-z").split("\0")) - {""}

    def is_ancestor(self, old: str, new: str) -> bool:
        process = self._run("merge-base", "--is-ancestor", old, new)
        if process.returncode > 1:  # neither yes nor no
            raise UpdateError("this branch follows none of a server's: git checkout main, then txcourse update again")
        return not process.returncode

    def _run(self, *arguments: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"LC_ALL": "C"}
        return subprocess.run(["git", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True)
