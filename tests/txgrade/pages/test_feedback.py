"""Pages say everything a reader needs, let nothing of a submission through as HTML, and fit a phone."""

import base64
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sample_results import ADA, ASSIGNMENT, BROKEN, HOSTILE, LOOSE, NAMAE, RESULTS, ZOFIA, matrix, png, result, task

from txgrade.authoring.assignment import GradedTask
from txgrade.pages.feedback import feedback_page
from txgrade.pages.page import TEMPLATES
from txgrade.pages.prose import prose
from txgrade.pages.similar import Similar
from txgrade.pages.summary import summary_page
from txgrade.records.lateness import UNKNOWN, with_lateness
from txgrade.records.result import VERDICTS, Note, Part
from txgrade.submitting.notebook import STATUSES
from txgrade.text import printable

VOID = {"meta", "img", "br", "hr", "rect", "line"}
MATHML = {"math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "msub", "msup", "msubsup", "mfrac", "msqrt", "mstyle"}
MATHS = {"display", "stretchy", "mathvariant", "fence", "form"}  # the attributes of these
ALLOWED = {
    "html",
    "head",
    "title",
    "style",
    "body",
    "header",
    "main",
    "footer",
    "nav",
    "section",
    "article",
    "h1",
    "h2",
    "h3",
    "h4",
    "p",
    "ol",
    "ul",
    "li",
    "a",
    "strong",
    "em",
    "bdi",
    "span",
    "code",
    "pre",
    "details",
    "summary",
    "div",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "figure",
    "figcaption",
    "sub",
    "sup",
    "i",
    "u",
    "svg",
    "desc",
    "text",
    *VOID,
    *MATHML,
}
ATTRIBUTES = {
    "lang",
    "charset",
    "name",
    "content",
    "http-equiv",
    "class",
    "id",
    "href",
    "rel",
    "src",
    "alt",
    "style",
    "tabindex",
    "role",
    "aria-label",
    "aria-labelledby",
    "aria-hidden",
    "scope",
    "viewbox",
    "width",
    "height",
    "x",
    "y",
    "x1",
    "x2",
    "y1",
    "y2",
    "rx",
    "text-anchor",
    *MATHS,
}


class Page(HTMLParser):
    """What a browser would find on a page: its elements with attributes, its visible text; unbalanced tags fail."""

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == [], "elements are closed"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


def harmless(source: str) -> Page:
    """Hold a page to what every page must be, and return it."""
    page = Page(source)
    assert source.startswith("<!DOCTYPE html>")
    assert {name for name, _ in page.elements} <= ALLOWED
    assert {name for _, found in page.elements for name in found} <= ATTRIBUTES
    for image in page.all("img"):
        assert re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/]+=*", image["src"]) and image["alt"]
    for link in page.all("a"):
        assert re.match(r"#[a-z0-9-]+$|feedback/[^/:]+\.html$|https?://|mailto:", link["href"])
    policy = next(each for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    wanted = {found[name] for _, found in page.elements for name in ("aria-labelledby",) if name in found}
    assert {each for one in wanted for each in one.split()} <= set(ids)
    assert {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")} <= set(ids)
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in zip(levels, levels[1:], strict=False)), "no level is skipped"
    for landmark in ("main", "header", "footer"):
        assert len(page.all(landmark)) == 1
    assert source == printable(source) and source.encode("utf-8")
    return page


@pytest.mark.parametrize("found", [*RESULTS, LOOSE], ids=lambda found: found.submission)
def test_every_page_is_sound_and_names_its_learner(found):
    page = harmless(feedback_page(found, ASSIGNMENT))
    for words in (
        found.submission,
        ASSIGNMENT.title,
        *(each.title for each in found.tasks),
        *(VERDICTS[each.verdict] for each in found.tasks),
        *["1204871, 998244353"] * (found.status == "graded"),
    ):
        assert words in page.text


def test_a_page_says_what_was_found():
    page = harmless(feedback_page(ZOFIA, ASSIGNMENT))
    for words in (
        "2.8 of 12 points",
        "0.7 points taken off the 3.5",
        "1 day and 3 hours late",
        "4 points of these are still to be marked by a person",
        "in a sealed sandbox",
        "This lets each query see the future.",
        "the first difference is at [0, 1]",
        "right when run by itself",
        "it earns 3 of 3 points; in your notebook, 0",
        "axes are labelled",
        "0.5 of 0.5",
        "return torch.ones(n, n).triu().bool()",
        "Compare every query",
        "Hint 2: which size is dk?",
        "difficulty 1 of 5",
        "the cell is there twice",
        "Continue with Scores",
        "txgrade check exercises/exercise_03_attention.ipynb",
    ):
        assert words in page.text, words
    assert len(page.all("caption")) == 4 and len(page.all("u")) == 22 + 12  # every number that differs
    assert [each["alt"] for each in page.all("img")] == ["Figure 1 of 1 that your notebook drew for “A picture”"]
    assert len(page.all("details")) == 2 + 1 + 1 + 1  # hints: of three prompts, and the one for what to try next


def test_what_to_try_next():
    def said(found):
        text = harmless(feedback_page(found, ASSIGNMENT)).text
        return text[text.index("What to try next") :][:80]

    assert "Nothing is left to do" in said(ADA)
    waiting = replace(ADA, tasks=(*ADA.tasks[:-1], task("essay", "pending")))
    assert "your written answers are still to be marked" in said(waiting)
    assert "Continue with Scores" in said(NAMAE)
    assert "What to try next" not in Page(feedback_page(BROKEN, ASSIGNMENT)).text
    nbgrader = replace(ASSIGNMENT, path=Path("source/ps1.ipynb"))
    assert "Restart Kernel and Run All Cells" in Page(feedback_page(NAMAE, nbgrader)).text


@pytest.mark.parametrize("status", [*STATUSES, "something new"])
def test_whoever_is_not_graded_reads_why_and_what_to_do(status):
    found = result("Žofia", status=status, notes=(Note("not graded", "TimeoutError in /srv/grader/worker.py"),))
    text = harmless(feedback_page(found, ASSIGNMENT)).text
    assert f"Not graded: {status}" in text and STATUSES.get(status, "check that it runs from top to bottom") in text
    assert "/srv/grader" not in text, "what the grader stumbled over is not for learners"


def hostile(text: str):
    """A result with this text wherever a submission has a say."""
    said = task(
        "scores",
        "mistake",
        answer=text,
        lines=(text, f"`{text}`"),
        matrices=(matrix([text] * 4), matrix([True] * 4)),
        parts=(Part(text, False, 0, 1),),
        outputs=({"text": text}, {"png": text}, {"png": png()}),
    )
    return result(
        text,
        replace(said, title=text),
        task("essay", "pending", answer=text),
        notes=(Note("late", text), Note(text, text, "scores"), Note("other", text, text)),
        penalty=0.1,
        submitted=text,
    )


@pytest.mark.parametrize("text", [*HOSTILE, "".join(HOSTILE)])
def test_nothing_of_a_submission_is_html(text):
    found = hostile(text)
    page = harmless(feedback_page(found, ASSIGNMENT))
    visible = " ".join(printable(text).split())
    assert page.text.count(visible) >= 3
    assert len(page.all("img")) == 1
    harmless(feedback_page(replace(found, status=text), ASSIGNMENT))
    strange = {**vars(ASSIGNMENT.tasks[0]), "prompt": text, "title": text}
    assignment = replace(ASSIGNMENT, title=text, tasks=(GradedTask(**strange), *ASSIGNMENT.tasks[1:]))
    harmless(feedback_page(found, assignment))
    page = harmless(
        summary_page(
            [found, replace(found, status=text), ADA],
            assignment,
            similar=[Similar("scores", text, "Ada Lovelace", 0.93)],
        )
    )
    assert visible[:200] in page.text


def test_a_submission_called_like_a_path_leads_nowhere_else():
    for name in ("../../etc/passwd", "javascript:alert(1)", "a b%2F?x#y", "//evil.example/x"):
        page = Page(summary_page([replace(ZOFIA, submission=name)], ASSIGNMENT))
        assert all(re.fullmatch(r"#[a-z]+|feedback/[A-Za-z0-9%._~-]+\.html", each["href"]) for each in page.all("a"))


@pytest.mark.parametrize("text", ["x" * 10**6, "x = (" * 2 * 10**5, "\n" * 10**6, "'" * 10**6, "`*" * 5 * 10**5])
def test_a_huge_answer_makes_no_huge_page(text):
    start = time.perf_counter()
    page = feedback_page(hostile(text), ASSIGNMENT)
    assert len(page) < 6_000_000 and time.perf_counter() - start < 10
    assert "more characters" in page


def test_figures_keep_what_they_say_of_themselves():
    told = 'Two lines cross; "loss" & <eos>'
    shown = ({"png": png(), "alt": told}, {"png": png(), "alt": 3}, {"png": png(), "alt": "x" * 9999})
    page = harmless(feedback_page(result("a", task("plot", outputs=shown)), ASSIGNMENT))
    first, second, third = (each["alt"] for each in page.all("img"))
    assert first.startswith("Figure 1 of 3 that your notebook drew for") and first.endswith(f": {told}")
    assert second.startswith("Figure 2 of 3") and ":" not in second
    assert len(third) < 3000


def test_only_pictures_are_shown():
    bomb = png(2, 2)
    raw = bytearray(base64.b64decode(bomb))
    raw[16:24] = (60_000).to_bytes(4, "big") * 2
    shown = (
        {"png": base64.b64encode(b"<svg onload=alert(1)>" * 9).decode()},
        {"png": base64.b64encode(raw).decode()},
        {"png": 3},
        {"png": "é"},
        {"png": png()[:80] + "\n" + png()[80:]},
    )
    page = harmless(feedback_page(result("a", task("plot", outputs=shown)), ASSIGNMENT))
    assert len(page.all("img")) == 1


def test_odd_evidence_stops_no_page():
    for found in ({"values": [1]}, {}, {"shape": [2, 2], "values": [1, 2, 3, 4, 5], "dtype": "int64"}):
        odd = task("scores", "wrong", lines=("It differs.",), matrices=(found, matrix([True] * 4)))
        assert "It differs." in harmless(feedback_page(result("a", odd), ASSIGNMENT)).text


def test_solutions_stay_at_home():
    """A page is made of the result and the prompts: nothing else of the assignment is in it."""
    secret = GradedTask(
        "scores",
        "Scores",
        2,
        "evidence",
        "SECRET-check",
        ("SECRET-cell",),
        prompt="Asked.",
        rubric="SECRET rubric",
        forbidden=("SECRET_name",),
    )
    assignment = replace(
        ASSIGNMENT, tasks=(secret,), notebook={"cells": ["SECRET"]}, stubs={"scores": "SECRET"}, hash="SECRET"
    )
    found = replace(result("a", task("scores", "wrong")), junit="SECRET", environment="SECRET")
    assert "SECRET" not in feedback_page(found, assignment)


# Prompts


@pytest.mark.parametrize(
    "markdown, words",
    [
        (r"$\sqrt{d_k}$", "<msqrt><msub><mi>d</mi><mi>k</mi></msub></msqrt>"),
        (r"$\text{softmax}(QK^\top)$", "<mtext>softmax</mtext>"),
        (r"$\text{softmax}(QK^\top)$", "<msup><mi>K</mi><mo>⊤</mo></msup>"),
        (r"$\frac{a + 1}{\mu}$", "<mfrac><mi>a</mi><mo>+</mo><mn>1</mn><mi>μ</mi></mfrac>"),
        (r"$x_{2} * y_i * z_j$", "<msub><mi>x</mi><mn>2</mn></msub><mo>*</mo><msub><mi>y</mi><mi>i</mi></msub>"),
        (r"$\unknown{x} < 3$", r"<mi>\unknown</mi><mi>x</mi><mo>&lt;</mo><mn>3</mn>"),
        ("$$j \\le i$$", "<mi>j</mi><mo>≤</mo><mi>i</mi>"),
        ("`$x$` costs $5", "<code>$x$</code> costs $5"),
        ("$x_$ and $</code><b>_$", "<code>x_</code> and <code>&lt;/code&gt;&lt;b&gt;_</code>"),
    ],
)
def test_maths_is_readable(markdown, words):
    assert words in re.sub("</?mrow>", "", prose(markdown))


@pytest.mark.parametrize(
    "tex",
    [
        r"\text{<b onclick='x'>}",
        r"\href{javascript:alert(1)}{x}",
        r"\style{position: fixed}{x}",
        r"\class{a}{x} \mathrm{</math><script>}",
        r"\text{&lt;b&gt;}",
    ],
)
def test_maths_is_nothing_but_maths(tex):
    page = Page(prose(f"${tex}$"))
    assert {name for name, _ in page.elements} <= {"p", *MATHML}
    assert {name for _, attributes in page.elements for name in attributes} <= MATHS


def test_hints_are_folded_and_their_markdown_is_read():
    html = prose("Do *it*.\n\n<details><summary>Hint `1`</summary>\n\nOne **row**.\n</details>\nAfter.")
    assert html.replace("\n", "") == (
        "<p>Do <em>it</em>.</p><details><summary>Hint <code>1</code></summary><p>One "
        "<strong>row</strong>.</p></details><p>After.</p>"
    )


@pytest.mark.parametrize(
    "markdown",
    [
        "<details open onclick=x><summary>a</summary>b</details>",
        "<details><summary>a",
        "</details></details>",
        "[a](javascript:alert(1)) [b](data:text/html,x) [c](../lesson.ipynb) [d](//evil.example)",
        "![a](http://evil.example/x.png)",
        "<!-- x --><style>*{}</style>",
        "```\n</code><script>\n```",
    ],
)
def test_prompts_carry_no_tags_of_their_own(markdown):
    page = Page(prose(markdown))
    assert {name for name, _ in page.elements} <= {"p", "details", "summary", "span", "pre", "code"}
    assert not any(attributes for _, attributes in page.elements)


@pytest.mark.parametrize(
    ("marked_late", "words"),
    [
        (True, "Marked as submitted late, but without a time: no late penalty."),
        (None, "Time of submission unknown: no late penalty."),
        (False, ""),
    ],
)
def test_a_late_mark_without_a_time(marked_late, words):
    due = {"when": "2026-12-01 23:59", "timezone": "UTC", "per_day": 0.1, "at_most": 1, "grace_minutes": 0}
    one = with_lateness(replace(ADA, marked_late=marked_late), due)
    text = harmless(feedback_page(one, replace(ASSIGNMENT, due=due))).text
    assert words in text and text.count("no late penalty") == bool(words) and "--times" not in text


# The class


def test_the_class_at_a_glance():
    page = harmless(summary_page(RESULTS, ASSIGNMENT, similar=[Similar("scores", "Ada Lovelace", "名前", 0.934)]))
    for words in (
        "4 of 6 submissions graded",
        "1 with full points",
        "2 of 4 right (50 %)",
        "This lets each query see the future.",
        "It raised RuntimeError",
        "in-kernel tests",
        "the weaker kind",
        "calls torch.nn.functional.scaled_dot_product_attention",
        "boris: truncated",
        "empty-folder: no notebook",
        "93 %",
        "4 in a sealed sandbox",
    ):
        assert words in page.text, words
    assert "Not graded in a sealed sandbox" not in page.text
    assert "Not graded in a sealed sandbox" in Page(summary_page([*RESULTS, LOOSE], ASSIGNMENT)).text
    links = {each["href"] for each in page.all("a")}
    assert "feedback/%C5%BDofia%20Nov%C3%A1kov%C3%A1.html" in links


def test_the_commonest_mistake_comes_first():
    def wrong(i, sentence):
        lines = (sentence, f"Result 1 differs at [{i}].")
        return result(f"s{i}", task("scores", "mistake", lines=lines, sentences=(sentence,)))

    results = [wrong(i, "Divide by the *root*." if i % 3 else "Other.") for i in range(9)]
    text = Page(summary_page(results, ASSIGNMENT)).text
    assert text.index("6×Divide by the root.") < text.index("3×Other.")


def test_of_two_mistakes_at_once_both_are_told_and_counted():
    sentences = ("Divide by the *root*.", "The distance is $j - i$.")
    lines = (f"Results 1 and 3 of 4: {sentences[0]}", f"Result 2 of 4 (n = 3): {sentences[1]}")
    both = result("both", task("scores", "mistake", lines=lines, sentences=sentences))
    one = result("one", task("scores", "mistake", lines=sentences[:1], sentences=sentences[:1]))
    text = harmless(summary_page([both, one], ASSIGNMENT)).text
    assert "2×Divide by the root." in text and "1×The distance is j−i." in text
    page = harmless(feedback_page(both, ASSIGNMENT))
    assert "Results 1 and 3 of 4: Divide by the root." in page.text
    assert "Result 2 of 4 (n = 3): The distance is j−i." in page.text


def test_dollar_signs_are_maths_in_the_author_s_sentences_only():
    sentence = "Use `$x$`, not $x_1$; it costs 3 $ or $5."
    lines = (sentence, "Your answer raised `ValueError`: $x_2$ and $\\sqrt{x}$")
    wrong = task("scores", "mistake", lines=lines, sentences=(sentence,))
    page = harmless(feedback_page(result("a", wrong), ASSIGNMENT))
    assert "Use $x$, not x1; it costs 3 $ or $5." in page.text
    assert "$x_2$ and $\\sqrt{x}$" in page.text


def test_a_cell_that_did_not_run_is_the_headline():
    words = "The cell of your answer ended with `SyntaxError`: '(' was never closed, in line 2: `y = (1`"
    broken = result("broken", task("scores", "error", lines=(words,)))
    assert "in line 2: y = (1" in harmless(feedback_page(broken, ASSIGNMENT)).text
    assert "1×Its cell ended with SyntaxError" in harmless(summary_page([broken], ASSIGNMENT)).text


def test_formulas_beside_each_other_keep_their_distance():
    asked = replace(ASSIGNMENT.task("attention"), prompt="### Task 3 · A\n\n$$a = 1 \\qquad b = 2$$")
    page = harmless(feedback_page(result("a", task("attention", "wrong")), replace(ASSIGNMENT, tasks=(asked,))))
    assert [each["width"] for each in page.all("mspace")] == ["2em"]


def test_the_distribution_counts_everyone():
    scores = [0, 0.5, 6, 6.1, 11.9, 12]
    page = Page(summary_page([replace(ADA, score=score) for score in scores], ASSIGNMENT))
    (chart,) = page.all("svg")
    assert chart["role"] == "img"
    assert "2 between 0 and 10 %; 2 between 50 and 60 %; 2 between 90 and 100 %." in page.text


def test_what_is_not_marked_is_in_no_mean():
    waiting = result("waits", task("scores"), task("causal-mask", "wrong"), task("essay", "pending"))
    nothing_else = replace(result("essay", task("essay", "pending")), max_score=4)
    marked = result("marked", *ADA.tasks[:3], task("essay", "reviewed", 4))
    page = harmless(summary_page([waiting, nothing_else, marked], ASSIGNMENT))
    # 2 of 12 - 4 points, and 11 of 12; the third has no marked point
    assert "Median 58 %, mean 58 % of the points of what is marked; 2 written answers of 2 learners wait" in page.text
    assert "1 of 1 right (100 %); 4 of 4 points on average; 2 to be marked" in page.text
    assert "To look at" not in page.text, "a class that waits for marks is no list of cases"
    assert "1 between 20 and 30 %; 1 between 90 and 100 %." in page.text
    page = harmless(summary_page([waiting, nothing_else], ASSIGNMENT))
    assert "Why the root? · written 2 to be marked" in page.text


def test_what_holds_for_the_whole_class_is_one_line():
    note = Note(UNKNOWN, "nobody knows when", review=False)
    text = harmless(summary_page([replace(ADA, notes=(note,)), replace(ZOFIA, notes=(note,))], ASSIGNMENT)).text
    assert "About the whole class nobody's time of submission is known, so nothing is taken off" in text


def test_a_class_of_nobody():
    assert "0 of 0 submissions graded" in harmless(summary_page([], ASSIGNMENT)).text
    harmless(summary_page([BROKEN], ASSIGNMENT))


# Looks


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", css))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme):
    """Every colour of text stands out from both backgrounds by 4.5 to 1 (WCAG 2.2, 1.4.3)."""
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    colours = _colours(light) | (_colours(dark.split("* {")[0]) if scheme == "dark" else {})
    assert len(colours) >= 12
    for name in set(colours) - {"paper", "panel", "line"}:
        for ground in ("paper", "panel"):
            one, other = sorted((_luminance(colours[name]), _luminance(colours[ground])))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (name, ground)


PAGES = {
    "žofia": lambda: feedback_page(ZOFIA, ASSIGNMENT),
    "name": lambda: feedback_page(NAMAE, ASSIGNMENT),
    "hostile": lambda: feedback_page(hostile("".join(HOSTILE) + "W" * 3000), ASSIGNMENT),
    "broken": lambda: feedback_page(BROKEN, ASSIGNMENT),
    "summary": lambda: summary_page(
        [*RESULTS, hostile("".join(HOSTILE) + "W" * 300)],
        ASSIGNMENT,
        similar=[Similar("scores", "Ada Lovelace", "W" * 200, 0.93)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_shows_it_on_a_phone_without_a_request_or_a_complaint(chromium, tmp_path, name):
    file = tmp_path / "page.html"
    file.write_text(PAGES[name](), encoding="utf-8")
    page = chromium.new_page(viewport={"width": 360, "height": 740})
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.goto(file.as_uri())
    widths = {}
    for width in (360, 1200):
        page.set_viewport_size({"width": width, "height": 740})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            widths[width, scheme] = page.evaluate("document.documentElement.scrollWidth")
    page.emulate_media(media="print")
    broken = page.evaluate("[...document.images].filter(image => !image.naturalWidth).length")
    assert all(nav.is_visible() for nav in page.locator("nav").all()), "the points of each task are printed as well"
    page.close()
    assert widths == {(width, scheme): width for width, scheme in widths}, "nothing is wider than the window"
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
    assert not complaints and not broken


@pytest.mark.parametrize("line", [" \n", "\t\n", "\x0b\n", " \r\n", "#\n", "\\\n"])
def test_a_long_answer_of_nothing_is_coloured_soon(line):
    """The grader itself makes the pages: blank lines alone took it 3 s for each answer."""
    started = time.process_time()
    feedback_page(result("a", task("scores", answer="x = 1\n" + line * 20_000 + "y")), ASSIGNMENT)
    assert time.process_time() - started < 1
