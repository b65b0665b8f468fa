"""The loop: accumulation is exact, validation changes nothing, and a killed run goes on as if nothing had happened."""

import csv
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import resume_script
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from txlib.data import collate
from txlib.devices import AsyncScalars, to_device
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.recipes.language import window_loss
from txlib.recipes.translation import translation_loss
from txlib.training import CheckpointError, Optimizers, TrainConfig, optimizers, train, trainer, training_step
from txlib.training.checkpoints import read_tensors

SCRIPT = Path(resume_script.__file__)
FP32 = TrainConfig(lr=0.01, warmup=2, precision="fp32")


class Line(nn.Module):
    """y = w · x, so that a step can be followed by hand."""

    def __init__(self, w=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[w]], dtype=torch.float64))


def squares(model, batch):
    x, y = batch
    return (model.w[0, 0] * x - y).square().sum(), len(x)


def a_batch(epoch=0):
    return [(torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 3.0], dtype=torch.float64))]


def test_a_run_that_is_watched_ends_before_a_bad_checkpoint(tmp_path):
    def watch(progress):
        if progress.step == 3:
            raise ValueError(f"step {progress.step} is bad, with {len(progress.losses)} losses")

    config = replace(FP32, checkpoint_every=1)
    with pytest.raises(ValueError, match="step 3 is bad, with"):
        train(Line(), a_batch, squares, config, steps=5, out=tmp_path, watch=watch, quiet=True)
    assert [path.name for path in (tmp_path / "checkpoints").glob("*")] == ["step-00000001", "step-00000002"]


# Accumulation, clipping, the rate


def test_accumulated_batches_are_one_large_batch():
    """In different numbers of sentences and of tokens, padded differently."""
    pairs = [([5 + n % 7] * (1 + n % 5), [4 + n % 9] * (1 + n % 4)) for n in range(12)]
    groups = [pairs[:5], pairs[5:6], pairs[6:]]
    states, losses = [], []
    for groups_of_a_step in ([pairs], groups):
        model = resume_script.make_model().double()
        model.config = replace(model.config, block=model.config.block.replace(dropout=0.0))
        for module in model.modules():
            for name in {"dropout", "dropout_p"} & vars(module).keys():
                setattr(module, name, 0.0)
            if hasattr(module, "config"):
                module.config = model.config.block if hasattr(module, "self_attention") else module.config
        made = [collate(group, 1, 2, 0) for group in groups_of_a_step]
        config = replace(FP32, accumulate=len(made), clip=0.5)
        progress = train(model, lambda _, made=made: made, translation_loss, config, steps=4, quiet=True)
        assert progress.tokens == 4 * sum(len(target) + 1 for _, target in pairs)
        states.append(model.state_dict())
        losses.append(progress.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for name, weight in states[0].items():
        torch.testing.assert_close(weight, states[1][name], rtol=1e-9, atol=1e-12)


def test_a_step_by_hand():
    """Gradient of the mean of (w x - y)²; AdamW's first step is the rate in the gradient's direction."""
    model, gradients = Line(), []
    model.w.register_post_accumulate_grad_hook(lambda w: gradients.append(w.grad.item()))
    progress = train(model, a_batch, squares, replace(FP32, warmup=4), steps=10, quiet=True)
    assert progress.losses[0] == pytest.approx((4 + 1) / 2)
    assert gradients[0] == pytest.approx(2 * (1 - 3) + 2 * 2 * (2 - 3))  # the sum's; it is divided later
    one = Line()
    train(one, a_batch, squares, replace(FP32, warmup=4), steps=1, quiet=True)
    assert one.w.item() == pytest.approx(1 + 0.01 / 4, rel=1e-6)  # a quarter of the peak, upwards


@pytest.mark.parametrize(("clip", "norm"), [(None, 4.0), (0.5, 0.5), (100.0, 4.0)])
def test_clipping(clip, norm, monkeypatch):
    seen, model = [], Line()
    optimizer = optimizers(model, lr=0.1)
    monkeypatch.setattr(optimizer, "step", lambda: seen.append(model.w.grad.norm().item()))
    training_step(model, a_batch(), squares, optimizer, clip=clip)
    assert seen == pytest.approx([norm], rel=1e-5)


def test_schedules_reach_the_optimizer(monkeypatch):
    for schedule, expected in (
        ("linear", [0.5, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 0.1 + 0.9 * 0.75, 0.1 + 0.9 * 0.25, 0.1]),
        ("inverse_sqrt", [0.5, 1, (2 / 3) ** 0.5, 0.5**0.5, 0.4**0.5]),
    ):
        factors = []
        monkeypatch.setattr(Optimizers, "set_factor", lambda _, factor, to=factors: to.append(factor))
        train(Line(), a_batch, squares, replace(FP32, schedule=schedule), steps=5, quiet=True)
        assert factors == pytest.approx(expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.slow
def test_it_learns(precision):
    model = resume_script.make_model()
    config = replace(resume_script.CONFIG, precision=precision, validate_every=None)
    losses = train(model, resume_script.batches, translation_loss, config, steps=40, quiet=True).losses
    assert sum(losses[-5:]) < 0.93 * sum(losses[:5])
    assert {weight.dtype for weight in model.parameters()} == {torch.float32} and not model.training


# Length


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("length", "message"),
    [
        ({}, "steps=None and minutes=None: give one"),
        ({"steps": 3, "minutes": 1.0}, "steps=3 and minutes=1.0: give one"),
        ({"steps": 0}, "steps=0 must be more than 0"),
        ({"steps": -2}, "steps=-2 must be more than 0"),
        ({"minutes": 0.0}, "minutes=0.0 must be more than 0"),
        ({"minutes": -1.0}, "minutes=-1.0 must be more than 0"),
        ({"steps": 2.5}, "steps=2.5 is no whole number"),
        ({"minutes": "1"}, "minutes='1' is no number"),
    ],
)
def test_length_of_a_run(length, message, tmp_path):
    with pytest.raises(ValueError) as error:
        train(Line(), a_batch, squares, FP32, out=tmp_path / "out", **length)
    assert str(error.value).startswith(message) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": 0.0},
        {"warmup": 0},
        {"accumulate": 0},
        {"checkpoint_every": 0},
        {"validate_every": -1},
        {"schedule": "cosines"},
        {"precision": "fp4"},
    ],
)
def test_bad_settings_are_named(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=rf"^(TrainConfig: )?{name}={value!r} must"):
        TrainConfig(**bad)


