"""Reproduce a recorded training by the command of another copy of the code, in a home that has nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def copy_package(checkout: Path) -> Path:
    """Copy the package below `checkout`, as a second clone has it."""
    shutil.copytree(REPOSITORY / "trainyard", checkout / "trainyard", ignore=shutil.ignore_patterns("__pycache__"))
    return checkout


def reproduce_elsewhere(checkout: Path, home: Path, work: Path, *words: str) -> dict[str, Any]:
    """Run `trainyard reproduce` of the copy and return its answer; `home` and `work` need not exist."""
    work.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
    environment |= {"PYTHONPATH": str(checkout), "TRAINYARD_HOME": str(home), "TRAINYARD_WORKING_FOLDER": str(work)}
    command = [sys.executable, "-P", "-m", "trainyard", "reproduce", *words, "--json"]
    done = subprocess.run(command, check=False, cwd=work, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
