"""Checkpoints: tensors in safetensors, the rest in JSON, written whole or not at all. Nothing is ever unpickled.

Where each of several processes holds its share of the tensors only, each writes that, by torch's distributed
checkpoints; any number of processes reads them again, one included.
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

TENSORS = "tensors.safetensors"  # where one process has all of them
SUMS = "SHA256SUMS"  # as `sha256sum` writes and checks them


class CheckpointError(ValueError):
    """A checkpoint is missing, broken or of another model; the message says which and what to do."""


class Checkpoints:
    """A folder of numbered checkpoints, of which the last few are kept.

    Args:
        folder: holds one folder `step-00001234` for each.
        keep: how many.
    """

    def __init__(self, folder: Path | str, keep: int = 2):
        self.folder, self.keep = Path(folder), keep

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*"))

    def save(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], context: DistributedContext = SINGLE_PROCESS
    ) -> Path:
        """Write one, then drop those that are too old. All ranks call it, where each holds a share of tensors."""
        path = self.folder / f"step-{step:08}"
        with atomic_directory(path, sums=True, context=context) as folder:
            if any(map(is_sharded, tensors.values())):
                write_shards(folder, tensors)
            else:
                write_tensors(folder / TENSORS, tensors)
            if context.is_main:
                write_json(folder / "state.json", state)
        if context.is_main:
            left_by_killed_runs = self.folder.glob(".step-*")
            for old in (*left_by_killed_runs, *self.all()[: -self.keep]):
                shutil.rmtree(old)
        return path

    def load(self, like: "Like | None" = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and state of the newest. All ranks call it.

        Args:
            like: makes the tensor, of which this process may hold a share only, that one of this name, shape and dtype
                is read into; all of it in the CPU's memory unless given, and where all tensors lie in one file.

        Raises:
            CheckpointError: when there is none, or it is broken.
        """
        if not self.all():
            raise CheckpointError(f"{self.folder} holds no checkpoint; start the run without resume")
        newest, context = self.all()[-1], DistributedContext.current()
        try:
            if context.is_main:
                verify(newest)
            context.barrier()
            one_file = (newest / TENSORS).exists()
            tensors = read_tensors(newest / TENSORS) if one_file else read_shards(newest, like)
            return tensors, read_json(newest / "state.json")
        except CheckpointError as error:
            raise CheckpointError(f"{error}; delete {newest} to go on from the one before it") from None


@contextmanager
def atomic_directory(
    folder: Path, *, sums: bool = False, context: DistributedContext = SINGLE_PROCESS
) -> Iterator[Path]:
    """A folder to write files into, which takes the place of `folder` only when all of them are complete and on the
    disk; after an error it is gone, and what was there before stays.

    Args:
        sums: add a file with their checksums, for `verify`.
        context: the processes that write files into it, together.

    Raises:
        CheckpointError: when something cannot be written: the disk is full, say.
    """
    partial, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("partial", "old"))
    try:
        with writing(folder):
            if context.is_main:
                shutil.rmtree(partial, ignore_errors=True)  # a killed run left it
                partial.mkdir(parents=True)
            context.barrier()
            yield partial
            context.barrier()
            own = sorted(partial.iterdir())[context.rank :: context.world_size]
            lines = [f"{digest(path)}  {path.name}\n" for path in own if sums]
            for path in own:
                flush(path)
            lines = sum(context.all_gather(lines), [])
            if context.is_main:
                if sums:
                    (partial / SUMS).write_text("".join(lines), encoding="utf-8")
                    flush(partial / SUMS)
                if folder.exists():
                    shutil.rmtree(old, ignore_errors=True)
                    folder.rename(old)
                partial.rename(folder)
                flush(folder.parent)
            context.barrier()
    finally:
        if context.is_main:
            if old.exists() and not folder.exists():  # the new one could not take its place
                old.rename(folder)
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says when a file cannot be written, as one line with a remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{path} cannot be written ({reason}); make room, or choose another folder") from None


