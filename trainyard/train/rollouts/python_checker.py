"""Run Python code that a model has written, in a process of its own under limits: does it run to its end?

The child has an isolated interpreter, an empty folder, none of its parent's environment, and limits on processor time,
memory, files and processes; an audit hook refuses sockets, other programs, signals and files that are opened for
writing. Those are limits against accidents and against a policy that looks for shortcuts. They do not stop an attacker
with an exploit of CPython: train on a machine whose loss you can bear, or in a container. About 25 ms a run.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

BLOCK = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\n(.*?)```", re.DOTALL)
PREAMBLE = """
import os, resource, sys
def fence(cpu_s, memory_bytes):
    for name, limit in (("CPU", cpu_s), ("AS", memory_bytes), ("FSIZE", 0), ("NOFILE", 16), ("CORE", 0)):
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
    refused = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "os.remove",
               "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
               "shutil.", "ctypes.", "pty.", "signal.pthread_kill", "resource.setrlimit", "webbrowser.")
    def hook(event, given):
        if event.startswith(refused):
            raise PermissionError(event)
        if event == "open" and (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            raise PermissionError("open for writing")
    sys.addaudithook(hook)
"""


def last_block(text: str) -> str:
    """The last fenced block of a text, or the text itself where it has none."""
    blocks: list[str] = BLOCK.findall(text)
    return blocks[-1] if blocks else text


def runs_through(code: str, *, timeout_s: int, memory_mb: int) -> bool:
    """Whether the code runs to its end without an error, inside the limits."""
    return run_python(code, timeout_s=timeout_s, memory_mb=memory_mb)[0]


def run_python(code: str, *, timeout_s: int, memory_mb: int) -> tuple[bool, str]:
    """Return whether it ran to its end, and what it printed (the last 4,096 characters)."""
    source = f"{PREAMBLE}\nfence({timeout_s}, {memory_mb << 20})\ndel fence\n"
    source += f"exec(compile({code!r}, 'completion', 'exec'), {{'__name__': '__main__'}})\n"
    mark = secrets.token_hex(16)  # code that leaves early, by sys.exit or os._exit, does not print it
    source = f"import sys\nmark = sys.stdin.read()\n{source}sys.stderr.write(mark)\n"
    with TemporaryDirectory(prefix="trainyard-check-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-B", "-c", source], cwd=Path(folder), env={}, input=mark,
                capture_output=True, timeout=timeout_s + 1, check=False, errors="replace",
            )  # fmt: skip
        except (subprocess.TimeoutExpired, ValueError, OSError):  # too slow, a null byte, a text too long to pass
            return False, ""
    return done.returncode == 0 and done.stderr.endswith(mark), done.stdout[-4096:]
