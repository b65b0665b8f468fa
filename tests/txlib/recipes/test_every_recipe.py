"""What is promised of every recipe: it plans memory, shows progress, can be stopped at any moment; its model loads."""

import csv
import json
import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")

import tiny

from txlib.data import Splits
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import load_pretrained
from txlib.recipes import RECIPES, Recipe, option, run
from txlib.recipes.assistant import Rewards
from txlib.recipes.bert import PreTraining
from txlib.recipes.language import make_tokenizer, window_batches, window_loss
from txlib.recipes.vision import Vision
from txlib.text import load_tokenizer
from txlib.training import CheckpointError, TrainConfig
from txlib.training.distributed import DistributedContext

pytestmark = pytest.mark.slow

RUN = sys.modules["txlib.recipes.run"]  # the module: the package has a function of that name
TIMES = dict.fromkeys(("seconds", "cpu_seconds"))
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def little_of_everything():
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        yield


@pytest.fixture(
    scope="module", params=[recipe for recipe in RECIPES.values() if not recipe.stages], ids=lambda r: r.command
)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def given(recipe):
    """Its options."""
    return tiny.options(recipe)


@pytest.fixture(scope="module")
def whole(recipe, given, tmp_path_factory):
    """A run that nobody stopped: its folder and result."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, run(recipe, out, steps=STEPS, quiet=True, **given)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_run(one: Path, two: Path) -> None:
    """The same losses in each step, and the same weights, bit for bit."""
    rows = [
        [{**row, "seconds": None} for row in csv.DictReader((out / "metrics.csv").read_text().splitlines())]
        for out in (one, two)
    ]
    assert rows[0] == rows[1] and len(rows[0]) == STEPS
    first, second = (everything(out / "model") for out in (one, two))
    assert first.keys() == second.keys() and {"config.json", "model.safetensors"} < first.keys()
    for name in first.keys() - {"result.json"}:
        assert first[name] == second[name], name
    results = [json.loads((out / "model" / "result.json").read_text()) | TIMES for out in (one, two)]
    assert results[0] == results[1]


def test_what_is_saved_loads(recipe, given, whole):
    out, result = whole
    assert json.loads((out / "model" / "result.json").read_text()) == result
    model = load_pretrained(out / "model")
    assert not model.training
    if recipe.make_tokenizer is not Recipe.make_tokenizer:  # it reads text
        assert len(load_tokenizer(out / "model")) == model.config.vocab_size
    assert result["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert result["recipe"] == recipe.command and result["steps"] == STEPS and result["seed"] == 0
    assert given.items() <= result.items()
    last = [row for row in csv.DictReader((out / "metrics.csv").read_text().splitlines())][-1]
    assert float(last["validation"]) == result["validation_loss"]
    report = recipe(**given).report(result, str(out))
    assert report.strip() and "None" not in report


def test_memory_comes_first_and_progress_is_shown(recipe, given, tmp_path, capsys):
    run(recipe, tmp_path / "out", steps=2, **given)
    out, err = capsys.readouterr()
    assert out.startswith("Memory that training takes, at least:\nweights ") and "total " in out
    assert "training: 100%" in err and "2/2" in err and "loss " in err


def test_too_little_memory_is_said_before_anything_is_written(recipe, given, tmp_path, monkeypatch):
    monkeypatch.setattr("txlib.training.memory.available_memory", lambda device: 130_000)
    with pytest.raises(ValueError, match="this needs .* but cpu has 130 kB free; "):
        run(recipe, tmp_path / "out", steps=1, quiet=True, **given)
    assert not list(tmp_path.iterdir())


@tiny.forks
@pytest.mark.parametrize("step", [2, 4], ids=["before its first checkpoint", "after it"])
def test_killed_it_goes_on_bit_for_bit(recipe, given, whole, step, tmp_path):
    out = tmp_path / "out"

    def die() -> None:
        RUN.train = tiny.dies_in(step, signal.SIGKILL)
        run(recipe, out, steps=STEPS, quiet=True, **given)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert bool(list(out.glob("checkpoints/step-*"))) == (step == 4) and not (out / "model").exists()
    run(recipe, out, resume=True, quiet=True)
    assert_same_run(whole[0], out)


@tiny.forks
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_two_processes_train_it_together(recipe, given, whole, engine, tmp_path):
    out = tmp_path / "out"
    alone, result = whole[1], tiny.run_by_two(recipe, out, engine, steps=STEPS, **given)
    assert (result["processes"], result["parallel"]) == (2, engine)
    assert result["tokens_trained_on"] == alone["tokens_trained_on"]
    assert result["validation_loss"] == pytest.approx(alone["validation_loss"], rel=0.03)  # other dropout
    assert not load_pretrained(out / "model").training


def test_stopped_by_ctrl_c_it_goes_on_bit_for_bit(recipe, given, whole, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(RUN, "train", tiny.dies_in(3, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run(recipe, out, steps=STEPS, quiet=True, **given)
    assert capsys.readouterr().err == f"Stopped after step 3; {out} goes on with resume.\n"
    assert {path.name for path in out.glob("checkpoints/*")} == {"step-00000002", "step-00000003"}
    run(recipe, out, resume=True, quiet=True)
    assert_same_run(whole[0], out)


def test_a_finished_run_resumed_gives_the_same(recipe, given, whole):
    assert run(recipe, whole[0], resume=True, steps=STEPS, quiet=True, **given) == whole[1]


def test_another_run_starts_from_its_weights_and_it_is_extended(recipe, given, whole, tmp_path):
    out, result = whole
    again = run(recipe, tmp_path / "again", start_from=out, steps=1, quiet=True, **given)
    assert again["start_from"] == str(out) and again["steps"] == 1
    before, after = (everything(folder / "run") for folder in (out, tmp_path / "again"))
    assert before.get("tokenizer.json") == after.get("tokenizer.json")
    longer = run(recipe, tmp_path / "again", extend=True, steps=2, quiet=True)
    assert longer["steps"] == 2 and longer["parameters"] == result["parameters"]


@pytest.mark.parametrize("change", [{"steps": 7}, {"minutes": 1.0}, {"seed": 7}, {"own": True}])
def test_options_that_contradict_a_run_are_refused(recipe, whole, change):
    if "own" in change:
        change = {"lr": 0.5} if recipe.command == "finetune bert" else {"preset": "small"}
    before = everything(whole[0])
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=rf"was started with {name}=.*, not {name}={value}: leave that out to go on"):
        run(recipe, whole[0], resume=True, quiet=True, **change)
    assert everything(whole[0]) == before


def test_a_folder_that_holds_a_run_is_refused(recipe, given, whole):
    with pytest.raises(ValueError, match=r"already holds a run; resume it \(--resume\)"):
        run(recipe, whole[0], steps=STEPS, quiet=True, **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0 must be more than 0"),
        ({"steps": 2.5}, "steps=2.5 is no whole number"),
        ({"steps": 1, "minutes": 1.0}, "give one of them"),
        ({"resume": True}, "holds no run to resume; start one without resume"),
        ({"steps": 1, "precision": "fp8"}, "precision='fp8' needs a GPU of compute capability 8.9"),
        ({"color": "blue"}, "has no option 'color'; it has seed, "),
        ({"out": "file/run"}, "file is a file; choose another"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_writes_nothing(recipe, given, changes, message, tmp_path):
    (tmp_path / "file").write_text("")
    arguments = {"quiet": True, **given, **changes, "out": tmp_path / changes.get("out", "out")}
    with pytest.raises(ValueError, match=message):
        run(recipe, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_that_another_process_is_at_is_refused(recipe, whole):
    code = (
        "import sys, time\n"
        "from txlib.training.checkpoints import run_lock\n"
        "with run_lock(sys.argv[1]):\n"
        "    print('inside', flush=True)\n"
        "    time.sleep(300)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(whole[0])], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "inside\n"
        with pytest.raises(ValueError, match="another process is at work in"):
            run(recipe, whole[0], resume=True, quiet=True)
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("name", ["run/tokenizer.json", "run/settings.json", "checkpoints/*/tensors.safetensors"])
def test_a_flipped_bit_is_found(recipe, given, whole, name, tmp_path):
    out = tmp_path / "out"
    for path, content in everything(whole[0]).items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(content)
    if name == "run/tokenizer.json" and not (out / name).exists():
        pytest.skip("it reads no text")
    path = sorted(out.glob(name))[-1]
    content = bytearray(path.read_bytes())
    place = content.rfind(b"0") if path.suffix == ".json" else len(content) - 9
    content[place] ^= 1  # a digit becomes another: still a sound file
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path} is cut off or damaged: its checksum differs"):
        run(recipe, out, resume=True, quiet=True)


def test_a_run_of_an_older_txlib_is_named(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text(json.dumps({"preset": "small", "minutes": 2.3, "steps": None}))
    with pytest.raises(CheckpointError, match="was started by another version of txlib; finish it with that"):
        run(recipe, tmp_path, resume=True, quiet=True)


def test_a_run_of_another_recipe_is_named(recipe, given, whole):
    other = next(each for each in RECIPES.values() if each is not recipe)
    with pytest.raises(ValueError, match=f"holds a run of `txlib {recipe.command}`, not of `txlib {other.command}`"):
        run(other, whole[0], resume=True, quiet=True)


def test_a_step_needs_to_know_no_number(recipe, given):
    """It runs on a device where there are none: whatever would have a GPU waited for raises an error there."""
    if recipe is PreTraining:
        pytest.skip("it waits once, to know how many tokens are asked for")
    if recipe is Rewards:
        pytest.skip("it waits for the answers that it learns from")
    made = recipe(**given)
    splits = made.load()
    tokenizer = made.make_tokenizer(splits)
    model = made.make_model(splits, tokenizer).to("meta").train()
    batch = made.make_batches(splits, tokenizer)(0)[0].to("meta")
    loss, _ = made.loss(model, batch)
    loss.backward()
    assert loss.is_meta and any(parameter.grad is not None for parameter in model.parameters())


# A recipe of one's own is a command


@pytest.fixture
def lines_recipe():
    """A recipe that txlib does not have: a language model of lines that are all alike."""

    class Lines(Recipe):
        """Train a model that says one line.

        This paragraph is for readers of the code.
        """

        command = "train lines"
        default_minutes = 0.1

        line: str = option("to be ", "What to say.")
        times: int = option(50, "How often.")

        @property
        def folder_name(self) -> str:
            return f"lines-{self.times}"

        @property
        def training(self) -> TrainConfig:
            return TrainConfig(lr=0.01, seed=self.seed, precision="fp32")

        def load(self):
            return Splits(self.line * self.times, self.line * 9, "")

        def make_tokenizer(self, splits):
            return make_tokenizer("characters", splits.train, 0)

        def make_model(self, splits, tokenizer):
            return GPT(GPTConfig(len(tokenizer), tiny.LLAMA, layers=1, max_length=8))

        def make_batches(self, splits, tokenizer, part="train"):
            return window_batches(torch.tensor(tokenizer.encode(getattr(splits, part))), 8, 4, seed=self.seed)

        def inputs(self, batch):
            return {"input_ids": batch[:, :-1]}

        def loss(self, model, batch):
            return window_loss(model, batch)

    yield Lines
    del RECIPES["train lines"]


def test_a_new_recipe_is_a_command_with_its_options_and_help(lines_recipe, txlib, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, _ = txlib("train", "--help")
    assert status == 0 and "lines Train a model that says one line." in " ".join(said.split())
    status, said, _ = txlib("train", "lines", "--help")
    assert status == 0 and "readers of the code" not in said and "--preset" not in said
    for words in ("What to say.", "[default: 50]", "--minutes", "--resume", "the same command with --resume continues"):
        assert words in said
    options = ("--times", 60, "--steps", 3, "--device", "cpu")
    status, _, error = txlib("train", "lines", *options, "--precision", "fp4")
    assert status == 2 and "precision='fp4' must be 'auto' or 'fp32' or 'bf16' or 'fp8'" in error
    status, said, _ = txlib("train", "lines", *options)
    assert status == 0 and "The model is in runs/lines-60/model" in said
    assert load_pretrained("runs/lines-60/model").config.vocab_size == 256
    assert json.loads(Path("runs/lines-60/model/result.json").read_text())["line"] == "to be "
    status, _, error = txlib("train", "lines", *options)
    assert status == 2 and "--resume" in error
    status, _, error = txlib("train", "lines", *options, "--line", "or not ", "--resume")
    assert status == 2 and "was started with line=to be , not line=or not " in error
    assert txlib("train", "lines", *options, "--resume")[0] == 0


def test_more_processes_than_a_batch_has_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(DistributedContext, "current", lambda: DistributedContext(0, 10_000))
    with pytest.raises(
        ValueError, match=r"10000 processes .* none of the first epoch has more than \d+; start at most \d+"
    ):
        run(Vision, tmp_path / "out", steps=1, quiet=True, **tiny.options(Vision))
    assert not list(tmp_path.iterdir())
