"""The frame of a view: a picture that comes alive where scripts may run, without a kernel and without a network.

Its output is HTML: the still picture with its description, then one script that holds the data and what draws them.
The script makes the controls, so that a page that runs no scripts, such as a notebook not trusted, shows the picture.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from txcourse.scripts import script_code
from txlib.plots.picture import Picture


class View(Picture):
    """A picture one can touch.

    Args:
        still: what is shown where no script may run.
        name: of the file beside this one, `name.js`, which defines `view(page, data)`; `common.js` says what a page is.
        data: for the view, as JSON: numbers, strings, lists, dictionaries; tensors become lists.
        title: what to see, above the controls.
        uses: names of further files that the view needs.
    """

    def __init__(self, still: Picture, name: str, data: Mapping[str, Any], *, title: str, uses: Sequence[str] = ()):
        super().__init__(still.figure, still.alt)
        self.title = title
        self._code = "\n".join(script_code(f"explore/{file}") for file in ("common", *uses, name))
        self._data = as_json(data)

    def __repr__(self) -> str:
        return f"View: {self.alt}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(include, exclude)
        return data | {"text/html": alive(data["text/html"], self.title, self._code, self._data)}, metadata


def alive(still: str, title: str, code: str, data: str) -> str:
    """The still picture, and the script that makes a view of it.

    The script finds its place by a name made of what it holds: the same view has the same name each time it is built,
    and where it stands twice on a page, both places are found.
    """
    name = sha256("\n".join((title, code, data)).encode()).hexdigest()[:12]
    return (
        f'<div data-explore="{name}">{still}</div>\n<script>\n(() => {{\n"use strict";\n{code}\n'
        f'explore("{name}", {as_json(title)}, view, {data});\n}})();\n</script>'
    )


def as_json(value: Any) -> str:
    """JSON that may stand inside a script: "</script>" in a token does not end it."""
    listed = json.dumps(value, default=_listed, separators=(",", ":"), allow_nan=False)
    return listed.replace("<", "\\u003c")


def _listed(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.numpy(force=True).astype(str).astype(float).tolist()  # 0.1, not 0.10000000149011612
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"a view's data are numbers, strings, lists, dictionaries and tensors, got {type(value).__name__}")
