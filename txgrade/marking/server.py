"""Serves the marking page to browsers on this machine, and to nobody else.

It listens on 127.0.0.1 only; the address holds a random token; a form counts only from one of its own pages. A page
runs no script and requests nothing.
"""

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from txgrade.marking.desk import user
from txgrade.marking.page import MAX_NAME, Form, MarkingPage, Reply
from txgrade.records.gradebook import Gradebook
from txgrade.records.ledger import GradebookError
from txgrade.text import printable

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")  # what a browser may call it; the port may be that of an SSH tunnel
MAX_BODY = 1_000_000  # bytes of a form
IDLE_SECONDS = 60  # that a connection may be silent
COOKIE = "txgrade-reviewer"
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "private, no-cache",  # not no-store: a browser then forgets what was typed when it goes back
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with no-referrer, a form would not say where it comes from
    "X-Content-Type-Options": "nosniff",
}


class MarkingServer(ThreadingHTTPServer):
    """The server of one results folder; use it in a `with` block. `url` is where to mark."""

    daemon_threads = True

    def __init__(self, page: MarkingPage, port: int = 0):
        self.page, self.token = page, secrets.token_urlsafe(24)
        page.root = f"/{self.token}/"
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as reason:
            raise ValueError(f"--port {port} can't be used ({reason}): choose another, or none") from reason

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}{self.page.root}"


def serve(
    out: Path,
    *,
    task: str | None = None,
    by: str = "",
    share: tuple[int, int] = (1, 1),
    names: bool = False,
    port: int = 0,
) -> None:
    """Serve until interrupted.

    Raises:
        GradebookError: no gradebook in the folder.
        ValueError: the port is taken.
    """
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        page = MarkingPage(book, out, secrets.token_urlsafe(24), by=by or user(), task=task, share=share, names=names)
        with MarkingServer(page, port) as server:
            print(
                f"Mark at {server.url}\nAnybody with this address can mark. Ctrl-C ends; drafts are kept.", flush=True
            )
            server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server: MarkingServer
    timeout = IDLE_SECONDS
    server_version, sys_version = "txgrade", ""

    def do_GET(self) -> None:
        if (path := self._path()) is None:
            self._send(self._refusal(Form()))
            return
        try:
            reply = self.server.page.get(path, self._reviewer(), self._query())
        except GradebookError as reason:
            reply = self.server.page.given_back(f"{reason}.", Form(), 503)
        self._send(reply)

    def do_POST(self) -> None:
        form = self._form()
        if form is None:
            self._send(Reply("Too much text for one form: go back, and shorten it.", 413))
        elif (path := self._path()) is None or not self._is_own(form):
            self._send(self._refusal(form))
        else:
            self._send(self.server.page.post(path, self._reviewer(), form))

    def _path(self) -> str | None:
        """Return what comes after the token, without the query; None if the address is not ours."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        _, token, *rest = [*urlsplit(self.path).path.split("/"), "", ""]
        if host not in NAMES or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return None
        return "/".join(rest).rstrip("/")

    def _is_own(self, form: Form) -> bool:
        """Return whether a form comes from one of our pages."""
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        if origin is not None and origin != f"http://{self.headers.get('Host')}" or site not in (None, "same-origin"):
            return False
        return hmac.compare_digest(form["secret"].encode("utf-8", "replace"), self.server.page.secret.encode())

    def _form(self) -> Form | None:
        """Return what was sent; None if it is too much. Nothing but an ordinary form is read."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            return None
        body = self.rfile.read(int(length)).decode("utf-8", "replace")
        if self.headers.get_content_type() != "application/x-www-form-urlencoded":
            return Form()
        try:
            return Form(parse_qs(body, keep_blank_values=True, max_num_fields=1_000))
        except ValueError:
            return None

    def _query(self) -> Form:
        return Form(parse_qs(urlsplit(self.path).query[:10_000]))

    def _reviewer(self) -> str:
        try:
            cookies = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return ""
        return printable(unquote(cookies[COOKIE].value))[:MAX_NAME] if COOKIE in cookies else ""

    def _refusal(self, form: Form) -> Reply:
        words = "This address is of an earlier start, or not complete: open the one that the terminal shows."
        return self.server.page.given_back(words, form, 403)

    def _send(self, reply: Reply) -> None:
        body = reply.body.encode("utf-8", "replace")
        self.send_response(303 if not reply.body else reply.status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if not reply.body:
            self.send_header("Location", self.server.page.root + reply.to)
        if reply.name:
            value = f"{COOKIE}={quote(reply.name, safe='')}; Path=/; HttpOnly; SameSite=Strict"
            self.send_header("Set-Cookie", value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal shows the address, which a log would push away."""
