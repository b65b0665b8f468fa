"""The language-model recipe from plays to a model that writes, on a few thousand characters."""

import math

import pytest

pytest.importorskip("tokenizers")
import tiny
import torch
from torch.nn.functional import cross_entropy

from txlib.models import GPT
from txlib.models.pretrained import load_pretrained
from txlib.models.sizes import count_parameters
from txlib.recipes import run as run_recipe
from txlib.recipes.language import (
    PRESETS,
    Language,
    bits_per_byte,
    make_model,
    make_tokenizer,
    validation_loss,
    window_batches,
)
from txlib.text import BytePairEncoder, load_tokenizer

pytestmark = pytest.mark.slow

STRANGE = "Ä—漢字 🐕 naïve"


@pytest.fixture(scope="module", autouse=True)
def few_characters():
    """A page to train on and a preset of its size."""
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        yield tiny.few_characters()


@pytest.fixture(scope="module", params=["characters", "bpe"])
def run(request, tmp_path_factory):
    """A finished run of six steps: its folder and result."""
    out = tmp_path_factory.mktemp("runs") / request.param
    return out, run_recipe(Language, out, tokens=request.param, preset="mini", steps=6, quiet=True)


def test_the_result(run, few_characters):
    out, result = run
    model, tokenizer = load_pretrained(out / "model"), load_tokenizer(out / "model")
    assert result["sample"].startswith("ROMEO:") and len(result["sample"]) > 100
    # One token after the other, each from those before it in its window: an independent way to the same loss.
    ids = tokenizer.encode(few_characters.validation)
    total = 0.0
    with torch.no_grad():
        for place in range(1, len(ids)):
            begin = (place - 1) // 8 * 8
            logits = model(torch.tensor([ids[begin:place]])).logits[0, -1]
            total -= float(logits.log_softmax(-1)[ids[place]])
    assert result["validation_loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)
    size = len(few_characters.validation.encode()) - len(tokenizer.decode(ids[:1]).encode())
    assert result["bits_per_byte"] == pytest.approx(total / math.log(2) / size, rel=1e-5)


def test_transformers_reads_the_model(run):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run[0] / "model").eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    ids = torch.randint(256, (2, 8))
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, load_pretrained(run[0] / "model")(ids).logits)


