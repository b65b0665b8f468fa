"""Checkpoints: whole or not at all, and errors that name the file and the remedy."""

import ast
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import txlib
from txlib.training import CheckpointError
from txlib.training.checkpoints import (
    Checkpoints,
    check_folder,
    consolidate,
    load_weights,
    read_json,
    read_tensors,
    run_lock,
)
from txlib.training.distributed import DistributedContext, full_tensor
from txlib.training.processes import run_ranks

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7), "c": torch.zeros(0)}


def files(folder):
    """All that a folder holds, hidden files too."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_round_trip(tmp_path):
    checkpoints = Checkpoints(tmp_path / "runs")
    state = {"step": 3, "losses": [0.1, 1 / 3, 1e-300], "name": "Ä"}
    transposed = torch.arange(6).view(2, 3).T  # not contiguous
    checkpoints.save(3, TENSORS | {"t": transposed}, state)
    tensors, loaded = checkpoints.load()
    assert loaded == state  # floats bit for bit
    assert tensors.keys() == {*TENSORS, "t"}
    assert all(tensors[name].equal(TENSORS[name]) and tensors[name].dtype == TENSORS[name].dtype for name in TENSORS)
    assert tensors["t"].equal(transposed)


def test_the_newest_is_loaded_and_the_last_k_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (5, 10, 99, 100, 1000):
        checkpoints.save(step, TENSORS, {"step": step})
    assert [path.name for path in checkpoints.all()] == ["step-00000099", "step-00000100", "step-00001000"]
    assert checkpoints.load()[1] == {"step": 1000}


@pytest.mark.parametrize("breaks", ["save_file", "fsync", "rename"])
@pytest.mark.parametrize("step", [2, 1])  # 1: over one that is there
def test_a_crash_while_writing_leaves_what_was_there(tmp_path, monkeypatch, breaks, step):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, TENSORS, {"step": 1})
    before = files(tmp_path)

    def crash(*_, **__):
        raise OSError("disk full")

    def half_a_file(tensors, path):
        Path(path).write_bytes(b"half")
        crash()

    def no_last_rename(path, target, rename=Path.rename):
        return crash() if path.name.endswith(".partial") else rename(path, target)

    with monkeypatch.context() as patch:
        if breaks == "save_file":
            patch.setattr(safetensors.torch, "save_file", half_a_file)
        elif breaks == "fsync":
            patch.setattr(os, "fsync", crash)
        else:
            patch.setattr(Path, "rename", no_last_rename)
        with pytest.raises(CheckpointError, match=r"cannot be written \(disk full\); make room"):
            checkpoints.save(step, {"new": torch.ones(3)}, {"step": step, "new": True})
    assert files(tmp_path) == before
    tensors, state = checkpoints.load()
    assert state == {"step": 1} and tensors["a"].equal(TENSORS["a"])
    checkpoints.save(step, TENSORS, {"step": step, "again": True})
    assert checkpoints.load()[1] == {"step": step, "again": True}
    assert not [name for name in files(tmp_path) if name.startswith(".")]


def test_what_a_killed_run_left_half_written_is_not_loaded_and_goes(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, TENSORS, {"step": 1})
    (tmp_path / ".step-00000002.partial").mkdir()
    (tmp_path / ".step-00000002.partial" / "tensors.safetensors").write_bytes(b"half")
    assert checkpoints.load()[1] == {"step": 1}
    checkpoints.save(3, TENSORS, {"step": 3})
    assert {name.split("/")[0] for name in files(tmp_path)} == {"step-00000001", "step-00000003"}


def test_state_that_json_cannot_hold_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        Checkpoints(tmp_path).save(1, TENSORS, {"x": object()})
    assert files(tmp_path) == []


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError) as error:
        Checkpoints(tmp_path / "none").load()
    assert one_line(error) == f"{tmp_path / 'none'} holds no checkpoint; start the run without resume"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def empty(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(bytes(range(256)) * 4)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) - 5] ^= 1  # the last tensor's, or of a digit: still a sound file
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [truncate, empty, garbage, flip_a_bit, Path.unlink])
def test_damaged_checkpoints(tmp_path, name, damage):
    newest = Checkpoints(tmp_path).save(1, TENSORS, {"step": 1})
    damage(newest / name)
    with pytest.raises(CheckpointError) as error:
        Checkpoints(tmp_path).load()
    message = one_line(error)
    assert str(newest / name) in message and f"delete {newest}" in message
    assert ("is missing" if damage is Path.unlink else "is cut off or damaged") in message


def test_a_full_disk_is_one_line(tmp_path):
    """A file may grow to 100 kB here, which stops the writing as a full disk does."""
    code = (
        "import resource, signal, sys, torch\n"
        "from txlib.training.checkpoints import Checkpoints\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "checkpoints = Checkpoints(sys.argv[1])\n"
        "checkpoints.save(1, {'a': torch.ones(3)}, {})\n"
        "try:\n"
        "    checkpoints.save(2, {'a': torch.ones(99_999)}, {})\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (said.returncode, said.stdout.count("\n")) == (0, 1), said.stderr
    assert said.stdout.startswith(f"{tmp_path}/step-00000002 cannot be written (") and "make room" in said.stdout
    assert Checkpoints(tmp_path).load()[0]["a"].equal(torch.ones(3))
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000001"}


def test_a_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run" / "one"):
        with pytest.raises(ValueError, match=f"{tmp_path}/file is a file; choose another"):
            check_folder(folder)
    check_folder(tmp_path / "new" / "run")


def test_one_process_at_a_time(tmp_path):
    code = (
        "import sys, time\n"
        "from txlib.training.checkpoints import run_lock\n"
        "with run_lock(sys.argv[1]):\n"
        "    print('inside', flush=True)\n"
        "    time.sleep(300)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "inside\n"
        with pytest.raises(ValueError, match=f"another process is at work in {tmp_path}; wait"), run_lock(tmp_path):
            pass
    finally:
        other.kill()
        other.wait()
    with run_lock(tmp_path), run_lock(tmp_path):  # a killed process holds nothing; one's own lock opens to oneself
        pass
    assert not list(tmp_path.iterdir())


def test_json_that_is_no_object(tmp_path):
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(CheckpointError, match="config.json"):
        read_json(tmp_path / "config.json")


def test_missing_files(tmp_path):
    for read, name in ((read_tensors, "model.safetensors"), (read_json, "config.json")):
        with pytest.raises(CheckpointError) as error:
            read(tmp_path / name)
        assert one_line(error).startswith(f"{tmp_path / name} is missing; train first")


def test_weights_of_another_model():
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cases = [
        ({"weight": torch.ones(2, 3)}, "x lacks bias (1 missing, 0 left over); load it into the model it was"),
        ({**before, "gain": torch.ones(2)}, "x has gain, which the model lacks (0 missing, 1 left over)"),
        ({"w": torch.ones(2, 3), "b": torch.ones(2)}, "x lacks bias (2 missing, 2 left over)"),
        ({"weight": torch.ones(2, 4), "bias": torch.ones(2)}, "x: weight has shape (2, 4), the model's is (2, 3); use"),
    ]
    for tensors, message in cases:
        with pytest.raises(CheckpointError) as error:
            load_weights(model, tensors, "x")
        assert one_line(error).startswith(message)
        assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    load_weights(model, {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "x")
    assert model.weight.eq(1).all() and not model.bias.any()


def test_a_checkpoint_is_plain_json_and_safetensors(tmp_path):
    path = Checkpoints(tmp_path).save(1, TENSORS, {"step": 1})
    assert files(path) == ["SHA256SUMS", "state.json", "tensors.safetensors"]
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=path).returncode == 0
    assert json.loads((path / "state.json").read_text()) == {"step": 1}
    assert safetensors.torch.load_file(path / "tensors.safetensors").keys() == TENSORS.keys()


WHOLE = {
    "odd": torch.arange(15.0).view(5, 3),
    "short": torch.ones(1, 4),  # the second of two ranks has nothing of it
    "half": torch.randn(8).bfloat16(),
    "by column": torch.randn(3, 7),
    "step": torch.tensor(3.0),
    "random": torch.arange(7, dtype=torch.uint8),
}


def shares(world: int) -> dict:
    """What a rank of so many holds of them; the last two in whole."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (world,))
    cut = {name: Shard(int(name == "by column")) for name in list(WHOLE)[:4]}
    return WHOLE | {name: distribute_tensor(WHOLE[name], mesh, [how]) for name, how in cut.items()}


