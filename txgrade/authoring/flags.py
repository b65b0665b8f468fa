"""Review flags of an answer's source: names that are not its own, and code that can't be searched.

A flag proves nothing and takes no points: a determined learner can evade the search.
"""

import ast
import builtins
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from txgrade.authoring.assignment import Assignment, GradedTask
from txgrade.authoring.called_names import direct_operators, reached, unsearched
from txgrade.authoring.scopes import Names, names_of
from txgrade.records.result import Note
from txgrade.source import NOT_PYTHON, program

HISTORY = re.compile(r"In|Out|_{1,3}|_i{1,3}|_[iod]h|_i?\d+|get_ipython")  # what IPython keeps of the cells before
PARAMETERS = frozenset(("seed", "check"))
ESCAPE_NAMES = frozenset(  # to names and objects of others, and to what watches the answer, by the last part of a path
    ("_getframe", "f_back", "f_globals", "f_locals", "f_builtins", "gi_frame", "cr_frame", "tb_frame", "user_ns")
    + ("__globals__", "__closure__", "cell_contents", "__code__", "__defaults__", "__kwdefaults__", "__main__")
    + ("get_objects", "get_referrers", "currentframe", "_python_dispatch", "TorchDispatchMode", "TorchFunctionMode")
)
ESCAPE_PATHS = ("gc", "inspect.stack", "inspect.trace", "torch.utils._python_dispatch", "torch.overrides")
MOST_NAMES, LONGEST = 6, 60  # names in a note, and characters of one


@dataclass
class AssignmentNames:
    """The names of an assignment's own cells."""

    provided: dict[str, str] = field(default_factory=dict)  # of given cells, and an import's full name, else ""
    answers: dict[str, set[str]] = field(default_factory=dict)  # by solution cell: what its stub binds
    solved: dict[str, set[str]] = field(default_factory=dict)  # and its solution: nbgrader's stubs bind nothing
    bound_by_checks: set[str] = field(default_factory=set)
    read_by_checks: set[str] = field(default_factory=set)  # before they bind it themselves


def source_notes(assignment: Assignment, answers: dict[str, str], ran: Collection[str]) -> list[Note]:
    """Return review flags that an answer's source alone raises. `ran` are the cells known to have run."""
    own = own_names(assignment)
    notes = []
    for task in assignment.tasks:
        if task.kind == "written":
            continue
        cells = [id for id in task.answers if id in answers and answers[id].strip() != assignment.stubs[id].strip()]
        notes += [note for id in cells for note in _notes(task, answers[id], own, id in ran)]
    return list(dict.fromkeys(notes))


def _notes(task: GradedTask, source: str, own: AssignmentNames, ran: bool) -> list[Note]:
    read = program(source)
    if read.problem and (ran or read.problem != NOT_PYTHON):
        return [Note("can't be searched", f"its cell {read.problem}, and yet it ran" if ran else read.problem, task.id)]
    try:
        names = names_of(read.tree)
    except RecursionError:
        return [Note("can't be searched", "its cell is nested too deep", task.id)]
    notes = []
    if task.forbidden:
        if operators := direct_operators(source):
            notes.append(Note("forbidden call", f"calls {_listed(operators)}", task.id))
        notes += [Note("can't be searched", f"its cell {why}", task.id) for why in unsearched(source, own.provided)]
    if rebound := rebound_names(read.tree, names, own, task):
        notes.append(Note("name rebound", f"its cell binds {_listed(rebound)}, which other cells use", task.id))
    if borrowed := borrowed_names(read.tree, names, own, source):
        notes.append(Note("reads a check's name", f"reads {_listed(borrowed)}: not its own", task.id))
    return notes


def own_names(assignment: Assignment) -> AssignmentNames:
    """Return the names of an assignment's cells, as learners see them: without solutions and hidden tests."""
    own, checks = AssignmentNames(), {task.check: task for task in assignment.tasks if task.kind != "written"}
    for cell in assignment.notebook.cells:
        if cell.cell_type != "code":
            continue
        if cell.id in assignment.stubs:
            own.answers[cell.id] = set(_names(assignment.stubs[cell.id]).bound)
            own.solved[cell.id] = own.answers[cell.id] | set(_names(cell.source).bound)
        elif cell.id in checks:
            visible = checks[cell.id].visible
            names = _names(cell.source if visible is None else visible)
            own.bound_by_checks |= names.bound.keys()
            own.read_by_checks |= {
                read.name
                for read in names.reads
                if not read.local and (read.name not in names.bound if read.later else read.first)
            }
        else:
            names = _names(cell.source)
            own.provided |= {name: names.imported.get(name, "") for name in names.bound}
    return own


