"""BERT's recipe and its fine-tuning, on a page of each text with a model of a few thousand weights."""

import json
import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("tokenizers")

import txlib.training.bert as recipe
import txlib.training.finetune as tuning
from txlib.data import Splits, reviews, sentence_pairs, spans, tags
from txlib.labels import IGNORED
from txlib.models.bert import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from txlib.models.encoder import Encoder
from txlib.models.pretrained import load_pretrained, save_pretrained
from txlib.text import BytePairEncoder, load_tokenizer
from txlib.training import TrainConfig
from txlib.training.bert import PRESETS, SPECIAL, Preset, corpus, encode, make_pairs, mask_tokens, train_bert
from txlib.training.finetune import Reader, finetune_bert, named, overlap, words

BLOCK = replace(PRESETS["tiny"].block, d_model=16, heads=2, d_ff=32, dropout=0.1, attention_dropout=0.1)
PRESET = Preset(
    BLOCK,
    1,
    160,
    400,
    1000,
    TrainConfig(lr=0.01, muon_lr=0.02, warmup=3, precision="fp32", checkpoint_every=2),
    minutes=0.01,
)
TIMES = dict.fromkeys(("seconds", "cpu_seconds"))
FEW = {"train": 12, "validation": 4}


def first(split, number):
    return Splits(split.train[:number], split.validation[:number], split.test[:number])


