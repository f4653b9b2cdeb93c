"""Completion of commands: which shell is running, and where it reads its completion script from."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from trainyard.errors import InvalidInput

PLACES = {
    "bash": (".bash_completions/{program}.sh", ".bashrc", "source '{path}'"),
    "zsh": (".zfunc/_{program}", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/{program}.fish", "", ""),
}
"""Shell -> its script below the user's folder, the file that it reads when it starts, and the line needed there."""


def shell_here() -> str:
    """The shell that this process was started from, else the user's own."""
    names = (parent.name().removeprefix("-") for parent in psutil.Process().parents())
    return next((name for name in names if name in PLACES), Path(os.environ.get("SHELL", "bash")).name)


def install(program: str, shell: str, script: str) -> Path:
    """Write the script where the shell finds it. Raises `InvalidInput` (`E-PARAMETER`) if there is none."""
    if shell not in PLACES:
        do = f"Put the text of `{program} --show-completion` where {shell} finds it."
        raise InvalidInput(f"Completion cannot be installed for {shell}.", do=do, code="E-PARAMETER")
    place, start, line = (part.format(program=program, path="{path}") for part in PLACES[shell])
    path = Path.home() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if start:
        read, wanted = Path.home() / start, line.format(path=path)
        text = read.read_text(encoding="utf-8") if read.is_file() else ""
        if wanted not in text.splitlines():
            read.write_text(f"{text.rstrip()}\n{wanted}\n".lstrip(), encoding="utf-8")
    return path
