"""The translation recipe from sentences to BLEU, on 200 embedded pairs with a model of a few thousand weights."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("tokenizers")
import torch
from sacrebleu.metrics import BLEU

import txlib.training.translation as recipe
from txlib.data import Splits, padding_share, translation
from txlib.layers import BlockConfig
from txlib.text.vocabulary import Vocabulary
from txlib.training import CheckpointError, TrainConfig
from txlib.training.translation import PRESETS, Preset, Translator, bleu, pair_batches, train_translation

BLOCK = BlockConfig(d_model=16, heads=2, d_ff=32, dropout=0.1, qk_norm=True, position="rotary_half", zero_output=True)
PRESET = Preset(
    BLOCK,
    1,
    400,
    600,
    TrainConfig(lr=0.01, muon_lr=0.02, warmup=3, average=0.9, precision="fp32", checkpoint_every=2),
    minutes=0.01,
)
STRANGE = ["", "  ", "Привет 漢字 🐕", "<eos> <pad>", "Hallo!\tHallo!"]


@pytest.fixture(scope="module", autouse=True)
def few_sentences():
    """200 real pairs to train on and a preset of their size."""
    splits = translation("wesnoth", max_words=8)
    few = Splits(splits.train[:200], splits.validation[:20], splits.test[:10])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "mini", PRESET)
        patch.setattr(recipe, "translation", lambda *a, **b: few if a[0] == "wesnoth" else translation(*a, **b))
        yield few


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of six steps: its folder and result."""
    out = tmp_path_factory.mktemp("runs") / "mini"
    return out, train_translation(preset="mini", steps=6, out=out, quiet=True)


def test_the_result(run, few_sentences):
    out, result = run
    assert json.loads((out / "model" / "result.json").read_text()) == result
    assert result["steps"] == 6 and result["preset"] == "mini" and result["pair"] == "de-en" and result["seed"] == 0
    translator = Translator.load(out / "model")
    assert result["parameters"] == sum(weight.numel() for weight in translator.model.parameters())
    sources, references = zip(*few_sentences.test, strict=True)
    for name, beams in (("bleu", 4), ("bleu_greedy", 1)):
        by_sacrebleu = BLEU().corpus_score(translator.translate(sources, beams=beams), [list(references)]).score
        assert result[name] == pytest.approx(by_sacrebleu)
    # The validation loss, without smoothing and batches: one pair after the other.
    total, count = 0.0, 0
    for source, target in few_sentences.validation:
        source, target = ([*translator.vocabulary.encode(side), 2] for side in (source, target))
        with torch.no_grad():
            total += float(translator.model(torch.tensor([source]), labels=torch.tensor([target])).loss) * len(target)
        count += len(target)
    assert result["validation_loss"] == pytest.approx(total / count, rel=1e-4)


def test_save_and_load_give_the_same_translations(run, few_sentences, tmp_path):
    translator = Translator.load(run[0] / "model")
    sources = [source for source, _ in few_sentences.test]
    before = translator.translate(sources)
    translator.save(tmp_path / "copy")
    again = Translator.load(tmp_path / "copy")
    assert again.translate(sources) == before
    assert again.translate(sources[::-1]) == before[::-1]  # the order of the sentences is kept


def test_strange_sentences(run):
    translator = Translator.load(run[0] / "model")
    assert translator.translate([]) == []
    assert [type(each) for each in translator.translate(STRANGE)] == [str] * len(STRANGE)
    assert len(translator.translate(["Hund " * 30, "Ja."], batch_tokens=10)) == 2  # longer than a batch


def test_a_run_that_is_there_is_refused(run):
    with pytest.raises(ValueError, match="already holds a run; resume it"):
        train_translation(preset="mini", steps=6, out=run[0], quiet=True)


def test_a_finished_run_resumed_gives_the_same(run):
    out, result = run
    again = train_translation(out=out, resume=True, quiet=True)
    assert {**again, "cpu_seconds": 0} == {**result, "cpu_seconds": 0}


