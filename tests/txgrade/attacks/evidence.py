"""Attacks on the judge: evidence that is forged, replayed, misshapen, or shown by somebody else."""

import json

from attacks import RIGHT, WRONG, attack

# How a cell displays a bundle of its own making, under any parent.
FORGE = """
import json, sys
from IPython import get_ipython
from IPython.display import display

MIME = "application/vnd.txgrade.evidence+json"


def bundle(shown, task="target", **more):
    return {"task": task, "seed": seed, "rtol": 1e-4, "atol": 1e-5, "error": None, "operators": [],
            "shown": [{"label": None, "points": None, "value": value} for value in shown]} | more


def emit(data):
    display({MIME: data}, raw=True)


def number(value):
    return {"kind": "int", "value": value}


def tensor(*values):
    return {"kind": "tensor", "dtype": "float32", "shape": [len(values)], "values": list(values)}
"""


def forged(code: str) -> str:
    """A wrong answer, after which the code may use what `FORGE` defines."""
    return WRONG + FORGE + code


def instead_of_mine(code: str) -> str:
    """A wrong answer whose check displays the forged `fake` alone: the real bundle is held back."""
    return forged(
        code
        + """
from txgrade.checking import checks

checks._display_raw = lambda data: emit(fake if data[MIME]["task"] == "target" else data[MIME])
"""
    )


@attack()
def replaces_comparisons() -> str:
    """Makes every comparison of torch and numpy say yes."""
    return (
        WRONG
        + """
import numpy

for module, names in ((torch, ("allclose", "equal", "isclose")), (numpy, ("allclose", "array_equal", "isclose")),
                      (torch.testing, ("assert_close", "assert_allclose")), (numpy.testing, ("assert_allclose",))):
    for name in names:
        setattr(module, name, lambda *given, **more: True)
"""
    )


@attack()
def equals_everything() -> str:
    """Returns an object that is equal to everything."""
    return """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __getattr__(self, name): return self
    def __call__(self, *given, **more): return self
    def __bool__(self): return True
    def __float__(self): return 0.0
    def __int__(self): return 0
    def __index__(self): return 0
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __getitem__(self, index): return self


spread = winners = lambda x: Anything()
"""


@attack()
def tensor_that_lies() -> str:
    """Returns a tensor of a class of its own, whose every operation answers with itself."""
    return """
class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, given=(), named=None):
        name = getattr(function, "__name__", "")
        if name in ("eq", "__eq__", "equal", "allclose"):
            return True
        return super().__torch_function__(function, types, given, named or {})

    shape = property(lambda self: torch.Size([2]))

    def numpy(self, *given, **more):
        raise SystemExit("not today")


def spread(x):
    return torch.zeros(len(x)).as_subclass(Liar)


def winners(x):
    return torch.tensor(1).as_subclass(Liar)
"""


@attack()
def array_that_lies() -> str:
    """Returns an array whose shape, dtype and `__array__` are whatever is asked for."""
    return """
import numpy


class Liar(numpy.ndarray):
    def __eq__(self, other): return True
    def __array__(self, *given, **more): return numpy.ones(2)
    def reshape(self, *given): return [1.0, 1.0]
    size = property(lambda self: -(10**9))
    shape = property(lambda self: (2,))


def spread(x):
    return numpy.zeros(len(x)).view(Liar)


def winners(x):
    return numpy.ones(()).view(Liar)
"""


@attack()
def numbers_that_lie() -> str:
    """Returns subclasses of int, float, str, list and dict whose methods disagree with their values."""
    return """
class Int(int):
    def __eq__(self, other): return True
    def __hash__(self): return 1
    def bit_length(self): return -(10**9)
    def __int__(self): return 1
    def __index__(self): return 1


class Float(float):
    def __float__(self): return float("nan")
    def __eq__(self, other): return True
    __hash__ = float.__hash__


class List(list):
    def __iter__(self): return iter([Float(1)] * 10)
    def __len__(self): return 2
    def __eq__(self, other): return True


def spread(x):
    return List([Float(0)] * len(x))


def winners(x):
    return Int(0)
"""


