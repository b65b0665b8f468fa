"""Pages about the library: a page for each of its packages, and one for each of a package's files, from docstrings."""

import ast
import inspect
import types
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from txcourse.site.docstrings import as_rst, prose
from txlib.paths import PACKAGES


def packages() -> list[str]:
    """The public packages: "txlib.attention" and so on, each followed by those in it."""
    return _inside("txlib")


def _inside(package: str) -> list[str]:
    module, packages = import_module(package), []
    for name in sorted(module.__all__):
        if isinstance(getattr(module, name), types.ModuleType):
            packages += [f"{package}.{name}", *_inside(f"{package}.{name}")]
    return packages


def short(package: str) -> str:
    return package.removeprefix("txlib.").replace(".", "_")


def pages() -> dict[str, str]:
    """By their names, the texts of all pages about the library."""
    made = {"reference/index.rst": _index()}
    for package in packages():
        name, files = short(package), members(package)
        made[f"reference/{name}.rst"] = _package(package, files)
        for file, names in files.items():
            made[f"reference/{name}/{file}.rst"] = _file(package, file, names)
    return made


def members(package: str) -> dict[str, list[str]]:
    """A package's public names by the file, or folder, of the package that they live in."""
    module = import_module(package)
    written, by_file = constants(module), defaultdict(list)
    for name in module.__all__:
        if isinstance(getattr(module, name), types.ModuleType):
            continue
        home = written[name][0] if name in written else getattr(module, name).__module__
        by_file[home.removeprefix(f"{package}.").split(".")[0]].append(name)
    return dict(sorted(by_file.items()))


@cache  # asked for with each page
def constants(package: types.ModuleType) -> dict[str, tuple[str, str]]:
    """By name, the module and the text of a package's public constants: the string below each."""
    constants_by_name = {}
    folder = Path(str(package.__file__)).parent
    for path in sorted(folder.rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        module = ".".join(path.relative_to(PACKAGES).with_suffix("").parts)
        for node, below in zip(body, body[1:], strict=False):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
                name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
                value = getattr(below.value, "value", None)
                if isinstance(value, str) and name in package.__all__:
                    constants_by_name[name] = (module, inspect.cleandoc(value))
    return constants_by_name


def _first_line(public: Any, text: str | None) -> str:
    docstring = text or inspect.getdoc(public) or ""
    return prose(docstring.partition("\n\n")[0].replace("\n", " "))


def _title(text: str, under: str = "=") -> list[str]:
    return [text, under * max(len(text), 3), ""]


def _index() -> str:
    rows = [f"   * - :doc:`{name} <{short(name)}>`\n     - {_about(name)}" for name in packages()]
    tree = [f"   {short(name)}" for name in packages()]
    return "\n".join(
        [
            *_title("The library, name by name"),
            "Every public name of ``txlib``, made from the docstrings: shapes, errors, and the paper's section. The",
            "arrow beside a name leads to its source.",
            *["", ".. list-table::", "   :widths: auto", "", *rows, ""],
            *[".. toctree::", "   :hidden:", "", *tree, ""],
        ]
    )


def _about(module: str) -> str:
    return _first_line(import_module(module), None)


def _package(package: str, files: dict[str, list[str]]) -> str:
    module, folder = import_module(package), short(package)
    written = constants(module)
    lines = [*_title(package), *as_rst((inspect.getdoc(module) or "").splitlines()), ""]
    for file, names in files.items():
        lines += [*_title(file, "-"), f":doc:`More about {file} <{folder}/{file}>`", ""]
        lines += [".. list-table::", "   :widths: auto", ""]
        for name in names:
            summary = _first_line(getattr(module, name), written[name][1] if name in written else None)
            lines.append(f"   * - :py:obj:`{name} <{package}.{name}>`\n     - {summary}")
        lines.append("")
    return "\n".join(lines)


def _file(package: str, file: str, names: list[str]) -> str:
    module, written = import_module(package), constants(import_module(package))
    about = inspect.getdoc(import_module(f"{package}.{file}")) or ""
    lines = [":orphan:", "", *_title(f"{package}: {file}")]  # the sidebar of all pages leaves it out: it would be long
    lines += [f":doc:`All of {package} </reference/{short(package)}>`", "", *as_rst(about.splitlines()), ""]
    lines += [f".. py:currentmodule:: {package}", ""]
    for name in names:
        public = getattr(module, name)
        if name in written:
            text = [f"   {line}" for line in as_rst(written[name][1].splitlines())]
            lines += [f".. py:data:: {name}", "", *text, ""]
        elif inspect.isclass(public):
            lines += [f".. autoclass:: {package}.{name}", "   :members:", "   :show-inheritance:", ""]
        else:
            lines += [f".. autofunction:: {package}.{name}", ""]
    return "\n".join(lines)
