"""Sealed kernels that run side by side, and what one of them prints."""

import ctypes
import platform

import pytest
from jupyter_client.manager import start_new_kernel

from txlib.grading.sandbox import JUPYTER, Limits, Nursery
from txlib.grading.sandbox.syscall_numbers import numbers

LIMITS = Limits(memory_mb=400, cpu_seconds=60, processes=64, disk_mb=20)
JOIN_SESSION_KEYRING = 1


class SealedKernel:
    """One sealed kernel under a warm parent, and what its cells print."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="sealed", startup_timeout=60)

    def run(self, code: str, timeout: int = 10) -> str:
        """What the code prints, or the error that it raises."""
        said: list[str] = []

        def note(message: dict) -> None:
            said.append(message["content"].get("text") or message["content"].get("ename") or "")

        self.client.execute_interactive(code, timeout=timeout, output_hook=note)
        return "".join(said).strip()

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def warm():
    """A warm parent, started by a process that has a session keyring as a login shell has one."""
    call = numbers(platform.machine()).get("keyctl")
    if call is not None:
        ctypes.CDLL(None).syscall(call, JOIN_SESSION_KEYRING, None)
    with pytest.MonkeyPatch.context() as patch, Nursery(["numpy", "torch"]) as nursery:
        patch.setenv("TXLIB_NURSERY", str(nursery.address))
        patch.setenv("JUPYTER_PATH", str(JUPYTER))
        patch.setenv("TXLIB_LIMITS", LIMITS.to_json())
        yield nursery


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
