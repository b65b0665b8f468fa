"""What an answer calls is found through IPython's syntax, constant texts and rebound names; what hides it is told."""

import json
import subprocess
import sys

import pytest

from txgrade.authoring.called_names import direct_operators, forbidden_names, unsearched
from txgrade.source import NOT_PYTHON, TOO_DEEP, names_used, program

NAMES = ["txlib"]
SHELL = "uses IPython's shell"


@pytest.mark.parametrize(
    "source",
    [
        "    import txlib.attention\n    def f():\n        pass",
        "len?\nimport txlib",
        "x = %pwd\nimport txlib",
        ">>> import txlib",
        ">>> def f():\n...     import txlib",
        "In [1]: import txlib",
        "In [1]: def f():\n   ...:     import txlib",
        "%time import txlib",
        "%timeit -n 10 import txlib",
        "%%time\nimport txlib",
        "%%timeit -n 1\nimport txlib",
        "%%capture\nimport txlib",
        "%%capture out\n%time import txlib",
        "t = %timeit -o __import__('txlib')",
        "if True:\n    %time import txlib",
        "\n\n%%time\nimport txlib",
    ],
)
def test_what_ipython_runs_is_searched(source):
    assert forbidden_names(source, NAMES) == NAMES
    assert unsearched(source) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("!ls\nimport txlib", True),
        ("%%python\nimport txlib", True),
        ("%load_ext txlib.text", True),
        ("files = !ls", False),
        ("%run answer.py", False),
        ("%matplotlib {__import__('os')}", False),  # IPython computes what stands in braces
        ("get_ipython().run_cell('import txlib')", True),
        ("get_ipython().ex('import txlib')", True),
        ("get_ipython().ev('txlib')", True),
        ("ip = get_ipython()\nip.run_cell('import txlib')", True),
        ("from IPython import get_ipython as g\ng().run_cell('import txlib')", False),
        ("import IPython", False),
    ],
)
def test_the_shell_itself_is_flagged(source, found):
    assert SHELL in unsearched(source)
    assert forbidden_names(source, NAMES) == NAMES * found


@pytest.mark.parametrize(
    "source",
    [
        "importlib.import_module('txlib.text')",
        "import importlib as i\ni.import_module('txlib')",
        "from importlib import import_module as im\nim('txlib.text')",
        "getattr(importlib, 'import_module')('txlib')",
        "importlib.import_module('.text', 'txlib')",
        "__import__('txlib.text')",
        "__import__('tx' + 'lib')",
        "__import__(f'tx{\"lib\"}')",
        "__import__(''.join(['tx', 'lib']))",
        "__import__('bilxt'[::-1])",
        "__import__('TXLIB'.lower())",
        "name = 'txlib'\n__import__(name)",
        "head = 'tx'\nname = head + 'lib'\n__import__(name)",
        "sys.modules['txlib.text']",
        "import sys\nsys.modules.get('txlib')",
        "from sys import modules\nmodules['txlib']",
        "eval('__import__(\"txlib\")')",
        "exec('import txlib')",
        "exec('def f():\\n    import txlib')",
        "compile('import txlib', '', 'exec')",
        "eval(\"exec('import txlib')\")",
        "import builtins\nbuiltins.exec('import txlib')",
        "from txlib.text import *",
        "pydoc.locate('txlib.text')",
        "pkgutil.resolve_name('txlib.text:merge')",
    ],
)
def test_constant_texts_are_searched(source):
    assert forbidden_names(source, NAMES) == NAMES
    assert unsearched(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "bytes = bytes\nbytes(x)",
        "(bytes := bytes)(x)",
        "def f(x, bytes=bytes):\n    return bytes(x)",
        "f = lambda x, bytes=bytes: bytes(x)",
        "for bytes in [bytes]:\n    bytes(x)",
        "[bytes(x) for bytes in [bytes]]",
        "class bytes(bytes):\n    pass",
        "class A:\n    bytes = bytes",
        "with closing(bytes) as bytes:\n    pass",
        "bytes = None\ndel bytes\nbytes(x)",
        "if False:\n    bytes = None\nbytes(x)",
        "False and (bytes := None)\nbytes(x)",
        "for bytes in []:\n    pass\nbytes(x)",
        "try:\n    1 / 0\n    bytes = None\nexcept ZeroDivisionError:\n    pass\nbytes(x)",
        "with suppress(ZeroDivisionError):\n    1 / 0\n    bytes = None\ndef f():\n    return bytes(x)",
        "def helper(bytes):\n    return bytes\nbytes(x)",  # somebody else's argument
        "def f(x):\n    bytes = type(b'')\n    return bytes(x)",  # a value that it calls, and did not define
        "import builtins\nbytes = builtins.bytes",
        "from builtins import bytes as b",
        "globals()['bytes'](x)",
        "getattr(builtins, 'by' + 'tes')",
    ],
)
def test_a_name_that_is_only_bound_again_is_no_own_one(source):
    assert forbidden_names(source, ["bytes"]) == ["bytes"]


