"""Sealed kernels that run side by side, and what one of them prints."""

import ctypes
import platform

import pytest

from txgrade.sandbox import Limits, Zygote
from txgrade.sandbox.kernel import Cell, Kernel
from txgrade.sandbox.syscall_numbers import numbers

LIMITS = Limits(memory_mb=400, cpu_seconds=60, processes=64, disk_mb=20)
JOIN_SESSION_KEYRING = 1


class SealedKernel:
    """One sealed kernel under a zygote, and what its cells print."""

    def __init__(self) -> None:
        self.kernel, self.number = Kernel(LIMITS), 0

    def run(self, code: str, timeout: int = 10) -> str:
        """What the code prints, or the error that it raises."""
        cell, self.number = Cell(), self.number + 1
        self.kernel.run(code, self.number, timeout, cell)
        return "".join(output.get("text") or output.get("ename") or "" for output in cell.outputs).strip()

    def stop(self) -> None:
        self.kernel.close()


@pytest.fixture(scope="module")
def warm():
    """A zygote, started by a process that has a session keyring as a login shell has one."""
    call = numbers(platform.machine()).get("keyctl")
    if call is not None:
        ctypes.CDLL(None).syscall(call, JOIN_SESSION_KEYRING, None)
    with pytest.MonkeyPatch.context() as patch, Zygote(["numpy", "torch"]) as zygote:
        patch.setenv("TXGRADE_ZYGOTE", str(zygote.address))
        yield zygote


@pytest.fixture(scope="module")
def pair(warm):
    """Two kernels at the same time: one that sends, one that receives."""
    kernels = SealedKernel(), SealedKernel()
    yield kernels
    for kernel in kernels:
        kernel.stop()


@pytest.fixture(scope="module")
def kernel(pair):
    return pair[0]
