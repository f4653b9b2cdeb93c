"""Facts of a machine and of a base that do not change with the load: devices by name, sizes, versions. No torch."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import trainyard
from trainyard.compute.gpus import read_gpus
from trainyard.spec.axes.devices import Device

PACKAGES = ("torch", "transformers", "peft", "trainyard")
SOURCES = (".py", ".jinja", ".json")
UNLIKE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures"})
"""Keys of a `config.json` that say nothing about the sizes."""


def read_architecture(base: Path | None) -> dict[str, object]:
    """Return the sizes of a model, from its `config.json`; {} without one."""
    path = base / "config.json" if base else None
    if path is None or not path.is_file():
        return {}
    config: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return {name: value for name, value in config.items() if name not in UNLIKE}


def device_name(device: Device) -> str:
    """Return the device and its kind, that of the first GPU or of the processor: two machines may share a home."""
    gpus = read_gpus().gpus if device is Device.CUDA else ()
    return f"{device} {gpus[0].name}" if gpus else f"{device} {processor_name()}"


@cache
def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor; its architecture where the system does not name it."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that a training computes with."""
    package_versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            package_versions[name] = version(name)
    return package_versions


def code_digest(rooms: Iterable[str]) -> str:
    """Digest of the source files of some rooms, and of the templates and texts that they read: in a checkout, they
    change more often than the version."""
    root = Path(trainyard.__file__).parent
    hasher = hashlib.sha256()
    for room in map(root.joinpath, rooms):
        files = [room] if room.suffix else room.rglob("*")
        for path in sorted(path for path in files if path.suffix in SOURCES):
            hasher.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return hasher.hexdigest()