def test_misspelled_settings_are_corrected():
    with pytest.raises(TypeError, match="TrainConfig has no field 'warm_up'; did you mean 'warmup'"):
        TrainConfig(warm_up=3)
    with pytest.raises(TypeError, match="TrainConfig has no field 'betas'; it has lr, muon_lr, "):
        TrainConfig(betas=3)


def test_precision_is_32_bits_unless_told():
    assert TrainConfig().precision == "fp32" and not TrainConfig().uses_bf16(torch.device("cuda"))


def test_minutes_fix_the_number_of_steps_once(monkeypatch):
    """A clock by which a step takes 1 s, the first five 10 s, and all after the 20th an hour."""
    now, step = 0.0, 0

    def clock():
        return now

    def loss(model, batch):
        nonlocal now, step
        step += 1
        now += 10 if step <= 5 else 1 if step <= 20 else 3600
        return squares(model, batch)

    monkeypatch.setattr(trainer.time, "perf_counter", clock)
    progress = train(Line(), a_batch, loss, FP32, minutes=2.0, quiet=True)
    assert progress.total == progress.step == 20 + (120 - 5 * 10 - 15)


@pytest.mark.parametrize(("seconds", "steps"), [(10, 6), (25, 2), (45, 1), (100, 1)])
def test_a_run_of_few_minutes_ends_in_time(seconds, steps, monkeypatch):
    """One minute, and steps that take a good part of it: as many as fit, but one at least."""
    now = 0.0

    def loss(model, batch):
        nonlocal now
        now += seconds
        return squares(model, batch)

    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now)
    assert train(Line(), a_batch, loss, FP32, minutes=1.0, quiet=True).step == steps


# A device that is behind