def test_any_text_survives_the_tokenizer(run):
    text = "ROMEO: " + STRANGE
    ours, theirs = BytePairEncoder.load(run[0] / "model" / "tokenizer.json"), load_tokenizer(run[0] / "model")
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text)) == text
    assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "huge"}, "preset 'huge' is unknown; choose one of small, medium, large"),
        ({"source": "marlowe"}, "unknown source 'marlowe'; choose shakespeare, tinyshakespeare, or a text file"),
        ({"tokens": "words"}, "tokens='words' is unknown; choose characters or bpe"),
    ],
)
def test_bad_options_write_nothing(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_recipe(Language, tmp_path / "out", steps=1, quiet=True, **{"preset": "mini", **options})
    assert not list(tmp_path.iterdir())


# The command


def test_train_then_generate(txlib, tmp_path, few_characters):
    out = tmp_path / "run"
    status, said, _ = txlib("train", "shakespeare", "--preset", "mini", "--steps", 2, "--device", "cpu", "--out", out)
    assert status == 0 and "validation loss  " in said and "ROMEO:" in said
    assert said.endswith(f'Try it: txlib generate --model {out} "ROMEO:"\n')
    options = ("--greedy", "--max-new-tokens", 20, "--device", "cpu", "ROM")
    status, said, _ = txlib("generate", "--model", out, *options)
    assert status == 0 and said.startswith("ROM") and said == txlib("generate", "--model", out / "model", *options)[1]


def test_a_text_of_ones_own(txlib, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "Ein Männlein steht im Walde. " * 40
    (tmp_path / "lied.txt").write_text(text, encoding="utf-8")
    options = ("--source", "lied.txt", "--tokens", "bpe", "--preset", "mini", "--steps", 2, "--device", "cpu")
    status, said, _ = txlib("train", "shakespeare", *options)
    assert status == 0 and "Try it: txlib generate --model runs/lied-bpe-mini " in said
    tokenizer = load_tokenizer("runs/lied-bpe-mini/model")
    assert tokenizer.decode(tokenizer.encode(text)) == text and len(tokenizer.encode("Männlein")) < 4
    (tmp_path / "broken.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "short.txt").write_text("To be.")
    for name, words in (("broken.txt", "is no UTF-8 text"), ("short.txt", "too few for windows of 8")):
        status, _, error = txlib("train", "shakespeare", "--source", name, "--preset", "mini", "--steps", 2)
        assert (status, error.count("\n")) == (2, 1) and words in error


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--preset", "huge"], "choose one of small, medium, large"),
        (["--tokens", "words"], "choose characters or bpe"),
        (["--source", "poems"], "or a text file"),
        (["--minutes", "1", "--steps", "2"], "give one"),
        (["--resume"], "start one"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(txlib, tmp_path, monkeypatch, words, remedy):
    monkeypatch.chdir(tmp_path)
    status, out, error = txlib("train", "shakespeare", *words)
    assert (status, out, error.count("\n")) == (2, "", 1) and remedy in error
    assert not list(tmp_path.iterdir())


# Parts


@pytest.mark.parametrize("length", [33, 40, 41, 47])
def test_windows_of_an_epoch_share_no_prediction(length):
    ids = torch.arange(length)
    batches = window_batches(ids, 8, 2, seed=3)
    for epoch in range(6):
        found = torch.cat(list(batches(epoch)))
        assert found.shape[1] == 9 and (found.diff(dim=1) == 1).all()
        predicted = found[:, 1:].flatten().tolist()
        assert len(set(predicted)) == len(predicted)
        assert len(predicted) >= length - 1 - 8 - 8 - 8  # but for the ends, and half a batch
        assert all(torch.equal(one, two) for one, two in zip(batches(epoch), batches(epoch), strict=True))
    assert len({int(batches(epoch)[0][0, 0]) for epoch in range(6)}) > 1
    with pytest.raises(ValueError, match="too few for windows of 8"):
        window_batches(ids[:15], 8, 2)


@pytest.mark.parametrize("length", [2, 8, 9, 10, 17, 50])
def test_validation_predicts_every_token_once(length):
    model = make_model(PRESETS["mini"], 300).eval()
    seen = []
    ids = torch.randint(300, (length,))
    forward = GPT.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GPT, "forward", lambda self, x: seen.append(x.numel()) or forward(self, x))
        loss = validation_loss(model, ids, 8, batch=3)
    assert sum(seen) == length - 1
    parts = [ids[start : start + 9] for start in range(0, length - 1, 8)]
    with torch.no_grad():
        total = sum(float(cross_entropy(model(part[None, :-1]).logits[0], part[1:], reduction="sum")) for part in parts)
    assert loss == pytest.approx(total / (length - 1), rel=1e-5)


def test_bits_per_byte_compare_tokenizers():
    text = "To be, or not to be: " + STRANGE
    for tokenizer in (make_tokenizer("characters", text, 0), make_tokenizer("bpe", text, 280)):
        ids = tokenizer.encode(text)
        rest = len(text.encode()) - len(tokenizer.token_bytes(ids[0]))
        assert bits_per_byte(math.log(2) * rest / (len(ids) - 1), ids, tokenizer) == pytest.approx(1)


def test_presets_have_the_sizes_that_they_are_compared_at():
    """nanoGPT's setting for a CPU: 804,096 numbers with 65 characters; ours has 256 bytes and is not larger."""
    theirs = 65 * 128 + 64 * 128 + 4 * (12 * 128**2 + 2 * 128) + 128
    assert theirs * 0.98 < count_parameters(make_model(PRESETS["small"], 256).config) <= theirs
