"""How long does a person wait for the preview of a large file?

`trainyard data preview` of a JSON Lines file of one gigabyte (about two million chats of some 290 tokens), as a process
of its own: seconds until the format and ten rows are on the screen, and until 10,000 are rendered and counted.

    python -m benchmarks.data_preview
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.harness import Row, Sample, finish, size

RAW_S, WHOLE_S = 3.0, 8.0
FILE_BYTES = size(1 << 30, 1 << 20)
ROUNDS = size(3, 1)


def write_chats(path: Path, num_bytes: int = FILE_BYTES) -> None:
    """Write 20,000 different chats again and again until the file is as long as that."""
    random.seed(1)
    vocabulary = [f"w{index}" for index in range(5_000)]
    lines = []
    for _ in range(size(20_000, 1_000)):
        sizes = (("user", random.randint(5, 40)), ("assistant", random.randint(10, 80)))
        turns = [{"role": role, "content": " ".join(random.choices(vocabulary, k=size))} for role, size in sizes]
        lines.append(json.dumps({"messages": turns}) + "\n")
    block = "".join(lines).encode()
    with path.open("wb") as stream:
        while stream.tell() < num_bytes:
            stream.write(block)


def preview(path: Path) -> Sample:
    """Seconds to the first rows (`cpu_s`'s place is not used: a person waits by the clock) and to the end."""
    argv = [sys.executable, "-m", "trainyard", "data", "preview", path.name]
    began, first = time.monotonic(), 0.0
    with subprocess.Popen(argv, cwd=path.parent, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            first = first or (time.monotonic() - began if line == b"\n" else 0.0)
    if child.returncode or not first:
        raise RuntimeError(f"the preview ended with exit code {child.returncode}")
    return Sample(units=first, wall_s=time.monotonic() - began, cpu_s=0.0)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.jsonl"
        write_chats(path)
        samples = [preview(path) for _ in range(ROUNDS)]
    rows = [
        Row.at_most("seconds to format and ten rows", median(sample.units for sample in samples), RAW_S),
        Row.at_most("seconds to 10,000 rendered rows", median(sample.wall_s for sample in samples), WHOLE_S),
    ]
    return finish("data_preview", rows, {"preview": samples})


if __name__ == "__main__":
    sys.exit(main())
