"""The site in Chromium, from its files: it asks nobody for anything, and fits a phone."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COURSE = Path(__file__).parents[3]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the finished site."""
    pytest.importorskip("sphinx_book_theme", reason="the site needs the extra [site]")
    from txcourse.site.__main__ import build

    out = tmp_path_factory.mktemp("site")
    assert build(COURSE, out) == []
    return out / "html"


@pytest.fixture
def visit(chromium, site):
    """Opens a page of the site: `visit("index.html", PHONE, "dark")`. No page may ask for what is not a file."""
    opened, elsewhere, errors = [], [], []

    def visit(name: str, size: dict[str, int] = DESK, scheme: str = "light"):
        page = chromium.new_page(viewport=size, color_scheme=scheme)
        opened.append(page)
        page.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "data:")) else elsewhere.append(request.url),
        )
        page.on("requestfailed", lambda request: errors.append(f"{name}: {request.url} failed"))
        page.on("pageerror", lambda error: errors.append(f"{name}: {error}"))
        page.goto(f"file://{site / name}")
        page.wait_for_function("window.MathJax?.startup === undefined || MathJax.startup.promise")
        return page

    yield visit
    for page in opened:
        page.close()
    assert not elsewhere and not errors


def every_page(site: Path) -> list[str]:
    pages = [path.relative_to(site) for path in sorted(site.rglob("*.html"))]
    return [page.as_posix() for page in pages if page.parts[0] not in ("_static", "_modules")]


def test_no_page_is_wider_than_a_phone(visit, site):
    pages, wide = every_page(site), {}
    assert len(pages) > 50
    page = visit("index.html", PHONE)
    for name in pages:
        page.goto(f"file://{site / name}")
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > PHONE["width"]:
            wide[name] = width
    assert not wide


def test_formulas_are_typeset_and_can_be_read_aloud(visit):
    page = visit("notebooks/03_attention.html")
    page.wait_for_selector("mjx-container svg", state="attached")
    assert page.locator("mjx-container").count() > 20
    assert page.locator("mjx-container mjx-assistive-mml math").count() == page.locator("mjx-container").count()
    assert page.locator("mjx-merror").count() == 0


def test_pictures_carry_their_texts(visit):
    page = visit("notebooks/03_attention.html")
    texts = page.locator(".cell_output img").evaluate_all("images => images.map(image => image.alt)")
    assert len(texts) > 8 and len(set(texts)) == len(texts) and all(len(text) > 20 for text in texts)


def test_views_can_be_touched(visit):
    page = visit("notebooks/03_attention.html", PHONE, "dark")
    page.get_by_label("look at query").press("Home")
    assert page.get_by_role("status").last.inner_text().endswith("Query 0 sees 1 key: 0.")
    ground = page.locator(".page").first.evaluate("view => getComputedStyle(view).backgroundColor")
    assert ground == "rgb(255, 255, 255)"


def test_a_guess_is_shown_with_its_result_and_counted_on_the_map(visit):
    page = visit("notebooks/10_gpt.html", PHONE, "dark")
    page.get_by_label("it does as well as the right one").click()
    said = page.get_by_role("status").get_by_text(
        "You guessed: it does as well as the right one. Right: it is clearly worse"
    )
    assert said.count() == 1
    page.goto(page.url.replace("10_gpt", "00_start_here"))
    row = page.locator("tr", has_text="10 GPT")
    assert "1 of 2 guesses" in row.inner_text()
    row.get_by_role("link", name="10 GPT").click()
    assert page.url.endswith("notebooks/10_gpt.html")


def test_a_view_is_printed_with_its_shades(visit):
    page = visit("notebooks/03_attention.html")
    page.emulate_media(media="print")
    printed = page.locator("[data-alive] td").evaluate_all(
        "cells => cells.map(cell => getComputedStyle(cell).printColorAdjust)"
    )
    assert len(printed) > 10 and set(printed) == {"exact"}


def test_search_finds_a_lesson(visit):
    page = visit("search.html?q=skewing")
    page.wait_for_selector("#search-results li a")
    found = page.locator("#search-results li a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert any("22_music" in link for link in found)


def test_a_found_page_shows_its_sections_with_a_sentence(visit):
    page = visit("search.html?q=skewing")
    line = page.locator("#search-results li", has_text="22 ").locator("p.context").first
    line.wait_for()
    assert "skew" in line.inner_text().lower() and len(line.inner_text()) < 400
    to = page.locator("#search-results p.context a").first
    title = to.inner_text()
    to.click()
    page.wait_for_load_state()
    heading = page.locator(page.url[page.url.index("#") :]).locator("h1, h2, h3, h4").first
    assert title.strip() in heading.inner_text()


def test_the_first_page_has_its_pictures_and_tracks(visit):
    page = visit("index.html")
    widths = page.locator(".stills img").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(widths) == 3 and all(widths)
    assert page.locator("svg.parts text").count() > 10
    assert page.locator("table", has_text="Language models").count() == 1
    page.locator(".stills a").first.click()
    assert "notebooks/00_start_here.html#lesson-00-1" in page.url


def test_a_part_of_the_sidebar_says_what_it_opens(visit):
    arrows = visit("index.html").locator("nav summary")
    names = arrows.evaluate_all("found => found.map(each => each.getAttribute('aria-label'))")
    assert len(names) > 4 and "pages of I Attention" in names
    assert all(name and name.startswith("pages of ") for name in names)