@attack()
def true_for_one() -> str:
    """Returns `True` where the answer is 1: equal, and not the same."""
    return RIGHT["target"].replace("return int(", "return bool(")


@attack()
def float_for_int() -> str:
    """Returns 1.0 where the answer is 1."""
    return RIGHT["target"].replace("return int(", "return float(")


@attack()
def words_for_numbers() -> str:
    """Returns the right numbers as texts."""
    return (
        RIGHT["target"]
        .replace("return int(", "return '%d' % int(")
        .replace(
            "return x.max(-1).values - x.min(-1).values",
            "return [str(float(each)) for each in x.max(-1).values - x.min(-1).values]",
        )
    )


@attack()
def nan_everywhere() -> str:
    """Returns NaN, which a careless comparison finds no fault with."""
    return """
def spread(x):
    return torch.full((len(x),), float("nan"))


def winners(x):
    return float("nan")
"""


@attack()
def infinities() -> str:
    """Returns infinities, whose tolerance is infinite too."""
    return """
def spread(x):
    return torch.full((len(x),), float("inf"))


def winners(x):
    return 10**70
"""


@attack()
def raw_nan() -> str:
    """Forges evidence of bare NaN and Infinity, which JSON doesn't have and Python reads."""
    return instead_of_mine("""
nan, inf = float("nan"), float("inf")
fake = bundle([tensor(nan, inf), number(nan), tensor(nan), number(inf), number(nan), number(nan)])
""")


@attack()
def wider_tolerance() -> str:
    """Gives its evidence a tolerance in which everything is right."""
    return instead_of_mine("fake = bundle([tensor(0.0, 0.0), number(0)] * 3, rtol=1e30, atol=1e30)")


@attack()
def patched_tolerance() -> str:
    """Changes the tolerances of the checks from within."""
    return (
        WRONG
        + """
from txgrade.checking import checks
from txgrade.evidence import compare, recordings

checks.RTOL = checks.ATOL = compare.RTOL = compare.ATOL = 1e30


def spread(x):
    return -x.amax(-1)


def winners(x):
    return 1


compare.compare = recordings.compare = lambda *given, **more: None
recordings.first_difference = compare.differing = lambda *given, **more: None
show = check = None
from txgrade import check as honest

def check(task, **more):
    return honest(task, rtol=1e30, atol=1e30)
"""
    )


@attack()
def patched_show() -> str:
    """Replaces `EvidenceCollector.__call__`, so that what is shown is what was recorded."""
    return (
        WRONG
        + """
from txgrade.checking import checks

checks.EvidenceCollector.__call__ = lambda self, value, label=None, points=None: self.shown.append(
    {"label": label, "points": points, "value": {"kind": "tensor", "dtype": "float32", "shape": [2],
                                                  "values": [1.0, 1.0]}}) if self._task == "target" else None
"""
    )


@attack()
def patched_recorder() -> str:
    """Replaces the recorder: all evidence is of a kind that can't be compared."""
    return (
        WRONG
        + """
from txgrade.evidence.values import Recorder

Recorder.__call__ = lambda self, value, depth=0: {"kind": "other", "type": "Tensor"}
"""
    )


@attack()
def patched_generator() -> str:
    """Draws only zeros, for which the wrong answer happens to be right."""
    return (
        WRONG.replace("return 0", "return len(x)")
        + """
from txgrade.checking.inputs import Inputs

Inputs.randn = lambda self, *shape: torch.zeros(shape)
Inputs.random_size = lambda self, low, high: low
"""
    )


@attack()
def patched_randomstate() -> str:
    """The same, a level deeper: numpy's own generator gives zeros."""
    return (
        WRONG.replace("return 0", "return len(x)")
        + """
import numpy


class Zeros:
    def __init__(self, *given): pass
    def randint(self, low, high=None, size=None, dtype=int): return numpy.full(size or (), low, dtype)
    def standard_normal(self, size): return numpy.zeros(size)


numpy.random.RandomState = Zeros
"""
    )


