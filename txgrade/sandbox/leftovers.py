"""Temporary folders that a later start removes if their process was killed.

A name says whose a folder is, as that of a control group does, which can hold no lock: `owners` judges both. What a
grading run keeps elsewhere is locked instead (`running.workspace` says why).
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from txgrade.sandbox import groups
from txgrade.sandbox.owners import is_gone, own_tag, owner

PREFIX = "tx-"


def make_folder(parent: Path | str | None = None) -> Path:
    """A new folder that only this user can enter, whose name says whose it is."""
    path = Path(parent or tempfile.gettempdir(), f"{PREFIX}{own_tag()}-{secrets.token_hex(4)}")
    path.mkdir(mode=0o700)
    return path


def sweep() -> None:
    """Remove what killed processes of this user's left: folders, control groups, and processes in these."""
    groups.sweep()
    for parent in {"/tmp", tempfile.gettempdir()}:
        for path in Path(parent).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # somebody else sweeps, too
                if path.lstat().st_uid == os.getuid() and is_gone(owner(path.name.removeprefix(PREFIX))):
                    shutil.rmtree(path, ignore_errors=True)  # follows no links
