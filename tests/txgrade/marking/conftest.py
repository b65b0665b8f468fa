"""A marking page that listens, and a browser without scripts that reads it: forms and links by their words."""

import http.client
import re
import threading
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit

import pytest
from sample_results import essays

from txgrade.marking.page import MarkingPage
from txgrade.marking.server import MarkingServer
from txgrade.records.gradebook import Gradebook


@pytest.fixture
def out(tmp_path):
    """Three learners, each with an essay that waits."""
    essays(tmp_path, 3)
    return tmp_path


@pytest.fixture
def served(out):
    """`served(**options)` starts a server for the folder; it ends with the test."""
    running = []

    def start(**options):
        book = Gradebook(out / "gradebook.sqlite", create=False)
        server = MarkingServer(MarkingPage(book, out, "secret-of-forms", by="root", **options))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread, book))
        return server

    yield start
    for server, thread, book in running:
        server.shutdown()
        server.server_close()
        thread.join()
        book.close()


@pytest.fixture
def server(served):
    return served()


class Forms(HTMLParser):
    """The links and the forms of a page: fields with their values, as a browser would send them."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.forms, self._area, self.text = [], [], None, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "a":
            self.links.append(values["href"])
        elif tag == "form":
            self.forms.append((values["action"], []))
        elif tag == "textarea":
            self._area = values["name"]
            self.forms[-1][1].append((self._area, ""))
        elif (
            tag == "input"
            and "name" in values
            and (values.get("type") not in ("checkbox", "radio") or "checked" in values)
        ):
            self.forms[-1][1].append((values["name"], values.get("value") or ""))

    def handle_endtag(self, tag):
        if tag == "textarea":
            self._area = None

    def handle_data(self, data):
        self.text += data
        if self._area:
            name, value = self.forms[-1][1][-1]
            self.forms[-1][1][-1] = (name, (value + data).removeprefix("\n"))


class Browser:
    """Remembers cookies, follows redirections, and holds the page that it shows."""

    def __init__(self, server, name: str = ""):
        self.url, self.cookie, self.html, self.status, self.headers = server.url, "", "", 0, {}
        self.open("")
        if name:
            self.send(name=name)

    def request(self, method: str, url: str, body: str = "", **headers: str) -> None:
        parts = urlsplit(urljoin(self.url, url))
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        sent = {"Cookie": self.cookie} | ({"Content-Type": "application/x-www-form-urlencoded"} if body else {})
        connection.request(method, f"{parts.path}?{parts.query}", body or None, sent | headers)
        answer = connection.getresponse()
        self.html, self.status, self.headers = answer.read().decode(), answer.status, dict(answer.getheaders())
        connection.close()
        if cookie := self.headers.get("Set-Cookie"):
            self.cookie = cookie.partition(";")[0]
        if self.status == 303:
            self.request("GET", self.headers["Location"])
        else:
            self.url = parts.geturl()

    def open(self, url: str) -> "Browser":
        self.request("GET", url)
        return self

    def form(self, index: int = 0) -> tuple[str, list]:
        return Forms(self.html).forms[index]

    def send(self, index: int = 0, *, drop: tuple[str, ...] = (), **values: str | list[str]) -> "Browser":
        """Fill in a form and send it; `action` is the button."""
        action, fields = self.form(index)
        values = {name.replace("_", "-"): value for name, value in values.items()}
        kept = [(name, value) for name, value in fields if name not in values and name not in drop]
        self.request("POST", action, urlencode([*kept, *values.items()], doseq=True))
        return self

    @property
    def links(self) -> list[str]:
        return Forms(self.html).links

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", Forms(re.sub(r"<style>.*?</style>", "", self.html, flags=re.DOTALL)).text)

    def field(self, name: str) -> str:
        return dict(self.form()[1])[name]

    def begin(self) -> "Browser":
        """Ask for the next answer that waits."""
        return self.send()


@pytest.fixture
def browser(server, served):
    """`browser("Ann")` is a browser in which Ann has signed in; with options, at a server of its own."""
    return lambda name, **options: Browser(served(**options) if options else server, name)
