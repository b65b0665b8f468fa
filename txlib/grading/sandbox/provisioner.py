"""How Jupyter starts the kernel `sealed`: papermill, nbval, nbclient and JupyterLab all come through here.

With `$TXLIB_NURSERY` a kernel is forked from the warm parent at that address; without, it gets an outer sandbox and
a parent of its own. `$TXLIB_LIMITS` bounds it. Below the level `sealed` it does not start, unless
`$TXLIB_TRUST_SUBMISSIONS` is 1: then it is a plain process with limits, in a home of its own.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerBase

from txlib.grading.sandbox import enclosure, leftovers
from txlib.grading.sandbox.limits import Limits
from txlib.grading.sandbox.nursery import Lease, Nursery, SandboxError, start_kernel
from txlib.grading.sandbox.plain import start_plain
from txlib.grading.sandbox.probe import probe

PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "hb_port": 4, "control_port": 5}
MAX_PATH = 107  # bytes of a socket's path


class SealedProvisioner(KernelProvisionerBase):
    """Starts, watches and kills one sealed kernel."""

    reason = ""  # why the kernel ended, where that is known
    _lease: Lease | None = None
    _own: Nursery | None = None
    _plain: subprocess.Popen | None = None
    _folder: Path | None = None

    @property
    def has_process(self) -> bool:
        return self._lease is not None or self._plain is not None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Choose where the kernel's sockets lie, before it is started."""
        address = os.environ.get("TXLIB_NURSERY")
        if address is None and probe().level == "sealed":
            self._own = Nursery()
            self._own.start()
            address = str(self._own.address)
        if address is None:
            self._folder = leftovers.make_folder()
        else:
            self._folder = Path(address).parent / "kernels" / uuid4().hex[:10]
            self._folder.mkdir()
        self.address = address
        path = f"{self._folder}/s"
        if len(path) + 2 > MAX_PATH:
            raise SandboxError(f"{path} is too long for a socket: set TMPDIR to a shorter folder")
        manager: Any = self.parent
        manager.transport, manager.ip = "ipc", path
        for name, number in PORTS.items():
            setattr(manager, name, number)
        return await super().pre_launch(cmd=["sealed"], **kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        manager: Any = self.parent
        outside = manager.get_connection_info(session=False)
        key = outside["key"]
        inside = {name: value.decode() if isinstance(value, bytes) else value for name, value in outside.items()}
        limits, folder = Limits.from_environment(), self._folder
        assert folder is not None, "pre_launch makes it"
        if self.address is not None:
            inside["ip"] = f"{enclosure.KERNEL}/s"
            (folder / "connection.json").write_text(json.dumps(inside))
            self._lease = start_kernel(self.address, "kernel", folder.name, limits)
        else:
            (folder / "connection.json").write_text(json.dumps(inside))
            self._plain = start_plain(folder / "home", limits, str(folder / "connection.json"))
        return outside | {"key": key}

    async def poll(self) -> int | None:
        """None while the kernel lives."""
        if self._plain is not None:
            return self._plain.poll()
        if self._lease is None or self.reason:
            return 1
        message = self._lease.read(0)
        if message is None:
            return None
        self.reason = message.get("ended", "")
        return 1

    async def wait(self) -> int | None:
        while (status := await self.poll()) is None:
            await asyncio.sleep(0.05)
        return status

    async def send_signal(self, signum: int) -> None:
        if signum == signal.SIGKILL:
            await self.kill()  # an interrupt is a message (see kernel.json)

    async def kill(self, restart: bool = False) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        if self._plain is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._plain.pid, signal.SIGKILL)
            self._plain.wait()

    async def terminate(self, restart: bool = False) -> None:
        await self.kill(restart)

    async def cleanup(self, restart: bool = False) -> None:
        await self.kill(restart)
        if self._own is not None:
            self._own.stop()
            self._own = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def get_provisioner_info(self) -> dict[str, Any]:
        return await super().get_provisioner_info() | {"isolation": "sealed" if self.address else "limits-only"}
