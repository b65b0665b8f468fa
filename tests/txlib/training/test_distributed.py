"""Several processes train as one does: the same losses and weights, whichever engine, and however they were stopped."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import ranks_script
import resume_script
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from txlib.data import Batch
from txlib.data.batching import BatchDict
from txlib.recipes.translation import translation_loss
from txlib.training import TrainConfig, optimizers, training_step
from txlib.training.checkpoints import Checkpoints
from txlib.training.distributed import DistributedContext, ParallelLoss, full_tensor
from txlib.training.processes import run_ranks

STEPS = 7


def test_rows_are_dealt_out_once_each():
    batch = Batch(*(torch.arange(7 * width).view(7, width) for width in (3, 3, 4, 4)))
    shares = [DistributedContext(rank, 3).shard_batch(batch) for rank in range(3)]
    assert all(counts for _, counts in shares)
    for name in ("input_ids", "labels"):
        rows = [row for share, _ in shares for row in getattr(share, name).tolist()]
        assert sorted(rows) == getattr(batch, name).tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_of_any_batches_each_row_is_dealt_out_once(world, sizes):
    rows = torch.arange(sum(sizes)).split(sizes)
    dealt = []
    for rank in range(world):
        shares = [
            DistributedContext(rank, world).shard_batch({"ids": batch[:, None], "labels": batch}) for batch in rows
        ]
        dealt += [row for share, counts in shares if counts for row in share["labels"].tolist()]
        assert all(share["ids"][:, 0].equal(share["labels"]) and len(share["ids"]) for share, _ in shares)
    assert sorted(dealt) == list(range(sum(sizes)))


def test_a_rank_without_rows_takes_part_and_does_not_count():
    batch = BatchDict(input_ids=torch.arange(4).view(2, 2), labels=torch.tensor([0, 1]))
    share, counts = DistributedContext(2, 3).shard_batch(batch)
    assert not counts and isinstance(share, BatchDict)
    assert share["input_ids"].tolist() == [[0, 1]] and share["labels"].tolist() == [0]


@pytest.mark.parametrize(
    "batch, error, words",
    [
        ((torch.zeros(3, 2), torch.zeros(2)), ValueError, r"\[2, 3\] rows can't be split over 4 ranks"),
        ({}, ValueError, "no rows"),
        ([torch.zeros(2), object()], TypeError, "a batch with a object can't be split"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(batch, error, words):
    with pytest.raises(error, match=words):
        DistributedContext(0, 4).shard_batch(batch)


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match=r"parallel='zero' is unknown; choose 'ddp' or 'fsdp' or 'tp'"):
        TrainConfig(parallel="zero")


def test_a_process_is_alone_unless_torchrun_started_it():
    context = DistributedContext.current()
    assert (
        not context.is_distributed
        and context.is_main
        and context.broadcast("x") == "x"
        and context.all_reduce_sum(1, 2.5, device=torch.device("cpu")).tolist() == [1, 2.5]
    )
    context.barrier()


def run(world: int, out: Path, engine: str, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    script = Path(__file__).with_name("ranks_script.py")
    return subprocess.run(
        [*command, script, out, str(STEPS), engine, *more], capture_output=True, text=True, timeout=600
    )


def check(out: Path, expected) -> None:
    """The run in the folder came to the same as one process."""
    model, progress = expected
    found, validation, tokens = json.loads((out / "losses.json").read_text())
    assert_close(torch.tensor(found), torch.tensor(progress.losses), rtol=2e-6, atol=2e-7)
    assert_close(torch.tensor(validation), torch.tensor(progress.validation), rtol=2e-6, atol=2e-7)
    assert tokens == progress.tokens
    tensors = load_file(out / "weights.safetensors")
    for name, parameter in model.named_parameters():
        assert_close(tensors[name], parameter.detach(), rtol=0, atol=2e-6, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return ranks_script.trained(tmp_path_factory.mktemp("alone") / "run", STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("world, engine", [(3, "ddp"), (2, "fsdp")])
def test_several_processes_train_as_one(world, engine, alone, tmp_path):
    done = run(world, tmp_path / "run", engine)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run", alone)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_killed_process_stops_all_with_one_message_and_the_run_goes_on(engine, alone, tmp_path):
    died = run(2, tmp_path / "run", engine, "--dies")
    assert died.returncode != 0
    said = [line for line in died.stderr.splitlines() if "start all processes again with resume (--resume)" in line]
    assert len(said) == 1, died.stderr
    assert [path.name for path in Checkpoints(tmp_path / "run" / "checkpoints").all()] == ["step-00000003"]
    done = run(2, tmp_path / "run", engine, "--resume")
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run", alone)


def part_of_a_run(rank: int, out: Path, engine: str, calls: int):
    """Trains, and goes on with what is there, until the loss has been asked for so often."""
    left = [None] * calls

    def loss(model, batch):
        if model.training:
            left.pop()
        return translation_loss(model, batch)

    resume = (out / "checkpoints").exists()
    model, progress = ranks_script.trained(out, STEPS, parallel=engine, muon_lr=None, resume=resume, loss=loss)
    if rank == 0:
        ranks_script.write(out, model, progress)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first, then, last",
    [
        ((2, "fsdp"), (1, "ddp"), (2, "ddp")),
        ((2, "ddp"), (3, "fsdp"), (2, "fsdp")),
        ((2, "tp"), (2, "fsdp"), (2, "tp")),
    ],
)
def test_a_run_goes_on_with_other_numbers_of_processes(first, then, last, tmp_path):
    for number, (world, engine) in enumerate([first, then]):
        with pytest.raises(RuntimeError, match="IndexError: pop from empty list"):  # in step 5, then 7
            run_ranks(part_of_a_run, world, tmp_path, engine, 8 - number)
        newest = Checkpoints(tmp_path / "checkpoints").all()[-1]
        assert newest.name == f"step-{3 * number + 3:08}"
        assert (newest / "tensors.safetensors").exists() == (engine == "ddp")
    run_ranks(part_of_a_run, last[0], tmp_path, last[1], 2)
    alone = ranks_script.trained(None, STEPS, muon_lr=None)
    check(tmp_path, alone)


class Sent(TorchDispatchMode):
    """Notes what travels between processes."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.names[function.overloadpacket._qualified_op_name] += 1
        return function(*args, **(kwargs or {}))


