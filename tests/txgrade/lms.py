"""Downloads of a class as Canvas, Moodle and Gradescope make them, and the tables that go with them."""

import csv
import io
import re
import zipfile
from dataclasses import dataclass, field

TITLE = "Exercise 03 · A sample"


@dataclass(frozen=True)
class Learner:
    last: str
    first: str
    id: int  # Canvas'; Moodle's participant is 500 less
    email: str
    sid: str

    @property
    def name(self):
        return f"{self.first} {self.last}".strip()

    @property
    def sortable(self):
        return f"{self.last}, {self.first}"

    @property
    def participant(self):
        return self.id - 500


@dataclass(frozen=True)
class Upload:
    """A file that a learner has submitted. `folder` is where it lies in the submission, `time` in ISO 8601, UTC."""

    learner: Learner
    data: bytes
    name: str = "exercise_03_sample.ipynb"
    time: str = "2026-12-01 12:00:00"
    late: bool = False
    number: int = 0  # of the file or the submission; 0 for the next one
    folder: str = ""
    members: tuple[Learner, ...] = field(default=())  # of the group that it is of
    team: tuple[str, int] = ("", 0)


ADA = Learner("Lovelace", "Ada", 1001, "ada@example.edu", "0017")
JOERG = Learner("Müller", "Jörg", 1002, "jm@example.edu", "0018")
ZOFIA = Learner("Nováková", "Žofia", 1003, "zofia@example.edu", "0019")
NAMAE = Learner("名前", "太郎", 1004, "namae@example.edu", "0020")
SMITH = Learner("Smith", "John", 1005, "js1@example.edu", "0021")
OTHER_SMITH = Learner("Smith", "John", 1006, "js2@example.edu", "0022")
CLASS = (ADA, JOERG, ZOFIA, NAMAE, SMITH, OTHER_SMITH)


def canvas_name(upload, number):
    """As Canvas' ContentZipper names a file: everything but letters, digits and _ leaves the sortable name."""
    name = re.sub(r"[^\w]", "", (upload.team[0] or upload.learner.sortable).lower())
    late = "_LATE" if upload.late else ""
    return f"{name}{late}_{upload.learner.id}_{upload.number or number}_{upload.name}"


def canvas_zip(path, uploads, more=lambda archive: None):
    """Flat, with UTF-8 names that the zip file doesn't declare as such; `more` puts in what Canvas would not."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, upload in enumerate(uploads, 99_001):
            archive.writestr(_Undeclared(canvas_name(upload, number), (2026, 11, 30, 10, 0, 0)), upload.data)
        more(archive)
    return path


class _Undeclared(zipfile.ZipInfo):
    """A file whose name is UTF-8 without the flag that says so."""

    def _encodeFilenameFlags(self):  # noqa: N802
        return self.filename.encode(), self.flag_bits & ~0x800


def canvas_gradebook(learners=CLASS, title=f"{TITLE} (4711)", points="12.00"):
    rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", title, "Final Score"]]
    rows += [["    Points Possible", "", "", "", "", points, "(read only)"]]
    rows += [[one.sortable, one.id, one.sid, one.email, "A", "", ""] for one in learners]
    return "\ufeff" + table([*rows, ["Student, Test", "1999", "", "", "A", "", ""]])


def moodle_zip(path, uploads, folders=True):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for upload in uploads:
            name, number = upload.team if upload.team[0] else (upload.learner.name, upload.learner.participant)
            prefix = f"{name.replace('_', ' ')}_{number}_assignsubmission_file"
            inside = f"{upload.folder}/{upload.name}" if upload.folder else upload.name
            archive.writestr(f"{prefix}/{inside}" if folders else f"{prefix}_{upload.name}", upload.data)
    return path


def moodle_worksheet(learners=CLASS, times=None, points="12.00", teams=None):
    """As Moodle 4.5 writes it in English; `times` as its profile's zone shows them."""
    header = ["Identifier", "Full name", "ID number", "Email address", "Status", *(["Group"] if teams else []), "Grade"]
    header += ["Maximum grade", "Grade can be changed", "Last modified (submission)", "Last modified (grade)"]
    rows = [[*header, "Feedback comments"]]
    for one in learners:
        team = [teams.get(one, "Default group")] if teams else []
        rows.append(
            [f"Participant {one.participant}", one.name, one.sid, one.email, "Submitted for grading", *team]
            + ["", points, "Yes", (times or {}).get(one, "-"), "-", ""]
        )
    return "\ufeff" + table(rows)


def gradescope_zip(path, uploads, zone="Z"):
    """Folders with the files, and Ruby's YAML of who submitted when."""
    metadata = "---\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, upload in enumerate(uploads, 298_374_651):
            folder = f"submission_{upload.number or number}"
            archive.writestr(f"assignment_9100_export/{folder}/{upload.name}", upload.data)
            metadata += f"{folder}:\n  :submitters:\n"
            for one in upload.members or (upload.learner,):
                metadata += f"  - :name: {one.name}\n    :sid: '{one.sid}'\n    :email: {one.email}\n"
            metadata += f"  :created_at: {upload.time}.123456789 {zone}\n  :score: 0.0\n  :status: processed\n"
            metadata += "  :results:\n    tests: []\n  :history: []\n"
        archive.writestr("assignment_9100_export/submission_metadata.yml", metadata)
    return path


def gradescope_roster(learners=CLASS):
    rows = [["First Name", "Last Name", "SID", "Email", "Role"]]
    return table(rows + [[one.first, one.last, one.sid, one.email, "Student"] for one in learners])


def table(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
