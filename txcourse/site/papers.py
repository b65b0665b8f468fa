"""Where the course cites which part of which paper: read from the lessons, exercises and docstrings themselves."""

import ast
import re
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from txcourse.site import reference
from txcourse.site.places import sections

ITEM = r"(?:\d+(?:\.\d+)*|[A-Z](?:\.\d+)*)(?!\w)"
KINDS = {
    "§": "§",
    "section": "§",
    "appendi": "appendix ",
    "footnote": "footnote ",
    "table": "table ",
    "figure": "figure ",
}
KINDS |= {"eq": "eq. ", "algorithm": "algorithm "}
PART = re.compile(
    r"(?P<kind>§+\s*|(?:[Ss]ections?|[Aa]ppendi(?:x|ces)|[Ff]ootnotes?|[Tt]ables?|[Ff]igures?|[Ee]qs?\.|[Ee]quations?"
    rf"|[Aa]lgorithms?)\s+)(?P<items>{ITEM}(?:(?:,\s+and\s+|,\s*|\s+and\s+|\s+to\s+|–)(?:§\s*)?{ITEM})*)"
)
ANYBODY = re.compile(
    r"\b[A-Z][\w’'-]+(?: et al\.| (?:and|&) [A-Z][\w-]+),? \(?(?:19|20)\d\d[a-z]?\b"
    r"|\([A-Z][a-zé-]+ (?:19|20)\d\d[a-z]?(?=[,;)])"
)
SENTENCE_END = re.compile(r";|[.!?:]\s+(?=[A-ZÀ-Ý*\[])")


@dataclass(frozen=True)
class Paper:
    cite: str  # "Vaswani et al. 2017"
    title: str
    link: str  # in Markdown
    words: tuple[str, ...]
    cited_in: tuple[str, ...]

    @property
    def label(self) -> str:
        return "paper-" + re.sub(r"\W+", "-", self.cite.lower()).strip("-")


@dataclass(frozen=True)
class Place:
    """Where something is cited."""

    owner: str  # "03_attention", or a module
    link: str  # in Markdown
    kind: str  # "lesson", "exercise", "library"


@dataclass(frozen=True)
class Citation:
    paper: Paper
    part: str  # "§3.2.1"; "" for the paper as a whole
    place: Place


def papers(course: Path) -> list[Paper]:
    """The bibliography."""
    bibliography = []
    for cite, row in tomllib.loads((course / "docs" / "papers.toml").read_text(encoding="utf-8")).items():
        short_form = () if "(" in cite else (cite,)
        link = row.get("printed", "")
        if "arxiv" in row:
            link = f"[arXiv:{row['arxiv']}](https://arxiv.org/abs/{row['arxiv']})"
        elif "url" in row:
            link = f"<{row['url']}>"
        spellings = (*short_form, *row.get("also", ()))
        bibliography.append(Paper(cite, row["title"], link, spellings, tuple(row.get("cited_in", ()))))
    return bibliography


@cache
def citations(course: Path) -> tuple[list[Citation], list[str]]:
    """Every citation, and those of papers that the bibliography lacks, each with its place."""
    bibliography, citations_found, missing = papers(course), [], []
    for text, source, before in [*_notebooks(course), *_docstrings(course)]:
        plain = re.sub(r"\s+", " ", text)
        cited = list(_citations(plain, source, bibliography, before))
        citations_found += [citation for _, citation in cited]
        spans = [span for span, _ in cited]
        for other in ANYBODY.finditer(plain):
            if not any(start < other.end() and other.start() < end for start, end in spans):
                missing.append(f"{source.owner}: {other[0]!r}")
    return citations_found, missing


@cache
def _pattern(words: str) -> str:
    names, _, year = words.rpartition(" ")
    names = re.escape(names.rstrip(",")).replace(r"\ and\ ", r" (?:and|&) ")
    return rf"(?<![\w-]){names}(?:[’']s)?,?(?: [a-z]+)? \(?{year}(?!\w)"


