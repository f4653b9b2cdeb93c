"""New namespaces with a small read-only root: the interpreter's library and shared objects, and nothing else.

User, mount, pid, network, ipc, uts and cgroup namespaces: no file of the machine, no network but a loopback that is
down, no process to signal, no name of the host. The caller becomes process 1; when it ends, everything inside does.
"""

from __future__ import annotations

import glob
import os
import platform
import signal
import sys
import sysconfig
from collections.abc import Callable, Sequence

from trainyard.sandbox.kernel import call
from trainyard.sandbox.limits import die_with_parent

NEW_ALL = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000
"""`CLONE_NEW…` of user, mount, pid, network, ipc, uts and cgroup namespaces."""
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE, RELATIVE_TIME = 1, 32, 4096, 16384, 1 << 18, 1 << 21
NO_SUID, NO_DEVICES, NO_PROGRAMS = 2, 4, 8
DETACH = 2
NOBODY = 65534
PLACES = ("/mnt", "/tmp", "/var", "/srv", "/opt")
"""Folders over which the new root can be mounted until it is the root."""


def readable_paths() -> list[str]:
    """Folders and files that an interpreter reads: its library, and the shared objects of its modules."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    library = sysconfig.get_path("stdlib")
    shared = [f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64"]
    shared += sorted(glob.glob(f"{sys.base_prefix}/lib/lib*.so*"))
    folders = [library, sysconfig.get_path("platstdlib"), *shared]
    return [path for path in dict.fromkeys(folders) if os.path.exists(path)]


def enter_namespaces() -> None:
    """Move this process into new namespaces; a helper that stays outside maps its users. Raises `OSError`."""
    uid, gid = os.geteuid(), os.getegid()
    ready, written = os.pipe(), os.pipe()
    parent, helper = os.getpid(), os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(ready[1])
            if os.read(ready[0], 1):
                map_users(parent, uid, gid)
                code = 0
        finally:
            os._exit(code)
    try:
        call("unshare", NEW_ALL)
        os.write(ready[1], b"x")
    finally:
        for descriptor in (*ready, *written):
            os.close(descriptor)
        code = os.waitpid(helper, 0)[1]
    if code:
        raise OSError("the users of the new namespace could not be mapped")


def map_users(process: int, uid: int, gid: int) -> None:
    """Map the user itself to root inside; where root starts the sandbox, nobody is there, too."""
    for name, number in (("setgroups", None), ("uid_map", uid), ("gid_map", gid)):
        if number is None:
            text = "" if uid == 0 else "deny"
        else:
            text = f"0 {number} 1\n" + (f"{NOBODY} {NOBODY} 1\n" if uid == 0 else "")
        if text:
            with open(f"/proc/{process}/{name}", "w", encoding="ascii") as stream:
                stream.write(text)


def build_root(paths: Sequence[str]) -> None:
    """Make a read-only root of these paths, and leave the old one for good. Raises `OSError`."""
    real = [(path, os.path.realpath(path)) for path in paths]
    root = next(
        candidate for candidate in PLACES
        if os.path.isdir(candidate) and not any(f"{source}/".startswith(f"{candidate}/") for _, source in real)
    )  # fmt: skip
    call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    call("mount", b"tmpfs", root.encode(), b"tmpfs", NO_SUID | NO_DEVICES, b"size=1m,mode=755")
    for path, source in real:
        bind(source, root + path)
    for folder in ("site-packages", "dist-packages"):
        for path, _ in real:
            if os.path.isdir(f"{root}{path}/{folder}"):
                flags = READ_ONLY | NO_SUID | NO_DEVICES | NO_PROGRAMS
                call("mount", b"tmpfs", f"{root}{path}/{folder}".encode(), b"tmpfs", flags, b"size=4k,mode=555")
    os.mkdir(f"{root}/work", 0o555)
    os.chdir(root)
    call("syscall", {"x86_64": 155, "aarch64": 41}[platform.machine()], b".", b".")  # pivot_root
    call("umount2", b".", DETACH)
    os.chdir("/")
    call("mount", None, b"/", None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES, None)
    os.chdir("/work")
    call("sethostname", b"sandbox", 7)


def bind(source: str, target: str) -> None:
    """Mount a folder or file of the old root, read-only, without programs of other users or devices."""
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        with open(target, "a", encoding="ascii"):
            pass
    call("mount", source.encode(), target.encode(), None, BIND | RECURSIVE, None)
    status = os.statvfs(target).f_flag
    inherited = status & (NO_PROGRAMS | 1024 | 2048) | (RELATIVE_TIME if status & 4096 else 0)
    flags = REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | inherited
    call("mount", None, target.encode(), None, flags, None)


def run_as_first_process(work: Callable[[], int]) -> int:
    """Run `work` as process 1 of the new pid namespace, wait for it and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_with_parent()
            code = work()
        finally:
            os._exit(code)
    for descriptor in (0, 1):
        os.close(descriptor)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF
