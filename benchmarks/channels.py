"""Measure what still passes between two sandboxes: bits per second of a simple sender and receiver, channel by channel.

    python benchmarks/channels.py

Both are sealed kernels under one zygote, at the same time. They agree on a clock: in each slot the sender does
something or nothing, and the receiver says which. The result counts the information that arrives: a receiver
that guesses gets 0. A more determined sender, written in C, will get more. Every closed channel has a test instead
(`tests/txgrade/sandbox/test_channels.py`).
"""

import json
import math
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from txgrade.sandbox import Limits, Zygote
from txgrade.sandbox.kernel import Cell, Kernel

BITS = 200
COMMON = """
import ctypes, mmap, os, platform, socket, struct, time
from txgrade.sandbox.syscall_numbers import numbers

libc, futex = ctypes.CDLL(None, use_errno=True), numbers(platform.machine())["futex"]


def until(moment):
    time.sleep(max(0, moment - time.time()))


def slots(begin, slot, count, act):
    found = []
    for number in range(count):
        until(begin + number * slot)
        found.append(act(number, begin + (number + 1) * slot))
    return found


def spin(end):
    turns = 0
    while time.time() < end:
        turns += 1
    return turns
"""
# Name: seconds per slot, both sides' preparation, what the sender does with a 1, what the receiver measures.
WAYS = {
    "futex on a page of a shared file": (
        0.002,
        "page = mmap.mmap(os.open(ctypes.__file__, os.O_RDONLY), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)\n"
        "import numpy\nwhere = numpy.frombuffer(page, numpy.uint32).ctypes.data\n"
        "value = struct.unpack_from('I', page)[0]",
        "until(end - slot / 2); libc.syscall(futex, ctypes.c_void_p(where), 1, 1, None, None, 0)",
        "int(libc.syscall(futex, ctypes.c_void_p(where), 0, value, "
        "struct.pack('qq', 0, max(0, int((end - time.time()) * 1e9))), None, 0) == 0)",
    ),
    "processor time on one core": (
        0.02,
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
        "spin(end)",
        "-spin(end)",
    ),
    "numbers of pipes and sockets": (
        0.05,
        "def last():\n    for _ in range(600):\n        a, b = socket.socketpair()\n"
        "        n = os.fstat(a.fileno()).st_ino\n"
        "        a.close(); b.close()\n    return n\nbefore = [last()]\n"
        "def step():\n    before.append(last())\n    return before[-1] - before[-2]",
        "last(); last(); last()",
        "step()",
    ),
}


def information(sent: list[int], measured: list[float]) -> tuple[float, float]:
    """Bits per slot that the measurements tell, and the share of slots told wrong, at the best threshold."""
    wrong = min(
        sum((value >= threshold) != bool(bit) for bit, value in zip(sent, measured, strict=True)) / len(sent)
        for threshold in {*measured, math.inf}
    )
    if wrong in (0, 1):
        return 1.0, wrong
    return 1 + wrong * math.log2(wrong) + (1 - wrong) * math.log2(1 - wrong), wrong


def run(kernel: Kernel, code: str) -> str:
    cell = Cell()
    kernel.run(code, 0, 120, cell)
    if cell.error:
        raise RuntimeError(f"{cell.error[0]}: {cell.error[1]}")
    return "".join(output.get("text", "") for output in cell.outputs)


def by_the_clock(name: str) -> tuple[float, float]:
    slot, prepare, send, look = WAYS[name]
    bits = [random.getrandbits(1) for _ in range(BITS)]
    with Kernel(Limits()) as sender, Kernel(Limits()) as receiver, ThreadPoolExecutor(2) as pool:
        for kernel in (sender, receiver):
            run(kernel, f"{COMMON}\nslot, BITS = {slot}, {bits}\n{prepare}")
        run(sender, f"def act(number, end):\n    if BITS[number]: {send}")
        run(receiver, f"def act(number, end): return {look}")
        go = f"print(slots({time.time() + 1}, slot, {BITS}, act))"
        _, measured = pool.map(run, (sender, receiver), (go, go))
    told, wrong = information(bits, json.loads(measured))
    return told / slot, wrong


def by_the_page_cache() -> tuple[float, float]:
    """Pages of a file that nobody has read yet: the sender reads some, the receiver sees which come quickly."""
    path = max((each for each in Path(sys.prefix).rglob("*.so*") if not each.is_symlink()), key=_unmapped_size)
    bits = [random.getrandbits(1) for _ in range(BITS)]
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    opened = f"import os, time\nfile = os.open({str(path)!r}, os.O_RDONLY)\nos.posix_fadvise(file, 0, 0, 1)\n"
    with Kernel(Limits()) as sender, Kernel(Limits()) as receiver:
        began = time.perf_counter()
        run(sender, f"{opened}for n, bit in enumerate({bits}):\n    if bit: os.pread(file, 1, n * 65536)")
        measured = run(
            receiver,
            f"{opened}def look(n):\n    start = time.perf_counter()\n    os.pread(file, 1, n * 65536)\n"
            f"    return start - time.perf_counter()\nprint([look(n) for n in range({BITS})])",
        )
        seconds = time.perf_counter() - began
    told, wrong = information(bits, json.loads(measured))
    return told * BITS / seconds, wrong


def _unmapped_size(path: Path) -> int:
    used = any(word in path.name for word in ("torch", "c10", "omp", "blas", "python"))
    return 0 if used else path.stat().st_size


def main() -> None:
    table = {}
    with Zygote(["numpy"]) as zygote:
        os.environ["TXGRADE_ZYGOTE"] = str(zygote.address)
        for name in WAYS:
            table[name] = by_the_clock(name)
        table["pages in memory, by how long a read takes"] = by_the_page_cache()
    for name, (rate, wrong) in table.items():
        print(f"{name:45} {rate:8.0f} bits/s  {wrong:4.0%} of the slots wrong")


if __name__ == "__main__":
    main()
