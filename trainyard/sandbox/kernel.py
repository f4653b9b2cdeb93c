"""Linux system calls of the sandbox: a list of allowed calls (seccomp), readable folders (Landlock), no capabilities.

Numbers are from the kernel's tables `syscall_64.tbl` and `asm-generic/unistd.h`, structures from its uapi headers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Iterable, Sequence

from trainyard.sandbox.limits import (
    ALLOW,
    AUDIT_ARCH,
    EQUAL,
    LOAD,
    NOT_PERMITTED,
    OTHER_ABI,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_SECCOMP,
    RETURN,
    SECCOMP_MODE_FILTER,
    FilterProgram,
    Instruction,
    limit,
    prctl,
)

AT_LEAST, ANY_BIT, KILL_PROCESS = 0x35, 0x45, 0x80000000
ALLOWED = {
    "x86_64": (
        0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 22, 23, 24, 25, 28, 32, 33, 35, 36, 38, 39,
        60, 63, 79, 89, 96, 97, 98, 99, 100, 102, 104, 107, 108, 110, 115, 118, 120, 127, 128, 131, 158, 186, 201, 202,
        204, 217, 218, 219, 228, 229, 230, 231, 232, 233, 262, 267, 269, 270, 271, 273, 281, 290, 291, 292, 293, 309,
        318, 324, 332, 334, 439,
    ),
    "aarch64": (
        17, 19, 20, 21, 22, 23, 24, 48, 59, 61, 62, 63, 64, 65, 66, 67, 72, 73, 78, 79, 80, 93, 94, 96, 98, 99, 101,
        102, 103, 113, 114, 115, 123, 124, 128, 132, 134, 135, 136, 137, 139, 148, 150, 153, 158, 160, 163, 165, 168,
        169, 172, 173, 174, 175, 176, 177, 178, 179, 214, 215, 216, 222, 226, 233, 278, 283, 291, 293, 439,
    ),
}  # fmt: skip
"""What an interpreter needs to compute and to import: memory, time, pipes, reading files and their metadata, exit.

Everything else is refused: processes, threads, programs, signals, sockets, files that change, mounts, keys, tracing.
"""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FCNTL = (0, 1, 2, 3, 4, 1030, 1032)
"""Duplicate, flags, the size of a pipe; not the owner of signals, leases or locks."""
IOCTL = (0x5401, 0x541B, 0x5450, 0x5451)
"""TCGETS (`isatty`), FIONREAD, FIONCLEX, FIOCLEX."""
CHECKED = {
    "x86_64": {"open": 2, "openat": 257, "fcntl": 72, "ioctl": 16, "prlimit64": 302},
    "aarch64": {"openat": 56, "fcntl": 25, "ioctl": 29, "prlimit64": 261},
}
"""Calls that are allowed with some arguments only."""
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights on files that each version of Landlock knows."""
EXECUTE, READ_FILE, READ_DIRECTORY = 1, 1 << 2, 1 << 3
TCP, SCOPED = 0b11, 0b11
"""Bind and connect; abstract sockets and signals of other domains."""
CAPABILITY_VERSION = 0x20080522
CAPSET = {"x86_64": 126, "aarch64": 91}
LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library. Raises `OSError` with its errno."""
    result: int = getattr(LIBC, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def low_word(index: int) -> tuple[int, int, int, int]:
    """Return the instruction that loads the low half of an argument."""
    return LOAD, 0, 0, 16 + 8 * index


def filter_program(machine: str) -> list[tuple[int, int, int, int]]:
    """Instructions of BPF that allow the calls of the tables and refuse every other with EPERM."""
    allow, refuse = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_PERMITTED)
    code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL_PROCESS), (LOAD, 0, 0, 0)]
    code += [(AT_LEAST, 0, 1, OTHER_ABI), (RETURN, 0, 0, KILL_PROCESS)]
    for number in ALLOWED[machine]:
        code += [(EQUAL, 0, 1, number), allow]
    for name, number in CHECKED[machine].items():
        if name in ("open", "openat"):
            checks = [low_word(1 if name == "open" else 2), (ANY_BIT, 1, 0, WRITING), allow, refuse]
        elif name == "prlimit64":
            checks = [low_word(0), (EQUAL, 0, 1, 0), allow, refuse]
        else:
            checks = [low_word(1)]
            for command in FCNTL if name == "fcntl" else IOCTL:
                checks += [(EQUAL, 0, 1, command), allow]
            checks.append(refuse)
        code += [(EQUAL, 0, len(checks), number), *checks]
    return [*code, refuse]


def allow_calls() -> None:
    """Let the kernel refuse every call that is not in the tables from now on. Raises `OSError`."""
    machine = platform.machine()
    if machine not in ALLOWED:
        raise OSError(f"no table of system calls for {machine}")
    code = filter_program(machine)
    instructions = (Instruction * len(code))(*(Instruction(*line) for line in code))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(FilterProgram(len(code), instructions)))


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 for none."""
    return max(0, int(LIBC.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def allow_reading(paths: Iterable[str], library: str) -> None:
    """Let this process and its children open nothing but these paths, for reading. Raises `OSError`.

    Of the interpreter's library the packages that are installed in it are left out.
    """
    version = landlock_version()
    if version == 0:
        raise OSError("this kernel has no Landlock")
    attributes = struct.pack(
        "QQQ", LANDLOCK_FILES[min(version, 5)], TCP if version >= 4 else 0, SCOPED if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = call("syscall", LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    try:
        for path in paths:
            inner = [path]
            if path == library:
                add_rule(rules, path, READ_DIRECTORY)
                inner = [f"{path}/{name}" for name in os.listdir(path) if not name.endswith("-packages")]
            for name in inner:
                add_rule(rules, name, READ_FILE | EXECUTE | (READ_DIRECTORY if os.path.isdir(name) else 0))
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        call("syscall", LANDLOCK_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def add_rule(rules: int, path: str, rights: int) -> None:
    """Allow these rights below a path."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    call("syscall", LANDLOCK_ADD, rules, 1, struct.pack("=Qi", rights, descriptor), 0)
    os.close(descriptor)


def drop_capabilities() -> None:
    """Give up every right of root for good: after this a uid of 0 is a user like others."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    call("syscall", CAPSET[platform.machine()], struct.pack("Ii", CAPABILITY_VERSION, 0), struct.pack("6I", *[0] * 6))


def limit_resources(cpu_s: int, memory_bytes: int) -> None:
    """Set the limits of a process that runs code of others; none can be raised again."""
    for name, value in (("CPU", cpu_s), ("AS", memory_bytes), ("FSIZE", 0), ("CORE", 0), ("NOFILE", 16), ("NPROC", 0),
                        ("MSGQUEUE", 0), ("MEMLOCK", 0), ("SIGPENDING", 16)):  # fmt: skip
        if hasattr(resource, f"RLIMIT_{name}"):
            limit(getattr(resource, f"RLIMIT_{name}"), value)


def close_all_but(descriptors: Sequence[int]) -> None:
    """Close every descriptor but these."""
    start = 0
    for descriptor in sorted({*descriptors}):
        if start < descriptor:  # an empty range from 0 would be every descriptor
            os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
