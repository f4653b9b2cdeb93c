"""Compilation of DeepSpeed's operators when its environment is made, in one process, and never while a job runs.

On CPUs its first `init_distributed` compiles a shared-memory operator for about two minutes. A job that is killed in
that time leaves a lock file on which every later job waits without a word (torch's `FileBaton`). So the operator is
built into the environment's own `torch_extensions`, and locks whose compiler is dead are removed at each start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.backends.environments import clean_variables
from trainyard.backends.install_steps import run_install_step
from trainyard.inherited import installer_environment

EXTENSIONS_FOLDER = "torch_extensions"
LOCK_NAME = "lock"
STALE_S = 900
"""A compiler takes two to five minutes; a lock this old has no owner any more."""
PREBUILD = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load()"


def build(environment: Path, say: Callable[[str], None]) -> None:
    """Compile the operators that a CPU job needs into the environment. Raises `Unavailable` (`E-INSTALL`)."""
    say("compiling the shared-memory operator (about two minutes)")
    scripts = environment / "bin"
    variables = {
        **clean_variables(installer_environment()),
        "TORCH_EXTENSIONS_DIR": str(environment / EXTENSIONS_FOLDER),
        "DS_ACCELERATOR": "cpu",
        "MAX_JOBS": "1",
        "PATH": f"{scripts}:{os.environ.get('PATH', '/usr/bin:/bin')}",
    }
    run_install_step([str(scripts / "python"), "-c", PREBUILD], environment, variables)


def clear_stale_locks(extensions: Path) -> list[Path]:
    """Remove the locks of compilers that are gone; returns them.

    A finished operator needs no lock at all; with an unfinished one, a lock counts as long as it is young.
    """
    removed = []
    for lock in sorted(extensions.glob(f"*/{LOCK_NAME}")):
        finished = any(lock.parent.glob("*.so"))
        if finished or time.time() - lock.stat().st_mtime > STALE_S:
            lock.unlink(missing_ok=True)
            removed.append(lock)
    return removed
