"""What a kernel can see of the machine's files: what it needs, and none of a course's folders."""

import os
import sys
from pathlib import Path

import pytest

from txgrade.sandbox import Limits, probe
from txgrade.sandbox.probe import visible_inside
from txgrade.sandbox.view import FILES, PARTS, binds
from txgrade.sandbox.warm import warm_kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}"),
]


def test_what_lies_below_the_environment_but_is_not_of_it_is_hidden(kernel):
    code = """
import os

for folder in ("/usr/share", "/usr/local/share", "/usr/src", "/srv", "/opt", "/home", "/var", "/mnt", "/sys", "/etc"):
    try:
        print(*os.listdir(folder))
    except FileNotFoundError:
        pass
"""
    below = {Path(name).name for name in (*PARTS, *FILES)} | {"passwd"}
    assert set(kernel.run(code).split()) <= below


@pytest.mark.skipif(not os.access("/usr/local", os.W_OK), reason="this user may not write to /usr/local")
def test_an_exchange_below_usr_local_share_is_hidden(kernel):
    folder = Path("/usr/local/share/txlib-test-exchange")
    folder.mkdir()
    try:
        (folder / "gradebook.db").write_text("secret")
        assert kernel.run(f"open({str(folder / 'gradebook.db')!r}).read()") == "FileNotFoundError"
    finally:
        (folder / "gradebook.db").unlink()
        folder.rmdir()


def test_folders_that_can_be_seen_are_found_by_their_canary(tmp_path, warm):
    seen, hidden = Path(sys.prefix, "lib"), tmp_path / "inbox"
    hidden.mkdir()
    before = {*os.listdir(seen), *os.listdir(hidden)}
    assert visible_inside(warm, [hidden]) == []
    found = visible_inside(warm, [hidden, seen])
    assert found == [seen.resolve()]
    assert {*os.listdir(seen), *os.listdir(hidden)} == before


def test_a_link_into_the_environment_is_followed(tmp_path, warm):
    (tmp_path / "results").symlink_to(Path(sys.prefix, "lib"))
    assert visible_inside(warm, [tmp_path / "results"]) == [Path(sys.prefix, "lib").resolve()]


def test_a_folder_that_can_be_seen_stops_the_run_in_one_line():
    seen = Path(sys.prefix, "lib").resolve()
    with (
        pytest.raises(ValueError, match=f"{seen} could be read inside the sandbox.*: move it") as error,
        warm_kernels([], Limits(), "sealed", trust=False, hidden=[seen]),
    ):
        pass
    assert "\n" not in str(error.value)


def test_no_bind_is_a_whole_root():
    assert not {Path("/"), Path("/usr"), Path("/usr/local"), Path("/etc"), Path(sys.prefix)} & set(binds())