def _names(source: str) -> Names:
    return names_of(program(source).tree)


def rebound_names(tree: ast.Module, names: Names, own: AssignmentNames, task: GradedTask) -> list[str]:
    """Return the names of other cells that an answer binds: given ones, other answers', and those that checks rely on.

    Repeating an import of a given cell is harmless, and so are other names of checks, which bind them anew.
    """
    of_other_answers = set().union(*(bound for id, bound in own.answers.items() if id not in task.answers))
    mine = set().union(*(own.solved.get(id, set()) for id in task.answers))
    wanted = (own.provided.keys() | of_other_answers | own.read_by_checks | PARAMETERS) - mine
    imports = {name for name, ways in names.bound.items() if ways == {"import"}}
    again = {name for name in imports if own.provided.get(name) and names.imported[name] == own.provided[name]}
    bound = (names.bound.keys() - again) | {name for name, stored in _by_text(tree) if stored}
    return sorted(bound & wanted) + sorted(_patched(tree, names, own))


def borrowed_names(tree: ast.Module, names: Names, own: AssignmentNames, source: str) -> list[str]:
    """Return what an answer reads that belongs to a check or to IPython: their names, and ways to reach them."""
    read = {read.name for read in names.reads if not read.local}
    read |= {name for name, stored in _by_text(tree) if not stored}
    explained = names.bound.keys() | own.provided.keys() | set().union(*own.solved.values()) | set(vars(builtins))
    left_behind = own.bound_by_checks - explained
    foreign = {name for name in read if name in left_behind or HISTORY.fullmatch(name)} | (read & {"check"})
    ways = {path for path in reached(source) if path.rpartition(".")[2] in ESCAPE_NAMES or _is_within(path, names)}
    return sorted(foreign - names.bound.keys()) + sorted(ways | _spaces(tree, names))


def _is_within(path: str, names: Names) -> bool:
    """Return whether a path leads into a module that reaches others; `gc` may be an answer's own name."""
    own = path.partition(".")[0] in (names.bound.keys() | names.local.keys()) - names.imported.keys()
    return not own and any(f"{path}.".startswith(f"{way}.") for way in ESCAPE_PATHS)


def _by_text(tree: ast.Module) -> list[tuple[str, bool]]:
    """Return names in globals()["…"], and whether they are bound there."""
    names = []
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(ast.Call(ast.Name("globals" | "locals" | "vars"), []), ast.Constant(str(name)), context):
                names.append((name, not isinstance(context, ast.Load)))
    return names


def _spaces(tree: ast.Module, names: Names) -> set[str]:
    """Return `globals` where it is used for more than a constant name; the others where the cell itself calls them."""
    used: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("globals" | "locals" | "vars" as name), []):
                used.append(name)
    outside = {read.name for read in names.reads if not read.local and not read.later}
    ways = {name for name in used if name not in names.bound and (name == "globals" or name in outside)}
    return ways if len(used) > len(_by_text(tree)) else set()


def _patched(tree: ast.Module, names: Names, own: AssignmentNames) -> set[str]:
    """Return attributes of modules and of given names that an answer sets: `torch.allclose = …`."""
    foreign = (names.imported.keys() | own.provided.keys()) - names.local.keys()
    patched = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            parts, root = [node.attr], node.value
            while isinstance(root, ast.Attribute):
                parts.append(root.attr)
                root = root.value
            if isinstance(root, ast.Name) and root.id in foreign:
                patched.add(".".join([root.id, *reversed(parts)]))
    return patched


def _listed(names: Iterable[str]) -> str:
    """Return names in words, as far as there is room."""
    quoted = [f"`{name[:LONGEST]}`" for name in names]
    return ", ".join(quoted[:MOST_NAMES]) + (" …" if len(quoted) > MOST_NAMES else "")