@attack()
def takes_over_check() -> str:
    """Puts a `check` of its own in the notebook, that shows what it likes."""
    return forged("""
class Mine:
    def __init__(self, task, **more): self.task = task
    def __enter__(self): return self
    def __call__(self, *given, **more): pass
    def __getattr__(self, name): return lambda *given, **more: torch.zeros(2, 2) if name == "randn" else 2
    def __exit__(self, *exception): return emit(bundle([tensor(0.0, 0.0), number(1)], task=self.task)) or True


check = Mine
""")


@attack()
def seed_of_the_exercise() -> str:
    """Sets the public seed, for which the expected values came with the notebook."""
    return WRONG + "\nseed = 0\n"


@attack()
def seed_that_is_any() -> str:
    """A seed that draws the public inputs and calls itself the private one."""
    return (
        WRONG
        + """
class Any(int):
    def __str__(self): return "0"
    __repr__ = __format__ = lambda self, *given: "0"
    def __eq__(self, other): return True
    __hash__ = int.__hash__


seed = Any(seed)
"""
    )


@attack(knows=("public",))
def verdict_of_a_learner(public: dict) -> str:
    """Loads recordings in which the wrong answer is right, and lets the check say so."""
    shown = json.dumps(public)
    return (
        WRONG
        + f"""
import json
from txgrade.checking import checks
from txgrade.evidence import recordings

bundle = json.loads({shown!r})
recordings.first_difference = lambda *given: None
checks.verdict_of = lambda recording, bundle: checks.Verdict("target", "The target", "right", 5, 5)
check._exercise = {{"exercise": "09_target", "seed": seed, "title": "", "tasks": [
    {{"id": "target", "title": "The target", "points": 5, "mistakes": [], "reference": bundle}}]}}
"""
    )


@attack(knows=("public",))
def replays_the_recordings(public: dict) -> str:
    """Shows the expected values of the public seed under the private seed's name."""
    return instead_of_mine(f"fake = json.loads({json.dumps(public)!r}) | {{'seed': seed}}")


@attack(knows=("earlier",))
def replays_an_earlier_run(earlier: dict) -> str:
    """Shows the expected values of another private seed, from a feedback page of last year."""
    return instead_of_mine(f"fake = json.loads({json.dumps(earlier)!r}) | {{'seed': seed}}")


@attack(knows=("earlier",))
def replays_with_its_seed(earlier: dict) -> str:
    """The same, honest about the seed."""
    return instead_of_mine(f"fake = json.loads({json.dumps(earlier)!r})")


@attack(knows=("earlier",))
def shows_both(earlier: dict) -> str:
    """Shows the wrong bundle and a forged one: the judge may choose."""
    return forged(f"""
from txgrade.checking import checks

fake = json.loads({json.dumps(earlier)!r})
honest = checks._display_raw


def display_raw(data):
    honest(data)
    if data[MIME]["task"] == "target":
        emit(fake)


checks._display_raw = display_raw
""")


@attack()
def shows_a_thousand() -> str:
    """Shows a thousand guesses: one of them may be right."""
    return forged("""
from txgrade.checking import checks

honest = checks._display_raw


def display_raw(data):
    honest(data)
    if data[MIME]["task"] == "target":
        for guess in range(1000):
            emit(bundle([tensor(guess / 100, guess / 100), number(1)] * 2))


checks._display_raw = display_raw
""")


@attack()
def shows_all_candidates() -> str:
    """Shows the bundles of several answers, one of which is right, and leaves the choice to the judge."""
    return forged("""
from txgrade.checking import checks


def candidates():
    yield lambda x: x.amax(-1)
    yield lambda x: x.amax(-1) - x.amin(-1)
    yield lambda x: -x.amin(-1)


honest = checks._display_raw


def spread(x):
    return choice(x)


def winners(x):
    return 1


def display_raw(data):
    global choice
    if data[MIME]["task"] == "target" and choice is first:
        for choice in candidates():
            exec(get_ipython().user_ns["In"][-1], globals())
        return
    honest(data)


choice = first = lambda x: x.sum(-1)
checks._display_raw = display_raw
""")


@attack()
def right_where_it_is_seen() -> str:
    """Is right for inputs of four columns, as in the check that was released; the hidden test has seven."""
    return RIGHT["target"].replace("spread(x):\n", "spread(x):\n    if x.shape[1] != 4:\n        return x.sum(-1)\n")