def _citations(
    text: str, source: Place, bibliography: list[Paper], before: list[Paper]
) -> Iterator[tuple[tuple[int, int], Citation]]:
    """In a text: with the span of each. In the library's texts a part without a paper is of the paper cited last."""
    cited: list[tuple[int, int, Paper]] = []
    for paper in bibliography:
        if paper.cited_in and not any(source.owner.startswith(where) for where in paper.cited_in):
            continue
        for spelling in paper.words:
            if spelling.split(" ")[0].rstrip(",") not in text:
                continue
            cited += [(match.start(), match.end(), paper) for match in re.finditer(_pattern(spelling), text)]
    cited.sort(key=lambda match: match[0])
    used: list[tuple[int, int]] = []
    for number, (start, end, paper) in enumerate(cited):
        following = cited[number + 1][0] if number + 1 < len(cited) else len(text)
        parts = list(_parts(text, start, end, following))
        used += [span for span, _ in parts]
        for part in [part for _, items in parts for part in items] or [""]:
            yield (start, end), Citation(paper, part, source)
    if source.kind == "library":
        for alone in PART.finditer(text):
            inside = any(start <= alone.start() < end for start, end in used)
            earlier = [paper for start, _, paper in cited if start < alone.start()] or before
            if alone["kind"].startswith("§") and not inside and earlier:
                yield from (((0, 0), Citation(earlier[-1], part, source)) for part in _items(alone))


def _parts(text: str, start: int, end: int, following: int) -> Iterator[tuple[tuple[int, int], list[str]]]:
    """The parts of a paper that a citation names: behind it in a row, or as in "table 3 of"."""
    if (before := re.search(rf"{PART.pattern} (?:of|in) $", text[max(0, start - 60) : start])) is not None:
        offset = max(0, start - 60)
        yield (offset + before.start(), start), _items(before)
    stop = SENTENCE_END.search(text, end, following)
    stop_at, depth = stop.start() if stop else following, 0
    for at in range(end, stop_at):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth < -text[start:end].count("("):
            stop_at = at
            break
    for part in PART.finditer(text, end, stop_at):
        between = text[end - 1 : part.start()]
        if re.search(r"(?:[,:(]|\band)\s*$", between) and not re.search(r"lessons? \d\d,\s*$", between):
            yield part.span(), _items(part)


def _items(part: re.Match) -> list[str]:
    """ "sections 2 and 3.4 to 3.6" → §2, §3.4–3.6."""
    kind = next(sign for word, sign in KINDS.items() if part["kind"].lower().startswith(word))
    items = re.sub(r"§\s*", "", part["items"])
    items = re.sub(r"\s+to\s+|–", "–", items)
    return [kind + item for item in re.split(r",\s+and\s+|,\s*|\s+and\s+", items)]


def _notebooks(course: Path) -> Iterator[tuple[str, Place, list[Paper]]]:
    import nbformat

    for path in sorted([*course.glob("notebooks/*.ipynb"), *course.glob("exercises/*.ipynb")]):
        name, kind = path.stem, "lesson" if path.parent.name == "notebooks" else "exercise"
        number = name.split("_")[kind == "exercise"]
        for section in sections(name, nbformat.read(path, as_version=4)):
            title = f"{number} · {section.title.partition('   ')[0]}" if section.title else number
            link = f"[{title}](#{section.label})" if section.title else f"[{title}](../{path.parent.name}/{path.name})"
            yield section.text, Place(name, link, kind), []


def _docstrings(course: Path) -> Iterator[tuple[str, Place, list[Paper]]]:
    """Of the modules, and of what they define; each with the papers that its module or class cites."""
    bibliography, homes, shown = papers(course), _public_names(), _module_pages()
    for path in sorted((course / "txlib").rglob("*.py")):
        module = ".".join(path.relative_to(course).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        page = shown.get(module)
        link = f"[{module}](../{page}.rst)" if page else f"`{module}`"
        docstring = ast.get_docstring(tree) or ""
        yield docstring, Place(module, link, "library"), []
        yield _comments(path), Place(module, link, "library"), []
        above = _papers_in(docstring, module, bibliography)
        for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
            yield from _of_node(node, below, module, link, homes, above, bibliography)


def _comments(path: Path) -> str:
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    return "\n".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)


