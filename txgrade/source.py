"""The names in a piece of Python: what it defines, uses and imports. It is never run."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

NOT_PYTHON = "is not Python"
TOO_DEEP = "is nested too deep, or has too much of IPython's syntax"

# Lines that IPython may read otherwise than Python does, although Python can read them: pasted prompts.
PROMPTS = re.compile(r"^\s*(?:>>>|\.{3,}:|(?:\[\w+\] ?)?In \[)", re.MULTILINE)
MOST_READ = 200_000  # characters that IPython's transformer may read: it begins anew at each magic. Half a second
MOST_NESTED = 3  # magics in magics
# Magics that only show something, and those that run the Python that they contain.
SHOWING = frozenset(("matplotlib", "pdef", "pdoc", "pfile", "pinfo", "pinfo2", "precision", "psource", "pwd", "submit"))
RUNNING = frozenset(("capture", "prun", "time", "timeit"))
OPTIONS = re.compile(r"(?:-{1,2}[\w-]+(?:[ =]?\d+)?\s+)*")  # in front of what such a magic runs


@dataclass(frozen=True)
class Program:
    """What a cell runs. Where that can't be read, the tree is empty and `problem` says why."""

    tree: ast.Module
    problem: str = ""


def parsed(source: str) -> ast.Module:
    """Return the syntax tree of what IPython makes of a cell; an empty one where that can't be read."""
    return program(source).tree


@lru_cache(maxsize=32)
def program(source: str, nested: int = 0) -> Program:
    """Return what a cell runs in IPython: without indentation and prompts, with the Python that its magics time."""
    text = source
    try:
        try:
            tree = None if PROMPTS.search(source) else ast.parse(source)
        except SyntaxError:
            tree = None
        if tree is None:
            text = _transformer().transform_cell(source)
            tree = ast.parse(text)
        if "get_ipython" in text:
            tree = ast.fix_missing_locations(_WithoutMagics(nested).visit(tree))
        return Program(tree)
    except (RecursionError, MemoryError):
        return Program(ast.Module([], []), TOO_DEEP)
    except Exception:  # IPython raises the same for the learner, and does not run the cell
        return Program(ast.Module([], []), NOT_PYTHON)


@cache
def _transformer() -> Any:
    """IPython's transformer of cells, with a bound on its work; loaded for the cells that need it."""
    from IPython.core.inputtransformer2 import TransformerManager

    class Bounded(TransformerManager):
        """Counts the characters that are read."""

        characters_left = 0

        def transform_cell(self, cell: str) -> str:
            self.characters_left = MOST_READ
            return super().transform_cell(cell)

        def do_one_token_transform(self, lines: list[str]) -> tuple[bool, list[str]]:
            self.characters_left -= sum(map(len, lines))
            if self.characters_left < 0:
                raise MemoryError("too much of IPython's syntax")
            return super().do_one_token_transform(lines)

    return Bounded()


class _WithoutMagics(ast.NodeTransformer):
    """Puts what a harmless magic runs in its place: `%time f(x)` becomes `f(x)`, and `f?` nothing."""

    def __init__(self, nested: int):
        self.nested = nested

    def visit_Expr(self, node: ast.Expr) -> Any:
        statements = _statements(node.value, self.nested)
        return self.generic_visit(node) if statements is None else statements

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match _statements(node, self.nested):
            case [ast.Expr(value)]:
                return value
            case [ast.Pass()]:
                return ast.Constant(None)
        return self.generic_visit(node)


def _statements(node: ast.AST, nested: int) -> list[ast.stmt] | None:
    """Return what the call of a harmless magic runs; None for anything else."""
    match node:
        case ast.Call(
            ast.Attribute(ast.Call(ast.Name("get_ipython"), [], []), "run_line_magic" | "run_cell_magic"),
            [ast.Constant(str(name)), *rest],
            [],
        ):
            texts = [part.value for part in rest if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        case _:
            return None
    if len(texts) != len(rest) or name not in SHOWING | RUNNING or nested == MOST_NESTED:
        return None
    if name in SHOWING:
        return None if re.search(r"[{$]", "".join(texts)) else [ast.Pass()]  # IPython evaluates what is in braces
    line, *bodies = texts or [""]
    line = line[len(match[0]) :] if (match := OPTIONS.match(f"{line} ")) else line
    if name == "capture":
        line = f"{line} = None" if line.strip() else ""
    statements: list[ast.stmt] = []
    for text in (line, *bodies):
        inner = program(text, nested + 1)
        if inner.problem:
            return None
        statements += inner.tree.body
    return statements or [ast.Pass()]


def names_bound(source: str) -> set[str]:
    """Return the names that a cell defines at its top level."""
    body = parsed(source).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def names_used(source: str) -> set[str]:
    """Return the names that a cell reads, wherever in it."""
    names = (node for node in ast.walk(parsed(source)) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def names_given(source: str) -> set[str]:
    """Return the names that a cell defines, imports, assigns or takes as an argument, wherever in it."""
    nodes = list(ast.walk(parsed(source)))
    return (
        {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        | {node.arg for node in nodes if isinstance(node, ast.arg)}
        | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    )


def imported_modules(sources: Iterable[str]) -> tuple[str, ...]:
    """Return what some cells import, as `module` or `module:name`."""
    modules: dict[str, None] = {}
    for source in sources:
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Import):
                modules |= dict.fromkeys(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules |= dict.fromkeys(f"{node.module}:{alias.name}" for alias in node.names)
    return tuple(modules)