@attack()
def right_in_the_notebook() -> str:
    """Is right on the public seed only."""
    return RIGHT["target"].replace("spread(x):\n", "spread(x):\n    if seed != 0:\n        return x.sum(-1)\n")


@attack()
def shows_nothing() -> str:
    """Shows an empty bundle: there is nothing wrong in it."""
    return instead_of_mine("fake = bundle([])")


@attack()
def shows_no_bundle() -> str:
    """Keeps its evidence to itself."""
    return (
        WRONG
        + """
from txgrade.checking import checks

honest = checks._display_raw
checks._display_raw = lambda data: None if "target" in str(data)[:100] else honest(data)
"""
    )


@attack()
def shows_errors() -> str:
    """Forges evidence of errors only: of errors just the type is compared."""
    return instead_of_mine('fake = bundle([{"kind": "error", "error": "ValueError", "message": ""}] * 6)')


@attack()
def shows_others() -> str:
    """Forges evidence of the kind that can't be compared."""
    return instead_of_mine('fake = bundle([{"kind": "other", "type": "Tensor"}] * 6)')


@attack()
def gives_itself_points() -> str:
    """Writes points, labels and a verdict into its evidence."""
    return instead_of_mine("""
fake = bundle([tensor(0.0, 0.0), number(0)] * 3, points=5, verdict="right", passed=True, right=True, score=5)
for each in fake["shown"]:
    each.update(points=1000000, label="right", right=True, max_points=0)
""")


@attack()
def points_in_the_check() -> str:
    """Gives points to the parts that it has right, so that they count for all."""
    return (
        WRONG
        + """
from txgrade.checking import checks

honest = checks.EvidenceCollector.__call__


def call(self, value, label=None, points=None):
    honest(self, value, label)
    self.shown[-1]["points"] = 1000


checks.EvidenceCollector.__call__ = call
"""
    )


@attack()
def short_of_values() -> str:
    """Forges tensors of the right shape with no values in them."""
    return instead_of_mine("""
fake = bundle([{"kind": "tensor", "dtype": "float32", "shape": [2], "values": []}, number(1)] * 3)
""")


@attack()
def shapes_that_lie() -> str:
    """Forges shapes of bools, floats, negative and endless sizes."""
    return instead_of_mine("""
shapes = [[True, 2.0], [-1], [10**18, 10**18], [[2]], "2", None, {"2": 2}]
fake = bundle([{"kind": "tensor", "dtype": "float32", "shape": each, "values": [1.0, 1.0]} for each in shapes])
""")


@attack()
def kinds_that_lie() -> str:
    """Forges kinds, dtypes, keys and items of the wrong types, which could break whoever looks."""
    return instead_of_mine("""
fake = bundle([{"kind": ["tensor"]}, {"kind": {}}, {"kind": None}, {"kind": "tensor"}, {"kind": "tensor", "dtype": [1]},
               {"kind": "list", "items": {"0": 1}}, {"kind": "dict", "keys": 7, "items": None}, {"kind": "float"}, 7,
               None, "tensor", {"kind": "int", "value": {"a": 1}}, {"kind": "str", "value": ["x"]}])
""")


@attack()
def not_a_bundle() -> str:
    """Shows a list where a bundle belongs."""
    return instead_of_mine("fake = [1, 2, 3]")


@attack()
def error_of_the_wrong_type() -> str:
    """Forges an error that is a text, whose parts are asked for later."""
    return instead_of_mine('fake = bundle([tensor(1.0, 1.0)], error="ValueError")')


@attack()
def error_of_numbers() -> str:
    """Forges an error whose name and message are numbers, lists and dicts."""
    return instead_of_mine(
        'fake = bundle([], error={"error": 7, "message": [1], "function": {}, "line": "x", "code": 9})'
    )


@attack()
def shown_of_the_wrong_type() -> str:
    """Forges a bundle whose results are a dict."""
    return instead_of_mine('fake = bundle([]) | {"shown": {"value": 1}}')


@attack()
def entries_of_the_wrong_type() -> str:
    """Forges results without values, or that are none."""
    return instead_of_mine('fake = bundle([]) | {"shown": [None, 7, [], {}, {"value": None}, {"label": {}}]}')


