"""A session's whole state, named part by part, and its form on the disk.

<name>/state.safetensors    tensors: weights, optimizer, gradients, generators
<name>/state.json           the rest: counters, schedule, scaler, config digest, versions
<name>/manifest.json        SHA-256 of both; written last
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import load, load_file, save, save_file

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.chain import digest
from trainyard.stores.whole import write_folder
from trainyard.train.checkpoint.checkpoints import find_damage
from trainyard.train.checkpoint.state import Tensors, flatten, rebuild
from trainyard.train.checkpoint.streams import Sealer, is_sealed, read_bytes, write_bytes
from trainyard.train.contracts import ONE_PROCESS

TENSOR_FILE, VALUE_FILE = "state.safetensors", "state.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PARTS = ("weights", "optimizer", "rate", "scaler", "gradients", "random", "counters")
"""What a state is made of; leaving out any one gives other bits."""


@dataclass(frozen=True)
class Snapshot:
    """The parts of a state by name; tensors may be the live ones."""

    parts: JsonObject
    identity: JsonObject
    """What has to be the same for the state to make sense: config, versions, threads, deterministic flags."""

    def flat(self) -> tuple[Tensors, JsonObject]:
        """(tensors by name, JSON values) of the whole state."""
        tensors: Tensors = {}
        values = flatten(self.parts, "state", tensors)
        return tensors, {"parts": values, "identity": self.identity}

    @classmethod
    def from_flat(cls, tensors: Mapping[str, torch.Tensor], values: JsonMapping) -> Snapshot:
        return cls(rebuild(values["parts"], tensors), dict(values["identity"]))


def identity(config_sha256: str, precision: str, layout: JsonMapping = ONE_PROCESS) -> JsonObject:
    """Return what a resumed run must share with the first one, and what else is recorded.

    `layout` says how many processes share the state, and how.
    """
    return {
        "layout": dict(layout),
        "config": config_sha256,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "python": platform.python_version(),
    }


def require_whole(snapshot: Snapshot, name: str) -> None:
    """Refuse to continue from weights alone (`E-STEP`)."""
    if "optimizer" not in snapshot.parts:
        raise InvalidInput(
            f"The saved state {name!r} contains only weights.",
            why="Optimizer, schedule and generators would stay those of another moment.",
            do="Load it with optimizer: false, or load a state that was saved with kind: full.",
            code="E-STEP",
        )


def require_same(snapshot: Snapshot, here: JsonMapping) -> list[str]:
    """Refuse a state of other processes, of another config or precision, or of other library versions
    (`E-CHECKPOINT-MISMATCH`); returns what else differs (threads, flags), which changes bits but not meaning."""
    require_same_processes(snapshot.identity.get("layout", ONE_PROCESS), here.get("layout", ONE_PROCESS))
    for name in ("config", "precision"):
        if snapshot.identity[name] != here[name]:
            raise Corrupt(
                f"The checkpoint was made with another {name}.",
                why=f"It has {str(snapshot.identity[name])[:12]}, this run has {str(here[name])[:12]}.",
                do="Continue with the config that it was made with, or start the training again.",
                code="E-CHECKPOINT-MISMATCH",
            )
    if snapshot.identity["versions"] != here["versions"]:
        raise Corrupt(
            "The checkpoint was made with other library versions.",
            why=f"It has {snapshot.identity['versions']}, here are {here['versions']}.",
            do="Install those versions for a bit-identical resume, or start the training again.",
            code="E-CHECKPOINT-MISMATCH",
        )
    names = ("threads", "deterministic", "tf32", "cublas", "python")
    return [
        f"{name} {snapshot.identity[name]} -> {here[name]}" for name in names if snapshot.identity[name] != here[name]
    ]


def require_same_processes(before: JsonMapping, now: JsonMapping) -> None:
    """A sharded state continues where the same shards are. Raises `Corrupt` (`E-CHECKPOINT-MISMATCH`)."""
    if before != now:
        raise Corrupt(
            f"The checkpoint was made by {describe_layout(before)}, and this run has {describe_layout(now)}.",
            why="Each process has its own share of rows, gradients, optimizer state and random numbers.",
            do="Continue with the same launch settings, or start the training again; weights alone fit any of them.",
            code="E-CHECKPOINT-MISMATCH",
        )


def describe_layout(layout: JsonMapping) -> str:
    """`4 processes (fsdp_hybrid, shard_size 2)`."""
    count = layout["processes"]
    rest = [str(layout["strategy"]), *(f"{name} {layout[name]}" for name in ("shard_size",) if name in layout)]
    return "1 process" if count == 1 else f"{count} processes ({', '.join(rest)})"


def save_snapshot(root: Path, name: str, snapshot: Snapshot, kind: str, sealer: Sealer | None = None) -> JsonObject:
    """Write a named state whole, or nothing. See `Session.save`."""
    require_name(name)
    if kind not in ("full", "weights"):
        raise InvalidInput(f"There is no kind {kind!r} of saved state.", do="Use full or weights.", code="E-STEP")
    if kind == "weights":
        snapshot = Snapshot({"weights": snapshot.parts["weights"]}, snapshot.identity)
    final = root / "saved" / name
    if final.exists():
        raise Conflict(f"A state named {name!r} is there already.", do="Choose another name.", code="E-FILE-EXISTS")
    tensors, values = snapshot.flat()

    def write_state(folder: Path) -> None:
        copies = {name: value.cpu().contiguous().clone() for name, value in tensors.items()}
        if sealer is None:
            save_file(copies, folder / TENSOR_FILE)
        else:
            write_bytes(folder / TENSOR_FILE, save(copies), sealer)
        write_bytes(folder / VALUE_FILE, json.dumps(values).encode(), sealer)

    write_folder(final, write_state)
    return {"name": name, "path": str(final), "kind": kind, "sha256": read_digest(final)}


def require_name(name: str) -> None:
    """Raise `InvalidInput` (`E-NAME`) for what is not a valid name."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a valid name for a saved state.",
            do="Use up to 128 letters, digits, dots, dashes and underscores.",
            code="E-NAME",
        )


