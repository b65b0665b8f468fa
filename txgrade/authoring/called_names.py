"""The names that an answer calls, by its source. They prove nothing: a determined learner can evade the search."""

import ast
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

from txgrade.authoring.scopes import Names, Read, names_of
from txgrade.source import program

READERS = ("getattr", "methodcaller", "attrgetter", "__getattribute__")  # they take a name as a text
SPACES = ("__dict__", "vars", "globals", "locals", "__builtins__")  # they are asked for a name
RUNNERS = ("eval", "exec", "compile")  # builtins that run a text
IMPORTERS = ("__import__", "import_module", "resolve_name", "find_spec", "locate", "run_module")  # they take a module's
SHELL = ("ev", "ex", "run_cell", "run_code", "run_line_magic", "run_cell_magic")  # of IPython: they run a text
UNSEARCHABLE = (
    "subprocess",
    "multiprocessing",
    "ctypes",
    "marshal",
    "runpy",
    "os.system",
    "os.popen",
    "code",
    "codeop",
)
DIRECT = ("torch.ops", "torch._C", "torch._VF", "torch._ops")  # torch's operators, without its functions
MOST_NESTED, LONGEST = 3, 10_000  # texts in texts, and characters of a text that is put together


def forbidden_names(source: str, names: Iterable[str]) -> list[str]:
    """Return those of the names that an answer uses, sorted.

    `softmax` alone is found as a function, a method and an import, unless the answer defines it itself. A dotted name
    is found through imports, `from torch.nn.functional import softmax as s`; on an object that no import of this
    source explains, such as `scores.softmax(-1)`, its last part counts. Constant texts that are run or imported are
    searched as well. A source that can't be read uses nothing (see `unsearched`).
    """
    used = _used(source).names
    return sorted({name for name in names if any(_is(path, name) for path in used)})


def direct_operators(source: str) -> list[str]:
    """Return the operators of torch that an answer calls directly, such as torch.ops.aten.softmax, sorted."""
    paths = {path for path, _ in _used(source).names}
    direct = {path for path in paths for start in DIRECT if f"{path}.".startswith(f"{start}.")}
    return sorted(path for path in direct if not any(other.startswith(f"{path}.") for other in direct))


def unsearched(source: str, explained: Collection[str] = ()) -> list[str]:
    """Return the reasons why names in an answer may be missed; none if all of it could be searched.

    `given` are names of the exercise's own: `getattr(F, GATE)` hides nothing where it says what GATE is.
    """
    return sorted({why for why, explained_by in _used(source).hidden if explained_by not in explained})


def reached(source: str) -> set[str]:
    """Return every name or path that an answer reads, in full where imports tell, also through constant texts."""
    return {path for path, _ in _used(source).names}


def _is(used: tuple[str, bool], name: str) -> bool:
    path, imported = used  # known: an import says where the path begins
    if imported and (path == name or path.startswith(name + ".")):  # the name may be a module's
        return True
    return not (imported and "." in name) and path.rpartition(".")[2] == name.rpartition(".")[2]


@lru_cache(maxsize=8)
def _used(source: str) -> "_Finder":
    read = program(source)
    try:
        finder = _Finder(read.tree)
        finder.search()
    except RecursionError:
        finder = _Finder(ast.Module([], []))
        finder.hidden.add(("is nested too deep", ""))
    return finder


