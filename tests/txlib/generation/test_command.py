"""`txlib generate`, as a user types it."""

import io
import shutil
import sys
from functools import partial

import pytest
import torch

from txlib.data import shipped
from txlib.layers import BlockConfig
from txlib.models import Encoder, EncoderConfig
from txlib.models.pretrained import save_pretrained

MODEL = shipped("glassllm-en")


@pytest.fixture
def generate(txlib):
    """`txlib generate …`."""
    return partial(txlib, "generate")


@pytest.mark.slow
def test_it_writes(generate, monkeypatch):
    options = ("--model", MODEL, "--max-new-tokens", 12, "--device", "cpu")
    status, greedy, _ = generate(*options, "--greedy", "Alice was", "The Queen")
    assert status == 0 and greedy.startswith("Alice was") and "\nThe Queen" in greedy
    assert generate(*options, "--greedy", "Alice was", "The Queen")[1] == greedy
    by_name = ("--model", "glassllm-en", *options[2:])
    assert generate(*by_name, "--greedy", "Alice was", "The Queen")[1] == greedy
    options = (*options, "--temperature", 1.5, "--top-p", 0.9)
    drawn = [generate(*options, "--seed", seed, "Alice was")[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    monkeypatch.setattr(sys, "stdin", io.StringIO("Alice was"))
    assert generate(*options, "--seed", 1)[1] == drawn[0]
    written = greedy.splitlines()[0].removeprefix("Alice was")
    stopped = generate(*options, "--greedy", "--stop", written[5:8], "Alice was")[1]
    assert stopped == "Alice was" + written[: written.index(written[5:8])] + "\n"


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no x86 CPU")
def test_it_writes_the_same_with_half_the_bytes(generate):
    options = ("--model", MODEL, "--max-new-tokens", 12, "--device", "cpu", "--greedy", "Alice was")
    exact = generate(*options)[1]
    assert generate(*options, "--weights", "fp16")[1] == exact
    status, rounded, _ = generate(*options, "--weights", "int8")
    assert status == 0 and rounded.startswith(exact[:12])
    assert "weights='int2' is unknown; choose one of fp16, int8" in generate(*options, "--weights", "int2")[2]


@pytest.mark.usefixtures("unchecked")
def test_errors_are_one_line(generate, tmp_path):
    no_tokenizer = tmp_path / "bare"
    shutil.copytree(MODEL, no_tokenizer, ignore=shutil.ignore_patterns("tokenizer.json"))
    block = BlockConfig.of_sizes(8, 2, 8, norm_first=False, norm_eps=1e-12, activation="gelu", position="learned")
    save_pretrained(Encoder(EncoderConfig(11, block, layers=1)), tmp_path / "bert")
    for arguments, words in [
        (("--model", tmp_path / "nowhere", "x"), "is not there"),
        (("--model", no_tokenizer, "x"), "no tokenizer.json"),
        (("--model", tmp_path / "bert", "x"), "does not continue texts"),
        (("--model", MODEL, "--temperature", -1, "x"), "must be above 0, or 0 for the likeliest"),
        (("--model", MODEL, "--top-p", 2, "x"), "(0, 1]"),
        (("--model", MODEL, ""), "prompt is empty"),
        (("--model", MODEL, "word " * 200), "the context holds 128"),
    ]:
        status, _, err = generate(*arguments)
        assert status == 2 and words in err and err.count("\n") == 1, err
