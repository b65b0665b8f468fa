"""Fine-tuning: four tasks, on some examples of each, for a model of a few thousand weights."""

import pytest

pytest.importorskip("tokenizers")
import tiny
import torch

import txlib.recipes.tasks as tasks
from txcourse.lesson import minilm
from txlib.data import shipped, spans, tags
from txlib.labels import IGNORE_INDEX
from txlib.models.bert import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from txlib.models.encoder import Encoder
from txlib.models.pretrained import load_pretrained, save_pretrained
from txlib.recipes import run as run_recipe
from txlib.recipes.finetune import FineTuning, load_encoder
from txlib.recipes.reading import LONGEST, Reader
from txlib.recipes.tasks import named, overlap, words
from txlib.text import load_tokenizer

pytestmark = pytest.mark.slow

first = tiny.first


@pytest.fixture(scope="module", autouse=True)
def few_examples():
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        yield


@pytest.fixture(scope="module")
def pretrained():
    """The folder of a BERT."""
    return tiny.untrained_bert()


# Fine-tuning

HEADS = {
    "reviews": BertForSequenceClassification,
    "pairs": BertForSequenceClassification,
    "spans": BertForQuestionAnswering,
    "tags": BertForTokenClassification,
}


@pytest.fixture(scope="module", params=HEADS)
def tuned(request, pretrained, tmp_path_factory):
    """A task's finished run: its name, folder and result."""
    out = tmp_path_factory.mktemp("tuned") / request.param
    options = {"model": str(pretrained), "task": request.param, "lr": 1e-3}
    return request.param, out, run_recipe(FineTuning, out, steps=4, quiet=True, **options)


def test_every_task_is_measured_and_saved(tuned):
    task, out, result = tuned
    model = load_pretrained(out / "model")
    assert type(model) is HEADS[task] and load_tokenizer(out / "model").encode("O Romeo")
    reader = Reader(load_tokenizer(out / "model"), 160)
    chosen = tasks.TASKS[task](reader, tasks.TASKS[task].load(result["source"]))
    again = chosen.score(tasks.answer(model, chosen, chosen.splits.test))
    assert {name: result[name] for name in again} == again
    assert all(0 <= result[name] <= 1 and 0 <= result[f"baseline_{name}"] <= 1 for name in again)


def test_halves_are_tuned_as_whole_numbers(pretrained, tmp_path):
    save_pretrained(load_pretrained(pretrained, dtype=torch.float16), tmp_path)
    assert {weight.dtype for weight in load_encoder(tmp_path).parameters()} == {torch.float32}


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
        ({"model": None}, "model is missing: --model FOLDER"),
        ({"model": "nowhere/at/all"}, "nowhere/at/all is not there"),
        ({"model": str(shipped("glassllm-en"))}, "holds a GPT, not a BERT"),
    ],
)
def test_bad_options_write_nothing(pretrained, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_recipe(FineTuning, tmp_path / "out", steps=1, quiet=True, **{"model": str(pretrained), **options})
    assert not list(tmp_path.iterdir())


# Parts of fine-tuning


@pytest.fixture
def reader(pretrained):
    return Reader(load_tokenizer(pretrained), 160)


def test_places_are_where_the_tokens_stand(reader):
    question, context = "Who?  Ä 漢字", "HAMLET: To be,  or not — naïve!\nGHOST: Mark me."
    found = reader.read(question, context)
    ids = reader.tokenizer.encode(context, special_tokens=False)
    assert found.ids[-len(ids) - 1 : -1] == ids
    assert found.token_type_ids == [0] * (len(found.ids) - len(ids) - 1) + [1] * (len(ids) + 1)
    covered = "".join(context[start:end] for start, end in dict.fromkeys(filter(None, found.offsets)))
    assert [letter for letter in covered if not letter.isspace()] == [x for x in context if not x.isspace()]


def test_long_inputs_lose_the_end_of_the_longer_text(pretrained):
    short = Reader(load_tokenizer(pretrained), 20)
    first, second = "word " * 100, "who"
    found = short.read(first, second)
    assert len(found.ids) == len(found.token_type_ids) == len(found.offsets) == 20
    end = short.tokenizer.encode(second, special_tokens=False)
    assert found.ids[-1 - len(end) : -1] == end


def test_the_right_span_gives_the_answer_back(reader):
    """A model that is sure of the labels answers what the examples say."""
    task = tasks.Spans(reader, first(spans(), 30))
    examples = [each for each in task.splits.test if task.encode(each).labels["start_positions"] != IGNORE_INDEX]
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
    task = tasks.Tags(reader, first(tags(), 300))
    encoded = [task.encode(each) for each in task.splits.test]
    for one, example in zip(encoded, task.splits.test, strict=True):
        labels = [label for label in one.labels["labels"] if label != IGNORE_INDEX]
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
    if minilm() is None:
        pytest.skip("MiniLM is not installed")
    bert, reader = load_encoder(minilm()), Reader(load_tokenizer(minilm()), LONGEST)
    assert type(bert) is Encoder and reader.read("Who is it?").ids[:2] == [101, 2040]
    assert len(reader.read("long " * 600).ids) == LONGEST and len(reader.read("Hi.").ids) == 4


# The commands


def test_train_then_finetune(txlib, tmp_path):
    out = tmp_path / "bert"
    status, said, _ = txlib("train", "bert", "--preset", "mini", "--steps", 2, "--device", "cpu", "--out", out)
    assert status == 0 and said.startswith("Memory that training takes") and "gap accuracy" in said
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


def test_adapters_change_only_their_layers_and_are_merged(txlib, tmp_path):
    command = ["finetune", "bert", "--model", "bert-tiny", "--task", "reviews", "--device", "cpu", "--steps", 2]
    status, said, _ = txlib(*command, "--lora", 2, "--out", tmp_path)
    assert status == 0 and "accuracy" in said
    before, after = load_encoder("bert-tiny").state_dict(), load_encoder(tmp_path / "model").state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in changed} <= {"query", "value", "pooler"}
    assert any("query" in name for name in changed)
    status, _, error = txlib(*command, "--lora", -1, "--out", tmp_path / "other")
    assert status == 2 and "rank=-1 must be at least 1" in error


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["train", "bert", "--preset", "huge"], "choose one of tiny, small, base"),
        (["train", "bert", "--resume"], "start one"),
        (["finetune", "bert", "--task", "reviews"], "model is missing: --model FOLDER"),
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