class _Finder:
    """Every name and attribute that a source reads, in full where its imports tell; and what hides others."""

    def __init__(self, tree: ast.Module, nested: int = 0, seen: set[str] | None = None):
        self.names: set[tuple[str, bool]] = set()
        self._seen = set() if seen is None else seen  # texts that were searched
        self.hidden: set[tuple[str, str]] = set()  # why, and the name that would explain it
        self._tree, self._nested = tree, nested
        self._scope: Names = names_of(tree)
        self._texts = _constant_names(tree)
        self._methods = _methods(tree)
        self._called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}

    def search(self) -> None:
        for read in self._scope.reads:
            self._read(read)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            elif isinstance(node, ast.Attribute):
                self._attribute(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Subscript):
                self._subscript(node)
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in self._called and self._runs_text(node):
                self._hide(f"hands {_last(node)} on")

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            module = [] if isinstance(node, ast.Import) else [node.module or ""]
            full = ".".join([*module, *([] if alias.name == "*" else [alias.name])])
            self.names.add((full, True))
            self._module(full)
            if alias.name == "*" and full.partition(".")[0] == "torch":
                self._hide(f"imports everything from {full}")

    def _module(self, full: str) -> None:
        """Look at a module, or a name of one, that is imported or reached."""
        if any(f"{full}.".startswith(f"{start}.") for start in UNSEARCHABLE):
            self._hide(f"uses {full}")
        if full.partition(".")[0] == "IPython" and not full.startswith("IPython.display"):
            self._hide("uses IPython's shell")

    def _read(self, read: Read) -> None:
        name = read.name
        if name in self._scope.imported and not read.local:
            self.names.add((self._scope.imported[name], True))
            self._module(self._scope.imported[name])
        elif not self._is_own(read):
            self.names.add((name, False))
            if name == "get_ipython":
                self._hide("uses IPython's shell")

    def _is_own(self, read: Read) -> bool:
        """Return whether a name is the answer's own: an argument, or defined by it; no other value that it calls."""
        scope, name = self._scope, read.name
        ways = (scope.local if read.local else scope.bound).get(name, frozenset())
        if read.called and ways == {"value"}:
            return False
        return read.local or ("del" not in ways and (name in scope.sure if read.later else read.sure))

    def _attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None or (path[0] in (f"self.{node.attr}", f"cls.{node.attr}") and node.attr in self._methods):
            return
        self.names.add(path)
        if path[1] or not self._ways(path[0].partition(".")[0]):
            self._module(path[0])

    def _path(self, node: ast.AST) -> tuple[str, bool] | None:
        """Return `F.softmax` in full, and whether an import says where it begins."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        name = node.id if isinstance(node, ast.Name) else ""
        if isinstance(node, ast.Call) and _last(node.func) == "getattr" and len(node.args) > 1:
            base, text = self._path(node.args[0]), self._text(node.args[1])
            if base and text is not None:
                return ".".join([base[0], text, *reversed(parts)]), base[1]
        imported = name in self._scope.imported
        return ".".join([self._scope.imported.get(name, name), *reversed(parts)]), imported

    def _call(self, node: ast.Call) -> None:
        """Note getattr(torch, "softmax"), methodcaller("softmax"), import_module("torch"), eval("torch.softmax(x)")."""
        function = self._function(node.func)
        if function in READERS:
            for text in filter(None, map(self._text, node.args)):
                self.names.add((text, False))
                if id(node) not in self._called:
                    self._handed_on(text)
            if function == "getattr" and (path := self._path(node)):
                self.names.add(path)
                if len(node.args) > 1 and self._text(node.args[1]) is None and self._is_module(node.args[0]):
                    self._hide("reads names of a module that can't be searched", _last(node.args[1]))
        elif function in IMPORTERS:
            self._import_text(function, node.args)
        elif function in RUNNERS or function in SHELL:
            self._run(function, node.args if function in SHELL else node.args[:1])
        elif function in ("get", "pop", "__getitem__") and isinstance(node.func, ast.Attribute):
            self._look_up(node.func.value, node.args[0] if node.args else None)

    def _subscript(self, node: ast.Subscript) -> None:
        """Note torch.__dict__["softmax"], vars(torch)["softmax"], sys.modules["torch"]."""
        self._look_up(node.value, node.slice)

    def _look_up(self, namespace: ast.AST, key: ast.AST | None) -> None:
        text = None if key is None else self._text(key)
        inner = namespace.func if isinstance(namespace, ast.Call) else namespace
        path = self._path(namespace)
        if _last(inner) in SPACES and text is not None:
            self.names.add((text, False))
            self._handed_on(text)
            of = (
                namespace.args[0]
                if isinstance(namespace, ast.Call) and namespace.args
                else getattr(inner, "value", None)
            )
            if of is not None and (base := self._path(of)):
                self.names.add((f"{base[0]}.{text}", base[1]))
        elif path and path[0] == "sys.modules":
            if text is None:
                self._hide("looks up modules that can't be searched")
            else:
                self.names.add((text, True))
                self._module(text)

    def _function(self, node: ast.AST) -> str:
        """Return the name of a called function; of eval and the like only where they are Python's own."""
        path = self._path(node) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else None
        name = path[0].rpartition(".")[2] if path else ""
        if name in RUNNERS and not self._runs_text(node):
            return ""
        return "" if name in SHELL and not _is_shell(node) else name

    def _runs_text(self, node: ast.AST) -> bool:
        """Return whether this is eval, exec or compile, or a function that imports."""
        path = self._path(node) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else None
        full = path[0] if path else ""
        start, _, name = full.rpartition(".")
        if name in RUNNERS + IMPORTERS[:2] and isinstance(node, ast.Name) and "def" in self._ways(node.id):
            return False
        return (name in RUNNERS and start in ("", "builtins", "__builtins__")) or name in IMPORTERS[:2]

    def _handed_on(self, text: str) -> None:
        """Look at a function that is read by a text, and not called there."""
        if text in RUNNERS + IMPORTERS[:2]:
            self._hide(f"hands {text} on")

    def _ways(self, name: str) -> frozenset[str]:
        return self._scope.bound.get(name, frozenset()) | self._scope.local.get(name, frozenset())

    def _import_text(self, function: str, arguments: list[ast.expr]) -> None:
        text = self._text(arguments[0]) if arguments else None
        if text is None:
            if function in IMPORTERS[:2]:
                self._hide("imports a module whose name can't be searched")
            return
        package = self._text(arguments[1]) if text.startswith(".") and len(arguments) > 1 else ""
        full = f"{package or ''}{text}".replace(":", ".")
        self.names.add((full, True))
        self._module(full)

    def _run(self, function: str, arguments: list[ast.expr]) -> None:
        texts = [self._text(argument) for argument in arguments]
        if None in texts or not texts:
            self._hide(f"runs text that can't be searched: {function}(…)")
        for text in {text for text in texts if text} - self._seen:
            self._seen.add(text)
            inner = program(text)
            if self._nested == MOST_NESTED or (inner.problem and function in RUNNERS):
                self._hide(f"runs text that can't be searched: {function}(…)")
                continue
            finder = _Finder(inner.tree, self._nested + 1, self._seen)
            finder.search()
            self.names |= finder.names
            self.hidden |= finder.hidden

    def _is_module(self, node: ast.AST) -> bool:
        """Return whether this is a module, as far as imports and torch's own names tell."""
        path = self._path(node)
        return path is not None and (path[1] or path[0].partition(".")[0] in ("torch", "F", "builtins", "__builtins__"))

    def _text(self, node: ast.AST) -> str | None:
        """Return a constant text, which may be put together from constants or have a name; None for anything else."""
        value = _folded(node, self._texts)
        return value if isinstance(value, str) else None

    def _hide(self, why: str, explained_by: str = "") -> None:
        self.hidden.add((why[:200], explained_by))