@pytest.fixture(scope="module", autouse=True)
def few_texts():
    """The first sentences of each source, and some examples of each task."""
    texts = {
        part: {source: [document[:20] for document in documents[:number]] for source, documents in corpus(part).items()}
        for part, number in FEW.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "mini", PRESET)
        patch.setattr(recipe, "corpus", lambda part, folder=None: texts[part])
        patch.setattr(tuning.data, "reviews", lambda folder=None: first(reviews(), 40))
        patch.setattr(tuning.data, "sentence_pairs", lambda folder=None: first(sentence_pairs(), 40))
        patch.setattr(tuning.data, "spans", lambda source, folder=None: first(spans(source), 20))
        patch.setattr(tuning.data, "tags", lambda source, folder=None: first(tags(source), 200))
        yield texts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of six steps: its folder and result."""
    out = tmp_path_factory.mktemp("runs") / "mini"
    return out, train_bert(preset="mini", steps=6, out=out, quiet=True)


@pytest.fixture(scope="module")
def encoder(run):
    return BytePairEncoder.load(run[0] / "model" / "tokenizer.json")


# Pre-training


def test_the_result(run):
    out, result = run
    assert json.loads((out / "model" / "result.json").read_text()) == result
    model = load_pretrained(out / "model")
    assert type(model).__name__ == "BertForPreTraining"
    assert result["steps"] == 6 and result["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert 0 <= result["gap_accuracy"] <= 1 and result["gap_loss"] > 0 and result["next_baseline"] >= 0.5


def test_transformers_reads_the_model(run):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForPreTraining.from_pretrained(run[0] / "model").eval()
    ids, kinds = torch.randint(400, (2, 9)), torch.tensor([[0] * 4 + [1] * 5] * 2)
    with torch.no_grad():
        their, our = (model(ids, token_type_ids=kinds) for model in (theirs, load_pretrained(run[0] / "model")))
    torch.testing.assert_close(their.prediction_logits, our.prediction_logits)
    torch.testing.assert_close(their.seq_relationship_logits, our.seq_relationship_logits)


def test_the_loss_is_the_models_own(run, few_texts, encoder):
    model = load_pretrained(run[0] / "model")
    for batch in recipe.pair_batches(encode(few_texts["validation"], encoder), encoder, 160, 1000)(0):
        loss, count = recipe.pretraining_loss(model, batch)
        assert count == int((batch["labels"] != IGNORED).sum())
        torch.testing.assert_close(loss / count, model(**batch).loss)


def test_a_finished_run_resumed_gives_the_same(run):
    assert train_bert(out=run[0], resume=True, quiet=True) == run[1]


@pytest.mark.parametrize("at", [1, 3])  # before and after the first checkpoint
def test_a_killed_run_resumed_gives_the_same(run, at, tmp_path, monkeypatch):
    again = killed_and_resumed(
        recipe,
        "pretraining_loss",
        at,
        tmp_path / "out",
        monkeypatch,
        lambda **more: train_bert(out=tmp_path / "out", quiet=True, **more),
        preset="mini",
        steps=6,
    )
    assert again | TIMES == run[1] | TIMES
    one, two = (load_pretrained(out / "model").state_dict() for out in (run[0], tmp_path / "out"))
    assert all(weight.equal(two[name]) for name, weight in one.items())


def killed_and_resumed(module, loss, at, out, monkeypatch, train, **options):
    """Train, die in the middle, go on."""
    whole, done = getattr(module, loss), 0

    def dies(model, batch):
        nonlocal done
        done += 1
        if done > at:
            raise SystemExit("killed")
        return whole(model, batch)

    with monkeypatch.context() as patch:
        patch.setattr(module, loss, dies)
        with pytest.raises(SystemExit):
            train(**options)
    assert not (out / "model").exists()
    return train(resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "huge"}, "preset 'huge' is unknown; choose one of tiny, small, base"),
        ({"steps": 0}, "steps=0 must be more than 0"),
        ({"resume": True}, "holds no run to resume; start one without resume"),
    ],
)
def test_bad_input_writes_nothing(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train_bert(**{"preset": "mini", **options}, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_gaps_are_as_the_paper_says():
    ids = torch.randint(1000, (300, 200), generator=torch.Generator().manual_seed(1))
    marks = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.1
    ids = torch.where(marks, 1000, ids)  # 1000 and above are special
    gaps, labels = mask_tokens(ids, 1000, 1004, torch.Generator().manual_seed(3))
    asked = labels != IGNORED
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


def test_an_epoch_is_the_same_whenever_it_is_asked_for(few_texts, encoder):
    batches = recipe.pair_batches(encode(few_texts["train"], encoder), encoder, 160, 1000, seed=1)
    for one, two in zip(batches(3), batches(3), strict=True):
        assert one.keys() == two.keys() and all(tensor.equal(two[name]) for name, tensor in one.items())
        assert one["input_ids"].numel() <= 1000
    assert not torch.equal(batches(0)[0]["input_ids"], batches(1)[0]["input_ids"])
    batch = batches(0)[0]
    sep, cls = encoder.special_tokens["[SEP]"], encoder.special_tokens["[CLS]"]
    for row, kinds, mask in zip(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"], strict=True):
        length = int(mask.sum())
        middle, end = (row == sep).nonzero().flatten().tolist()
        assert row[0] == cls and end == length - 1 and (row[length:] == encoder.special_tokens["[PAD]"]).all()
        assert kinds[:length].tolist() == [0] * (middle + 1) + [1] * (length - middle - 1)


def test_the_corpus_holds_nothing_to_be_tested_on():
    train, validation = (corpus(part) for part in ("train", "validation"))
    held_out = {review.text for review in reviews().test}
    assert not held_out & {" ".join(document) for document in train["reviews"] + validation["reviews"]}
    contexts = [question.context for question in spans().test]
    speeches = {speech for part in (train, validation) for document in part["plays"] for speech in document}
    assert not any(line in speeches for context in contexts for line in context.split("\n") if len(line) > 60)
    assert len(train["plays"]) == 12 and len(validation["plays"]) == 1


# Fine-tuning

HEADS = {
    "reviews": BertForSequenceClassification,
    "pairs": BertForSequenceClassification,
    "spans": BertForQuestionAnswering,
    "tags": BertForTokenClassification,
}


@pytest.fixture(scope="module", params=HEADS)
def tuned(request, run, tmp_path_factory):
    """A task's finished run: its name, folder and result."""
    out = tmp_path_factory.mktemp("tuned") / request.param
    return request.param, out, finetune_bert(run[0], request.param, steps=4, lr=1e-3, out=out, quiet=True)


