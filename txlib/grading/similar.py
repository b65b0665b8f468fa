"""Answers that look alike, for a person to look at. It says nothing about who wrote what, or why."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

FEWEST = 40         # nodes beyond the stub: in shorter answers equality means nothing
NEAR = 0.9          # share of common pieces from which two answers are listed
PIECE = 6           # nodes in a piece


@dataclass(frozen=True)
class Similar:
    """Two answers to one task. `similarity` is 1 where their syntax trees are equal but for names and numbers."""

    task: str
    one: str
    other: str
    similarity: float


def similar_answers(answers: dict[str, dict[str, str]], stubs: dict[str, str]) -> list[Similar]:
    """Pairs of alike answers, the most alike first.

    `answers[name][task]` is a submission's source, `stubs[task]` what everybody was given. Compared are syntax trees
    without names, constants, docstrings, annotations and comments. Of several equal answers each is listed with the
    first. Answers that don't parse are left out.
    """
    found = []
    for task, stub in stubs.items():
        given = len(_nodes(stub))
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, tasks in sorted(answers.items()):
            nodes = _nodes(tasks.get(task, ""))
            if len(nodes) - given >= FEWEST:
                groups[nodes].append(name)
        for names in groups.values():
            found += [Similar(task, names[0], other, 1.0) for other in names[1:]]
        found += [Similar(task, groups[one][0], groups[other][0], round(share, 2))
                  for one, other, share in _near(list(groups))]
    return sorted(found, key=lambda each: (-each.similarity, each.task, each.one, each.other))


def _near(trees: list[tuple[str, ...]]) -> Iterator[tuple]:
    """Pairs of trees with nearly the same pieces (Jaccard's index of runs of nodes)."""
    pieces = {tree: {tree[i:i + PIECE] for i in range(len(tree) - PIECE + 1)} for tree in trees}
    for one, other in combinations(trees, 2):
        small, large = sorted((len(pieces[one]), len(pieces[other])))
        if small < NEAR * large:
            continue
        common = len(pieces[one] & pieces[other])
        share = common / (small + large - common)
        if share >= NEAR:
            yield one, other, min(share, 0.99)


def _nodes(source: str) -> tuple[str, ...]:
    """The kinds of the nodes of a program, in order, without what a copy would change first."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(_walk(tree))


def _walk(node: ast.AST) -> Iterator[str]:
    yield type(node).__name__
    body = getattr(node, "body", None)
    for child in ast.iter_child_nodes(node):
        docstring = (isinstance(body, list) and body and child is body[0] and isinstance(child, ast.Expr)
                     and isinstance(child.value, ast.Constant) and isinstance(child.value.value, str))
        annotation = child in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if not docstring and not annotation:
            yield from _walk(child)
