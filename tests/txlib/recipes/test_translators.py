"""The translators that one recipe trains: of one size, on the same batches, in one table."""

import json
from functools import cache

import pytest

pytest.importorskip("tokenizers")
import tiny
import torch

from txlib.generation import Translator
from txlib.models import sizes as model_sizes
from txlib.models.pretrained import load_pretrained
from txlib.models.sizes import parameters
from txlib.recipes import run
from txlib.recipes.translation import PRESETS, Translation, comparison
from txlib.recipes.translators import TRANSLATORS, make_translator
from txlib.text import load_tokenizer

VOCABULARY = {"vocab_size": 4000, "pad_id": 0, "bos_id": 1, "eos_id": 2}


@pytest.fixture(scope="module", autouse=True)
def few_sentences():
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        patch.setattr(model_sizes, "TOLERANCE", 2.0)  # a few thousand weights are not met exactly
        yield


@cache
def transformer_size(preset):
    with torch.device("meta"):
        return parameters(make_translator(TRANSLATORS["transformer"], PRESETS[preset], VOCABULARY))


@pytest.mark.parametrize("preset", ["tiny", "big"])
@pytest.mark.parametrize("name", sorted(TRANSLATORS.keys() - {"transformer"}))
def test_they_have_as_many_parameters_as_the_transformer(name, preset, monkeypatch):
    monkeypatch.setattr(model_sizes, "TOLERANCE", 0.1)
    with torch.device("meta"):
        size = parameters(make_translator(TRANSLATORS[name], PRESETS[preset], VOCABULARY))
    assert size == pytest.approx(transformer_size(preset), rel=0.1)


def test_the_transformer_is_the_presets_own():
    config = make_translator(TRANSLATORS["transformer"], PRESETS["tiny"], VOCABULARY).config
    assert config.block == PRESETS["tiny"].block and config.encoder_layers == PRESETS["tiny"].layers


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSLATORS)
def test_each_is_trained_saved_and_translates(name, tmp_path):
    out = tmp_path / "run"
    result = run(Translation, out, model=name, preset="mini", steps=6, quiet=True)
    assert result["model"] == name and result["bleu"] >= 0
    assert run(Translation, out, resume=True, quiet=True) == result
    translator = Translator(load_pretrained(out / "model"), load_tokenizer(out / "model"))
    same, other, again = translator.translate(["Guten Tag!", "Wo ist denn nur der König geblieben?", "Guten Tag!"])
    assert isinstance(other, str) and same == again


def test_an_unknown_model_is_named():
    with pytest.raises(ValueError, match="model 'gru' is unknown; choose one of rnn-plain, rnn, lstm"):
        Translation(model="gru").check()


def test_a_size_that_no_width_has_is_said(monkeypatch):
    monkeypatch.setattr(model_sizes, "TOLERANCE", 0.1)
    monkeypatch.setattr(model_sizes, "MAX_WIDTH", 16)
    with pytest.raises(ValueError, match=r"no width gives [\d,]+ parameters; the nearest, 16, gives [\d,]+"):
        make_translator(TRANSLATORS["rnn"], PRESETS["tiny"], VOCABULARY)


def test_the_table_has_finished_runs_on_the_same_sentences(tmp_path):
    result = {"data": "games", "pair": "de-en", "preset": "tiny", "parameters": 1234567, "steps": 10}
    result |= {"cpu_seconds": 12.3, "validation_loss": 3.21, "bleu_greedy": 9.0}
    others = {
        "low": {"model": "rnn", "bleu": 10.0},
        "high": {"model": "conv", "bleu": 12.5},
        "older": {"bleu": 11.0},
        "elsewhere": {"model": "lstm", "pair": "fr-en", "bleu": 30.0},
    }
    for name, more in others.items():
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "result.json").write_text(json.dumps(result | more))
    (tmp_path / "unfinished" / "run").mkdir(parents=True)
    rows = [line.split() for line in comparison(tmp_path / "low", "games", "de-en").splitlines()]
    assert [row[0] for row in rows] == ["model", "conv", "transformer", "rnn"]
    assert rows[1] == ["conv", "tiny", "1,234,567", "10", "12", "3.210", "12.5", "9.0"]