def a_step(rank: int, engine: str, sizes: list[int]) -> tuple[Counter, dict]:
    """What is sent in a step of so many ragged batches, and the gradients that it leaves to the optimizer."""
    model, gradients = ranks_script.make_model().double(), {}
    batches = [resume_script.batches(0)[size - 2] for size in sizes]
    loss = ParallelLoss(model, translation_loss, DistributedContext.current(), engine) if engine else translation_loss
    optimizer = optimizers(model, lr=0.0)

    def look(*_):
        gradients.update({name: full_tensor(each.grad).clone() for name, each in model.named_parameters()})

    optimizer.step = look
    context = DistributedContext.current()
    training_step(model, batches, loss, optimizer, context=context)  # engines send more in the first step
    optimizer.zero_grad()
    optimizer.step = lambda: None
    with Sent() as sent:
        training_step(model, batches, loss, optimizer, context=context)
    return sent.names, gradients


@pytest.mark.parametrize("engine, name", [("ddp", "c10d::allreduce_"), ("fsdp", "c10d::_reduce_scatter_base_")])
def test_accumulated_batches_are_sent_once_and_divided_by_the_tokens_of_all(engine, name):
    (once, _), _ = run_ranks(a_step, 2, engine, [4])
    (often, gradients), (_, same) = run_ranks(a_step, 2, engine, [4, 2, 7])
    assert once[name] == often[name] > 0, (once, often)
    _, expected = a_step(0, "", [4, 2, 7])
    for name, gradient in expected.items():
        assert_close(gradients[name], gradient, rtol=1e-9, atol=1e-12, msg=name)
        assert_close(same[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


def messages(rank: int, engine: str) -> list[Counter]:
    """What is sent in runs of so many steps."""
    found = []
    for steps in (2, 5):
        with Sent() as sent:
            ranks_script.trained(None, steps, parallel=engine, muon_lr=None, clip=None, validate_every=None)
        found.append(sent.names)
    return found


@pytest.mark.parametrize("engine", ["fsdp", pytest.param("tp", marks=pytest.mark.slow)])
def test_losses_tokens_and_wishes_of_a_step_travel_together(engine):
    (short, long), _ = run_ranks(messages, 2, engine)
    assert long["c10d::allreduce_"] - short["c10d::allreduce_"] == 3


def flagged(rank: int) -> list[float]:
    """The sum of what the ranks have to say beside the loss."""
    model = ranks_script.make_model()
    batches, context = resume_script.batches(0)[:1], DistributedContext.current()
    numbers = training_step(
        model, batches, translation_loss, optimizers(model, lr=0.0), context=context, flags=lambda: (rank, 1.5)
    )
    return [each.item() for each in numbers[2:]]


def test_flags_are_summed():
    assert run_ranks(flagged, 2) == [[1, 3], [1, 3]]
