"""`txgrade questions`: three questions for a short talk about a submission, made from its own right answers.

One asks to work out a call, one what a change of a line would do, one what a name stands for. What to expect comes from
the judge: the reference has made the call, and the changed answer has run in the sandbox. The same submission is asked
the same questions, and another learner others, although the answers are the same.
"""

import ast
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from txgrade.authoring.assignment import Assignment
from txgrade.authoring.cells import MARK
from txgrade.authoring.example_calls import example_calls
from txgrade.authoring.mutations import Mutation, mutations
from txgrade.authoring.read import read_assignment
from txgrade.judging.execute import execute
from txgrade.judging.job import Job, grade_submission
from txgrade.judging.reference import make_reference, record_known
from txgrade.records.gradebook import Gradebook
from txgrade.records.people import person
from txgrade.records.result import ARRIVAL, Result, TaskResult
from txgrade.sandbox import Limits, probe
from txgrade.sandbox.warm import warm_kernels

SEED = 0
MOST_CHANGES = 6  # that are tried, until one makes a difference
# What is worth talking about, best first; a deleted statement or a number off by one is not.
KINDS = ("axis", "comparison", "transpose", "slice", "factor", "clamp", "operation", "function", "loop", "sign", "term")
LEAST_NODES = 5  # of the syntax tree of a value that has a name worth asking about


@dataclass(frozen=True)
class Question:
    """A question about one task, and what to expect."""

    title: str  # the task's
    text: str
    expect: str


@dataclass(frozen=True)
class _Answer:
    """A right answer, without what the release marked."""

    task: TaskResult
    source: str

    @property
    def lines(self) -> list[str]:
        """Its lines as questions quote them: without blanks and comments at the end."""
        return [line.partition("  #")[0].strip() for line in self.source.splitlines()]


def questions(book: Gradebook, name: str) -> list[Question]:
    """Return questions about a submission's last grade, up to three.

    Raises:
        GradebookError: no such submission.
        FileNotFoundError: its assignment is no longer where it was.
        ValueError: the assignment has changed or is nbgrader's, or no answer is right.
    """
    entry = book.history(book.submission_named(name))[-1]
    result, path = entry.result, Path(entry.path)
    assignment = read_assignment(path, result.variant, dealt=True)
    if not assignment.has_checks:
        raise ValueError(f"{assignment.name} is nbgrader's: questions need an exercise whose checks show values")
    if assignment.hash != result.assignment_hash and result.variant is None:
        raise ValueError(f"{assignment.path} has changed since {result.name} was graded: run txgrade grade again")
    answers = [_Answer(task, source) for task in result.tasks if (source := _right_answer(task))]
    if not answers:
        raise ValueError(f"{result.name} has no right answer in code to ask about")
    about = "\0".join([person(result.name), *(answer.task.answer_hash for answer in answers)])
    digest = hashlib.sha256(about.encode()).digest()
    rng = random.Random(digest)
    rng.shuffle(answers)
    calls = example_calls(assignment.path, 1 + int.from_bytes(digest[:3], "big"), result.variant)
    by_value, by_shape = partial(_call, calls, "value"), partial(_call, calls, "shape")
    questions: list[Question] = []
    for makers in (by_value, by_shape), (partial(_change, assignment, result, rng),), (_name, _method):
        used = {question.title for question in questions}
        fresh = [answer for answer in answers if answer.task.title not in used]
        made = (maker(answer) for maker in makers for answer in [*fresh, *answers])
        questions += [question for question in [next(filter(None, made), None)] if question]
    return questions


def _right_answer(task: TaskResult) -> str:
    """Return the source of a right answer in code; nothing if it is not right, or can't be read."""
    if task.kind != "evidence" or task.points < task.max_points:
        return ""
    source = "\n".join(line for line in task.answer.splitlines() if not MARK.fullmatch(line))
    try:
        ast.parse(source)
    except SyntaxError:
        return ""
    return source


def _call(calls: dict[str, dict[str, str]], kind: str, answer: _Answer) -> Question | None:
    """Ask for the value of a call, or for its shape."""
    call = calls.get(answer.task.id)
    if call is None or call["kind"] != kind:
        return None
    if kind == "value":
        text = f"What does `{call['call']}` return? Work it out with the code in front of you, step by step."
        return Question(answer.task.title, text, f"`{call['value']}`")
    text = f"Suppose {call['call']}. Which shape comes out, what does each axis count, and which line decides that?"
    return Question(answer.task.title, text, f"A tensor {call['value']}.")