def load_snapshot(root: Path, name: str, sealer: Sealer | None = None) -> tuple[Snapshot, JsonObject]:
    """Read a named state, its bytes verified first."""
    folder = root / "saved" / name
    if not NAME.fullmatch(name) or not folder.is_dir():
        saved_names = sorted(path.name for path in (root / "saved").glob("[!.]*"))
        raise NotFound(
            f"There is no saved state {name!r}.",
            why=f"There are: {', '.join(saved_names) or 'none'}.",
            code="E-NOT-FOUND",
        )
    if (damage := find_damage(folder)) is not None:
        raise Corrupt(
            f"The saved state {name!r} is damaged: {damage}.", do="Load an earlier one.", code="E-CHECKPOINT-CORRUPT"
        )
    snapshot = Snapshot.from_flat(*read_state(folder, sealer))
    return snapshot, {"name": name, "path": str(folder), "sha256": read_digest(folder)}


def read_state(folder: Path, sealer: Sealer | None = None) -> tuple[Tensors, JsonObject]:
    try:
        values: JsonObject = json.loads(read_bytes(folder / VALUE_FILE, sealer))
        if is_sealed(folder / TENSOR_FILE):
            return load(read_bytes(folder / TENSOR_FILE, sealer)), values
        return load_file(folder / TENSOR_FILE), values
    except Corrupt:
        raise
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise Corrupt(
            f"The state in {folder.name} cannot be read.", why=str(error), code="E-CHECKPOINT-CORRUPT"
        ) from error


def read_digest(folder: Path) -> str:
    """Digest over the files of a saved state, as its manifest gives them."""
    files = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
    return digest({name: entry["sha256"] for name, entry in files.items()})
