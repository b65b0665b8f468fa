"""`python -m txcourse.tour` records what the tour's check compares answers with."""

from txcourse.tour import FIRST_CHECK, RECORDINGS
from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.release import make_recordings
from txgrade.evidence.recordings import pack

if __name__ == "__main__":
    recordings, _ = make_recordings(read_exercise(FIRST_CHECK))
    RECORDINGS.write_text(pack(recordings) + "\n", encoding="utf-8")
