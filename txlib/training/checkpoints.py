"""Checkpoints: tensors in safetensors, the rest in JSON, written completely or not at all. Nothing is ever unpickled.

When the tensors are sharded over processes, each process writes its shards by torch's distributed checkpoints. Any
number of processes, also a single one, can read them.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.training.distributed import SINGLE_PROCESS, DistributedContext, distribute_like, is_sharded

TENSORS_FILE = "tensors.safetensors"  # of a checkpoint that is not sharded
CHECKSUMS_FILE = "SHA256SUMS"  # as `sha256sum` writes and checks it


class CheckpointError(ValueError):
    """A checkpoint is missing, broken or of another model; the message says which and what to do."""


class Checkpoints:
    """A folder of numbered checkpoints, of which the last few are kept.

    Args:
        folder: holds a folder such as `step-00001234` for each checkpoint.
        keep: how many checkpoints to keep.
    """

    def __init__(self, folder: Path | str, keep: int = 2):
        self.folder, self.keep = Path(folder), keep

    def all(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*"))

    def save(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], context: DistributedContext = SINGLE_PROCESS
    ) -> Path:
        """Write a checkpoint, then delete those that are too old. With sharded tensors every rank must call this."""
        path = self.folder / f"step-{step:08}"
        with atomic_directory(path, checksums=True, context=context) as folder:
            if any(map(is_sharded, tensors.values())):
                write_shards(folder, tensors)
            else:
                write_tensors(folder / TENSORS_FILE, tensors)
            if context.is_main:
                write_json(folder / "state.json", state)
        if context.is_main:
            partial = self.folder.glob(".step-*")  # left by killed runs
            for path_to_delete in (*partial, *self.all()[: -self.keep]):
                shutil.rmtree(path_to_delete)
        return path

    def load(self, allocate: "Allocate | None" = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and state of the newest checkpoint. Every rank must call this.

        Args:
            allocate: makes the tensor, sharded or not, that a tensor of this name, shape and dtype is read into. By
                default it is a complete tensor on the CPU; so are the tensors of a checkpoint that is not sharded.

        Raises:
            CheckpointError: when there is no checkpoint, or it is broken.
        """
        if not self.all():
            raise CheckpointError(f"{self.folder} holds no checkpoint; start the run without resume")
        newest, context = self.all()[-1], DistributedContext.current()
        try:
            if context.is_main:
                verify(newest)
            context.barrier()
            one_file = (newest / TENSORS_FILE).exists()
            tensors = read_tensors(newest / TENSORS_FILE) if one_file else read_shards(newest, allocate)
            return tensors, read_json(newest / "state.json")
        except CheckpointError as error:
            raise CheckpointError(f"{error}; delete {newest} to go on from the one before it") from None


@contextmanager
def atomic_directory(
    folder: Path, *, checksums: bool = False, context: DistributedContext = SINGLE_PROCESS
) -> Iterator[Path]:
    """Yield a temporary folder, which replaces `folder` when all its files are complete and on the disk. After an error
    it is deleted, and the previous content of `folder` stays.

    Args:
        checksums: add a file with the checksums of the others, for `verify`.
        context: the processes that write files into it together.

    Raises:
        CheckpointError: when something cannot be written, because the disk is full, for example.
    """
    partial, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("partial", "old"))
    try:
        with reporting_write_errors(folder):
            if context.is_main:
                shutil.rmtree(partial, ignore_errors=True)  # a killed run left it
                partial.mkdir(parents=True)
            context.barrier()
            yield partial
            context.barrier()
            paths = sorted(partial.iterdir())[context.rank :: context.world_size]
            lines = [f"{digest(path)}  {path.name}\n" for path in paths if checksums]
            for path in paths:
                flush(path)
            lines = sum(context.all_gather(lines), [])
            if context.is_main:
                if checksums:
                    (partial / CHECKSUMS_FILE).write_text("".join(lines), encoding="utf-8")
                    flush(partial / CHECKSUMS_FILE)
                if folder.exists():
                    shutil.rmtree(old, ignore_errors=True)
                    folder.rename(old)
                partial.rename(folder)
                flush(folder.parent)
            context.barrier()
    finally:
        if context.is_main:
            if old.exists() and not folder.exists():  # the new folder could not be moved
                old.rename(folder)
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Inside, raise what the system says about a file that cannot be written as one sentence with a remedy.

    Raises:
        CheckpointError: when the system raises OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{path} cannot be written ({reason}); make room, or choose another folder") from None


