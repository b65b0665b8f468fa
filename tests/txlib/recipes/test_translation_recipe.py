"""The translation recipe from sentences to BLEU, on 200 embedded pairs with a model of a few thousand weights."""

import io
import shutil

import pytest

pytest.importorskip("tokenizers")
import tiny
import torch
import torch.nn.functional as F
from sacrebleu.metrics import BLEU

from txlib.data import model_folder, padding_share, shipped, translation
from txlib.generation import Translator
from txlib.models.pretrained import load_pretrained, save_pretrained
from txlib.recipes import run as run_recipe
from txlib.recipes.translation import PRESETS, Translation, bleu, pair_batches
from txlib.text import Tokenizer, load_tokenizer

pytestmark = pytest.mark.slow

STRANGE = ["", "  ", "Привет 漢字 🐕", "<eos> <pad>", "Hallo!\tHallo!"]


def load(folder):
    return Translator(load_pretrained(model_folder(folder)), load_tokenizer(model_folder(folder)))


@pytest.fixture(scope="module", autouse=True)
def few_sentences():
    """200 real pairs to train on and a preset of their size."""
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        yield tiny.few_sentences()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of six steps: its folder and result."""
    out = tmp_path_factory.mktemp("runs") / "mini"
    return out, run_recipe(Translation, out, preset="mini", steps=6, quiet=True)


def test_the_result(run, few_sentences):
    out, result = run
    assert result["preset"] == "mini" and result["data"] == "wesnoth" and result["pair"] == "de-en"
    translator = load(out)
    sources, references = zip(*few_sentences.test, strict=True)
    for name, beams in (("bleu", 4), ("bleu_greedy", 1)):
        by_sacrebleu = BLEU().corpus_score(translator.translate(sources, num_beams=beams), [list(references)]).score
        assert result[name] == pytest.approx(by_sacrebleu)
    # The validation loss, without smoothing and batches: one pair after the other.
    total, count = 0.0, 0
    for source, target in few_sentences.validation:
        source, target = ([*translator.tokenizer.encode(side), 2] for side in (source, target))
        with torch.no_grad():
            total += float(translator.model(torch.tensor([source]), labels=torch.tensor([target])).loss) * len(target)
        count += len(target)
    assert result["validation_loss"] == pytest.approx(total / count, rel=1e-4)


def test_save_and_load_give_the_same_translations(run, few_sentences, tmp_path):
    translator = load(run[0])
    sources = [source for source, _ in few_sentences.test]
    before = translator.translate(sources)
    save_pretrained(translator.model, tmp_path)
    translator.tokenizer.save(tmp_path / "tokenizer.json")
    again = load(tmp_path)
    assert again.translate(sources) == before
    assert again.translate(sources[::-1]) == before[::-1]  # the order of the sentences is kept


def test_strange_sentences(run):
    translator = load(run[0])
    assert translator.translate([]) == []
    assert [type(each) for each in translator.translate(STRANGE)] == [str] * len(STRANGE)
    assert len(translator.translate(["Hund " * 30, "Ja."], batch_tokens=10)) == 2  # longer than a batch


def test_a_tokenizer_of_another_run(run, few_sentences):
    other = Tokenizer.train([source for source, _ in few_sentences.train], 300)
    with pytest.raises(ValueError, match="the tokenizer has 300 tokens, the model 400; take both of one run"):
        Translator(load_pretrained(run[0] / "model"), other)


@pytest.mark.slow
def test_the_shipped_checkpoint_translates():
    translator = load(shipped("games-de-en"))
    splits = translation("games", "de-en")
    sources, references = zip(*splits.test[:100], strict=True)
    assert bleu(translator.translate(sources, num_beams=1), references) > 17  # all of them: 22.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "huge"}, "preset 'huge' is unknown; choose one of tiny, course, paper, small, base, big"),
        ({"data": "wikipedia"}, "unknown source 'wikipedia'; choose from wesnoth"),
        ({"data": "naev", "pair": "fr-en"}, "has no 'fr'; it has de"),
    ],
)
def test_bad_options_write_nothing(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_recipe(Translation, tmp_path / "out", steps=1, quiet=True, **{"preset": "mini", **options})
    assert not list(tmp_path.iterdir())


# The command


def test_translate_on_the_command_line(run, txlib, monkeypatch):
    lines = ["Wir sind da.", "", "漢字 🐕"]
    expected = load(run[0]).translate([lines[0], lines[2]])
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    status, out, error = txlib("translate", "--model", run[0], "--device", "cpu")
    assert (status, out, error) == (0, f"{expected[0]}\n\n{expected[1]}\n", "")


@pytest.mark.usefixtures("unchecked")
def test_command_line_errors_are_one_line(run, tmp_path, txlib):
    truncated, old = tmp_path / "truncated", tmp_path / "old"
    for folder in (truncated, old):
        shutil.copytree(run[0] / "model", folder)
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    (old / "tokenizer.json").rename(old / "vocabulary.json")
    for arguments, message in (
        (["translate", "--model", tmp_path / "none", "Hallo"], "is not there"),
        (["translate", "--model", truncated, "Hallo"], "cut off or damaged"),
        (["translate", "--model", old, "Hallo"], "was written by an older txlib; train again"),
        (
            ["translate", "--model", shipped("bert-tiny"), "Hallo"],
            "BertForPreTraining, which does not translate",
        ),
        (["train", "translation", "--device", "abacus", "--out", tmp_path / "out"], "device 'abacus' is not there"),
        (["train", "translation", "--preset", "mini", "--out", run[0]], "already holds a run"),
        (["train", "translation", "--preset", "mini", "--out", weights / "run"], "is a file; choose another"),
        (["train", "translation", "--preset", "tiny", "--resume", "--out", run[0]], "preset=mini, not preset=tiny"),
        (["train", "bert", "--resume", "--out", run[0]], "holds a run of `txlib train translation`"),
    ):
        status, out, error = txlib(*arguments)
        assert (status, out, error.count("\n")) == (2, "", 1), error
        assert error.startswith("txlib: ") and message in error, error
    assert not (tmp_path / "out").exists()


# Parts


def test_bleu_is_sacrebleus():
    hypotheses = ["A dog runs over the snow.", "Two men sit", "the"]
    references = ["A dog is running over the snow.", "Two men sit on a bench.", "The end"]
    assert bleu(hypotheses, references) == BLEU().corpus_score(hypotheses, [references]).score
    assert bleu(references, references) == pytest.approx(100)
    assert bleu([each.lower() for each in references], references) < 90  # cased


def test_pair_batches_give_each_pair_once_an_epoch(few_sentences):
    tokenizer = Tokenizer.train([side for pair in few_sentences.train for side in pair], 400)
    batches = pair_batches(few_sentences.train, tokenizer, 600)
    epochs = []
    for epoch in (0, 1):
        found = []
        for batch in batches(epoch):
            assert batch.input_ids.numel() + batch.labels.numel() <= 600
            for source, target in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True):
                found.append((tokenizer.decode(source), tokenizer.decode([each for each in target if each >= 0])))
        assert sorted(found) == sorted(few_sentences.train)
        epochs.append(found)
    assert epochs[0] != epochs[1]
    assert torch.equal(batches(0)[0].input_ids, batches(0)[0].input_ids)


@pytest.mark.slow
def test_non_padding_share_of_real_sentences_with_the_small_preset():
    pairs, small = translation("games").train, PRESETS["small"]
    tokenizer = Tokenizer.train([side for pair in pairs for side in pair], small.vocab_size)
    assert 1 - padding_share(pair_batches(pairs, tokenizer, small.batch_size)(0)) >= 0.92


def test_presets_differ_in_size_as_their_names_say():
    sizes = [preset.block.d_model for preset in map(PRESETS.get, ("tiny", "small", "base", "big"))]
    assert sizes == sorted(set(sizes))


def test_words_are_cut_anew_in_each_epoch_of_training_only(few_sentences):
    recipe = Translation(preset="mini", bpe_dropout=0.5)
    tokenizer = recipe.make_tokenizer(few_sentences)

    def tokens(part: str, epoch: int) -> int:
        batches = recipe.make_batches(few_sentences, tokenizer, part)(epoch)
        return sum(int((batch.labels >= 0).sum()) for batch in batches)

    whole = sum(len(tokenizer.encode(target)) + 1 for _, target in few_sentences.train)
    assert whole < tokens("train", 0) != tokens("train", 1) > whole
    assert tokens("validation", 0) == sum(len(tokenizer.encode(target)) + 1 for _, target in few_sentences.validation)


def test_a_share_of_merges_beyond_one_is_refused():
    with pytest.raises(ValueError, match=r"bpe_dropout=1.5 must lie from 0 to 1"):
        Translation(bpe_dropout=1.5).check()
    with pytest.raises(ValueError, match=r"r_drop=-1.0 must be 0 .* or more"):
        Translation(r_drop=-1.0).check()


def test_r_drop_asks_two_passes_to_agree(few_sentences):
    recipe = Translation(preset="mini", r_drop=3.0)
    tokenizer = recipe.make_tokenizer(few_sentences)
    model = recipe.make_model(few_sentences, tokenizer).double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    batch = recipe.make_batches(few_sentences, tokenizer)(0)[0]
    torch.manual_seed(0)
    loss, tokens = recipe.loss(model.train(), batch)

    torch.manual_seed(0)
    twice = [torch.cat([ids, ids]) for ids in (batch.input_ids, batch.attention_mask, batch.decoder_input_ids)]
    logits = model(twice[0], twice[1], decoder_input_ids=twice[2]).logits.chunk(2)
    first, second = (each[batch.labels >= 0].log_softmax(-1) for each in logits)
    labels = batch.labels[batch.labels >= 0]
    entropy = sum(F.cross_entropy(each, labels, label_smoothing=0.1, reduction="sum") for each in (first, second)) / 2
    apart = sum(F.kl_div(*pair, log_target=True, reduction="sum") for pair in ((first, second), (second, first))) / 2
    assert tokens == len(labels) and apart > 0.01 * entropy
    torch.testing.assert_close(loss, entropy + 3 / 2 * apart)

    model.eval()
    torch.testing.assert_close(recipe.loss(model, batch)[0], Translation(preset="mini").loss(model, batch)[0])
