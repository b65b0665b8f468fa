"""The corpus of attacks (`attacks/`), graded in one run as one folder, between two honest submissions.

Of each attack: its task gets nothing, the honest answers beside it get their points. Of the run: it ends in bounded
time and memory, leaves nothing running, touches nothing on the host, and tells no secret to anybody.
"""

import contextlib
import html.parser
import json
import os
import re
import shutil
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest
from attacks import POINTS, RIGHT, SOURCE, corpus, filled

from txgrade.authoring.read import read_assignment
from txgrade.authoring.record import record_evidence
from txgrade.authoring.release import release
from txgrade.judging.job import Job
from txgrade.judging.judge import answer_hash
from txgrade.judging.outcome import Reference
from txgrade.records.gradebook import Gradebook
from txgrade.running.grader import grade
from txgrade.running.pool import Failed, on_this_machine
from txgrade.sandbox import Limits, probe
from txgrade.submitting.reading import Submission

ATTACKS = corpus()
HONEST = ("000-honest", "zzz-honest")
SECONDS = int(os.environ.get("TXGRADE_ATTACK_SECONDS", 10))  # more on a machine that has other things to do
LIMITS = Limits(
    memory_mb=1024,
    cpu_seconds=20,
    processes=48,
    open_files=256,
    file_mb=32,
    disk_mb=64,
    output_mb=8,
    cell_seconds=SECONDS,
    notebook_seconds=3 * SECONDS,  # one limit, in which what rests on a slow cell is judged too
)
SECRET = "CANARY-host-secret"
MAX_SECONDS, MAX_WORKER_MB = 90 * SECONDS, 3000

# Names of files that a mail program or a browser could have made, or somebody with bad intentions.
NAMES = (
    "<img src=x onerror=alert(1)>",
    "=HYPERLINK(1)",
    "-rf",
    "a\nb",
    "a\x1b[2Jb",
    "a‮b",
    "x" * 200,
    "' onclick='alert(1)",
    "%2e%2e%2fevil",
    "con",
    "$(touch evil)",
    "a" + os.fsdecode(b"\xff\xfe") + "b",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        probe().level != "sealed", reason=f"no sealed sandbox here: NOT ONE ATTACK was tried; {probe().holes}"
    ),
]


