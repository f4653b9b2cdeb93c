"""Complete state of a training run, as named tensors and plain values.

Leaving out any one of them changes the bits of what follows; `trainyard prove-resume` drops each in turn and has to see
it. Nothing is pickled: tensors go to safetensors, the rest to JSON.

A session's whole state, named part by part, and its form on the disk.

<name>/state.safetensors    tensors: weights, optimizer, gradients, generators
<name>/state.json           the rest: counters, schedule, scaler, config digest, versions
<name>/manifest.json        SHA-256 of both; written last
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
import transformers
from safetensors.torch import load, load_file, save, save_file

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.chain import digest
from trainyard.stores.whole import write_folder
from trainyard.train.checkpoint.checkpoints import find_damage
from trainyard.train.checkpoint.streams import Sealer, is_sealed, read_bytes, write_bytes
from trainyard.train.contracts import ONE_PROCESS

Tensors = dict[str, torch.Tensor]

TENSOR, TUPLE, ITEMS = "__tensor__", "__tuple__", "__items__"
"""Marks in the JSON form: a tensor by name, a tuple, and a mapping whose keys are not all text (or are marks)."""


def flatten(value: Any, name: str, tensors: Tensors) -> Any:
    """Return a JSON value for `value`; its tensors are added to `tensors` under `name/...`.

    Raises `TypeError` for what a checkpoint cannot store: anything but tensors, plain values, and lists, tuples and
    mappings of them.
    """
    if isinstance(value, torch.Tensor):
        while name in tensors:  # {"a/b": one, "a": {"b": another}}
            name += "'"
        tensors[name] = value.detach()
        return {TENSOR: name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and not value.keys() & {TENSOR, TUPLE, ITEMS}:
            return {key: flatten(part, f"{name}/{key}", tensors) for key, part in value.items()}
        items = [(flatten(key, name, tensors), flatten(part, f"{name}/{key}", tensors)) for key, part in value.items()]
        return {ITEMS: [list(item) for item in items]}
    if isinstance(value, list | tuple):
        parts = [flatten(part, f"{name}/{index}", tensors) for index, part in enumerate(value)]
        return {TUPLE: parts} if isinstance(value, tuple) else parts
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which a checkpoint cannot store")


def rebuild(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the inverse of `flatten`."""
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        if TUPLE in value:
            return tuple(rebuild(part, tensors) for part in value[TUPLE])
        if ITEMS in value:
            return {rebuild(key, tensors): rebuild(part, tensors) for key, part in value[ITEMS]}
        return {key: rebuild(part, tensors) for key, part in value.items()}
    if isinstance(value, list):
        return [rebuild(part, tensors) for part in value]
    return value


def random_state() -> JsonObject:
    """Return the state of every generator that training may draw from."""
    version, state_words, following = random.getstate()
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    words_N = torch.from_numpy(np.asarray(keys, dtype=np.uint32).astype(np.int64))
    return {
        "python": [version, torch.tensor(state_words), following],
        "numpy": [kind, words_N, position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
    }


def require_same_devices(state: JsonMapping) -> None:
    """Raise `Corrupt` (`E-CHECKPOINT-MISMATCH`) when the run had another number of CUDA devices."""
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) != here:
        raise Corrupt(
            f"The checkpoint contains the random state of {len(state['cuda'])} CUDA devices, this machine has {here}.",
            do="Continue on a machine like the first one, or start the training again.",
            code="E-CHECKPOINT-MISMATCH",
        )


def restore_random_state(state: JsonMapping) -> None:
    """Put every generator back. The devices are those of `require_same_devices`."""
    version, state_words, following = state["python"]
    random.setstate((version, tuple(state_words.tolist()), following))
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"].to(torch.uint8).cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([part.to(torch.uint8).cpu() for part in state["cuda"]])


def weights(model: torch.nn.Module) -> Tensors:
    """Return what moves: trained parameters, and the buffers of the modules (statistics, caches of positions)."""
    trainable = {f"parameter/{name}": value for name, value in model.named_parameters() if value.requires_grad}
    return trainable | {f"buffer/{name}": value for name, value in model.named_buffers()}


def require_same_weights(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Raise `Corrupt` (`E-CHECKPOINT-MISMATCH`) when names, shapes or dtypes differ."""
    here = weights(model)
    differing = sorted(here.keys() ^ saved.keys()) or [
        name for name in here if here[name].shape != saved[name].shape or here[name].dtype != saved[name].dtype
    ]
    if differing:
        raise Corrupt(
            f"The checkpoint belongs to another model or method: {differing[0]} differs ({len(differing)} in all).",
            do="Continue with the config that the checkpoint was made with, or start the training again.",
            code="E-CHECKPOINT-MISMATCH",
        )


def restore_weights(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Copy into the model's own tensors, which are those of `require_same_weights`."""
    with torch.no_grad():
        for name, value in weights(model).items():
            value.copy_(saved[name])


def gradients(model: torch.nn.Module) -> Tensors:
    """Return the accumulated gradients, which a stop inside an accumulation must not lose."""
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }


def restore_gradients(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = saved[name].to(parameter.device).clone() if name in saved else None


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
    """Raise `InvalidInput` (`E-NAME`) for an invalid name."""
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