@pytest.mark.parametrize("at", [1, 3])  # before and after the first checkpoint
def test_a_killed_run_resumed_gives_the_same(run, at, tmp_path, monkeypatch):
    loss, done = recipe.translation_loss, 0

    def dies(smoothing):
        def counted(model, batch):
            nonlocal done
            done += 1
            if done > at:
                raise SystemExit("killed")
            return loss(smoothing)(model, batch)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "translation_loss", dies)
        with pytest.raises(SystemExit):
            train_translation(preset="mini", steps=6, out=tmp_path / "out", quiet=True)
    (tmp_path / "out" / "checkpoints" / ".step-00000009.partial").mkdir(parents=True)  # as SIGKILL leaves it
    again = train_translation(out=tmp_path / "out", resume=True, quiet=True)
    times = ("cpu_seconds", "seconds")
    assert {**again, **dict.fromkeys(times)} == {**run[1], **dict.fromkeys(times)}
    one, two = (Translator.load(out / "model").model.state_dict() for out in (run[0], tmp_path / "out"))
    assert all(weight.equal(two[name]) for name, weight in one.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "huge"}, "preset 'huge' is unknown; choose one of tiny, small, base, big"),
        ({"source": "wikipedia"}, "unknown source 'wikipedia'; choose from wesnoth"),
        ({"source": "naev", "pair": "fr-en"}, "has no 'fr'; it has de"),
        ({"steps": 0}, "steps=0 must be more than 0"),
        ({"steps": 1, "minutes": 1.0}, "give one of them"),
        ({"resume": True}, "holds no run to resume; start one without resume"),
    ],
)
def test_bad_input_writes_nothing(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train_translation(**{"preset": "mini", **options}, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_an_empty_corpus_writes_nothing(tmp_path):
    (tmp_path / "naev").mkdir()
    (tmp_path / "naev" / "de-en.tsv.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="de-en.tsv.gz is empty"):
        train_translation("naev", preset="mini", steps=1, folder=tmp_path / "naev", out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


DAMAGES = {
    "config.json": [
        (lambda text: None, "is missing"),
        (lambda text: text[:50], "cut off or damaged"),
        (lambda text: "{}", "describes no Transformer"),
        (lambda text: "[]", "holds a list"),
    ],
    "vocabulary.json": [
        (lambda text: None, "is missing"),
        (lambda text: text[:50], "cut off or damaged"),
        (lambda text: "{}", "is not a vocabulary"),
    ],
    "model.safetensors": [(lambda text: None, "is missing"), (lambda text: text[:500], "cut off or damaged")],
}


@pytest.mark.parametrize(("name", "damage", "message"), [(n, *case) for n, cases in DAMAGES.items() for case in cases])
def test_damaged_models(run, name, damage, message, tmp_path):
    for path in (run[0] / "model").iterdir():
        content = path.read_bytes() if path.name != name else damage(path.read_bytes().decode("latin-1"))
        if content is not None:
            (tmp_path / path.name).write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
    with pytest.raises(CheckpointError) as error:
        Translator.load(tmp_path)
    assert message in str(error.value) and str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_a_vocabulary_of_another_run(run, few_sentences, tmp_path):
    translator = Translator.load(run[0] / "model")
    translator.save(tmp_path)
    Vocabulary.train([source for source, _ in few_sentences.train], 300).save(tmp_path / "vocabulary.json")
    with pytest.raises(CheckpointError, match="has 300 tokens, the model 400; copy all files of one run"):
        Translator.load(tmp_path)


# The command


def command(*arguments, stdin=""):
    code = "import sys; from txlib.cli import main; sys.argv[0] = 'txlib'; main()"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], input=stdin, capture_output=True, text=True, env=environment
    )


def test_translate_on_the_command_line(run):
    lines = ["Wir sind da.", "", "漢字 🐕"]
    expected = Translator.load(run[0] / "model").translate([lines[0], lines[2]])
    result = command("translate", "--model", run[0], stdin="\n".join(lines) + "\n")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{expected[0]}\n\n{expected[1]}\n"


def test_command_line_errors_are_one_line(run, tmp_path, txlib):
    truncated = tmp_path / "truncated"
    Translator.load(run[0] / "model").save(truncated)
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    for arguments, message in (
        (["translate", "--model", tmp_path / "none", "Hallo"], "is missing"),
        (["translate", "--model", truncated, "Hallo"], "cut off or damaged"),
        (["train", "translation", "--preset", "huge", "--out", tmp_path / "out"], "preset 'huge' is unknown"),
        (["train", "translation", "--data", "nothing", "--out", tmp_path / "out"], "unknown source 'nothing'"),
        (["train", "translation", "--resume", "--out", tmp_path / "out"], "no run to resume"),
        (["train", "translation", "--minutes", "0", "--out", tmp_path / "out"], "minutes=0.0 must be more than 0"),
        (["train", "translation", "--device", "abacus", "--out", tmp_path / "out"], "device 'abacus' is not there"),
        (["train", "translation", "--preset", "mini", "--out", run[0]], "already holds a run"),
    ):
        status, out, error = txlib(*arguments)
        assert (status, out, error.count("\n")) == (2, "", 1), error
        assert error.startswith("txlib: ") and message in error
    assert not (tmp_path / "out").exists()


# Parts


def test_bleu_is_sacrebleus():
    hypotheses = ["A dog runs over the snow.", "Two men sit", "the"]
    references = ["A dog is running over the snow.", "Two men sit on a bench.", "The end"]
    assert bleu(hypotheses, references) == BLEU().corpus_score(hypotheses, [references]).score
    assert bleu(references, references) == pytest.approx(100)
    assert bleu([each.lower() for each in references], references) < 90  # cased


def test_pair_batches_give_each_pair_once_an_epoch(few_sentences):
    vocabulary = Vocabulary.train([side for pair in few_sentences.train for side in pair], 400)
    batches = pair_batches(few_sentences.train, vocabulary, 600)
    epochs = []
    for epoch in (0, 1):
        found = []
        for batch in batches(epoch):
            assert batch.input_ids.numel() + batch.labels.numel() <= 600
            for source, target in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True):
                found.append((vocabulary.decode(source), vocabulary.decode([each for each in target if each >= 0])))
        assert sorted(found) == sorted(few_sentences.train)
        epochs.append(found)
    assert epochs[0] != epochs[1]
    assert torch.equal(batches(0)[0].input_ids, batches(0)[0].input_ids)


def test_non_padding_share_of_real_sentences_with_the_small_preset():
    pairs, small = translation("games").train, PRESETS["small"]
    vocabulary = Vocabulary.train([side for pair in pairs for side in pair], small.vocab_size)
    assert 1 - padding_share(pair_batches(pairs, vocabulary, small.batch_tokens)(0)) >= 0.92


def test_presets_differ_in_size_as_their_names_say():
    sizes = [preset.block.d_model for preset in map(PRESETS.get, ("tiny", "small", "base", "big"))]
    assert sizes == sorted(set(sizes))
