"""A task's prompt, which is markdown, as HTML that can do no harm: no scripts, no tags of its own, no requests."""

import html
import re
from functools import cache
from typing import Any
from xml.etree.ElementTree import tostring

from latex2mathml.converter import convert_to_element
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from txgrade.text import markup

FOLD = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.DOTALL | re.IGNORECASE)
CODE = re.compile(r"(`[^`]+`)")
MATHS = re.compile(r"\$([^\s$`](?:[^$`]*[^\s$`])?)\$(?!\d)")
OUTSIDE = re.compile(r"(https?|mailto):", re.IGNORECASE)  # links that lead somewhere from a page of its own
DROPPED = ("href", "style", "class", "id", "xmlns")  # what maths in a page doesn't need


def prose(markdown: str) -> str:
    """Markdown as HTML; hints in `<details>` stay folded, maths becomes MathML."""
    rest, *folds = FOLD.split(markdown)
    pieces = [_block(rest)]
    for i in range(0, len(folds), 3):
        summary, body, after = folds[i : i + 3]
        pieces.append(f"<details><summary>{_inline(summary)}</summary>{_block(body)}</details>{_block(after)}")
    return "".join(pieces)


def sentence(words: str) -> str:
    """One of the author's sentences as HTML: the little markdown of a diagnosis, and maths between dollar signs."""
    made = []
    for i, piece in enumerate(CODE.split(words)):  # text and code by turns
        texts = [piece] if i % 2 else MATHS.split(piece)  # text and TeX by turns
        made += [maths(each) if j % 2 else markup(each) for j, each in enumerate(texts)]
    return "".join(made)


def hints(markdown: str) -> list[tuple[str, str]]:
    """Each fold's summary and body, as HTML."""
    return [(_inline(summary), _block(body)) for summary, body in FOLD.findall(markdown)]


def untitled(markdown: str) -> tuple[str, str]:
    """A prompt's first heading without its marks, and the rest; the heading is '' where it begins otherwise."""
    found = re.match(r"\s*#{1,6}[ \t]+([^\n]*)(?:\n|$)", markdown)
    return (found[1].strip(), markdown[found.end() :]) if found else ("", markdown)


def maths(tex: str, display: str = "inline") -> str:
    """TeX as MathML, which browsers draw by themselves; what can't be read, as it stands."""
    try:
        root = convert_to_element(tex.strip(), display=display)
    except Exception:  # of many kinds: a missing brace, an index without a number
        return f"<code>{html.escape(tex)}</code>"
    for element in root.iter():
        element.text = element.text and html.unescape(element.text)  # tostring() escapes all of it again
        for attribute in DROPPED:
            element.attrib.pop(attribute, None)
    return tostring(root, encoding="unicode")


def _block(markdown: str) -> str:
    return _render(_reader().parse(markdown.strip()))


def _inline(markdown: str) -> str:
    return _render(_reader().parseInline(markdown.strip()))


def _render(tokens: list) -> str:
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h4"  # below the page's own headings
        if token.children:
            _harmless_links(token.children)
    return _reader().renderer.render(tokens, _reader().options, {})


def _harmless_links(tokens: list) -> None:
    """A link out of the page tells nobody where from; one to a neighbouring file, which isn't there, is just words."""
    opened = []
    for token in tokens:
        if token.type == "link_open":
            if OUTSIDE.match(token.attrGet("href") or ""):
                token.attrSet("rel", "noreferrer noopener")
            else:
                token.tag, token.attrs = "span", {}
            opened.append(token.tag)
        elif token.type == "link_close":
            token.tag = opened.pop()


@cache
def _reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    reader.use(dollarmath_plugin, double_inline=True)
    for kind in ("math_inline", "math_inline_double"):
        reader.add_render_rule(kind, lambda self, tokens, i, options, env: maths(tokens[i].content))
    for kind in ("math_block", "math_block_label"):
        reader.add_render_rule(kind, lambda self, tokens, i, options, env: maths(tokens[i].content, "block"))
    reader.add_render_rule("image", _no_image)
    return reader


def _no_image(self: Any, tokens: list, i: int, options: object, env: object) -> str:
    return f"[{html.escape(tokens[i].content) or 'picture'}]"
