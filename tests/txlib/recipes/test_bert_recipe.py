"""BERT's recipe, on a page of each text with a model of a few thousand weights."""

import random

import pytest

pytest.importorskip("tokenizers")
import tiny
import torch

from txlib.data import reviews, spans
from txlib.data.pretraining import SPECIAL, corpus, encode, make_pairs, mask_tokens, pair_batches
from txlib.labels import IGNORE_INDEX
from txlib.models.pretrained import load_pretrained
from txlib.recipes import run as run_recipe
from txlib.recipes.bert import PreTraining, pretraining_loss
from txlib.text import load_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def few_texts():
    """The first sentences of each source."""
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        yield {part: tiny.few_texts(part) for part in ("train", "validation")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of six steps: its folder and result."""
    out = tmp_path_factory.mktemp("runs") / "mini"
    return out, run_recipe(PreTraining, out, preset="mini", steps=6, quiet=True)


@pytest.fixture(scope="module")
def tokenizer(run):
    return load_tokenizer(run[0] / "model")


def test_the_result(run):
    out, result = run
    model = load_pretrained(out / "model")
    assert type(model).__name__ == "BertForPreTraining"
    assert 0 <= result["gap_accuracy"] <= 1 and result["gap_loss"] > 0 and result["next_baseline"] >= 0.5


def test_transformers_reads_the_model(run):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForPreTraining.from_pretrained(run[0] / "model").eval()
    ids, kinds = torch.randint(400, (2, 9)), torch.tensor([[0] * 4 + [1] * 5] * 2)
    with torch.no_grad():
        their, our = (model(ids, token_type_ids=kinds) for model in (theirs, load_pretrained(run[0] / "model")))
    torch.testing.assert_close(their.prediction_logits, our.prediction_logits)
    torch.testing.assert_close(their.seq_relationship_logits, our.seq_relationship_logits)


def test_the_loss_is_the_models_own(run, few_texts, tokenizer):
    model = load_pretrained(run[0] / "model")
    for batch in pair_batches(encode(few_texts["validation"], tokenizer), tokenizer, 160, 1000)(0):
        loss, count = pretraining_loss(model, batch)
        assert count == int((batch["labels"] != IGNORE_INDEX).sum())
        torch.testing.assert_close(loss / count, model(**batch).loss)


def test_gaps_are_as_the_paper_says():
    ids = torch.randint(1000, (300, 200), generator=torch.Generator().manual_seed(1))
    marks = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.1
    ids = torch.where(marks, 1000, ids)  # 1000 and above are special
    gaps, labels = mask_tokens(ids, 1000, 1004, torch.Generator().manual_seed(3))
    asked = labels != IGNORE_INDEX
    assert (labels[asked] == ids[asked]).all() and not (asked & marks).any()
    assert (gaps[~asked] == ids[~asked]).all()
    assert float(asked.sum() / (~marks).sum()) == pytest.approx(0.15, abs=0.006)
    hidden, same = (gaps == 1004) & asked, (gaps == ids) & asked
    assert float(hidden.sum() / asked.sum()) == pytest.approx(0.8, abs=0.02)
    assert float(same.sum() / asked.sum()) == pytest.approx(0.1, abs=0.015)
    other = asked & ~hidden & ~same
    assert (gaps[other] < 1000).all() and len(set(gaps[other].tolist())) > 400


def test_pairs_follow_or_do_not():
    # Sentences of three tokens whose numbers say where they stand: document · 1000 + place.
    documents = {"a": [[[1000 * d + s] * 3 for s in range(300)] for d in range(5)]}
    pairs = make_pairs(documents, 40, random.Random(0))
    follows = []
    for first, second, label in pairs:
        assert first and second and len(first) + len(second) <= 40
        follows.append(second[0] == first[-1] + 1)
        assert follows[-1] or label == 1
    labels = [pair.label for pair in pairs]
    assert sum(labels) / len(labels) == pytest.approx(0.5, abs=0.05)
    assert sum(one != (not two) for one, two in zip(labels, follows, strict=True)) < 0.02 * len(pairs)  # by chance
    read = {token for pair in pairs for token in pair.first + ([] if pair.label else pair.second)}
    assert len(read) > 0.95 * 1500  # what was replaced begins the next pair
    assert max(len(first) + len(second) for first, second, _ in pairs) > 35


def test_one_long_sentence_is_cut():
    documents = {"a": [[[1] * 100, [2] * 100, [3] * 100]]}
    for pair in make_pairs(documents, 20, random.Random(0)):
        assert pair.first and pair.second and len(pair.first) + len(pair.second) <= 20


def test_an_epoch_is_the_same_whenever_it_is_asked_for(few_texts, tokenizer):
    batches = pair_batches(encode(few_texts["train"], tokenizer), tokenizer, 160, 1000, seed=1)
    for one, two in zip(batches(3), batches(3), strict=True):
        assert one.keys() == two.keys() and all(tensor.equal(two[name]) for name, tensor in one.items())
        assert one["input_ids"].numel() <= 1000
    assert not torch.equal(batches(0)[0]["input_ids"], batches(1)[0]["input_ids"])
    batch = batches(0)[0]
    sep, cls = map(tokenizer.mark, ("[SEP]", "[CLS]"))
    for row, kinds, mask in zip(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"], strict=True):
        length = int(mask.sum())
        middle, end = (row == sep).nonzero().flatten().tolist()
        assert row[0] == cls and end == length - 1 and (row[length:] == tokenizer.pad_id).all()
        assert kinds[:length].tolist() == [0] * (middle + 1) + [1] * (length - middle - 1)


def test_the_corpus_holds_nothing_to_be_tested_on():
    train, validation = (corpus(part) for part in ("train", "validation"))
    held_out = {review.text for review in reviews().test}
    assert not held_out & {" ".join(document) for document in train["reviews"] + validation["reviews"]}
    contexts = [question.context for question in spans().test]
    speeches = {speech for part in (train, validation) for document in part["plays"] for speech in document}
    assert not any(line in speeches for context in contexts for line in context.split("\n") if len(line) > 60)
    assert len(train["plays"]) == 12 and len(validation["plays"]) == 1


def test_special_tokens_are_single(tokenizer):
    assert [len(tokenizer.encode(mark)) for mark in SPECIAL] == [1] * 5