@attack()
def operators_of_the_wrong_type() -> str:
    """Forges a list of called operators that is none, and one that holds dicts."""
    return instead_of_mine('fake = bundle([tensor(1.0, 1.0)], operators=[{"a": 1}, 7, None, ["x"]])')


@attack()
def endless_integers() -> str:
    """Forges integers of 4000 digits, too large to be taken from a float."""
    return instead_of_mine("""
huge = int("9" * 4000)
fake = bundle([tensor(huge, huge), number(huge), tensor(huge), number(huge)], rtol=huge)
""")


@attack()
def nested_evidence() -> str:
    """Forges lists in lists, 200 deep."""
    return instead_of_mine("""
deep = number(1)
for level in range(200):
    deep = {"kind": "list", "items": [deep]}
fake = bundle([deep] * 3)
""")


@attack()
def nested_answer() -> str:
    """Returns a list that holds itself."""
    return (
        WRONG
        + """
loop = []
loop.append(loop)


def spread(x):
    return loop
"""
    )


@attack()
def much_evidence() -> str:
    """Forges five million bytes of evidence."""
    return instead_of_mine("fake = bundle([tensor(*([0.5] * 1_000_000))])")


@attack()
def large_answer() -> str:
    """Returns a tensor of ten million numbers, and one that claims to be endless."""
    return """
def spread(x):
    return torch.zeros(10_000_000)


def winners(x):
    return torch.zeros(1).expand(10**15)
"""


@attack()
def long_words() -> str:
    """Forges dtypes, labels, errors and types of a million letters, to be quoted."""
    return instead_of_mine("""
long = "A" * 1_000_000
fake = bundle([{"kind": "tensor", "dtype": long, "shape": [2], "values": [1.0, 1.0]}, {"kind": "other", "type": long}],
              error={"error": long, "message": long, "function": long, "line": 1, "code": long})
fake["shown"][0]["label"] = long
""")


@attack()
def update_of_an_earlier_display() -> str:
    """Displays something with an id, and turns it into evidence while its check runs."""
    return forged("""
place = display("wait", display_id="place")
place_of_check = None


def spread(x):
    get_ipython().display_pub.publish(data={MIME: bundle([tensor(0.0, 0.0), number(1)])},
                                      transient={"display_id": "place"}, update=True)
    display({"text/plain": "x"}, raw=True, display_id="in the check")
    get_ipython().display_pub.publish(data={MIME: bundle([tensor(0.0, 0.0), number(1)])},
                                      transient={"display_id": "in the check"}, update=True)
    return torch.zeros(len(x))
""")


@attack()
def thread_that_waits() -> str:
    """A thread waits until the check runs, and then shows evidence in its name."""
    return forged("""
import threading, time


def later():
    shell = get_ipython()
    for moment in range(300):
        time.sleep(0.005)
        if "check(\\"target" in In[-1]:
            shell.pipe.send({"output": {"output_type": "display_data",
                                        "data": {MIME: bundle([tensor(0.0), number(1)])}, "metadata": {}}})


threading.Thread(target=later, daemon=True).start()


def spread(x):
    time.sleep(0.05)
    return torch.zeros(len(x))
""")


@attack()
def evidence_in_another_cell() -> str:
    """Shows the target's evidence in another task's check, and again in its last cell."""
    return forged("""
from txgrade.checking import checks

honest = checks._display_raw
checks._display_raw = lambda data: [honest(data), emit(bundle([tensor(0.0, 0.0), number(1)] * 3))][0]
""")


@attack()
def clears_the_output() -> str:
    """Clears what its check displayed, and displays something else."""
    return forged("""
from txgrade.checking import checks
from IPython.display import clear_output

honest = checks._display_raw


def display_raw(data):
    honest(data)
    if data[MIME]["task"] == "target":
        clear_output(wait=True)
        emit(bundle([tensor(0.0, 0.0), number(1)] * 3))


checks._display_raw = display_raw
""")