def verify(folder: Path) -> None:
    """Compare the files of an `atomic_directory` with their checksums.

    Raises:
        CheckpointError: naming the first file that is missing or damaged.
    """
    checksums = folder / CHECKSUMS_FILE
    if not checksums.is_file():
        raise CheckpointError(f"{checksums} is missing; copy the whole folder again, or start another run")
    for line in checksums.read_text(encoding="utf-8", errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; copy the whole folder again, or start another run")
        if digest(path) != expected:
            raise CheckpointError(f"{path} is cut off or damaged: its checksum differs; copy it again")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_folder(folder: Path | str) -> None:
    """Check that a run can write into a folder, before anything slow.

    Raises:
        ValueError: when it is a file, or may not be written to.
    """
    folder = Path(folder)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{folder} cannot be a run's folder: {existing} is a file; choose another")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"{folder} cannot be a run's folder: {existing} may not be written to; choose another")


LOCKED: set[Path] = set()  # folders that this process has locked


@contextmanager
def run_lock(folder: Path | str) -> Iterator[None]:
    """Inside, lock an existing folder against other processes. The lock ends with the process, even when that is
    killed. Windows has no such lock.

    Raises:
        ValueError: when another process has locked it.
    """
    folder = Path(folder).resolve()
    if os.name == "nt" or folder in LOCKED:
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is at work in {folder}; wait until it ends, or stop it") from None
        LOCKED.add(folder)
        yield
    finally:
        LOCKED.discard(folder)
        os.close(handle)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file.

    Raises:
        OSError: when the disk is full, for example.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None


@contextmanager
def quiet_checkpoints() -> Iterator[None]:
    """Inside, torch's distributed checkpoints raise the first error of any rank itself, without a wrapper."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is a single process
            yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


Allocate = Callable[[str, torch.Size, torch.dtype], Tensor]


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write safetensors files, one for the shards of each rank. Every rank must call this.

    Raises:
        OSError: when the disk is full, for example.
    """
    from torch.distributed import checkpoint

    with quiet_checkpoints():
        checkpoint.save(
            dict(tensors), storage_writer=checkpoint.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        )


def read_shards(folder: Path, allocate: Allocate | None = None) -> dict[str, Tensor]:
    """Return what `write_shards` wrote, by any number of ranks. Every rank must call this.

    Args:
        allocate: see `Checkpoints.load`.

    Raises:
        CheckpointError: when there are no tensors, or some are missing.
    """
    from torch.distributed import checkpoint

    allocate = allocate or (lambda name, shape, dtype: torch.empty(shape, dtype=dtype))
    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    metadata: dict[str, Any] = reader.read_metadata().state_dict_metadata
    if not metadata:
        raise CheckpointError(f"{folder} holds no tensors; copy it again or train again")
    tensors = {name: allocate(name, stored.size, stored.properties.dtype) for name, stored in metadata.items()}
    with quiet_checkpoints():
        checkpoint.load(tensors, storage_reader=reader)
    return tensors


def consolidate(folder: Path | str) -> None:
    """Turn a sharded checkpoint into one with a single file, `tensors.safetensors`, as one process writes it.

    Raises:
        CheckpointError: when the checkpoint is broken.
    """
    folder = Path(folder)
    verify(folder)
    if (folder / TENSORS_FILE).exists():
        return
    tensors, state = read_shards(folder), read_json(folder / "state.json")
    with atomic_directory(folder, checksums=True) as partial:
        write_tensors(partial / TENSORS_FILE, tensors)
        write_json(partial / "state.json", state)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an indented JSON file."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, so that they survive a power cut."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders, and needs no such call
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Raises:
        CheckpointError: when it is missing or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise CheckpointError(f"{path} is missing; train first, or give the folder of a finished run")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut off or damaged ({error}); copy it again or train again") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file.

    Raises:
        CheckpointError: when it is missing or broken.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; train first, or give the folder of a finished run")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is cut off or damaged ({error}); copy it again or train again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not an object; copy it again or train again")
    return content


def load_weights(model: nn.Module, tensors: dict[str, Tensor], source: Path | str) -> None:
    """Load tensors into a model, which must have the same names and shapes.

    Raises:
        CheckpointError: naming a tensor that is missing, left over, or of another shape.
    """
    weights = model.state_dict()
    missing, extra = sorted(weights.keys() - tensors.keys()), sorted(tensors.keys() - weights.keys())
    if missing or extra:
        problem = f"lacks {missing[0]}" if missing else f"has {extra[0]}, which the model lacks"
        raise CheckpointError(
            f"{source} {problem} ({len(missing)} missing, {len(extra)} left over); load it into the model it was saved "
            "from"
        )
    for name, tensor in tensors.items():
        if tensor.shape != weights[name].shape:
            raise CheckpointError(
                f"{source}: {name} has shape {tuple(tensor.shape)}, the model's is {tuple(weights[name].shape)}; "
                "use the sizes that it was trained with"
            )
    model.load_state_dict({name: distribute_like(tensor, weights[name]) for name, tensor in tensors.items()})
