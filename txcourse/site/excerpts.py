"""What the search shows of a page, offline: a script for each page with the text of its sections, loaded when found."""

import json
from pathlib import Path
from typing import Any

from docutils import nodes


def write_excerpts(app: Any, doctree: nodes.document, page: str) -> None:
    """Write `_static/excerpts/PAGE.js` when Sphinx has resolved a page: each section's anchor, title and sentences.

    A script, since a page that is opened as a file may load scripts, but not read other files.
    """
    sections = [
        [section["ids"][0], section.next_node(nodes.title).astext(), " ".join(_sentences(section))]
        for section in doctree.findall(nodes.section)
    ]
    path = Path(app.outdir) / "_static" / "excerpts" / f"{page}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"excerpts[{json.dumps(page)}] = {json.dumps(sections, ensure_ascii=False)};\n", encoding="utf-8")


def _sentences(section: nodes.section) -> list[str]:
    """Return the paragraphs of a section, without those of the sections in it."""
    return [
        paragraph.astext().replace("\n", " ")
        for child in section.children
        if not isinstance(child, nodes.section)
        for paragraph in child.findall(nodes.paragraph)
    ]