class Questions(TorchDispatchMode):
    """Counts how often somebody waits for a number or a size."""

    ASKING = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.is_nonzero)

    def __init__(self):
        super().__init__()
        self.asked = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.asked += function.overloadpacket in self.ASKING
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("muon_lr", [None, 0.02])
def test_a_step_asks_the_device_nothing(muon_lr, monkeypatch):
    """On the way that a GPU takes: forward, backward, clipping, both optimizers."""
    monkeypatch.setattr("txlib.training.losses.CHUNK_TOKENS", {})
    block = BlockConfig.of_sizes(d_model=8, heads=2, d_ff=16, dropout=0.1, norm="rms", position="rotary_half")
    model = GPT(GPTConfig(20, block, layers=2, max_length=8))
    optimizer, windows = optimizers(model, lr=0.01, muon_lr=muon_lr), torch.randint(20, (3, 9))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # the first makes the state
    with Questions() as questions:
        loss, tokens = training_step(model, [windows, windows], window_loss, optimizer, clip=1.0)
    assert questions.asked == 0
    with questions:
        float(loss)
    assert questions.asked == 1 and tokens == 2 * 3 * 8


def test_losses_read_in_arrears_are_the_same(tmp_path, monkeypatch):
    """Also in checkpoints, where the run stops and goes on, and what is written of each step."""
    runs = []
    for behind in (0, 1, 2):
        monkeypatch.setattr(trainer, "LOSS_DELAY_STEPS", {"cpu": behind})
        read = []
        monkeypatch.setattr(trainer.Log, "step", noting(trainer.Log.step, read))
        out, options = tmp_path / str(behind), dict(validate=resume_script.validate, quiet=True, steps=9)
        calls = []

        def dies(model, batch, calls=calls):
            calls.append(1)
            if len(calls) == 17:  # in step 8
                raise SystemExit
            return translation_loss(model, batch)

        with pytest.raises(SystemExit):
            train(resume_script.make_model(), resume_script.batches, dies, resume_script.CONFIG, out=out, **options)
        model = resume_script.make_model()
        progress = train(
            model,
            resume_script.batches,
            translation_loss,
            resume_script.CONFIG,
            out=out,
            resume=True,
            **options,
        )
        rows = [row.split(",") for row in (out / "metrics.csv").read_text().splitlines()]
        known = [(row[:3], row[4]) for row in rows]  # but the seconds
        runs.append((progress.losses, progress.validation, progress.tokens, known, last_weights(out)))
        late = {step - known for step, known in read}
        assert late == {0} if not behind else late == set(range(behind + 1))
    for run in runs[1:]:
        assert run[:4] == runs[0][:4]
        assert all(tensor.equal(runs[0][4][name]) for name, tensor in run[4].items())


def noting(step, read):
    """`Log.step` that also notes how far the run was, and up to where its losses were known."""

    def noted(log, progress):
        if log.logged < len(progress.losses):
            read.append((progress.step, len(progress.losses)))
        step(log, progress)

    return noted


def test_a_loss_that_is_no_number_is_told_by_its_step_though_read_later(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "LOSS_DELAY_STEPS", {"cpu": 1})
    calls = []

    def loss(model, batch):
        calls.append(1)
        total, count = squares(model, batch)
        return (total * float("nan") if len(calls) == 3 else total), count

    with pytest.raises(ValueError, match="the loss became nan in step 3;"):
        train(Line(), a_batch, loss, replace(FP32, checkpoint_every=3), steps=9, out=tmp_path, quiet=True)
    assert not trainer.Checkpoints(tmp_path / "checkpoints").all()  # what is not a number is not saved
    calls.clear()
    with pytest.raises(ValueError, match="the loss became nan in step 3;"):
        train(Line(), a_batch, loss, FP32, steps=9, quiet=True)
    assert len(calls) == 4  # the next step was under way


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nobody_waits_for_a_gpu():
    """torch itself raises an error where a step would."""
    block = BlockConfig.of_sizes(d_model=32, heads=2, d_ff=64, dropout=0.1, norm="rms", position="rotary_half")
    model = GPT(GPTConfig(20, block, layers=2, max_length=8)).cuda()
    optimizer, windows = optimizers(model, lr=0.01, muon_lr=0.02), torch.randint(20, (3, 9))
    training_step(model, [windows.cuda()], window_loss, optimizer, clip=1.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = to_device(windows, torch.device("cuda"))
        loss, tokens = training_step(model, [batch], window_loss, optimizer, clip=1.0)
        numbers = AsyncScalars(loss, tokens)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert numbers.read() == [float(loss), 24]


# Metrics, validation


def test_metrics_csv(tmp_path):
    progress = train(
        Line(),
        a_batch,
        squares,
        replace(FP32, validate_every=2),
        steps=5,
        out=tmp_path,
        quiet=True,
        validate=lambda model: float(model.w),
    )
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "loss", "tokens", "seconds", "validation"]
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5]
    assert [float(row["loss"]) for row in rows] == progress.losses
    assert [int(row["tokens"]) for row in rows] == [2, 4, 6, 8, 10]
    assert [bool(row["validation"]) for row in rows] == [False, True, False, True, True]
    assert [(int(row["step"]), float(row["validation"])) for row in rows if row["validation"]] == progress.validation


