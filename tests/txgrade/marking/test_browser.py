"""The marking page in Chromium, without scripts: in light and dark, at a desk and on a phone."""

import re

import pytest
from sample_results import HOSTILE, result, task

from txgrade.records.gradebook import Gradebook

pytestmark = pytest.mark.slow
CONTRAST = """() => {
  const channel = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4
  const light = color => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * channel(color[i]), 0)
  const numbers = text => text.match(/[\\d.]+/g).map(Number)
  const paper = element => {
    for (; element; element = element.parentElement) {
      const color = numbers(getComputedStyle(element).backgroundColor)
      if (color.length == 3 || color[3] > 0) return color
    }
    return [255, 255, 255]
  }
  return [...document.querySelectorAll('body *')].filter(element => element.checkVisibility() &&
      [...element.childNodes].some(node => node.nodeType == 3 && node.data.trim())).flatMap(element => {
    const [one, other] = [light(numbers(getComputedStyle(element).color)), light(paper(element))].sort((a, b) => a - b)
    const ratio = (other + 0.05) / (one + 0.05)
    return ratio < 4.5 ? [`${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(1)}`] : []
  })
}"""
UNNAMED = """() => [...document.querySelectorAll('input:not([type=hidden]), textarea, button, a, pre')]
  .filter(element => !element.textContent.trim() && !element.labels?.length && !element.ariaLabel)
  .map(element => element.outerHTML)"""


@pytest.fixture
def page(out, chromium, server, tmp_path_factory):
    """A page of a browser without scripts, signed in as Ann; it may ask the server only."""
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.add(1, result("mallory", task("essay", "pending", answer="".join(HOSTILE) + "W" * 3000)))
        book.write_item("essay", 2, "Derives the variance")
        book.write_item("essay", -1, "Copies the prompt")
    (out / "requests").mkdir()
    (out / "requests" / "l001.md").write_text("# scores\nPlease <b>look</b>.\n", encoding="utf-8")
    elsewhere = []
    context = chromium.new_context(java_script_enabled=False, viewport={"width": 1100, "height": 900})
    page = context.new_page()
    page.on("request", lambda request: None if request.url.startswith(server.url) else elsewhere.append(request.url))
    page.goto(server.url)
    page.fill("#name", "Ann")
    page.keyboard.press("Enter")
    page.get_by_text("Mark the next one").wait_for()
    yield page
    context.close()
    assert not [url for url in elsewhere if not url.endswith("/favicon.ico")]


def test_it_is_readable_in_light_and_dark_and_on_a_phone(page, chromium, server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("screenshots")
    page.click("text=Mark the next one")
    paths = [server.url, page.url, page.url.replace("/mark/", "/rubric/").rpartition("/")[0]]
    paths.append(re.sub(r"/mark/.*", "/mark/x/y", page.url))
    for scheme in ("light", "dark"):
        context = chromium.new_context(color_scheme=scheme, storage_state=page.context.storage_state())
        looking = context.new_page()
        for number, path in enumerate(paths):
            for width in (1100, 390, 320):
                looking.set_viewport_size({"width": width, "height": 900})
                looking.goto(path)
                looking.screenshot(path=folder / f"{number}-{scheme}-{width}.png", full_page=True)
                assert looking.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            assert looking.evaluate(CONTRAST) == [] and looking.evaluate(UNNAMED) == []
            assert looking.locator("h1").count() == 1 and looking.locator("main").count() == 1
        context.close()
    assert len(list(folder.iterdir())) == 24
