"""The private folder of a grading process: gone when it ends, in whatever order things are cleaned up."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from txgrade.running import workspace

PROCESS = """
from txgrade.running.workspace import workspace
from multiprocessing.util import get_temp_dir

with workspace() as folder:
    print(folder)
    print(get_temp_dir())  # where the pool's server has its socket
"""
FORKS = """
import os, sys
from txgrade.running.workspace import workspace

with workspace() as folder:
    print(folder, flush=True)
if os.fork() == 0:
    sys.exit()
os.wait()
assert folder.is_dir(), "a child has removed its parent's"
"""


def test_it_goes_after_what_multiprocessing_keeps_in_it():
    run = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True)
    folder, inside = map(Path, run.stdout.split())
    assert run.stderr == "" and run.returncode == 0
    assert inside.parent == folder and not folder.exists() and not folder.with_suffix(".lock").exists()


def test_a_child_leaves_it_alone():
    run = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True)
    assert run.stderr == "" and run.returncode == 0
    assert not Path(run.stdout.strip()).exists()


def test_where_files_cannot_be_locked_it_does_not_try_for_ever(tmp_path, monkeypatch):
    """As on some network file systems."""
    monkeypatch.setattr(workspace, "_lock", lambda descriptor: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert workspace._new(tmp_path) is None and not list(tmp_path.iterdir())
    folder, lock = workspace._unswept()
    os.close(lock)
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
