"""What is suggested for a misspelled name, and for a package that is missing."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from txlib.hints import FieldHints, did_you_mean
from txlib.paths import explain_missing, optional_package


def test_the_closest_name_is_suggested():
    assert did_you_mean("transfomer", ["rnn", "transformer"]) == "; did you mean 'transformer'?"
    assert did_you_mean("GPT2", ["gpt2", "bert"]) == "; did you mean 'gpt2'?"
    assert did_you_mean("zebra", ["rnn", "transformer"]) == ""


@dataclass(frozen=True)
class Loaf(FieldHints):
    slices: int
    weight: float = 1.0
    flour: Literal["rye", "wheat"] | None = None
    seeds: tuple[str, ...] = ()
    of: "Loaf | None" = None


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"slices": 2.5}, TypeError, "Loaf: slices=2.5 must be an integer"),
        ({"slices": 2, "weight": "1"}, TypeError, "Loaf: weight='1' must be a number"),
        (
            {"slices": 2, "flour": "weat"},
            ValueError,
            "must be 'rye' or 'wheat' or None; did you mean 'wheat'?",
        ),
        ({"slices": 2, "seeds": ("poppy", 3)}, TypeError, r"must be tuple\[str, \.\.\.\]"),
        ({"slices": 2, "of": Loaf}, TypeError, r"must be Loaf or None; call it: Loaf\(…\)"),
        ({"slices": 2, "of": dict}, TypeError, r"of=<class 'dict'> must be Loaf or None(, such as .*)?$"),
        ({"slice": 2}, TypeError, "Loaf has no field 'slice'; did you mean 'slices'?"),
    ],
)
def test_a_field_of_another_type_is_refused(values, error, words):
    with pytest.raises(error, match=words):
        Loaf(**values)
    with pytest.raises(TypeError, match="weight=None must be a number"):
        Loaf(2, None)  # by position
    assert Loaf(np.int64(2), 1, "rye", ["poppy"], Loaf(3)).flour == "rye"


@pytest.mark.parametrize(
    ("package", "extra"), [("tokenizers.models", "hf"), ("sacrebleu", "train"), ("matplotlib", "plots")]
)
def test_the_smallest_extra_is_named(package, extra):
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    assert f"{package.partition('.')[0]} is missing; pip install" in explain_missing(error)
    assert f"[{extra}]" in explain_missing(error)
    with pytest.raises(ModuleNotFoundError, match=rf"\[{extra}\]"), optional_package():
        raise error


def test_a_package_of_no_extra_is_left_alone():
    assert explain_missing(ModuleNotFoundError("No module named 'x'", name="x")) == "No module named 'x'"
