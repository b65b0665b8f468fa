"""The checks of finished pages find what is broken, and name the place."""

import pytest

from txcourse.site.checks import look_over, resolve

SOUND = """<!doctype html><html><head><link rel="stylesheet" href="_static/a.css"></head><body>
<article><h1 id="top">Title</h1><h2>Part</h2><h3>Detail</h3><h2>Next</h2>
<img src="_static/a.png" alt="a picture"><a href="sub/other.html#place">other</a> <a href="#top">up</a>
<a href="https://example.org">elsewhere</a></article></body></html>"""


@pytest.fixture
def site(tmp_path):
    """A site of two pages with nothing wrong."""
    for name in ("_static/a.css", "_static/a.png", "sub/other.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "index.html").write_text(SOUND)
    (tmp_path / "sub/other.html").write_text(
        '<article><h1 id="place">Other</h1><a href="../index.html#top">back</a></article>'
    )
    return tmp_path


def test_nothing_is_wrong(site):
    assert look_over(site) == []


@pytest.mark.parametrize(
    "sound, broken, finding",
    [
        ('alt="a picture"', "", "a picture without an alternative text, _static/a.png"),
        ('alt="a picture"', 'alt=" "', "a picture without an alternative text, _static/a.png"),
        ("sub/other.html#place", "sub/gone.html", "link 'sub/gone.html' leads nowhere"),
        ("sub/other.html#place", "../outside.html", "link '../outside.html' leads nowhere"),
        (
            "other.html#place",
            "other.html#elsewhere",
            "link 'sub/other.html#elsewhere': sub/other.html has no such place",
        ),
        ('"#top"', '"#bottom"', "link '#bottom': index.html has no such place"),
        ("<h2>Next</h2>", "<h4>Next</h4><h2 id='top'>", "id 'top' stands 2 times"),
        ("<h2>Part</h2>", "", "heading 'Detail' is of level 3, after one of level 1"),
        ("<h2>Next</h2>", "<h1>Next</h1>", "has 2 headings of level 1"),
        ('<h1 id="top">Title</h1>', '<p id="top">', "has 0 headings of level 1"),
        ('href="_static/a.css"', 'href="https://cdn.example.org/a.css"', "fetches https://cdn.example.org/a.css"),
        ('src="_static/a.png"', 'src="//cdn.example.org/a.png"', "fetches //cdn.example.org/a.png"),
        ('src="_static/a.png"', 'src="_static/gone.png"', "link '_static/gone.png' leads nowhere"),
    ],
)
def test_what_is_broken_is_named(site, sound, broken, finding):
    page = site / "index.html"
    assert sound in SOUND
    page.write_text(SOUND.replace(sound, broken))
    found = look_over(site)
    assert any(line.startswith("index.html: ") and finding in line for line in found), found


def test_links_are_resolved_like_a_browser_does():
    assert resolve("a/b/page.html", "../c/x%20y.html?v=1#z") == ("a/c/x y.html", "z")
    assert resolve("page.html", "#z") == ("page.html", "z")
    assert resolve("a/page.html", "data:image/png;base64,AA") == (None, "")
