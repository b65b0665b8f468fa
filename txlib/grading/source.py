"""The names in a piece of Python: what it defines, uses and imports. It is never run."""

import ast
from collections.abc import Iterable


def parsed(source: str) -> ast.Module:
    """The syntax tree; an empty one for what can't be read, which won't run either. IPython's magics are left out."""
    plain = "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    for text in (source, plain):
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return ast.Module([], [])


def names_bound(source: str) -> set[str]:
    """The names that a cell defines at its top level."""
    body = parsed(source).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def names_used(source: str) -> set[str]:
    """The names that a cell reads, wherever in it."""
    names = (node for node in ast.walk(parsed(source)) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def names_given(source: str) -> set[str]:
    """The names that a cell defines, imports, assigns or takes as an argument, wherever in it."""
    nodes = list(ast.walk(parsed(source)))
    return (
        {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        | {node.arg for node in nodes if isinstance(node, ast.arg)}
        | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    )


def imported_modules(sources: Iterable[str]) -> tuple[str, ...]:
    """What some cells import, as `module` or `module:name`."""
    modules: dict[str, None] = {}
    for source in sources:
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Import):
                modules |= dict.fromkeys(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules |= dict.fromkeys(f"{node.module}:{alias.name}" for alias in node.names)
    return tuple(modules)
