"""Turns the policy of `syscalls.py` into a program that Linux runs at every system call (seccomp), and installs it.

No binding of libseccomp on PyPI is kept up, and the program is short: classic BPF, put together here from three kinds
of instructions. Each piece is a list of them that either returns or falls through to the next piece.
"""

import ctypes
import platform
from collections.abc import Iterable
from errno import ENOSYS
from functools import cache
from typing import NamedTuple

from txgrade.sandbox.syscall_numbers import numbers
from txgrade.sandbox.syscalls import ALLOWED, RULES, Rule, names

# <linux/bpf_common.h>, <linux/seccomp.h>, <linux/audit.h>
LOAD, MASK, RETURN = 0x20, 0x54, 0x06
EQUAL, ABOVE, AT_LEAST = 0x15, 0x25, 0x35
ALLOW, ERROR = 0x7FFF0000, 0x00050000  # the error's number is added
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # where they stand in `struct seccomp_data`; both machines are little-endian
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "arm64": 0xC00000B7}
GET_SECCOMP, SET_SECCOMP, MODE_FILTER = 21, 22, 2  # prctl


class Instruction(NamedTuple):
    """As in `struct sock_filter`: where a comparison holds, skip `then` instructions, else `otherwise`."""

    code: int
    value: int
    then: int = 0
    otherwise: int = 0


Piece = list[Instruction]


def load(offset: int) -> Piece:
    return [Instruction(LOAD, offset)]


def answer(error: int | None) -> Piece:
    """End: let the call through (None), or fail with an error; 0 is success without having done anything."""
    return [Instruction(RETURN, ALLOW if error is None else ERROR | error)]


def when(test: int, value: int, piece: Piece) -> Piece:
    return [Instruction(test, value, 0, len(piece)), *piece]


def unless(test: int, value: int, piece: Piece) -> Piece:
    return [Instruction(test, value, len(piece), 0), *piece]


def rule(of: Rule) -> Piece:
    piece = load(ARGUMENTS + 8 * of.argument)
    for error, values in ((of.error, of.refused), (0, of.pretended)):
        for value in values:
            piece += when(EQUAL, value, answer(error))
    piece += [Instruction(MASK, of.mask)]
    for value in of.allowed:
        piece += when(EQUAL, value, answer(None))
    return piece + answer(of.error)


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ascending ranges, both ends included."""
    merged: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if merged and number == merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], number)
        else:
            merged.append((number, number))
    return merged


@cache
def program(machine: str) -> tuple[Instruction, ...]:
    """The policy for a machine as `platform.machine()` calls it.

    Calls by another convention (32-bit, and x32, whose numbers have a bit set) are refused.

    Raises:
        OSError: a machine that nobody has written down the numbers of.
    """
    table = numbers(machine)
    if not table:
        raise OSError(ENOSYS, f"system calls of {machine} can't be filtered yet, only of {', '.join(ARCHITECTURES)}")
    lines = load(ARCHITECTURE) + unless(EQUAL, ARCHITECTURES[machine], answer(ENOSYS)) + load(NUMBER)
    for name, of in RULES.items():
        lines += when(EQUAL, table[name], rule(of)) if name in table else []
    for first, last in ranges(table[name] for name in names(ALLOWED) if name in table):
        inside = when(AT_LEAST, first, answer(None)) + answer(ENOSYS)
        lines += unless(ABOVE, last, inside)
    return tuple(lines + answer(ENOSYS))


class _Filter(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("then", ctypes.c_ubyte),
        ("otherwise", ctypes.c_ubyte),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter)))


@cache
def compiled() -> _Program:
    """The program for this machine, in C's form."""
    lines = program(platform.machine())
    array = (_Filter * len(lines))(*(_Filter(line.code, line.then, line.otherwise, line.value) for line in lines))
    return _Program(len(lines), array)


def check() -> None:
    """
    Raises:
        OSError: system calls can't be filtered here; says why.
    """
    compiled()
    if ctypes.CDLL(None).prctl(GET_SECCOMP, 0, 0, 0, 0) < 0:
        raise OSError(ENOSYS, "this Linux can't filter system calls (it was built without seccomp)")


def install(libc: ctypes.CDLL) -> None:
    """Filter the calls of this thread from now on, and of all that it will start. There is no way back.

    The thread has said before that it wants no new privileges.

    Raises:
        OSError: this system doesn't filter.
    """
    if libc.prctl(SET_SECCOMP, MODE_FILTER, ctypes.byref(compiled()), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "Linux refused to filter system calls")