def _change(assignment: Assignment, result: Result, rng: random.Random, answer: _Answer) -> Question | None:
    """Ask what would come out if one line were different."""
    for change, words in _consequences(assignment, result, answer, _worth_asking(answer, rng)):
        before, _, after = change.change.partition(" → ")
        line = answer.lines[change.line - 2]
        text = (
            f"Line {change.line - 1} of your answer is `{line}`. Suppose it said `{after}` instead of `{before}`. "
            "What would come out, and for which inputs would you notice?"
        )
        return Question(answer.task.title, text, words)
    return None


def _worth_asking(answer: _Answer, rng: random.Random) -> list[Mutation]:
    """Return changes of an answer, of different kinds first."""
    marked = f"### BEGIN SOLUTION\n{answer.source}\n### END SOLUTION"
    changes = [change for change in mutations(marked) if change.kind in KINDS and "(" not in change.change[-3:]]
    rng.shuffle(changes)
    first = {change.kind: change for change in reversed(changes)}
    best = sorted(first.values(), key=lambda change: KINDS.index(change.kind))[:MOST_CHANGES]
    return rng.sample(best, len(best))


def _consequences(
    assignment: Assignment, result: Result, answer: _Answer, changes: list[Mutation]
) -> Iterator[tuple[Mutation, str]]:
    """Yield the changes that make a difference, with what the judge says of them."""
    if not changes:
        return
    isolation = probe().level
    if isolation != "sealed":
        yield changes[0], "Not tried: there is no sealed sandbox here."
        return
    limits, answers = Limits(), _cells(assignment, result)
    cells = next(task.answers for task in assignment.tasks if task.id == answer.task.id)
    with warm_kernels(assignment.imports, limits, isolation, False, (assignment.path.parent,), dict(assignment.data)):
        recorded = record_known(assignment, (SEED,))
        completed, reference = make_reference(assignment, (SEED,), partial(execute, limits=limits), lambda: recorded)
        source = assignment.path.read_text(encoding="utf-8")
        for change in changes:
            changed = answers | dict.fromkeys(cells, change.source)
            submission = _submission(result, changed)
            graded = grade_submission(Job(completed, reference, submission, (SEED,), limits, isolation, "", source))
            task = next(task for task in graded.tasks if task.id == answer.task.id)
            if task.verdict not in ("right", "error") and task.lines:
                yield change, f"The check would say: {task.lines[0]}"


def _cells(assignment: Assignment, result: Result) -> dict[str, str]:
    """Return a submission's answers by their cells; those of a task with several cells are left out."""
    tasks = {task.id: task for task in result.tasks}
    return {task.answers[0]: tasks[task.id].answer for task in assignment.tasks if len(task.answers) == 1}


def _submission(result: Result, answers: dict[str, str]) -> SimpleNamespace:
    """Return what the judge reads of a submission, with other answers."""
    about = {field: getattr(result, field) for field in (*ARRIVAL, "variant")}
    return SimpleNamespace(name=result.submission, status="graded", hash="", notes=(), answers=answers, **about)


def _name(answer: _Answer) -> Question | None:
    """Ask what a name of the learner's own stands for."""
    tree = ast.parse(answer.source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    best: tuple[int, ast.Assign, str, list[int]] | None = None
    for function in functions:
        nodes = list(ast.walk(function))
        stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        for node in nodes:
            if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
                continue
            name, size = node.targets[0].id, len(list(ast.walk(node.value)))
            used = sorted(
                {
                    other.lineno
                    for other in nodes
                    if isinstance(other, ast.Name) and other.id == name and isinstance(other.ctx, ast.Load)
                }
            )
            if stored.count(name) == 1 and used and size >= LEAST_NODES and (best is None or size > best[0]):
                best = size, node, name, used
    if best is None:
        return None
    _, node, name, used = best
    line = answer.lines[node.lineno - 1]
    text = (
        f"Line {node.lineno} of your answer is `{line}`. What does `{name}` stand for? Say what "
        "kind of thing it is (a number, a list, a tensor and its shape), what an entry means, and why you need it."
    )
    lines = "; ".join(f"line {number}, `{answer.lines[number - 1]}`" for number in used[:2])
    return Question(answer.task.title, text, f"It is used in {lines}.")


def _method(answer: _Answer) -> Question | None:
    """Ask what a call in the answer does, for an answer without local names."""
    calls = [
        node
        for node in ast.walk(ast.parse(answer.source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (node.args or node.keywords)
    ]
    if not calls:
        return None
    call = max(calls, key=lambda node: len(ast.unparse(node)))
    name, code = call.func.attr, ast.unparse(call)  # type: ignore[attr-defined]
    text = (
        f"Your answer calls `{name}` in line {call.lineno}: `{code}`. What goes in, what comes out, and how would you "
        f"write it without `{name}`?"
    )
    return Question(answer.task.title, text, f"The documentation of `{name}`.")
