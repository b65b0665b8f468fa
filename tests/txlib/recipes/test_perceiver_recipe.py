"""The Perceiver's batches hold what they say: each example once, pixels and bytes with their own answers."""

import pytest

pytest.importorskip("tokenizers")

import tiny
import torch

from txlib.data import verses
from txlib.labels import IGNORE_INDEX
from txlib.recipes.perceiver import Arrays
from txlib.recipes.run import score_table
from txlib.text import byte_tokenizer


@pytest.fixture(scope="module", autouse=True)
def little_of_everything():
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        yield


def batches(data, part="train", epoch=0):
    recipe = Arrays(preset="mini", data=data)
    return list(recipe.make_batches(recipe.load(), byte_tokenizer(), part)(epoch))


def test_digits_alone():
    found = batches("digits")
    expected = tiny.few_pictures().train
    assert all(batch.keys() == {"pixel_values", "labels"} for batch in found)
    pixels, labels = (torch.cat([batch[name] for batch in found]) for name in ("pixel_values", "labels"))
    assert len(pixels) == len(expected) and (labels[:, 1] == IGNORE_INDEX).all()
    for image, label in zip(expected.pixel_values, expected.labels, strict=True):
        (place,) = (pixels == image).flatten(1).all(dim=1).nonzero()[:, 0].tolist()
        assert labels[place, 0] == label


def test_verses_alone():
    expected = [(pair[number % 2][:40], number % 2) for number, pair in enumerate(verses().train[:40])]
    read = []
    for batch in batches("verses"):
        assert (
            batch.keys() == {"input_ids", "attention_mask", "labels"} and (batch["labels"][:, 0] == IGNORE_INDEX).all()
        )
        for ids, mask, label in zip(batch["input_ids"], batch["attention_mask"], batch["labels"][:, 1], strict=True):
            text = bytes(ids[mask.bool()].sub(6).tolist()).decode()
            assert not ids[~mask.bool()].any()
            read.append((text, int(label)))
    assert sorted(read) == sorted(expected)


def test_both_are_read_alone_and_together():
    found = batches("both")
    kinds = [frozenset(batch.keys() & {"pixel_values", "input_ids"}) for batch in found]
    assert {"+".join(sorted(kind)) for kind in kinds} == {"input_ids", "pixel_values", "input_ids+pixel_values"}
    together = [batch for batch, kind in zip(found, kinds, strict=True) if len(kind) == 2]
    assert sum(len(batch["labels"]) for batch in together) == 40
    digits, lines = (sum(kind == {name} for kind in kinds) for name in ("pixel_values", "input_ids"))
    assert lines <= digits < lines + 10  # of one round
    assert all((batch["labels"] != IGNORE_INDEX).all() for batch in together)
    again, later = batches("both"), batches("both", epoch=1)
    assert [batch["labels"].tolist() for batch in again] == [batch["labels"].tolist() for batch in found]
    assert [batch["labels"].tolist() for batch in later] != [batch["labels"].tolist() for batch in found]


def test_the_loss_is_summed_over_the_answers_that_are_known():
    recipe, tokenizer = Arrays(preset="mini"), byte_tokenizer()
    torch.manual_seed(0)
    model = recipe.make_model(recipe.load(), tokenizer).eval()
    for batch in batches("both")[:6]:
        total, known = recipe.loss(model, batch)
        assert known == (batch["labels"] != IGNORE_INDEX).sum()
        logits = model(**batch).logits
        rows = [
            -each.log_softmax(-1)[row, label]
            for each, labels in zip(logits, batch["labels"].T.tolist(), strict=True)
            for row, label in enumerate(labels)
            if label != IGNORE_INDEX
        ]
        torch.testing.assert_close(total, torch.stack(rows).sum())


@pytest.mark.parametrize("data", ["digits", "verses", "both"])
def test_what_is_measured(data):
    recipe, tokenizer = Arrays(preset="mini", data=data), byte_tokenizer()
    splits = recipe.load()
    model = recipe.make_model(splits, tokenizer).eval()
    for classifier, answer in zip(model.classifiers, (7, 1), strict=True):  # always the same answer
        torch.nn.init.zeros_(classifier.weight)
        classifier.bias.data = torch.eye(len(classifier.bias))[answer]
    digit = (splits.digits.test.labels == 7).float().mean().item()
    modern = 0.5
    found = recipe.measure(model, splits, tokenizer, 0.0, lambda items, about: items)
    expected = {"digit_alone_accuracy": digit, "modern_alone_accuracy": modern, "modern_with_both_accuracy": modern}
    names = {"digits": ["digit_alone_accuracy"], "verses": ["modern_alone_accuracy"], "both": list(expected)}[data]
    assert found.keys() - {"digit_with_both_accuracy"} == set(names)
    for name in names:
        assert found[name] == pytest.approx(expected[name])
    lines = score_table(found).splitlines()
    assert len(lines) == len(found) and f"{modern if data != 'digits' else digit:.3f}" in "".join(lines)


def test_unknown_data_are_refused():
    with pytest.raises(ValueError, match="data 'music' is unknown; choose one of digits, verses, both"):
        Arrays(data="music").check()