def _is_shell(node: ast.AST) -> bool:
    """Return whether this is a method of what get_ipython() returns, or of a name that may be it."""
    return isinstance(node, ast.Attribute) and (
        not isinstance(node.value, ast.Call) or _last(node.value.func) == "get_ipython"
    )


def _methods(tree: ast.Module) -> set[str]:
    """Return the names of functions, and what is stored in attributes: they may be read of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def _constant_names(tree: ast.Module) -> dict[str, str]:
    """Return the names that are bound once in all, to a constant text."""
    nodes = list(ast.walk(tree))
    times = Counter(node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    times.update(node.arg for node in nodes if isinstance(node, ast.arg))
    texts: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            value = _folded(node.value, texts) if times[name] == 1 else None
            if isinstance(value, str):
                texts[name] = value
    return texts


def _folded(node: ast.AST, names: dict[str, str]) -> Any:
    """Return the value of a constant, or of texts put together: "to" + "rch", "".join(["to", "rch"]); else None."""

    def joined(nodes: Iterable[ast.AST], between: str = "") -> str | None:
        parts = [_folded(part, names) for part in nodes]
        if not all(isinstance(part, str) for part in parts):
            return None
        return between.join(parts) if sum(map(len, parts)) + len(parts) * len(between) <= LONGEST else None

    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return names.get(name)
        case ast.BinOp(left, ast.Add(), right):
            return joined([left, right])
        case ast.JoinedStr(values):
            return joined(part.value if isinstance(part, ast.FormattedValue) else part for part in values)
        case ast.Call(ast.Attribute(ast.Constant(str(between)), "join"), [ast.List(parts) | ast.Tuple(parts)], []):
            return joined(parts, between)
        case ast.Subscript(text, ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1)))):
            value = joined([text])
            return None if value is None else value[::-1]
        case ast.Call(ast.Attribute(text, "lower" | "strip" | "casefold" as method), [], []):
            value = joined([text])
            return None if value is None else getattr(value, method)()
    return None


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
