"""A registered version as a whole model: base and adapter in one folder, or in one GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.serve.conversion.merged import DType, Format, merge_files, require_converter
from trainyard.serve.deploy import DeployRequest, check_files, describe, find_base, refuse
from trainyard.serve.targets.merged import read_facts
from trainyard.serve.versions.promotion import reference
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import DeployerConfig
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.artifacts import Reference


def merge_version(
    version: AdapterVersion, target: Path, settings: Settings, *, format: Format = "safetensors", dtype: DType = "auto"
) -> dict[str, object]:
    """Write the merged model of a version as the folder `target`; returns what is in its `merged.json`.

    Raises `Conflict` (`E-FILE-EXISTS`), `InvalidInput` (`E-MERGE`, `E-PARAMETER`), `NotFound` (`E-MODEL-NOT-FOUND`),
    `Refused` (`R-BASE-MISMATCH`), `Unavailable` (`E-PACKAGE-MISSING`, `E-CONVERT`) and what the child reports; nothing
    is left then.
    """
    registry = AdapterRegistry(settings.adapters)
    adapter = reference(registry.verify(version), registry)
    facts = read_facts(version)
    return merge_adapter(adapter, version.name, target, settings, facts, format=format, dtype=dtype)


def merge_adapter(
    adapter: Reference,
    name: str,
    target: Path,
    settings: Settings,
    facts: Mapping[str, object],
    *,
    format: Format = "safetensors",
    dtype: DType = "auto",
) -> dict[str, object]:
    """Write the merged model of an adapter, registered or not; `name` is what messages call it. Raises as above."""
    if format == "gguf":
        require_converter(settings, dtype)
    if target.exists():
        raise Conflict(
            f"{target} exists already.",
            do="Name a folder that is not there; nothing is overwritten.",
            code="E-FILE-EXISTS",
        )
    base = require_base_folder(adapter, name, settings)
    return merge_files(adapter.path, base, target, settings, facts, format=format, dtype=dtype)


def require_base_folder(adapter: Reference, name: str, settings: Settings) -> Path:
    """Return the folder of the base, whose files are those of the training."""
    if adapter.kind is not Port.ADAPTER:
        raise InvalidInput(
            f"{name} is a whole model.",
            do=f"Use its folder as it is: {adapter.path}.",
            code="E-MERGE",
        )
    request = DeployRequest(DeployerConfig(), adapter.path, adapter, {}, "", "")
    candidate = find_base(describe(request), settings)
    if not (Path(candidate.base_path) / "config.json").is_file():
        raise NotFound(
            f"The base {candidate.base_model!r} of {name} is not on this machine.",
            do="Download it, or bring its folder back; its digest is compared.",
            code="E-MODEL-NOT-FOUND",
        )
    refuse(check_files(request, candidate, settings))
    return Path(candidate.base_path)
