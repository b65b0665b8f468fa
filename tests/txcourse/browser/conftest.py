"""JupyterLab as `make lab` starts it, on a copy of the course, in a headless Chromium."""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

COURSE = Path(__file__).parents[3]
PARTS = (
    "txlib",
    "txgrade",
    "txcourse",
    "lab",
    "data",
    "notebooks",
    "exercises",
    "solutions",
    "HELP.md",
    "pyproject.toml",
)
TOKEN = "browser-test"
STEP = 300_000  # milliseconds that a step in the browser may take on a busy machine


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course: Lab saves what is typed."""
    folder = tmp_path_factory.mktemp("course")
    for part in PARTS:
        if (COURSE / part).is_dir():
            shutil.copytree(COURSE / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(COURSE / part, folder)
    return folder


@pytest.fixture(scope="module")
def lab(request, course, tmp_path_factory):
    """The address of a running JupyterLab that knows nothing of this machine's own settings.

    A module's OPTIONS are those of its `txcourse lab`.
    """
    home = tmp_path_factory.mktemp("home")
    names = (
        "HOME",
        "IPYTHONDIR",
        "TXGRADE_HOME",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
        "JUPYTERLAB_SETTINGS_DIR",
    )
    private = {name: str(home / name.lower()) for name in names}
    for folder in private.values():
        Path(folder).mkdir()
    log = home / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "txcourse",
                "lab",
                *getattr(request.module, "OPTIONS", ()),
                "--no-browser",
                "--ServerApp.port=0",
                f"--IdentityProvider.token={TOKEN}",
                "--LabApp.expose_app_in_browser=True",
            ],
            cwd=course,
            env=os.environ | private | {"PYTHONPATH": str(course)},
            stdout=file,
            stderr=file,
        )
    try:
        yield _address(server, log)
    finally:
        server.terminate()
        server.wait(20)


def _address(server: subprocess.Popen, log: Path) -> str:
    """Where the server listens, as soon as it answers."""
    for _ in range(360):
        time.sleep(0.5)
        assert server.poll() is None, log.read_text()
        port = next(
            (
                line.partition("localhost:")[2].partition("/")[0]
                for line in log.read_text().splitlines()
                if "http://localhost:" in line
            ),
            None,
        )
        if port is None:
            continue
        address = f"http://localhost:{port}"
        try:
            urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=5).close()
            return address
        except urllib.error.URLError:
            pass
    raise TimeoutError(log.read_text())


@pytest.fixture(scope="module")
def page(chromium, lab):
    """A page of the browser. Once done, it must have asked nobody but Lab for anything."""
    elsewhere = []
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(STEP)
    page.on("request", lambda request: elsewhere.append(request.url) if _outside(request.url, lab) else None)
    yield page
    page.close()
    assert not elsewhere


@pytest.fixture
def shown(request, chromium, screenshots):
    """Puts the outputs of views on a bare page: `shown(view)` -> the page.

    Once done, it is photographed as it stands, wide and as on a phone, and must fit both; no view may have raised an
    error or asked anybody for anything.
    """
    pages, wrong = [], []

    def show(*views, scripts: bool = True):
        context = chromium.new_context(
            offline=True, java_script_enabled=scripts, viewport={"width": 1000, "height": 900}
        )
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("request", lambda request: None if request.url.startswith("data:") else wrong.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        outputs = "".join(view._repr_mimebundle_()[0]["text/html"] for view in views)
        page.set_content(f"<!DOCTYPE html><meta charset=utf-8><body>{outputs}")
        pages.append(page)
        return page

    yield show
    name = re.sub(r"\W+", "-", request.node.name)
    for number, page in enumerate(pages):
        for width in (1000, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=screenshots / f"{name}-{number}-{width}.png", full_page=True)
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(f"a page of {width} pixels has to be scrolled sideways")
        page.context.close()
    assert not wrong


def _outside(url: str, lab: str) -> bool:
    return url.startswith(("http", "ws")) and lab.partition(":")[2] not in url


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory):
    return tmp_path_factory.mktemp("screenshots")


@pytest.fixture
def notebook(page, lab):
    """Opens a notebook of the course: `notebook("notebooks/03_attention.ipynb")`."""
    return lambda path: Notebook(page, f"{lab}/lab/tree/{path}?token={TOKEN}&reset")


class Notebook:
    """A notebook open in Lab. Its outputs are read from Lab's own model, its cells named by their ids."""

    CURRENT = "window.jupyterapp.shell.currentWidget"

    def __init__(self, page, url: str):
        self.page = page
        page.goto(url)
        page.wait_for_function("""() => {
            const session = window.jupyterapp?.shell.currentWidget?.sessionContext
            return session?.isReady && session.session?.kernel?.connectionStatus == 'connected'
                && session.session.kernel.status == 'idle'
        }""")

    def run_all(self) -> bool:
        """Run all cells; False where one raises."""
        return self._command("notebook:run-all-cells")

    def save(self) -> None:
        self._command("docmanager:save")

    def cells(self) -> list[dict]:
        """Id, source and outputs of every cell."""
        return self.page.evaluate(f"""() => {self.CURRENT}.content.widgets.map(cell => ({{
            id: cell.model.id, source: cell.model.sharedModel.getSource(), outputs: cell.model.outputs?.toJSON() ?? []
        }}))""")

    def cell(self, id: str) -> dict:
        return next(cell for cell in self.cells() if cell["id"] == id)

    def shown(self, id: str):
        """The cell as it stands on the page, scrolled to."""
        number = [cell["id"] for cell in self.cells()].index(id)
        place = self.page.locator(".jp-Notebook:visible .jp-Cell").nth(number)
        place.scroll_into_view_if_needed()
        return place

    def is_rendered(self, id: str) -> bool:
        """Whether a markdown cell shows its text, not its source."""
        return self.page.evaluate(f"""() => {self.CURRENT}.content.widgets.find(
            cell => cell.model.id == '{id}').rendered""")

    def type(self, id: str, code: str) -> None:
        """Replace a cell's code, as a learner does: click into it, select all, type."""
        self.shown(id).locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.press("Delete")
        self.page.keyboard.insert_text(code)
        assert self.cell(id)["source"] == code

    def run(self, id: str) -> str:
        """Run one cell and return what it says."""
        self.shown(id).locator(".cm-content").click()
        self._command("notebook:run-cell")
        return self.shown(id).locator(".jp-OutputArea").inner_text()

    def _command(self, name: str) -> bool:
        return self.page.evaluate(f"""() => Promise.race([
            window.jupyterapp.commands.execute('{name}'),
            new Promise((_, stop) => setTimeout(() => stop('{name} takes too long'), {STEP})),
        ])""")
