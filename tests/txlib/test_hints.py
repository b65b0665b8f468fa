"""What is suggested for a misspelled name, and for a package that is missing."""

import pytest

from txlib.hints import did_you_mean
from txlib.paths import explain_missing, optional_package


def test_the_closest_name_is_suggested():
    assert did_you_mean("transfomer", ["rnn", "transformer"]) == "; did you mean 'transformer'?"
    assert did_you_mean("GPT2", ["gpt2", "bert"]) == "; did you mean 'gpt2'?"
    assert did_you_mean("zebra", ["rnn", "transformer"]) == ""


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
