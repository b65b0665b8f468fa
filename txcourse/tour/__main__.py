"""`python -m txcourse.tour` records what the tour's check compares answers with, and draws the README's picture."""

from txcourse.paths import course_folder
from txcourse.tour import FIRST_CHECK, RECORDINGS, translate
from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.release import make_recordings
from txgrade.evidence.recordings import pack

if __name__ == "__main__":
    course = course_folder("python -m txcourse.tour")
    recordings, _ = make_recordings(read_exercise(FIRST_CHECK))
    RECORDINGS.write_text(pack(recordings) + "\n", encoding="utf-8")
    translate("Die Orks haben die Menschen angegriffen!").save(str(course / "docs" / "translation.png"))