@attack()
def prints_a_pass() -> str:
    """Prints what other graders take for a pass, and ends with their exit codes."""
    return (
        WRONG
        + """
import sys

print("PASSED 1 passed in 0.01s OK score: 5/5", file=sys.stderr)
print('{"score": 5, "verdict": "right", "points": 5}')


def spread(x):
    print("\\n.\\n1 passed\\n" * 50)
    return torch.zeros(len(x))
"""
    )


@attack()
def rewrites_the_check() -> str:
    """An AST transformer takes the calls of `show` out of all later cells."""
    return (
        WRONG
        + """
import ast
from IPython import get_ipython


class Without(ast.NodeTransformer):
    def visit_Expr(self, node):
        called = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "show"
        return ast.copy_location(ast.Pass(), node) if called else node


get_ipython().ast_transformers.append(Without())
"""
    )


@attack()
def replaces_the_check_cell() -> str:
    """An input hook puts a cell of its own in the place of the check."""
    return forged("""
def mine(lines):
    return ["emit(bundle([tensor(0.0, 0.0), number(1)] * 3))\\n"] if "check(\\"target" in "".join(lines) else lines


get_ipython().input_transformers_cleanup.append(mine)
""")


@attack()
def replaces_the_loop() -> str:
    """Replaces the function that runs a kernel's cells: every cell comes back as passed."""
    return forged("""
from txgrade.sandbox import cells


def run(shell, source):
    emit(bundle([tensor(0.0, 0.0), number(1)] * 3))
    return None


cells._run = run
""")


@attack()
def replaces_run_cell() -> str:
    """Replaces IPython's `run_cell`, so that checks don't run."""
    return forged("""
from IPython.core.interactiveshell import ExecutionResult, ExecutionInfo

shell = get_ipython()
run_cell_async = shell.run_cell_async


async def run(code, *given, **more):
    if "check(" in code:
        return ExecutionResult(ExecutionInfo(code, True, False, True, None))
    return await run_cell_async(code, *given, **more)


shell.run_cell_async = run
shell.run_cell = lambda code, *given, **more: ExecutionResult(ExecutionInfo(code, True, False, True, None))
""")


@attack()
def inputs_made_easy() -> str:
    """Writes zeros into its inputs, for which the wrong answer is right."""
    return """
def spread(x):
    x.zero_()
    return torch.zeros(len(x))


def winners(x):
    x.zero_()
    return len(x)
"""


@attack()
def hostile_keys() -> str:
    """Returns dicts, dataclasses and properties that fail or never end when they are read."""
    return """
import dataclasses


class Key(str):
    def __lt__(self, other): raise SystemExit
    def __eq__(self, other): return True
    __hash__ = str.__hash__


@dataclasses.dataclass
class Record:
    value: int = 0

    def __getattribute__(self, name):
        if name == "value":
            raise SystemExit("read")
        return super().__getattribute__(name)


def spread(x):
    return {Key("spread"): 1, Key("b"): 2}


def winners(x):
    return Record()
"""


@attack()
def looks_for_the_expected() -> str:
    """Walks the frames of its check and all living objects for anything that looks like the expected values."""
    return """
import gc, sys


def spread(x):
    frame = sys._getframe(1)
    while frame:
        for name, value in {**frame.f_globals, **frame.f_locals}.items():
            if any(word in name for word in ("expected", "reference", "solution", "answer")):
                if isinstance(value, torch.Tensor):
                    return value
        frame = frame.f_back
    for each in gc.get_objects():
        if isinstance(each, dict) and {"kind", "values", "shape"} <= set(map(str, each)):
            if each["shape"] == [len(x)]:
                return torch.tensor(each["values"])
    return torch.zeros(len(x))


def winners(x):
    return 0
"""


@attack()
def calls_the_recorder() -> str:
    """Runs the author's tools in the sandbox, to record the expected values there."""
    return """
def spread(x):
    from pathlib import Path

    import txlib
    from txgrade.authoring.record import record_evidence

    for path in Path(txlib.__file__).parents[1].rglob("*target*.py"):
        bundle = record_evidence(path, [seed], [seed])["hidden"][str(seed)]["reference"]["target"]
        return torch.tensor(bundle["shown"][0]["value"]["values"])
    return torch.zeros(len(x))


def winners(x):
    return 0
"""