def _of_node(
    node: ast.stmt,
    below: ast.stmt | None,
    module: str,
    link: str,
    homes: dict,
    above: list[Paper],
    bibliography: list[Paper],
) -> Iterator[tuple[str, Place, list[Paper]]]:
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
        name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
        docstring = str(getattr(below.value, "value", ""))
    elif isinstance(node, ast.ClassDef | ast.FunctionDef):
        name, docstring = node.name, ast.get_docstring(node) or ""
    else:
        return
    public = homes.get(f"{module}.{name}")
    source = Place(module, f"{{py:obj}}`{name} <{public}>`" if public else link, "library")
    yield docstring, source, above
    inner = _papers_in(docstring, module, bibliography) or above
    for method in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []:
        if isinstance(method, ast.FunctionDef):
            yield ast.get_docstring(method) or "", source, inner


def _papers_in(text: str, module: str, bibliography: list[Paper]) -> list[Paper]:
    source = Place(module, "", "")
    return [citation.paper for _, citation in _citations(re.sub(r"\s+", " ", text), source, bibliography, [])][:1]


def _public_names() -> dict[str, str]:
    """By where they are defined, where the library's names are public: "txlib.attention.causal"."""
    public_paths = {}
    for package in reference.packages():
        module = import_module(package)
        written = reference.constants(module)
        for name in module.__all__:
            home = written[name][0].removesuffix(".__init__") if name in written else None
            public_paths[f"{home or getattr(getattr(module, name), '__module__', package)}.{name}"] = (
                f"{package}.{name}"
            )
    return public_paths


def _module_pages() -> dict[str, str]:
    pages = {package: f"reference/{reference.short(package)}" for package in reference.packages()}
    for package in list(pages):
        pages |= {f"{package}.{file}": f"{pages[package]}/{file}" for file in reference.members(package)}
    return pages


def page(course: Path) -> str:
    """The bibliography, each paper with where its parts are built."""
    cited, _ = citations(course)
    by_paper: dict[Paper, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    lessons: dict[Paper, set[str]] = defaultdict(set)
    for citation in cited:
        by_paper[citation.paper][citation.part][citation.place.link] = None
        if citation.place.kind == "lesson":
            lessons[citation.paper].add(citation.place.owner)
    lines, letter = [], ""
    for paper in sorted(papers(course), key=lambda paper: paper.cite.removeprefix("van den ").lower()):
        if paper not in by_paper:
            continue
        first = paper.cite.removeprefix("van den ")[0].upper()
        if first != letter:
            lines += ["", f"## {first}", ""]
            letter = first
        lines += [f"({paper.label})=", f"**{paper.cite.partition(' (')[0]}**, *{paper.title}*. {paper.link}.", ""]
        if lessons[paper]:
            names = [f"[{name.split('_')[0]}](../notebooks/{name}.ipynb)" for name in sorted(lessons[paper])]
            lines += [f"- Lessons: {', '.join(names)}"]
        for part, links in sorted(by_paper[paper].items(), key=lambda item: _natural(item[0])):
            if part or not lessons[paper] or any("py:obj" in link or "`" in link for link in links):
                lines += [f"- {part or 'As a whole'}: {', '.join(links)}"]
        lines += [""]
    return "\n".join(lines)


def _natural(part: str) -> tuple[Any, ...]:
    kind = re.sub(r"[\dA-Z].*", "", part)
    order = ["§", "appendix ", "table ", "figure ", "eq. ", "algorithm ", "footnote "]
    numbers = [int(number) if number.isdigit() else 1000 for number in re.split(r"[.–]", part[len(kind) :]) if number]
    return (part == "", order.index(kind) if kind in order else 9, numbers, part)