@pytest.mark.parametrize(
    "source",
    [
        "def bytes(x):\n    return x\nbytes(1)",
        "bytes = lambda x: x\nbytes(1)",
        "class bytes:\n    pass\nbytes()",
        "def f(code):\n    bytes = []\n    bytes.append(code)\n    return bytes",
        "bytes = [1, 2]\nlen(bytes)",
        "def f(bytes):\n    return bytes(1)",
        "def f():\n    return [bytes for bytes in range(3)]",
        "def f():\n    def bytes(x):\n        return x\n    return bytes(1)",
        "def f():\n    return g(1)\ndef g(bytes):\n    return bytes",
    ],
)
def test_a_name_of_its_own_is_not_found(source):
    assert forbidden_names(source, ["bytes"]) == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("eval(x)", "runs text"),
        ("exec(open('a').read())", "runs text"),
        ("exec(compile('import math', '', 'exec'))", "runs text"),
        ("compile(x, '', 'exec')", "runs text"),
        ("import builtins\nbuiltins.exec(x)", "runs text"),
        ("get_ipython().run_cell(x)", "runs text"),
        ("exec('def f(:')", "runs text"),
        ("name = 'a'\nname = 'b'\neval(name)", "runs text"),
        ("__import__(name)", "imports a module"),
        ("importlib.import_module('tx' + name)", "imports a module"),
        ("map(eval, texts)", "hands eval on"),
        ("run = exec", "hands exec on"),
        ("load = importlib.import_module\nload('txlib')", "hands import_module on"),
        ("__builtins__['eval']('1')", "hands eval on"),
        ("run = getattr(builtins, 'exec')", "hands exec on"),
        ("sys.modules[name]", "looks up modules"),
        ("import torch\ngetattr(torch, name)", "reads names of a module"),
        ("from torch import *", "imports everything from torch"),
        ("from torch.nn.functional import *", "imports everything from torch.nn.functional"),
        ("import subprocess", "uses subprocess"),
        ("from os import system", "uses os.system"),
        ("os.popen('ls')", "uses os.popen"),
        ("import ctypes as c", "uses ctypes"),
    ],
)
def test_what_hides_names_is_told(source, why):
    assert any(line.startswith(why) for line in unsearched(source))


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "model = model.eval()\ncall(model.eval)",
        "import re\nre.compile(pattern)",
        "torch.compile(f)",
        "def eval(x):\n    return x\neval(y)",
        "from math import *\nsqrt(2)",
        "getattr(model, name)",
        "from IPython.display import display",
        "for module in model.modules():\n    pass",
        "modules = [1]\nmodules[0]",
        "code = []\ncode.append(1)",
        "def f(code):\n    return code.index(1)",
        "import os\nos.path.join('a', 'b')",
        "import torch\ntorch.manual_seed(0)",
        "%matplotlib inline\nx = 1",
        "f?\nf??",
        "d.get(key)",
    ],
)
def test_ordinary_code_hides_nothing(source):
    assert (unsearched(source), direct_operators(source)) == ([], [])


