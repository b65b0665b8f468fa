"""Which names a cell binds and reads in the notebook: what is local to its functions is its own affair."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class Read:
    """A name that is read, from the notebook's names or from a function's."""

    name: str
    local: bool = False  # in a function's or comprehension's own names
    later: bool = False  # when a function is called, not when the cell runs
    first: bool = False  # before the cell itself has bound it anywhere
    sure: bool = False  # after the cell itself has bound it for certain
    called: bool = False


@dataclass
class _Scope:
    kind: str  # module, class, function or comprehension
    bound: dict[str, set[str]] = field(default_factory=dict)  # the ways, by name: def, import, argument, value, del
    outer: set[str] = field(default_factory=set)  # declared global
    seen: set[str] = field(default_factory=set)  # bound so far
    sure: set[str] = field(default_factory=set)  # bound so far by what is run whenever the cell is


@dataclass(frozen=True)
class Names:
    """The names of one cell.

    `bound` holds the ways in which it binds each of the notebook's names: `def`, `import`, `value`, `del`. `imported`
    holds each import's full name; `local` the ways of names that are a function's.
    """

    bound: dict[str, frozenset[str]]
    sure: frozenset[str]  # of these, those that are bound whenever the cell is run
    reads: tuple[Read, ...]
    imported: dict[str, str]
    local: dict[str, frozenset[str]]


def names_of(tree: ast.Module) -> Names:
    """Find the names of a cell.

    Raises:
        RecursionError: it is nested too deep.
    """
    walker = _Walker()
    for statement in tree.body:
        walker.visit(statement)
    bound = {name: frozenset(ways) for name, ways in walker.module.bound.items()}
    local = {name: frozenset(ways) for name, ways in walker.local.items()}
    return Names(bound, frozenset(walker.module.sure), tuple(dict.fromkeys(walker.reads)), walker.imported, local)


class _Walker(ast.NodeVisitor):
    """Goes through a cell in the order in which Python would run it."""

    def __init__(self) -> None:
        self.module = _Scope("module")
        self.scopes = [self.module]
        self.reads: list[Read] = []
        self.imported: dict[str, str] = {}
        self.local: dict[str, set[str]] = {}
        self._certain = True  # whether the current statement runs whenever the cell does
        self._called: ast.AST | None = None

    # Names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id, node is self._called)
        else:
            self._bind(node.id, "del" if isinstance(node.ctx, ast.Del) else "value")

    def _read(self, name: str, called: bool = False) -> None:
        later = any(scope.kind == "function" for scope in self.scopes)
        for depth in range(len(self.scopes) - 1, 0, -1):
            scope = self.scopes[depth]
            if name in scope.outer:
                break
            own = scope.sure if scope.kind == "class" else scope.bound
            if name in own and (scope.kind != "class" or depth == len(self.scopes) - 1):
                self.reads.append(Read(name, local=True, called=called))
                return
        first, sure = name not in self.module.seen, name in self.module.sure
        self.reads.append(Read(name, later=later, first=first, sure=sure, called=called))

    def _bind(self, name: str, way: str) -> None:
        """Bind a name in the innermost scope; a function's own names are known from its beginning."""
        scope = self.scopes[-1]
        at_once = scope is self.module
        if name in scope.outer:
            scope = self.module
        elif not at_once and way != "del":
            self.local.setdefault(name, set()).add(way)
        if scope is self.module or way != "del":
            scope.bound.setdefault(name, set()).add(way)
        if way == "del":
            scope.seen.discard(name)
            scope.sure.discard(name)
        elif at_once or scope is not self.module:
            scope.seen.add(name)
            scope.sure.update([name] * self._certain)

    # Statements that bind

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._target(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self._target(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scopes = self.scopes
        while self.scopes[-1].kind == "comprehension":  # the name belongs to what is around it
            self.scopes = self.scopes[:-1]
        certain, self._certain = self._certain, False  # `False and (x := 1)`
        self._target(node.target, node.value)
        self.scopes, self._certain = scopes, certain

    def _target(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name) and isinstance(value, ast.Lambda):
            self._bind(target.id, "def")
        else:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            self._import(name, alias.name if alias.asname else name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name != "*":
                self._import(alias.asname or alias.name, f"{node.module or ''}.{alias.name}")

    def _import(self, name: str, whole: str) -> None:
        self.imported[name] = whole
        self._bind(name, "import")

    def visit_Global(self, node: ast.Global) -> None:
        self.scopes[-1].outer.update(node.names)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._pattern(node, node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._pattern(node, node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._pattern(node, node.rest)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._pattern(node, node.name, "value", "del")

    def _pattern(self, node: ast.AST, name: str | None, *ways: str) -> None:
        if name:
            for way in ways or ("value",):
                self._bind(name, way)
        self.generic_visit(node)

    # What may not be run

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._perhaps([node.target, *node.body, *node.orelse])

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While | ast.If) -> None:
        self.visit(node.test)
        self._perhaps([*node.body, *node.orelse])

    visit_If = visit_While

    def visit_Try(self, node: ast.Try) -> None:
        self._perhaps([*node.body, *node.handlers, *node.orelse])
        self._all(node.finalbody)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self._perhaps([*node.body, *node.handlers, *node.orelse])
        self._all(node.finalbody)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self._all(node.items)
        self._perhaps(node.body)  # an error in it may be suppressed

    visit_AsyncWith = visit_With

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self._perhaps(node.cases)

    def _perhaps(self, nodes: Iterable[ast.AST]) -> None:
        certain, self._certain = self._certain, False
        self._all(nodes)
        self._certain = certain

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # Scopes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all([*node.decorator_list, *_outside(node.args), node.returns])
        self._bind(node.name, "def")
        self._function(node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._all(_outside(node.args))
        self._function(node, [node.body])

    def _function(self, node: Function, body: list) -> None:
        scope = _Scope("function")
        for statement in body:
            for inner in _own_nodes(statement):
                if isinstance(inner, ast.Global):
                    scope.outer.update(inner.names)
                elif isinstance(inner, ast.Nonlocal):
                    scope.outer.difference_update(inner.names)
        declared = {name for statement in body for inner in _own_nodes(statement) for name in _declared(inner)}
        for argument in _arguments(node.args):
            scope.bound[argument] = {"argument"}
            self.local.setdefault(argument, set()).add("argument")
        for name in _bound_in(body) - declared:
            scope.bound.setdefault(name, set())
        self._within(scope, body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all([*node.decorator_list, *node.bases, *node.keywords])
        self._within(_Scope("class"), node.body)
        self._bind(node.name, "def")

    def _comprehension(self, node: Comprehension) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        scope = _Scope("comprehension", {name: {"value"} for name in _targets(node.generators)})
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        nodes: list[ast.AST] = [first.target, *first.ifs]
        for generator in others:
            nodes += [generator.iter, generator.target, *generator.ifs]
        self._within(scope, [*nodes, *results])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _within(self, scope: _Scope, nodes: Iterable[ast.AST]) -> None:
        self.scopes.append(scope)
        certain, self._certain = self._certain, True
        self._all(nodes)
        self.scopes.pop()
        self._certain = certain

    def visit_Call(self, node: ast.Call) -> None:
        self._called = node.func
        self.visit(node.func)
        self._called = None
        self._all([*node.args, *node.keywords])


def _outside(arguments: ast.arguments) -> list[ast.AST | None]:
    """Return what of a function's arguments is run where it is defined: defaults and annotations."""
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    notes = [argument.annotation for argument in parameters if argument is not None]
    return [*arguments.defaults, *arguments.kw_defaults, *notes]


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            yield argument.arg


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes inside it."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield inner
        if not isinstance(inner, Function | ast.ClassDef):
            waiting += ast.iter_child_nodes(inner)


def _declared(node: ast.AST) -> list[str]:
    return node.names if isinstance(node, ast.Global | ast.Nonlocal) else []


def _bound_in(body: list) -> set[str]:
    """Return the names that become a function's own, wherever in its body they are bound."""
    names: set[str] = set()
    for statement in body:
        inside: set[int] = set()  # targets of comprehensions are theirs alone
        for node in _own_nodes(statement):
            if isinstance(node, Comprehension):
                inside |= {id(name) for name in _target_nodes(node.generators)}
        for node in _own_nodes(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in inside:
                names.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                names.add(node.name)
            elif isinstance(node, ast.MatchMapping) and node.rest:
                names.add(node.rest)
    return names


def _target_nodes(generators: list[ast.comprehension]) -> list[ast.Name]:
    return [node for generator in generators for node in ast.walk(generator.target) if isinstance(node, ast.Name)]


def _targets(generators: list[ast.comprehension]) -> set[str]:
    return {node.id for node in _target_nodes(generators) if isinstance(node.ctx, ast.Store)}
