"""What an answer calls, by the names in its source. It proves nothing: whoever tries can evade it."""

import ast
from collections.abc import Iterable

from txlib.grading.source import parsed

READERS = ("getattr", "methodcaller", "attrgetter", "__getattribute__")  # they take a name as a text


def forbidden_names(source: str, names: Iterable[str]) -> list[str]:
    """Which of the names an answer uses, sorted.

    `softmax` alone is found as a function, a method and an import, unless the answer defines it itself. A dotted name
    is found through imports, `from torch.nn.functional import softmax as s`; on an object that no import of this
    source explains, such as `scores.softmax(-1)`, its last part counts. A source that can't be read uses nothing.
    """
    finder = _Finder(parsed(source))
    return sorted({name for name in names if any(_is(used, name) for used in finder.used)})


def _is(used: tuple[str, bool], name: str) -> bool:
    path, known = used  # known: an import says where the path begins
    if known and (path == name or path.startswith(name + ".")):  # the name may be a module's
        return True
    return not (known and "." in name) and path.rpartition(".")[2] == name.rpartition(".")[2]


class _Finder:
    """Every name and attribute that a source reads, in full where its imports tell."""

    def __init__(self, tree: ast.Module):
        self.used: set[tuple[str, bool]] = set()
        self._imported: dict[str, str] = {}
        nodes = list(ast.walk(tree))
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        self._own = {node.name for node in nodes if isinstance(node, definitions)}
        self._own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self._own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._name(node.id)
            elif isinstance(node, ast.Attribute):
                self._attribute(node)
            elif isinstance(node, ast.Call | ast.Subscript):
                self._text(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                self._imported[alias.asname or whole] = whole
                self.used.add((alias.name, True))
            elif alias.name != "*":
                whole = f"{node.module}.{alias.name}"
                self._imported[alias.asname or alias.name] = whole
                self.used.add((whole, True))

    def _name(self, name: str) -> None:
        if name in self._imported:
            self.used.add((self._imported[name], True))
        elif name not in self._own:
            self.used.add((name, False))

    def _attribute(self, node: ast.Attribute) -> None:
        path, root = [node.attr], node.value
        while isinstance(root, ast.Attribute):
            path.append(root.attr)
            root = root.value
        name = root.id if isinstance(root, ast.Name) else ""
        if name in ("self", "cls") and len(path) == 1 and node.attr in self._own:
            return
        known = name in self._imported
        self.used.add((".".join([self._imported.get(name, name), *reversed(path)]), known))

    def _text(self, node: ast.Call | ast.Subscript) -> None:
        """getattr(torch, "softmax"), methodcaller("softmax"), torch.__dict__["softmax"], vars(torch)["softmax"]."""
        if isinstance(node, ast.Call):
            reads, texts = _last(node.func) in READERS, node.args
        else:
            inner = node.value.func if isinstance(node.value, ast.Call) else node.value
            reads, texts = _last(inner) in ("__dict__", "vars", "globals", "locals"), [node.slice]
        for text in texts:
            if reads and isinstance(text, ast.Constant) and isinstance(text.value, str):
                self.used.add((text.value, False))


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
