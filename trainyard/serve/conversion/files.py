"""GGUF files of base models, made once and kept: the converter runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from trainyard.errors import Unavailable
from trainyard.inherited import UMASK, child_environment
from trainyard.settings import Settings
from trainyard.spec.chain import digest
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.models import model_sha256
from trainyard.stores.whole import new_file

PROGRAM = "trainyard.serve.conversion.to_gguf"


def find_tools(environment: Path) -> Path:
    """llama.cpp's programs and converter inside its environment."""
    return environment / "llama.cpp"


def base_gguf(folder: Path, settings: Settings, environment: Path) -> Path:
    """Return the GGUF file of a model folder, made if it is not there yet.

    Raises `Unavailable` (`E-CONVERT`) with the converter's last words.
    """
    target = find_kept(folder, settings, environment)
    if not target.is_file():
        make_folders(DISK, target.parent)
        with new_file(target) as temporary:
            convert(folder, temporary, environment)
    return target


def find_kept(folder: Path, settings: Settings, environment: Path) -> Path:
    """Where the GGUF file of a model is kept: named by what is in the model and by the converter's release."""
    release = find_tools(environment) / "build.json"
    built = json.loads(release.read_text(encoding="utf-8")) if release.is_file() else {}
    content = model_sha256(folder, digests=settings.models / ".digests.json")
    return settings.models / "gguf" / f"{digest({'model': content, 'built': built})[:32]}.gguf"


def convert(folder: Path, target: Path, environment: Path) -> None:
    argv = [sys.executable, "-P", "-m", PROGRAM, str(find_tools(environment)), str(folder), str(target)]
    ran = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        env=child_environment(), umask=UMASK,
    )  # fmt: skip
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        raise Unavailable(
            f"The model in {folder} could not be converted to GGUF.",
            why=lines[-1][:500] if lines else f"The converter ended with exit code {ran.returncode}.",
            do="Use a base of a family that llama.cpp knows, or another target.",
            code="E-CONVERT",
        )