def test_a_given_name_explains_what_is_read():
    """Exercise 13 gives GATE, the name of a function of torch's."""
    assert unsearched("getattr(F, GATE)", ["GATE"]) == []
    assert unsearched("getattr(F, GATE)", ["RATE"]) != []


@pytest.mark.parametrize(
    ("source", "operator"),
    [
        ("torch.ops.aten.softmax(x, -1)", "torch.ops.aten.softmax"),
        ("import torch as t\nt.ops.aten.mm", "torch.ops.aten.mm"),
        ("from torch import ops\nops.aten.mm", "torch.ops.aten.mm"),
        ("from torch.ops import aten", "torch.ops.aten"),
        ("ops = torch.ops", "torch.ops"),
        ("getattr(torch, 'o' + 'ps').aten.mm", "torch.ops.aten.mm"),
        ("vars(torch)['ops']", "torch.ops"),
        ("torch.__dict__['ops']", "torch.ops"),
        ("torch._C._nn.gelu(x)", "torch._C._nn.gelu"),
        ("eval('torch.ops.aten.mm(x, y)')", "torch.ops.aten.mm"),
    ],
)
def test_operators_that_are_called_directly(source, operator):
    assert direct_operators(source) == [operator]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def f(:", NOT_PYTHON),
        ("run answer.py", NOT_PYTHON),
        ("\0", NOT_PYTHON),
        ("x = " + "-" * 5000 + "1", TOO_DEEP),
        ("%x\n" * 2000, TOO_DEEP),
        ("x = [" + "1, " * 10_000 + "]", ""),
        ("'''\n>>> f?\n'''", ""),
        ("", ""),
    ],
)
def test_what_cannot_be_read_says_why(source, problem):
    assert program(source).problem == problem


HOSTILE = [
    "%x\n" * 16_000,
    "a?\n" * 16_000,
    "%time " * 8_000,
    "%%time\n" * 7_000,
    "x = 1;\n" * 7_000 + "%x\n" * 200,
    "(\n" * 25_000,
    "'''\n" * 12_000,
    "\\\n" * 25_000,
    ">>> " * 12_000,
    ">>> x\n" * 8_000,
    "a." * 300 + "b\n" + "a.b\n" * 12_000,
    "x = 'a' * 9\n" + "eval(" * 90 + "'1'" + ")" * 90,
    "t = '" + "eval(1);" * 1_000 + "'\n" + "eval(t)\n" * 5_000,
    "t = 'aaaaaaaa'\n" + "".join(f"t{i} = t{i - 1 if i else ''} + t{i - 1 if i else ''}\n" for i in range(900)),
    "if a:\n  b\nel" * 1 + "if b:\n  c\nel" * 2_000 + "se:\n  d",
    "lambda: " * 3_000 + "1",
]
CLOCK = """
import json, sys, time
from txgrade.authoring.called_names import direct_operators, forbidden_names, unsearched
took = []
for source in json.load(sys.stdin):
    began = time.process_time()
    forbidden_names(source, ["softmax"]), unsearched(source), direct_operators(source)
    took.append(time.process_time() - began)
print(json.dumps(took))
"""


def test_hostile_sources_take_no_time():
    """In a process of its own, where no test checks the types of every call."""
    command = [sys.executable, "-c", CLOCK]
    run = subprocess.run(command, input=json.dumps(HOSTILE), capture_output=True, text=True, check=True)
    assert max(json.loads(run.stdout)) < 3


def test_names_are_those_that_ipython_would_run():
    assert names_used("%%time\nf(x)") == {"f", "x"}
    assert names_used("    f(x)") == {"f", "x"}
    assert names_used("y = %timeit -o f(x)") == {"f", "x"}
