"""The hosts of a DeepSpeed training: who writes their files, and what they give each other (DeepSpeed's interpreter).

Each host has a folder of its own, with the whole checkpoint: its own shards, and those of the others, which they send
after a save. So a training continues on each of them, whichever host is replaced. Messages are plain bytes over gloo.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist

from .failures import WorkerError
from .files import WorkerFiles, checkpoint_places

PIECE_BYTES = 64 << 20
"""Most bytes of one message."""


@dataclass(frozen=True)
class Layout:
    """The processes of a training, by host."""

    hosts: int
    local: int
    """Processes of each host."""
    writes: bool
    """Whether this process writes the files of its host: the first one there."""
    group: Any
    """All processes, over gloo."""

    @property
    def writers(self) -> range:
        """The ranks that write, one on each host."""
        return range(0, self.hosts * self.local, self.local)


def count_hosts(launch: dict[str, Any]) -> int:
    return len(launch.get("hosts") or ()) or int(launch.get("nodes") or 1)


def find_layout(launch: dict[str, Any]) -> Layout:
    """Return how the processes of a launch lie on its hosts."""
    hosts = count_hosts(launch)
    local = max(1, int(launch["processes"]) // hosts)
    group = dist.new_group(backend="gloo") if hosts > 1 else None
    return Layout(hosts, local, int(os.environ["LOCAL_RANK"]) == 0, group)


def agree_on_checkpoint(files: WorkerFiles, layout: Layout) -> Path | None:
    """Return the checkpoint to continue from: the newest that all hosts have. None for a start from zero.

    A host that was lost in the middle of a save may have an older one than the others. Raises `WorkerError`
    (`E-CHECKPOINT-MISMATCH`) on every host where one has no checkpoint of that step.
    """
    own = Path(files.resume["path"]) if files.resume["path"] else None
    if layout.hosts == 1:
        return own
    step = reduce_least(int(files.resume["step"] or 0) if own else 0, layout)
    if not step:
        return None
    path = checkpoint_places(files.folder, step)[1]
    if not reduce_least(int(path.is_dir()), layout):
        raise WorkerError(
            f"The hosts have no checkpoint in common: one has none of step {step}.",
            why=f"This host continues from {own.name if own else 'zero'}.",
            do="Remove the checkpoints on every host to start again, or copy them from one host to the others.",
            code="E-CHECKPOINT-MISMATCH",
        )
    return path


def reduce_least(value: int, layout: Layout) -> int:
    """Return the least of all processes' numbers."""
    value_1 = torch.tensor([value])
    dist.all_reduce(value_1, op=dist.ReduceOp.MIN, group=layout.group)
    return int(value_1)


def exchange_files(folder: Path, layout: Layout) -> None:
    """Give every host the files of a folder that only others have."""
    if layout.hosts == 1:
        return
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    there = {writer: orjson.loads(share_bytes(orjson.dumps(names), writer, layout)) for writer in layout.writers}
    complete = sorted({name for listed in there.values() for name in listed})
    for name in complete:
        if all(name in listed for listed in there.values()):
            continue
        source = next(writer for writer in layout.writers if name in there[writer])
        share_file(folder / name, source, layout)


def share_file(path: Path, source: int, layout: Layout) -> None:
    """Write a file of the rank `source` on the hosts that do not have it, piece by piece."""
    size = int.from_bytes(share_bytes(path.stat().st_size.to_bytes(8) if is_rank(source) else b"", source, layout))
    missing = layout.writes and not path.exists()
    temporary = path.with_name(f".{path.name}.part")
    if missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(b"")
    for start in range(0, size, PIECE_BYTES):
        piece = b""
        if is_rank(source):
            with path.open("rb") as stream:
                stream.seek(start)
                piece = stream.read(PIECE_BYTES)
        data = share_bytes(piece, source, layout)
        if missing:
            with temporary.open("ab") as stream:
                stream.write(data)
    if missing:
        temporary.rename(path)


def is_rank(rank: int) -> bool:
    return bool(dist.get_rank() == rank)


def share_bytes(data: bytes, source: int, layout: Layout) -> bytes:
    """Return the bytes of the rank `source` in every process."""
    size_1 = torch.tensor([len(data)])
    dist.broadcast(size_1, source, group=layout.group)
    data_N = torch.frombuffer(bytearray(data), dtype=torch.uint8) if is_rank(source) else None
    if data_N is None:
        data_N = torch.empty(int(size_1), dtype=torch.uint8)
    if int(size_1):
        dist.broadcast(data_N, source, group=layout.group)
    return data_N.numpy().tobytes()
