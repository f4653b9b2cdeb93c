"""Limits of a child that runs or reads what strangers wrote: memory, CPU time, system calls.

A limit ends the child, never its parent. Memory is an address space over what the child has when it starts
(`RLIMIT_AS`), CPU time is a timer whose signal has no handler (`ITIMER_PROF`), so that a pattern which backtracks
inside of a C library ends too. The kernel refuses sockets and, where no program is needed, `execve` (seccomp, Linux).

The child's side of a program that answers lines (`children.LineChild`): standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SYSTEM_CALLS = {
    "x86_64": {"socket": 41, "execve": 59, "ptrace": 101, "execveat": 322, "io_uring_setup": 425},
    "aarch64": {"socket": 198, "execve": 221, "ptrace": 117, "execveat": 281, "io_uring_setup": 425},
}
"""Numbers of the calls that are refused, from the kernel's tables `syscall_64.tbl` and `asm-generic/unistd.h`."""
NETWORK = ("socket", "ptrace", "io_uring_setup")
PROGRAMS = ("execve", "execveat")
OTHER_ABI = 0x40000000
"""Numbers from here on belong to the x32 ABI, in which the same calls have other numbers."""
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, NOT_PERMITTED = 0x7FFF0000, 0x00050001
KILLED_BY_TIME = (signal.SIGPROF, signal.SIGXCPU)


class ChildLimits(NamedTuple):
    """Limits of one child program."""

    cpu_s: float
    """Processor time of one reply; at its end a signal ends the child."""
    memory_bytes: int
    """Address space beyond that of the program itself."""


class Death(StrEnum):
    """Reason for which a child ended before it replied."""

    TIME = "time"
    """Its processor time was used up, or it lived and did not reply."""
    MEMORY = "memory"
    OTHER = "other"


def find_death(code: int | None) -> Death:
    """Return the reason by a child's exit code; None is that of a child that lives."""
    if code is None or -code in KILLED_BY_TIME:
        return Death.TIME
    return Death.MEMORY if code in (1, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT) else Death.OTHER


def limit_child(memory_bytes: int) -> None:
    """Set the limits of a program that reads lines and writes lines: no files, connections or programs."""
    limit_memory(memory_bytes)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, 0)
    refuse_calls((*NETWORK, *PROGRAMS))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides


class Instruction(ctypes.Structure):
    """`struct sock_filter` of the kernel's BPF."""

    _fields_ = (("code", ctypes.c_ushort), ("then", ctypes.c_ubyte), ("other", ctypes.c_ubyte), ("k", ctypes.c_uint))


class FilterProgram(ctypes.Structure):
    """`struct sock_fprog` of the kernel's BPF."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))


def prctl(option: int, value: int, more: object = 0) -> None:
    """Call Linux `prctl(2)`. Raises `OSError` when the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, more, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def refuse_calls(names: tuple[str, ...]) -> bool:
    """Let the kernel refuse these system calls from now on, in this process and its children.

    Returns False where the kernel has no such filter; the limits of memory and time are in force there too.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in AUDIT_ARCH:
        return False
    numbers = [SYSTEM_CALLS[machine][name] for name in names]
    left = len(numbers) + 1
    code = [(LOAD, 0, 0, 4), (EQUAL, 0, left + 2, AUDIT_ARCH[machine]), (LOAD, 0, 0, 0), (AT_LEAST, left, 0, OTHER_ABI)]
    code += [(EQUAL, left - position, 0, number) for position, number in enumerate(numbers, 1)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_PERMITTED)]
    instructions = (Instruction * len(code))(*(Instruction(*line) for line in code))
    try:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(FilterProgram(len(code), instructions)))
    except OSError:
        return False
    return True


def die_with_parent() -> None:
    """End this process when its parent ends. A no-op outside of Linux, where the closed pipe ends it."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(more_bytes: int) -> None:
    """Allow `more_bytes` of address space over what is used now. Linux; elsewhere the kernel does not enforce it."""
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as stream:
            used = int(stream.read().split()[0]) * resource.getpagesize()
        limit(resource.RLIMIT_AS, used + more_bytes)


def limit(kind: int, value: int) -> None:
    """Set a limit that cannot be raised again; an operator's lower one stays."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def allow_cpu(seconds: float) -> None:
    """End this process after so many seconds of CPU from now on; 0 takes the timer away."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


Reply = dict[str, Any]
Answer = Callable[[bytes], Iterable[Reply]]
"""Returns the replies to one line of JSON."""


def serve_lines(start: Callable[[Any], tuple[Reply, Answer]]) -> None:
    """Answer the lines of standard input until the parent closes it; each reply has `cpu_s` of processor time.

    `start` gets the value of the first line, and returns the reply to it and the function for every later line. A reply
    that takes longer ends the process, whatever it is doing: nothing handles the signal.
    """
    limits = ChildLimits(*json.loads(sys.argv[1]))
    limit_child(limits.memory_bytes)

    def send(reply: Reply) -> None:
        allow_cpu(0)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()
        allow_cpu(limits.cpu_s)

    lines = iter(sys.stdin.buffer)
    first = next(lines)
    allow_cpu(limits.cpu_s)
    reply, answer = start(json.loads(first))
    send(reply)
    for line in lines:
        allow_cpu(limits.cpu_s)
        for reply in answer(line):
            send(reply)
