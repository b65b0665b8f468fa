"""Writes constants into code as literals, where their names stood."""

import ast
import re


def with_literals(source: str, literals: dict[str, str]) -> str:
    """Return code in which literals stand for some names.

    >>> with_literals('size = WIDTH ** 2  # of WIDTH', {"WIDTH": "-8"})
    'size = (-8) ** 2  # of WIDTH'

    Raises:
        ValueError: the code gives such a name another meaning, or names it where no literal can stand.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in _bound(node) & literals.keys():
            raise ValueError(f"{name} varies, so nothing else may have this name: choose another")
    edits = [edit for edit in _edits(tree, source, literals) if edit]
    written = source.encode()
    for begin, end, text in sorted(edits, reverse=True):
        written = written[:begin] + text.encode() + written[end:]
    code = written.decode()
    wanted = ast.dump(_Literals(literals).visit(tree))
    try:
        is_same = ast.dump(ast.parse(code)) == wanted
    except SyntaxError:
        is_same = False
    if not is_same:
        names = ", ".join(name for name in literals if re.search(rf"\b{name}\b", source))
        raise ValueError(
            f"{names} is named within a text where its value can't be written: name it outside of the text"
        )
    return code


class _Literals(ast.NodeTransformer):
    """Puts literals for names into a syntax tree."""

    def __init__(self, literals: dict[str, str]):
        self.literals = literals

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(self.literals[node.id], mode="eval").body if node.id in self.literals else node


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a part of the code gives a meaning."""
    match node:
        case ast.Name(id, ast.Store() | ast.Del()):
            return {id}
        case ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
            return {name}
        case ast.alias():
            return {(node.asname or node.name).partition(".")[0]}
    return set()


def _edits(tree: ast.Module, source: str, literals: dict[str, str]) -> list[tuple[int, int, str]]:
    """Return where to put which text, in bytes: each name outside of texts, and each formatted text as a whole."""
    lengths = [0]
    for line in source.splitlines(keepends=True):
        lengths.append(lengths[-1] + len(line.encode()))
    edits: list[tuple[int, int, str]] = []

    def visit(node: ast.AST) -> None:
        begin, end = _span(node, lengths)
        if isinstance(node, ast.JoinedStr):
            text = source.encode()[begin:end].decode()
            edits.append((begin, end, re.sub(r"\{[^{}]*\}", lambda match: _in_braces(match[0], literals), text)))
        elif isinstance(node, ast.Name) and node.id in literals:
            literal = literals[node.id]
            edits.append((begin, end, f"({literal})" if literal.startswith("-") else literal))
        else:
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(tree)
    return edits


def _span(node: ast.AST, lengths: list[int]) -> tuple[int, int]:
    line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if not line:
        return 0, 0
    return lengths[line - 1] + node.col_offset, lengths[end - 1] + node.end_col_offset  # type: ignore[attr-defined]


def _in_braces(text: str, literals: dict[str, str]) -> str:
    for name, literal in literals.items():
        text = re.sub(rf"(?<![\w.]){name}(?!\w)", lambda _: literal, text)  # noqa: B023
    return text