class Watch(threading.Thread):
    """Sees every process that the run starts, the most memory (MB) that one outside the sandbox takes, and the most
    bytes that kernels write into the folder they share with the grader.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.seen, self.most, self.written = threading.Event(), {}, 0, 0

    def run(self) -> None:
        me = psutil.Process()
        while not self.over.wait(0.2):
            with contextlib.suppress(OSError):
                kernels = (
                    Path(os.environ["TXGRADE_ZYGOTE"]).parent if "TXGRADE_ZYGOTE" in os.environ else Path("nothing")
                )
                self.written = max(self.written, sum(each.lstat().st_size for each in kernels.rglob("*")))
            with contextlib.suppress(psutil.Error):
                for process in me.children(recursive=True):
                    self.seen[process.pid, process.create_time()] = process
                    with contextlib.suppress(psutil.Error):
                        if any("forkserver" in word for word in process.cmdline()):
                            self.most = max(self.most, process.memory_info().rss // 2**20)

    def left(self) -> list[str]:
        """What still runs, seconds later."""
        psutil.wait_procs(list(self.seen.values()), timeout=5)
        kept = ("forkserver", "resource_tracker", "fresh_process")  # they fork the next pool, or the next recording
        return [
            str(each)
            for each in self.seen.values()
            if not any(word in _command(each) for word in kept) and _command(each)
        ]


def _command(process: psutil.Process) -> str:
    """How a process was started; nothing where it is gone."""
    try:
        return " ".join(process.cmdline()) if process.is_running() else ""
    except psutil.Error:
        return ""


class Listener:
    """Sockets of the host that nobody may reach, and what they heard."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[str] = []
        self.stream, self.datagram = socket.create_server(("", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.port = self.stream.getsockname()[1]
        self.datagram.bind(("", self.port))
        self.path, self.abstract = str(folder / "listener"), f"txlib-attacks-{os.getpid()}"
        self.named, self.hidden = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        self.named.bind(self.path)
        self.hidden.bind("\0" + self.abstract)
        for each in (self.named, self.hidden):
            each.listen()
        self.sockets = (self.stream, self.datagram, self.named, self.hidden)

    def close(self) -> list[str]:
        heard = []
        for name, each in zip(("tcp", "udp", "unix", "abstract"), self.sockets, strict=True):
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.recv(100) if name == "udp" else each.accept()
                heard.append(name)
            each.close()
        return heard


def snapshot(*folders: Path) -> dict[str, tuple]:
    """What is in some folders: names, kinds, and the contents of all but huge files."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            status = path.lstat()
            if path.is_file() and not path.is_symlink() and status.st_size < 10**8:
                found[str(path)] = (status.st_mode, path.read_bytes())
            elif "__pycache__" not in str(path):
                found[str(path)] = (status.st_mode, str(status.st_size).encode() if path.is_file() else b"")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Everything graded once, and what was seen meanwhile."""
    base = tmp_path_factory.mktemp("attacks")
    course, host, inbox, out = (base / name for name in ("course", "host", "inbox", "out"))
    for folder in (course / "solutions", host, inbox, out):
        folder.mkdir(parents=True)
    source = Path(shutil.copy(SOURCE, course / "solutions"))
    released = nbformat.read(release(source, run_solution=False).exercise, as_version=4)
    (host / "secret.txt").write_text(SECRET)
    listener = Listener(host)
    bystander = psutil.Popen(["sleep", "3600"])
    addresses = sorted(
        {each.address for many in psutil.net_if_addrs().values() for each in many if each.family == socket.AF_INET}
    )
    known = record_evidence(source, [0], [99])
    given = {
        "released": released,
        "public": known["open"]["0"]["reference"]["target"],
        "earlier": known["hidden"]["99"]["reference"]["target"],
        "host": {
            "port": listener.port,
            "addresses": addresses,
            "socket": listener.path,
            "abstract": listener.abstract,
            "processes": [os.getpid(), bystander.pid],
            "flag": str(host / "flag"),
            "files": [
                str(host / "secret.txt"),
                str(source),
                str(out / "gradebook.sqlite"),
                str(inbox / "000-honest.ipynb"),
                str(Path(__file__)),
                str(Path.home() / ".bashrc"),
            ],
        },
    }
    for name in HONEST:
        nbformat.write(filled(released, RIGHT), inbox / f"{name}.ipynb")
    for name, attack in ATTACKS.items():
        write(inbox / f"{name}.ipynb", attack.make(**{each: given[each] for each in attack.knows}), released)
    odd = strange_files(inbox, released, host)
    before = snapshot(course, host, inbox)
    environment = dict(os.environ)
    os.environ["TXGRADE_TEST_SECRET"] = SECRET
    watch = Watch()
    watch.start()
    began = time.monotonic()
    try:
        graded = grade(source, inbox, out, jobs=3, seeds=1, limits=LIMITS)
    finally:
        del os.environ["TXGRADE_TEST_SECRET"]
        watch.over.set()
        watch.join()
        bystanders_status = bystander.status()
        bystander.kill()
        bystander.wait()
    assert os.environ == environment
    return SimpleNamespace(
        results={result.submission: result for result in graded.results},
        seconds=time.monotonic() - began,
        watch=watch,
        heard=listener.close(),
        before=before,
        after=snapshot(course, host, inbox),
        out=out,
        odd=odd,
        host=host,
        bystander=bystanders_status,
    )


def write(path, made, released):
    if isinstance(made, bytes):
        path.write_bytes(made)
        return
    if isinstance(made, str):
        made = {"target": made}
    notebook = filled(released, RIGHT | made) if isinstance(made, dict) and "cells" not in made else made
    path.write_text(json.dumps(notebook), encoding="utf-8")  # half characters stay as \ud800


def strange_files(inbox, released, host):
    """Things in the folder that are no plain files, and plain files with strange names."""
    names = []
    for name in NAMES:
        with contextlib.suppress(OSError):
            nbformat.write(filled(released, RIGHT), inbox / f"{name}.ipynb")
            names.append(name)
    os.mkfifo(inbox / "pipe.ipynb")
    (inbox / "link-to-secret.ipynb").symlink_to(host / "secret.txt")
    (inbox / "link-to-honest.ipynb").symlink_to(inbox / "000-honest.ipynb")
    (inbox / "link-to-itself.ipynb").symlink_to(inbox / "link-to-itself.ipynb")
    (inbox / "link-to-folder").symlink_to(inbox)
    (inbox / "link-to-zero.ipynb").symlink_to("/dev/zero")
    with open(inbox / "sparse.ipynb", "wb") as file:
        file.truncate(3 * 2**30)
    (inbox / "folder.ipynb").mkdir()
    (inbox / "empty").mkdir()
    (inbox / "nothing.ipynb").touch()
    return names


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_gets_nothing_and_the_honest_answers_get_theirs(run, name):
    attack, result = ATTACKS[name], run.results[name]
    points = {task.id: task.points for task in result.tasks}
    said = {task.id: (task.verdict, task.lines) for task in result.tasks}
    for task in attack.loses:
        assert points.get(task, 0) == 0, said
    if attack.status:
        assert result.status == attack.status, result.notes
        honest = {task: best for task, best in POINTS.items() if task not in attack.loses}
        assert {task: points[task] for task in honest} == honest, said
    assert result.score == sum(points.values())


@pytest.mark.parametrize("name", HONEST)
def test_honest_submissions_before_and_after_get_full_marks(run, name):
    assert run.results[name].score == sum(POINTS.values()) == 11
    assert {task.verdict for task in run.results[name].tasks} == {"right"}
    assert not run.results[name].notes


def test_every_submission_has_a_result_and_a_page(run):
    assert set(ATTACKS) <= set(run.results)
    assert len(list((run.out / "feedback").glob("*.html"))) == len(run.results)
    with Gradebook(run.out / "gradebook.sqlite", create=False) as book:
        assert {name: len(book.history(name)) for name in run.results} == dict.fromkeys(run.results, 1)


def test_strange_names_are_graded_too(run):
    right = [name for name, result in run.results.items() if name not in ATTACKS and result.score == 11]
    assert len(right) == len(run.odd) + len(HONEST), sorted(right)


def test_links_and_pipes_are_not_followed(run):
    for name in ("pipe", "link-to-secret", "link-to-honest", "link-to-itself", "link-to-zero", "sparse", "nothing"):
        assert run.results[name].score == 0 and run.results[name].status != "graded", name


def test_host_is_as_it_was(run):
    assert run.after == run.before
    assert run.heard == []
    assert run.bystander == psutil.STATUS_SLEEPING
    assert not (run.host / "flag").exists()
    assert not Path("/tmp/CANARY-pickle").exists()


def test_run_ends_in_bounded_time_and_memory(run):
    assert run.seconds < MAX_SECONDS
    assert run.watch.most < MAX_WORKER_MB


def test_kernels_write_little_outside_their_homes(run):
    assert run.watch.written < 10**7


def test_no_kernel_is_root_anywhere(run):
    task = next(task for task in run.results["namespaces-inside"].tasks if task.id == "target")
    assert re.search(r"INSIDE \[\]", json.dumps(task.outputs)), task.outputs


def test_no_process_is_left(run):
    assert len(run.watch.seen) > len(ATTACKS)  # it did see the kernels
    assert run.watch.left() == []


@pytest.fixture(scope="module")
def reports(run):
    """Every text that leaves the run, by path: pages, tables."""
    return {
        str(path.relative_to(run.out)): path.read_text(encoding="utf-8")
        for path in sorted(run.out.rglob("*"))
        if path.suffix in (".html", ".csv") and path.is_file()
    }


def test_no_report_tells_a_secret(run, reports):
    allowed = {"CANARY-sentence", "CANARY-own"}  # the author's words to a learner; a word of the attack itself
    for path, text in reports.items():
        told = set(re.findall(r"CANARY-[a-z]{3,}", text)) - allowed
        assert not told, (path, told)


def test_no_report_tells_a_secret_in_numbers(run):
    for name, result in run.results.items():
        text = json.dumps(result.data() | {"junit": ""})  # the judge's report is for the instructor
        numbers = [int(each) for each in re.findall(r"\d{3,}", text) if len(each) < 450]
        assert not any(b"CANARY" in each.to_bytes(200, "big") for each in numbers), name
        found = [float(each) for each in re.findall(r"\b\d{2,3}(?:\.0)?\b", text)]
        letters = "".join(chr(int(each)) for each in found if each < 128)
        assert "CANARY" not in letters, name


def test_the_search_for_secrets_did_search(run):
    task = next(task for task in run.results["everything-it-can-read"].tasks if task.id == "target")
    text = json.dumps(task.outputs)
    seen = json.loads(re.search(r"SEEN (\{.*?\})", text.replace('\\"', '"'))[1])
    assert seen["objects"] > 1000 and seen["megabytes"] > 10 and seen["names"] > 1000 and seen["processes"] >= 1
    assert "FOUND ['CANARY-own']" in text  # its own word, and nobody else's


def test_no_kernel_had_rights(run):
    task = next(task for task in run.results["more-rights"].tasks if task.id == "target")
    text = json.dumps(task.outputs)
    assert re.search(r"CapEff:\\+t0{16}", text) and re.search(r"NoNewPrivs:\\+t1", text), text


class Harmful(html.parser.HTMLParser):
    """Collects what a page could run or load."""

    def __init__(self, script: str) -> None:
        super().__init__()
        self.script, self.found, self.inside = script, [], None

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in ("script", "iframe", "object", "embed", "base", "link", "form", "meta") and not (
            tag == "meta" and not any(name == "http-equiv" and value == "refresh" for name, value in attrs)
        ):
            self.found.append((tag, attrs))
        for name, value in attrs:
            scheme = urlsplit(value or "").scheme.lower() if name in ("href", "src", "action", "xlink:href") else ""
            image = tag == "img" and re.fullmatch(r"data:image/(png|svg\+xml);base64,[A-Za-z0-9+/=\s]+", value or "")
            if name.startswith("on") or (scheme not in ("", "https") and not image):
                self.found.append((tag, name, value))


def test_no_page_runs_what_a_submission_says(run, reports):
    for path, text in reports.items():
        if path.endswith(".html"):
            page = Harmful(text)
            page.feed(text)
            assert not [each for each in page.found if "alert" in str(each) or each[0] != "script"], path
            assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f‪-‮⁦-⁩]", text), path


def test_no_table_computes_what_a_submission_says(reports):
    import csv
    import io

    for path, text in reports.items():
        if path.endswith(".csv"):
            for row in csv.reader(io.StringIO(text)):
                assert not [
                    cell
                    for cell in row
                    if cell.startswith(("=", "+", "@", "\t", "\r"))
                    or (cell.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", cell))
                ], path


def test_pages_stay_small(run):
    sizes = {path.name: path.stat().st_size for path in (run.out / "feedback").glob("*.html")}
    assert max(sizes.values()) < 3_000_000, max(sizes, key=sizes.get)
    with Gradebook(run.out / "gradebook.sqlite", create=False) as book:
        assert max(len(json.dumps(entry.result.data())) for name in run.results for entry in book.history(name)) < 10**7


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a b", "ab"),
        ("a  b", "a b"),
        ("a\n\nb", "a\nb"),
        ("a", "A"),
        (" a", "a\n b"),
        ("a\tb", "a b"),
        ("1 1", "11"),
        ("a\nb", "ab"),
        ("x = 1\n  y", "x = 1\ny"),
    ],
)
def test_answers_that_differ_have_different_hashes(one, other):
    assert answer_hash(one) != answer_hash(other)


def test_blanks_at_line_ends_do_not_change_an_answers_hash():
    assert answer_hash("a \nb\n\n") == answer_hash("a\nb")


class Deadly:
    """Kills the process that it is sent to."""

    def __reduce__(self) -> tuple:
        return os._exit, (1,)


class Slow:
    """Takes its time where it is sent to, and becomes a submission with nothing in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple:
        slowly = f"__import__('time').sleep(0.3) or Submission({self.name!r}, 'empty', {{}})"
        return eval, (slowly, {"Submission": Submission})


def test_a_job_that_kills_its_process_takes_no_other_along():
    names = [f"{number:02}" for number in range(8)]
    assignment, nothing = read_assignment(SOURCE), Reference({}, {}, {})
    jobs = [
        Job(assignment, nothing, Deadly() if name == "03" else Slow(name), (1,), LIMITS, "sealed", "", "")
        for name in names
    ]
    done = {jobs.index(job): result for job, result in on_this_machine(jobs, 3) if result is not None}
    assert sorted(done) == list(range(8))
    assert [index for index, result in done.items() if isinstance(result, Failed)] == [3]