def verify(folder: Path) -> None:
    """Compare the files of a `atomic_directory` with their checksums.

    Raises:
        CheckpointError: naming the first that is missing or not what was written.
    """
    sums = folder / SUMS
    if not sums.is_file():
        raise CheckpointError(f"{sums} is missing; copy the whole folder again, or start another run")
    for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; copy the whole folder again, or start another run")
        if digest(path) != expected:
            raise CheckpointError(f"{path} is cut off or damaged: its checksum is another; copy it again")


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_folder(folder: Path | str) -> None:
    """Refuse what cannot be a folder to write into, before anything slow.

    Raises:
        ValueError: when there is a file in its place, or no permission.
    """
    folder = Path(folder)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"{folder} cannot be a run's folder: {there} is a file; choose another")
    if not os.access(there, os.W_OK):
        raise ValueError(f"{folder} cannot be a run's folder: {there} may not be written to; choose another")


HELD: set[Path] = set()  # folders whose lock this process has


@contextmanager
def run_lock(folder: Path | str) -> Iterator[None]:
    """Inside, no other process is at work in the folder, which is there. The lock ends with the process, however that
    ends. Windows has no such lock.

    Raises:
        ValueError: another process has it.
    """
    folder = Path(folder).resolve()
    if os.name == "nt" or folder in HELD:
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is at work in {folder}; wait until it ends, or stop it") from None
        HELD.add(folder)
        yield
    finally:
        HELD.discard(folder)
        os.close(handle)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file.

    Raises:
        OSError: when there is no room, say.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None


@contextmanager
def quiet_checkpoints() -> Iterator[None]:
    """Inside, torch's distributed checkpoints raise the errors of any of the ranks as what they are."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that a single process is alone
            yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


Like = Callable[[str, torch.Size, torch.dtype], Tensor]


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write safetensors files, each rank one with its shares. All ranks call it.

    Raises:
        OSError: when there is no room, say.
    """
    from torch.distributed import checkpoint

    with quiet_checkpoints():
        checkpoint.save(
            dict(tensors), storage_writer=checkpoint.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        )


def read_shards(folder: Path, like: Like | None = None) -> dict[str, Tensor]:
    """What `write_shards` wrote, by whatever number of ranks; all that are here call it.

    Args:
        like: see `Checkpoints.load`.

    Raises:
        CheckpointError: when there is nothing, or a part is missing.
    """
    from torch.distributed import checkpoint

    like = like or (lambda name, shape, dtype: torch.empty(shape, dtype=dtype))
    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    written: dict[str, Any] = reader.read_metadata().state_dict_metadata
    if not written:
        raise CheckpointError(f"{folder} holds no tensors; copy it again or train again")
    tensors = {name: like(name, each.size, each.properties.dtype) for name, each in written.items()}
    with quiet_checkpoints():
        checkpoint.load(tensors, storage_reader=reader)
    return tensors


def consolidate(folder: Path | str) -> None:
    """Turn a checkpoint of shares into one of a single file, `tensors.safetensors`, as one process writes it.

    Raises:
        CheckpointError: when it is broken.
    """
    folder = Path(folder)
    verify(folder)
    if (folder / TENSORS).exists():
        return
    tensors, state = read_shards(folder), read_json(folder / "state.json")
    with atomic_directory(folder, sums=True) as partial:
        write_tensors(partial / TENSORS, tensors)
        write_json(partial / "state.json", state)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file for people to read."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: after a power cut they are still there."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders, and needs no such call
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

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
    """The content of a JSON file.

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


def load_weights(model: nn.Module, tensors: dict[str, Tensor], where: Path | str) -> None:
    """Put tensors into a model, all of them and no others.

    Raises:
        CheckpointError: naming what is missing, left over, or of another shape.
    """
    own = model.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        what = f"lacks {missing[0]}" if missing else f"has {extra[0]}, which the model lacks"
        raise CheckpointError(
            f"{where} {what} ({len(missing)} missing, {len(extra)} left over); load it into the model it was saved from"
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise CheckpointError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, the model's is {tuple(own[name].shape)}; "
                "use the sizes that it was trained with"
            )
    model.load_state_dict({name: distribute_like(tensor, own[name]) for name, tensor in tensors.items()})