def test_validation_sees_averaged_weights_without_dropout_and_changes_nothing():
    seen = []

    def validate(model):
        assert not model.training and not torch.is_grad_enabled()
        torch.rand(7)
        seen.append(model.embedding.weight.clone())
        return 0.0

    plain = replace(resume_script.CONFIG, checkpoint_every=None)
    runs, models = [], []
    for every in (None, 1, 3):
        models.append(resume_script.make_model())
        config = replace(plain, validate_every=every)
        runs.append(
            train(
                models[-1],
                resume_script.batches,
                translation_loss,
                config,
                steps=7,
                validate=validate if every else None,
                quiet=True,
            ).losses
        )
    assert runs[0] == runs[1] == runs[2]
    assert seen[6].equal(models[1].embedding.weight)  # the average, which the model ends with


def test_an_empty_corpus(tmp_path):
    with pytest.raises(ValueError, match="no batches to train on: the corpus is empty"):
        train(Line(), lambda _: [], squares, FP32, steps=3, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_batches_without_labels():
    batch = replace(collate([([5], [6])], 1, 2, 0), labels=torch.full((1, 2), -100))
    with pytest.raises(ValueError, match="no token that counts"):
        train(resume_script.make_model(), lambda _: [batch], translation_loss, FP32, steps=1, quiet=True)


def test_a_loss_that_is_no_number():
    with pytest.raises(ValueError, match=r"the loss became inf in step 1; lower lr=0.01$"):
        train(Line(1e200), a_batch, squares, FP32, steps=3, quiet=True)


@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_named():
    loader = torch.utils.data.DataLoader([1.0, 2.0])
    with pytest.raises(TypeError, match=r"config={'lr': 1} must be a TrainConfig"):
        train(Line(), a_batch, squares, {"lr": 1}, steps=3)
    with pytest.raises(ValueError, match=r"batches is a DataLoader; .* lambda epoch: batches"):
        train(Line(), loader, squares, FP32, steps=3, quiet=True)
    with pytest.raises(ValueError, match=r"gave a Tensor; .* return losses.sum\(\), losses.numel\(\)"):
        train(Line(), a_batch, lambda model, batch: model.w.sum(), FP32, steps=3, quiet=True)
    with pytest.raises(ValueError, match=r"gave losses of shape \(1, 1\); sum them"):
        train(Line(), a_batch, lambda model, batch: (model.w, 1), FP32, steps=3, quiet=True)


def test_any_batches_that_can_be_gone_through(tmp_path):
    """A list, a DataLoader, a generator: the same, and a run goes on in the middle of an epoch."""
    numbers = torch.arange(1.0, 11.0, dtype=torch.float64).view(5, 2)
    as_batches = {
        "list": lambda epoch: [(x, x + epoch) for x in numbers],
        "loader": lambda epoch: torch.utils.data.DataLoader([(x, x + epoch) for x in numbers], batch_size=None),
        "generator": lambda epoch: ((x, x + epoch) for x in numbers),
    }
    losses = {}
    for name, batches in as_batches.items():
        config = replace(FP32, checkpoint_every=8)
        losses[name] = train(Line(), batches, squares, config, steps=12, quiet=True).losses

        def dies(model, batch):
            if batch[1][0] == 9 + 1:  # the second epoch's last, two steps after the checkpoint
                raise SystemExit
            return squares(model, batch)

        with pytest.raises(SystemExit):
            train(Line(), batches, dies, config, steps=12, out=tmp_path / name, quiet=True)
        again = train(Line(), batches, squares, config, steps=12, out=tmp_path / name, resume=True, quiet=True)
        assert again.losses == losses[name]
    assert losses["list"] == losses["loader"] == losses["generator"]


# Stop and go on


def test_resume_without_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="resume needs out"):
        train(Line(), a_batch, squares, FP32, steps=3, resume=True)
    with pytest.raises(CheckpointError, match=r"holds no checkpoint; start the run without resume"):
        train(Line(), a_batch, squares, FP32, steps=3, out=tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()


def test_a_finished_run_resumed_is_the_same(tmp_path):
    first, again = resume_script.make_model(), resume_script.make_model()
    options = dict(steps=4, out=tmp_path, validate=resume_script.validate, quiet=True)
    done = train(first, resume_script.batches, translation_loss, resume_script.CONFIG, **options)
    rows = (tmp_path / "metrics.csv").read_text()
    resumed = train(again, resume_script.batches, translation_loss, resume_script.CONFIG, resume=True, **options)
    assert resumed.losses == done.losses and resumed.validation == done.validation
    assert all(a.equal(b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert (tmp_path / "metrics.csv").read_text() == rows


def test_a_minute_of_work_is_saved_however_few_steps_it_was(tmp_path, monkeypatch):
    """A clock by which a step takes 25 s."""
    now = 0.0

    def loss(model, batch):
        nonlocal now
        now += 25
        return squares(model, batch)

    monkeypatch.setattr(trainer.time, "monotonic", lambda: now)
    saved = []
    save = trainer.State.save
    monkeypatch.setattr(
        trainer.State, "save", lambda self, *more: saved.append(self.progress.step) or save(self, *more)
    )
    train(Line(), a_batch, loss, replace(FP32, checkpoint_every=100), steps=8, out=tmp_path / "a", quiet=True)
    train(Line(), a_batch, loss, FP32, steps=8, out=tmp_path / "b", quiet=True)
    assert saved == [3, 6, 8, 8]


def test_a_folder_with_another_run_is_refused(tmp_path):
    train(Line(), a_batch, squares, FP32, steps=9, out=tmp_path, quiet=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="holds a run; resume"):
        train(Line(), a_batch, squares, FP32, steps=3, out=tmp_path, quiet=True)
    with pytest.raises(ValueError, match="was planned for 9 steps, not 12; extend=True trains it on"):
        train(Line(), a_batch, squares, FP32, steps=12, out=tmp_path, resume=True, quiet=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_resume_with_another_optimizer_or_model(tmp_path):
    options, loss = dict(steps=4, out=tmp_path, quiet=True), translation_loss
    train(resume_script.make_model(), resume_script.batches, loss, resume_script.CONFIG, **options)
    for config in (replace(resume_script.CONFIG, muon_lr=None), replace(resume_script.CONFIG, average=None)):
        with pytest.raises(CheckpointError) as error:
            train(resume_script.make_model(), resume_script.batches, loss, config, resume=True, **options)
        assert "settings" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(CheckpointError):
        train(Line(), a_batch, squares, FP32, resume=True, **options)


def test_resume_with_another_optimizer_of_ones_own(tmp_path):
    options = dict(steps=4, out=tmp_path, quiet=True)
    train(Line(), a_batch, squares, FP32, optimizer=momentum, **options)
    with pytest.raises(CheckpointError, match="other settings, optimizer=SGD, not AdamW; resume with the same"):
        train(Line(), a_batch, squares, FP32, resume=True, **options)


# More steps, other beginnings, other optimizers


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def same_weights(first, second):
    return all(a.equal(b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))


@pytest.mark.parametrize("done", [3, 6])
def test_an_extended_run_is_one_of_that_length(done, tmp_path):
    """With a schedule that doesn't depend on the length; the run was finished before, or stopped."""
    config = replace(resume_script.CONFIG, schedule="inverse_sqrt")
    arguments = resume_script.batches, translation_loss, config
    straight, model, options = resume_script.make_model(), resume_script.make_model(), dict(out=tmp_path, quiet=True)
    expected = train(straight, *arguments, steps=9, quiet=True)

    def dies(*inputs, calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) > 2 * done:
            raise SystemExit
        return translation_loss(*inputs)

    if done == 3:
        with pytest.raises(SystemExit):
            train(model, resume_script.batches, dies, config, steps=6, **options)
    else:
        train(model, *arguments, steps=6, **options)
    model = resume_script.make_model()
    extended = train(model, *arguments, steps=9, extend=True, **options)
    assert extended.losses == expected.losses and extended.total == 9 and same_weights(model, straight)
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 10
    again = train(model, *arguments, steps=9, extend=True, **options)  # nothing left to do
    assert again.losses == expected.losses
    with pytest.raises(ValueError, match="has been trained for 9 steps; steps=8 must be more"):
        train(model, *arguments, steps=8, extend=True, **options)


def test_minutes_can_be_added(tmp_path, monkeypatch):
    """A clock by which a step takes 1 s."""
    now = 0.0

    def loss(model, batch):
        nonlocal now
        now += 1
        return squares(model, batch)

    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now)
    options = dict(out=tmp_path, quiet=True)
    assert train(Line(), a_batch, loss, FP32, minutes=1.0, **options).total == 60
    with pytest.raises(ValueError, match="has been trained for 1 minutes; minutes=0.5 must be more"):
        train(Line(), a_batch, loss, FP32, minutes=0.5, extend=True, **options)
    assert train(Line(), a_batch, loss, FP32, minutes=2.0, extend=True, **options).step == 120


def test_a_run_starts_from_anothers_weights(tmp_path):
    """The averaged ones, which the other run's model ended with; steps, optimizer and average begin anew."""
    config, first = resume_script.CONFIG, resume_script.make_model()
    arguments = resume_script.batches, translation_loss
    train(first, *arguments, config, steps=4, out=tmp_path / "a", quiet=True)
    model, straight = resume_script.make_model(), resume_script.make_model()
    for weight in model.parameters():
        nn.init.zeros_(weight)
    progress = train(model, *arguments, config, steps=3, start_from=tmp_path / "a", out=tmp_path / "b", quiet=True)
    straight.load_state_dict(first.state_dict())
    assert progress.losses == train(straight, *arguments, config, steps=3, quiet=True).losses
    assert same_weights(model, straight)
    resumed = resume_script.make_model()
    train(resumed, *arguments, config, steps=3, out=tmp_path / "b", resume=True, quiet=True)
    assert same_weights(resumed, straight)


def test_contradictory_beginnings(tmp_path):
    options = dict(steps=3, quiet=True)
    with pytest.raises(ValueError, match="extend needs out"):
        train(Line(), a_batch, squares, FP32, extend=True, **options)
    with pytest.raises(ValueError, match="start_from begins a new run, and resume continues one"):
        train(Line(), a_batch, squares, FP32, start_from=tmp_path, resume=True, out=tmp_path, **options)
    with pytest.raises(CheckpointError, match="holds no checkpoint to start from; give the folder of a run"):
        train(Line(), a_batch, squares, FP32, start_from=tmp_path, **options)
    train(resume_script.make_model(), resume_script.batches, translation_loss, FP32, out=tmp_path, **options)
    with pytest.raises(CheckpointError, match="load it into the model it was saved from"):
        train(Line(), a_batch, squares, FP32, start_from=tmp_path, **options)


@pytest.mark.parametrize("make", [lambda model: momentum(model), momentum(Line())], ids=["function", "optimizer"])
def test_an_optimizer_of_ones_own(make, tmp_path):
    """SGD with momentum by hand; its rate is the peak, and a stopped run goes on bit for bit."""
    model = Line()
    if isinstance(make, torch.optim.Optimizer):
        make = momentum(model)
    weights, w, velocity = [], 1.0, 0.0
    config = replace(FP32, warmup=2, clip=None, schedule="inverse_sqrt", checkpoint_every=3)
    model.w.register_post_accumulate_grad_hook(lambda weight: weights.append(weight.item()))
    train(model, a_batch, squares, config, steps=6, optimizer=make, quiet=True)
    for step, weight in enumerate([*weights, model.w.item()]):
        assert weight == pytest.approx(w, rel=1e-12)
        gradient = (2 * (w - 3) + 4 * (2 * w - 3)) / 2
        velocity = 0.9 * velocity + gradient
        w -= 0.01 * min((step + 1) / 2, (2 / (step + 1)) ** 0.5) * velocity

    def dies(model, batch, calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) > 4:
            raise SystemExit
        return squares(model, batch)

    options = dict(steps=6, out=tmp_path, quiet=True)
    with pytest.raises(SystemExit):
        train(Line(), a_batch, dies, config, optimizer=momentum, **options)
    again = Line()
    train(again, a_batch, squares, config, optimizer=momentum(again), resume=True, **options)
    assert again.w.equal(model.w)


@pytest.mark.usefixtures("unchecked")
def test_optimizers_that_cannot_be_used():
    for wrong, error, words in (
        (momentum(Line()), ValueError, "SGD has parameters that the model lacks; make it of model.parameters()"),
        (3, TypeError, "optimizer gave a int; give a torch optimizer, or a function"),
        (lambda model: model, TypeError, "optimizer gave a Line; give"),
    ):
        with pytest.raises(error, match=words):
            train(Line(), a_batch, squares, FP32, steps=1, optimizer=wrong, quiet=True)


def test_dictionaries_are_batches():
    """Nested, as they come from a `DataLoader`."""
    x, y = a_batch()[0]
    batch = {"rows": [x, (y,)], "name": "a"}
    losses = train(
        Line(),
        lambda epoch: torch.utils.data.DataLoader([batch], batch_size=None),
        lambda model, batch: squares(model, (batch["rows"][0], batch["rows"][1][0])),
        FP32,
        steps=3,
        quiet=True,
    ).losses
    assert losses == train(Line(), a_batch, squares, FP32, steps=3, quiet=True).losses


def start(out, steps, *more):
    command = [sys.executable, str(SCRIPT), str(out), str(steps), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "starts\n", process.stderr.read()
    return process


def wait_for_rows(out, rows, process):
    """Until so many steps are done (or the process ended)."""
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        path = Path(out) / "metrics.csv"
        if path.exists() and path.read_text().count("\n") > rows:
            return
        time.sleep(0.005)
    raise AssertionError(process.communicate())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(losses, validation) and weights of a run that nobody stops."""
    out = tmp_path_factory.mktemp("undisturbed")
    output, error = start(out, 30).communicate(timeout=300)
    return json.loads(output), last_weights(out), out


def last_weights(out):
    return read_tensors(sorted((Path(out) / "checkpoints").glob("step-*"))[-1] / "tensors.safetensors")


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_bit_for_bit(tmp_path, undisturbed):
    chance = random.Random(0)
    process, kills = start(tmp_path, 30), 0
    for rows in (4, 11, 19, 24):
        wait_for_rows(tmp_path, rows, process)
        time.sleep(chance.random() * 0.03)  # while it computes, or while it writes
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        process = start(tmp_path, 30, "--resume")
    output, error = process.communicate(timeout=300)
    expected, weights, straight = undisturbed
    assert kills == 4
    assert json.loads(output) == expected
    resumed = last_weights(tmp_path)
    assert resumed.keys() == weights.keys()
    assert all(tensor.equal(weights[name]) for name, tensor in resumed.items())
    rows, straight_rows = (
        [{**row, "seconds": None} for row in csv.DictReader((out / "metrics.csv").read_text().splitlines())]
        for out in (tmp_path, straight)
    )
    assert rows == straight_rows and len(rows) == 30
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, undisturbed):
    process = start(tmp_path, 30)
    wait_for_rows(tmp_path, 7, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode not in (0, None) and "KeyboardInterrupt" in error
    rows = (tmp_path / "metrics.csv").read_text().splitlines()[1:]
    stopped = int(rows[-1].split(",")[0])
    assert f"Stopped after step {stopped}; {tmp_path} goes on with resume." in error
    assert (tmp_path / "checkpoints" / f"step-{stopped:08}").is_dir()
    output, _ = start(tmp_path, 30, "--resume").communicate(timeout=300)
    assert json.loads(output) == undisturbed[0]


def test_ctrl_c_without_out():
    """In this process: the loss itself presses the key."""

    def loss(model, batch):
        signal.raise_signal(signal.SIGINT)
        return squares(model, batch)

    before = signal.getsignal(signal.SIGINT)
    model = Line()
    with pytest.raises(KeyboardInterrupt):
        train(model, a_batch, loss, FP32, steps=3, quiet=True)
    assert model.w.item() != 1  # the step was finished
    assert signal.getsignal(signal.SIGINT) is before
