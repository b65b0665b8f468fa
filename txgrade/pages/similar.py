"""Finds similar answers for a person to look at. It says nothing about who wrote what, or why."""

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from txgrade.source import parsed

MIN_NODES, MIN_STATEMENTS = 50, 3  # beyond the stub: in an answer of two or three lines equality means nothing
STATEMENTS = {statement.__name__ for statement in ast.stmt.__subclasses__()}
MIN_SIMILARITY = 0.8  # fraction of common pieces from which two answers are listed
PIECE_NODES = 4  # in a piece
USUAL_COUNT, USUAL_FRACTION = 5, 0.1  # of alike answers in a class: beyond both, it is the usual way to write it
MAX_CHARACTERS, MAX_NODES = 20_000, 3_000  # of an answer that is compared
MAX_PAIRS = 200  # that a person would look through


@dataclass(frozen=True)
class Similar:
    """Two answers to one task. `similarity` is 1 if their syntax trees are equal but for names and numbers."""

    task: str
    one: str
    other: str
    similarity: float


def similar_answers(answers: dict[str, dict[str, str]], stubs: dict[str, str]) -> list[Similar]:
    """Return pairs of similar answers: the most similar first, of these the longest; at most 200.

    `answers[name][task]` is a submission's source, `stubs[task]` what everybody got. Syntax trees are compared without
    names, constants, docstrings, annotations and comments. Of several equal answers each is listed with the first.
    Short and very long answers, those that don't parse, and those that very many learners have alike are left out.
    """
    usual = max(USUAL_COUNT, USUAL_FRACTION * len(answers))
    pairs: list[tuple[int, Similar]] = []
    for task, stub in stubs.items():
        stub_nodes = _nodes(stub)
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, tasks in sorted(answers.items()):
            nodes = _nodes(tasks.get(task, ""))
            long = (
                len(nodes) - len(stub_nodes) >= MIN_NODES
                and _statements(nodes) - _statements(stub_nodes) >= MIN_STATEMENTS
            )
            if long and len(nodes) <= MAX_NODES:
                groups[nodes].append(name)
        near = list(_near(list(groups)))
        alike = {nodes: len(names) for nodes, names in groups.items()}
        for one, other, _ in near:
            alike[one] += len(groups[other])
            alike[other] += len(groups[one])
        for nodes, names in groups.items():
            if alike[nodes] <= usual:
                pairs += [(len(nodes), Similar(task, names[0], other, 1.0)) for other in names[1:]]
        for one, other, similarity in near:
            if max(alike[one], alike[other]) <= usual:
                first, second = sorted((groups[one][0], groups[other][0]))
                pairs.append((len(one), Similar(task, first, second, min(round(similarity, 2), 0.99))))
    pairs.sort(key=lambda pair: (-pair[1].similarity, -pair[0], pair[1].task, pair[1].one, pair[1].other))
    return [similar for _, similar in pairs[:MAX_PAIRS]]


def _near(trees: list[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], float]]:
    """Yield pairs of trees with nearly the same pieces (Jaccard's index of runs of nodes)."""
    numbers: dict[tuple[str, ...], int] = {}
    sets = []  # of pieces, a bit of one integer for each: 45,000 pairs take a tenth of a second
    for tree in trees:
        pieces = {tree[i : i + PIECE_NODES] for i in range(len(tree) - PIECE_NODES + 1)}
        sets.append((len(pieces), sum(1 << numbers.setdefault(piece, len(numbers)) for piece in pieces)))
    for i, (count, mine) in enumerate(sets):
        for j in range(i):
            size, theirs = sets[j]
            common = (mine & theirs).bit_count()
            if common >= MIN_SIMILARITY * (count + size - common):
                yield trees[j], trees[i], common / (count + size - common)


def _nodes(source: str) -> tuple[str, ...]:
    """Return the kinds of the nodes of a program, in order, without what a copy would change first."""
    if len(source) > MAX_CHARACTERS:
        return ()
    return tuple(itertools.islice(_walk(parsed(source)), MAX_NODES + 1))


def _statements(nodes: tuple[str, ...]) -> int:
    return sum(node in STATEMENTS for node in nodes)


def _walk(tree: ast.AST) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield "Assign" if isinstance(node, ast.AnnAssign) else type(node).__name__
        children = [
            child
            for field, value in ast.iter_fields(node)
            if field not in ("annotation", "returns")
            for child in (value if isinstance(value, list) else [value])
            if isinstance(child, ast.AST)
        ]
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            children.remove(body[0])
        waiting += reversed(children)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
