"""What a reader would stumble over, looked for in the finished pages: each finding names its page."""

from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SOURCES = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "audio": "src",
    "video": "src",
    "source": "src",
    "embed": "src",
}
FETCHED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


class Page(HTMLParser):
    """What the checks need to know of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.fetched: list[str] = []  # by the browser, without being asked
        self.headings: list[tuple[int, str]] = []
        self.silent: list[str] = []  # pictures without a text
        self.articles = 0  # what stands outside of them is the same on all pages
        self._inside, self._heading = 0, False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if "id" in values:
            self.ids[values["id"]] += 1
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if SOURCES.get(tag) in values:
            self.fetched.append(values[SOURCES[tag]])
        if tag == "link" and FETCHED & set(values.get("rel", "").split()):
            self.fetched.append(values.get("href", ""))
        if tag == "img" and not values.get("alt", "").strip() and values.get("aria-hidden") != "true":
            self.silent.append(values.get("src", "")[:60])
        if tag == "article":
            self.articles += 1
            self._inside += 1
        self._heading = self._inside > 0 and len(tag) == 2 and tag[0] == "h" and tag[1].isdigit()
        if self._heading:
            self.headings.append((int(tag[1]), ""))

    def handle_data(self, data: str) -> None:
        if self._heading:
            level, text = self.headings[-1]
            self.headings[-1] = level, text + data

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag == "article"
        self._heading = self._heading and not (tag[0] == "h" and tag[1:].isdigit())


def look_over(site: Path) -> list[str]:
    """What is wrong with a site's pages, a line each place."""
    pages = {
        path.relative_to(site).as_posix(): Page(path)
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    }
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    return [f"{name}: {finding}" for name, page in pages.items() for finding in _findings(name, page, pages, files)]


def _findings(name: str, page: Page, pages: dict[str, Page], files: set[str]) -> Iterator[str]:
    yield from (f"a picture without an alternative text, {source}" for source in page.silent)
    yield from (f"fetches {url} from elsewhere" for url in page.fetched if _elsewhere(url))
    yield from (f"id {id!r} stands {times} times" for id, times in page.ids.items() if times > 1)
    before = 0
    for level, text in page.headings:
        if level > before + 1:
            yield f"heading {text.strip()!r} is of level {level}, after one of level {before}"
        before = level
    titles = [level for level, _ in page.headings].count(1)
    if page.articles and titles != 1:
        yield f"has {titles} headings of level 1"
    for link in dict.fromkeys([*page.links, *filter(None, page.fetched)]):
        target, fragment = resolve(name, link)
        if target is None:
            continue
        if target not in files:
            yield f"link {link!r} leads nowhere"
        elif fragment and target in pages and fragment not in pages[target].ids:
            yield f"link {link!r}: {target} has no such place"


def _elsewhere(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https") or url.startswith("//")


def resolve(page: str, link: str) -> tuple[str | None, str]:
    """The file of the site that a link leads to, and the place in it; None for what is not of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None, ""
    folder = page.rpartition("/")[0].split("/") if "/" in page else []
    for step in unquote(parts.path).split("/") if parts.path else [page.rpartition("/")[2]]:
        if step == "..":
            if not folder:
                return f"../{link}", ""
            folder.pop()
        elif step != ".":
            folder.append(step)
    return "/".join(folder), unquote(parts.fragment)
