"""The command `txcourse`."""

from txcourse import paths


def test_lab_needs_a_clone(txcourse, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "COURSE", tmp_path)
    status, _, err = txcourse("lab", "--no-browser")
    assert status == 2 and "clone the course" in err