def test_every_task_is_measured_and_saved(tuned):
    task, out, result = tuned
    assert json.loads((out / "model" / "result.json").read_text()) == result
    model = load_pretrained(out / "model")
    assert type(model) is HEADS[task] and load_tokenizer(out / "model").encode("O Romeo")
    chosen = tuning.TASKS[task](tuning.load_encoder(out)[1], tuning.TASKS[task].load(result["source"], None))
    again = chosen.score(tuning.answer(model, chosen, chosen.splits.test))
    assert {name: result[name] for name in again} == again
    assert all(0 <= result[name] <= 1 and 0 <= result[f"baseline_{name}"] <= 1 for name in again)


def test_halves_are_tuned_as_whole_numbers(run, tmp_path):
    save_pretrained(load_pretrained(run[0] / "model", dtype=torch.float16), tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((run[0] / "model" / "tokenizer.json").read_bytes())
    bert, _ = tuning.load_encoder(tmp_path)
    assert {weight.dtype for weight in bert.parameters()} == {torch.float32}


def test_a_killed_tuning_resumed_gives_the_same(tuned, run, tmp_path, monkeypatch):
    task, out, result = tuned
    again = killed_and_resumed(
        tuning,
        "head_loss",
        2,
        tmp_path / "out",
        monkeypatch,
        lambda **more: finetune_bert(out=tmp_path / "out", quiet=True, **more),
        model=run[0],
        task=task,
        steps=4,
        lr=1e-3,
    )
    assert again | TIMES == result | TIMES


def test_transformers_reads_a_tuned_model(tuned):
    transformers = pytest.importorskip("transformers")
    task, out, _ = tuned
    theirs = getattr(transformers, HEADS[task].__name__).from_pretrained(out / "model").eval()
    ids = torch.randint(400, (2, 9))
    with torch.no_grad():
        their, our = theirs(ids), load_pretrained(out / "model")(ids)
    for name in ("start_logits", "end_logits") if task == "spans" else ("logits",):
        torch.testing.assert_close(getattr(their, name), getattr(our, name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "poems"}, "task 'poems' is unknown; choose one of reviews, pairs, spans, tags"),
        ({"task": "tags", "source": "xquad"}, "source 'xquad' is none of tags; choose shakespeare or wikigold"),
        ({"steps": 0}, "steps=0 must be more than 0"),
        ({"model": None}, "fine-tuning needs model"),
        ({"model": "nowhere/at/all"}, "nowhere/at/all is not there"),
        ({"resume": True}, "holds no run to resume"),
    ],
)
def test_bad_tuning_writes_nothing(run, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        finetune_bert(**{"model": run[0], **options}, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_model_of_another_kind_is_refused(tmp_path):
    from txlib.course.lesson import shipped

    with pytest.raises(ValueError, match="holds a GPT, not a BERT"):
        finetune_bert(shipped("glassllm-en"), "reviews", out=tmp_path / "out", quiet=True)


# Parts of fine-tuning


@pytest.fixture
def reader(run):
    return Reader(load_tokenizer(run[0] / "model"), 160)


def test_places_are_where_the_tokens_stand(reader):
    question, context = "Who?  Ä 漢字", "HAMLET: To be,  or not — naïve!\nGHOST: Mark me."
    found = reader.read(question, context)
    ids = reader.tokenizer.encode(context, add_special_tokens=False).ids
    assert found.ids[-len(ids) - 1 : -1] == ids
    assert found.kinds == [0] * (len(found.ids) - len(ids) - 1) + [1] * (len(ids) + 1)
    covered = "".join(context[start:end] for start, end in dict.fromkeys(filter(None, found.places)))
    assert [letter for letter in covered if not letter.isspace()] == [x for x in context if not x.isspace()]


def test_long_inputs_lose_the_end_of_the_longer_text(run):
    short = Reader(load_tokenizer(run[0] / "model"), 20)
    first, second = "word " * 100, "who"
    found = short.read(first, second)
    assert len(found.ids) == len(found.kinds) == len(found.places) == 20
    end = reader_ids(short, second)
    assert found.ids[-1 - len(end) : -1] == end


def reader_ids(reader, text):
    return reader.tokenizer.encode(text, add_special_tokens=False).ids


def test_the_right_span_gives_the_answer_back(reader):
    """A model that is sure of the labels answers what the examples say."""
    task = tuning.Spans(reader, first(spans(), 30))
    examples = [each for each in task.splits.test if task.encode(each).labels["start_positions"] != IGNORED]
    assert len(examples) > 10
    encoded = [task.encode(each) for each in examples]
    length = max(len(one.ids) for one in encoded)
    start, end = (
        torch.nn.functional.one_hot(torch.tensor([one.labels[name] for one in encoded]), length).float()
        for name in ("start_positions", "end_positions")
    )
    output = type("Output", (), {"start_logits": start, "end_logits": end})
    assert task.answers(output, encoded, examples) == [each.answer for each in examples]


def test_the_right_tags_give_the_tags_back(reader):
    task = tuning.Tags(reader, first(tags(), 300))
    encoded = [task.encode(each) for each in task.splits.test]
    for one, example in zip(encoded, task.splits.test, strict=True):
        labels = [label for label in one.labels["labels"] if label != IGNORED]
        assert [task.names[label] for label in labels] == example.tags
    length = max(len(one.ids) for one in encoded)
    labels = torch.tensor(
        [[max(label, 0) for label in one.labels["labels"]] + [0] * (length - len(one.ids)) for one in encoded]
    )
    output = type("Output", (), {"logits": torch.nn.functional.one_hot(labels, len(task.names)).float()})
    answers = task.answers(output, encoded, task.splits.test)
    assert answers == [example.tags for example in task.splits.test]
    assert task.score(answers)["f1"] == 1


def test_names_are_runs_of_one_tag():
    assert named(["O", "I-PER", "I-PER", "I-LOC", "O", "I-PER"]) == [(1, 3, "I-PER"), (3, 4, "I-LOC"), (5, 6, "I-PER")]
    assert named([]) == named(["O", "O"]) == []


def test_answers_are_compared_as_squad_does():
    assert words("The  Ghost's, sword!") == ["ghosts", "sword"]
    assert overlap(["a", "b", "b"], ["b", "b", "c"]) == pytest.approx(2 / 3)
    assert overlap([], []) == 1 and overlap(["x"], []) == 0


def test_minilm_can_be_tuned(tmp_path):
    from txlib.course.lesson import minilm

    if minilm() is None:
        pytest.skip("MiniLM is not installed")
    bert, reader = tuning.load_encoder(minilm())
    assert type(bert) is Encoder and reader.read("Who is it?").ids[:2] == [101, 2040]
    assert len(reader.read("long " * 600).ids) == tuning.LONGEST and len(reader.read("Hi.").ids) == 4


# The commands


def test_train_then_finetune(txlib, tmp_path):
    out = tmp_path / "bert"
    status, said, _ = txlib("train", "bert", "--preset", "mini", "--steps", 2, "--device", "cpu", "--out", out)
    assert status == 0 and said.startswith("Memory that training takes") and "gaps filled" in said
    status, said, _ = txlib(
        "finetune",
        "bert",
        "--model",
        out,
        "--task",
        "spans",
        "--steps",
        2,
        "--device",
        "cpu",
        "--out",
        tmp_path / "spans",
    )
    assert status == 0 and "exact match" in said and "Test split of shakespeare: the baseline" in said


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["train", "bert", "--preset", "huge"], "choose one of tiny, small, base"),
        (["train", "bert", "--resume"], "start one"),
        (["finetune", "bert", "--task", "reviews"], "--model FOLDER is missing"),
        (["finetune", "bert", "--model", "nowhere/to/go"], "give a folder with config.json"),
        (["finetune", "bert", "--model", "x", "--task", "poems"], "choose one of reviews"),
        (["finetune", "bert", "--model", "x", "--minutes", "1", "--steps", "2"], "give one"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(txlib, tmp_path, monkeypatch, arguments, remedy):
    monkeypatch.chdir(tmp_path)
    status, out, error = txlib(*arguments)
    assert (status, out, error.count("\n")) == (2, "", 1) and remedy in error
    assert not list(tmp_path.iterdir())


def test_special_tokens_are_single(encoder):
    assert [len(encoder.encode(mark)) for mark in SPECIAL] == [1] * 5
