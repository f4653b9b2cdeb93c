"""How long does the command line take to answer?

Each command is a process of its own, as a person starts it, with bytecode cached; its CPU seconds count, start and end
of the interpreter included. `check` and `plan` read a chain of six nodes, and its documents: one short file.

    python -m benchmarks.cli_start
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import Row, alternate, finish, median

REPOSITORY = Path(__file__).parents[1]
CHAIN, DOCUMENT = "line.yaml", "# Kettle\n\nThe kettle is a vessel that boils two litres of water.\n"
BARS = {"--version": 0.4, "--help": 0.6, f"check {CHAIN}": 0.8, f"plan {CHAIN}": 1.0}
"""Command -> CPU seconds that it may take on two AVX2 cores."""
ROUNDS = 7


def answer(command: str, folder: Path) -> float:
    """Run one command in a folder to its end. Raises `CalledProcessError` if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    argv = [sys.executable, "-m", "trainyard", *command.split()]
    subprocess.run(argv, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    return 1.0


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(REPOSITORY / "tests" / "resources" / "chains_ok" / CHAIN, folder)
        (folder / "docs").mkdir()
        (folder / "docs" / "kettle.md").write_text(DOCUMENT)
        samples = alternate({command: partial(answer, command, folder) for command in BARS}, rounds=ROUNDS)
    rows = []
    for command, bar in BARS.items():
        rows.append(Row.at_most(f"{command.split()[0]}: CPU seconds", median(samples[command], "cpu_s"), bar))
    return finish("cli_start", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