def written_by_two(rank: int, folder: Path, full: bool = False) -> str:
    """Saves what is shared by two; what went wrong comes back."""
    tensors, context = shares(2), DistributedContext.current()
    if full and rank == 1:
        limit = (200, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)  # bytes of a file, which stops the writing as a full disk does
    try:
        Checkpoints(folder).save(3, tensors, {"step": 3}, context)
    except CheckpointError as error:
        return str(error)
    return ""


def read_by_three(rank: int, folder: Path) -> None:
    """Reads it back in shares of three ranks."""
    own = shares(3)
    tensors, state = Checkpoints(folder).load(lambda name, shape, dtype: torch.empty_like(own[name]))
    assert state == {"step": 3}
    for name, tensor in tensors.items():
        assert type(tensor) is type(own[name]) and full_tensor(tensor).equal(WHOLE[name]), name


def test_shares_are_written_by_those_who_have_them_and_read_by_any_number(tmp_path):
    run_ranks(written_by_two, 2, tmp_path)
    step = tmp_path / "step-00000003"
    assert len(list(step.glob("*.safetensors"))) == 2
    assert sum(path.stat().st_size for path in step.glob("*.safetensors")) < 3000  # nothing twice, but for the headers
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=step).returncode == 0
    run_ranks(read_by_three, 3, tmp_path)
    tensors, state = Checkpoints(tmp_path).load()
    assert state == {"step": 3} and tensors.keys() == WHOLE.keys()
    assert all(tensors[name].equal(WHOLE[name]) and tensors[name].dtype == WHOLE[name].dtype for name in WHOLE)
    consolidate(step)
    consolidate(step)  # nothing left to do
    assert files(step) == ["SHA256SUMS", "state.json", "tensors.safetensors"]
    again, state = Checkpoints(tmp_path).load()
    assert state == {"step": 3} and all(again[name].equal(WHOLE[name]) for name in WHOLE)


def test_a_missing_share_is_named(tmp_path):
    run_ranks(written_by_two, 2, tmp_path)
    second = sorted((tmp_path / "step-00000003").glob("*.safetensors"))[1]
    for damage, words in ((flip_a_bit, "is cut off or damaged"), (Path.unlink, "is missing")):
        damage(second)
        with pytest.raises(CheckpointError, match=f"{re.escape(str(second))} {words}.*delete {tmp_path}/step-00000003"):
            Checkpoints(tmp_path).load()


def test_where_one_rank_has_no_room_no_rank_leaves_a_checkpoint(tmp_path):
    said = run_ranks(written_by_two, 2, tmp_path, True)
    assert all("cannot be written (File too large); make room" in each for each in said), said
    assert files(tmp_path) == []


def test_nothing_in_the_library_unpickles():
    sources = [path for path in Path(txlib.__file__).parent.rglob("*.py")]
    assert len(sources) > 20
    for path in sources:
        if path.name == "processes.py":  # talks to processes that it has started itself, and reads no file
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Attribute):
                names = {ast.unparse(node)}
            else:
                continue
            assert not names & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "torch.load"}, path
