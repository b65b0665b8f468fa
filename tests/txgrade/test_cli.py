"""The command `txgrade`: one line for what users mistype."""

import pytest


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "remedy"),
    [(["release", "nowhere.py"], "give the source"), (["check", "nowhere.ipynb"], "give e.g. exercises/")],
)
def test_a_mistake_is_one_line_with_a_remedy(txgrade, tmp_path, monkeypatch, words, remedy):
    monkeypatch.chdir(tmp_path)
    status, out, err = txgrade(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("txgrade: ") and remedy in err
    assert not list(tmp_path.iterdir()), "something half-written stayed behind"


def test_an_unknown_command_is_no_traceback(txgrade):
    status, _, err = txgrade("chek")
    assert status == 2 and "check" in err and "Traceback" not in err
