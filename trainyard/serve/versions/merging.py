"""A registered version as a whole model: base and adapter in one folder, or in one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.serve.conversion.merged import DType, Format, merge_files, require_converter
from trainyard.serve.deploy import DeployRequest, check_files, describe, find_base, refuse
from trainyard.serve.targets.merged import facts_of
from trainyard.serve.versions.promotion import reference
from trainyard.settings import Settings
from trainyard.spec.nodes import DeployerConfig
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion


def merge_version(
    version: AdapterVersion, target: Path, settings: Settings, *, format: Format = "safetensors", dtype: DType = "auto"
) -> dict[str, Any]:
    """Write the merged model of a version as the folder `target`; returns what is in its `merged.json`.

    Raises `Conflict` (`E-FILE-EXISTS`), `InvalidInput` (`E-MERGE`, `E-PARAMETER`), `NotFound` (`E-MODEL-NOT-FOUND`),
    `Refused` (`R-BASE-MISMATCH`), `Unavailable` (`E-PACKAGE-MISSING`, `E-CONVERT`) and what the child reports; nothing
    is left then.
    """
    if format == "gguf":
        require_converter(settings, dtype)
    if target.exists():
        raise Conflict(
            f"{target} exists already.",
            do="Name a folder that is not there; nothing is overwritten.",
            code="E-FILE-EXISTS",
        )
    registry = AdapterRegistry(settings.adapters)
    adapter, base = registry.path(registry.verify(version)), require_base_folder(version, registry, settings)
    return merge_files(adapter, base, target, settings, facts_of(version), format=format, dtype=dtype)


def require_base_folder(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> Path:
    """The folder of the base, whose files are those of the training."""
    if version.kind != "adapter":
        raise InvalidInput(
            f"{version.name} is a whole model.",
            do=f"Use its folder as it is: {registry.path(version)}.",
            code="E-MERGE",
        )
    config = DeployerConfig(tenant=version.tenant, role=version.role)
    wanted = DeployRequest(config, registry.path(version), reference(version, registry), {}, version.tenant, "")
    candidate = find_base(describe(wanted), settings)
    if not (Path(candidate.base_path) / "config.json").is_file():
        raise NotFound(
            f"The base {candidate.base_model!r} of {version.name} is not on this machine.",
            do="Download it, or bring its folder back; its digest is compared.",
            code="E-MODEL-NOT-FOUND",
        )
    refuse(check_files(wanted, candidate, settings))
    return Path(candidate.base_path)
