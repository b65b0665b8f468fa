"""The private folder of a grading process: gone when it ends, in whatever order things are cleaned up."""

import subprocess
import sys
from pathlib import Path

PROCESS = """
from txlib.grading.running.workspace import workspace
from multiprocessing.util import get_temp_dir

with workspace() as folder:
    print(folder)
    print(get_temp_dir())  # where the pool's server has its socket
"""
FORKS = """
import os, sys
from txlib.grading.running.workspace import workspace

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
