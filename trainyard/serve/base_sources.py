"""Bases of a model server: their files, their memory, and the names under which they answer.

Torch-free: a command asks these before a server is started, and the server asks them again before it reads a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainyard.errors import LimitExceeded, NotFound
from trainyard.loading import load_object
from trainyard.serve.chat_templates import check_folder
from trainyard.settings import Settings
from trainyard.spec.chain import digest
from trainyard.spec.estimate.answering import answering_bytes
from trainyard.stores.model_hub import download_model
from trainyard.stores.models import ModelSource, read_json, resolve_model

WIDTHS = {"float32": 4, "bfloat16": 2}
"""dtype of a served base -> bytes of a number."""


@dataclass(frozen=True)
class BaseSources:
    """The bases of one server, each once, and further names of the same weights."""

    bases: tuple[ModelSource, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Name that was given for weights that are served already -> the base that has them."""

    @property
    def title(self) -> str:
        """Return the names of the bases, for the record of their server."""
        return ", ".join(base.name for base in self.bases)

    @property
    def sha256(self) -> str:
        """Return the digest of the bases: of a single one, its own."""
        digests = [base.sha256 for base in self.bases]
        return digests[0] if len(digests) == 1 else digest(digests)


def find_bases(names: Sequence[str], settings: Settings, *, download: bool = False) -> BaseSources:
    """Return the models of the names, checked; a model that is named twice is served once.

    With `download`, a Hub name that is not on this machine is downloaded, unless HF_HUB_OFFLINE forbids it. Raises what
    `resolve_model`, `download_model` and `check_folder` raise, and `NotFound` (`E-MODEL-NOT-FOUND`).
    """
    sources: dict[str, ModelSource] = {}
    aliases: dict[str, str] = {}
    for name in dict.fromkeys(names):
        source = find_base(name, settings, download=download)
        first = sources.setdefault(source.sha256, source)
        if first is not source and name != str(first.path):
            aliases[name] = first.name
    return BaseSources(tuple(sources.values()), aliases)


def find_base(name: str, settings: Settings, *, download: bool) -> ModelSource:
    source = resolve_model(name, settings)
    if source.path is None and download and not load_object("huggingface_hub.constants:HF_HUB_OFFLINE"):
        source = download_model(name, settings)
    if source.path is None:
        raise NotFound(
            f"The model {name!r} is not on this machine.",
            do="Download it into a folder and give the folder, or use `starter`.",
            code="E-MODEL-NOT-FOUND",
        )
    check_folder(source.path)
    return source


def require_room(bases: Sequence[ModelSource], dtype: str, settings: Settings) -> None:
    """Refuse bases that do not fit into memory together, before any of them is read.

    Raises `LimitExceeded` (`E-MEMORY-FIT`) that names the first base that does not fit, its need and what is left.
    """
    free, limit = psutil.virtual_memory().available, settings.serve_memory_mb << 20
    room = min(free, limit) if limit else free
    bound = "serve_memory_mb is" if limit and limit <= free else "Free on this machine are"
    sizes: dict[str, int] = {}
    for base in bases:
        need, left = estimate_bytes(base, dtype), room - sum(sizes.values())
        if need > left:
            rest = "".join(f"; {name!r} takes {gib(size)}" for name, size in sizes.items())
            raise LimitExceeded(
                f"The base {base.name!r} needs {gib(need)} of memory, and {gib(left)} are left.",
                why=f"{bound} {gib(room)}{rest}.",
                do="Serve fewer or smaller bases, use --dtype bfloat16, or end what takes the memory.",
                code="E-MEMORY-FIT",
            )
        sizes[base.name] = need


def gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def estimate_bytes(base: ModelSource, dtype: str) -> int:
    """Bytes of a base and one conversation with it."""
    assert base.path is not None
    assert base.parameters is not None
    config = read_json(Path(base.path) / "config.json", "E-MODEL-INVALID")
    return answering_bytes(config, base.parameters, WIDTHS[dtype])
