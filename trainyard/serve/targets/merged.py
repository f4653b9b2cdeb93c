"""Targets that get base and adapter as one model (`merged:` of a target): made once a version and format, and kept.

    TRAINYARD_HOME/models/merged/<tenant>/<role>/v<N>/<format>/    the model, and merged.json with both differences

Any adapter can be served so, also one of a method that the server has no layout for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from trainyard.errors import Reason
from trainyard.json_types import JsonObject
from trainyard.serve.conversion.merged import BACKEND, GGUF_MODEL, MERGED_FILE, has_converter, merge_files
from trainyard.serve.targets import started
from trainyard.serve.targets.contract import TargetDeployment
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterVersion

MERGED = "merged"


def check(site: TargetDeployment) -> list[Reason]:
    """Return what a sum needs: an adapter, the files of its base, and llama.cpp's converter for a GGUF file."""
    merged_format = site.target.merged
    if merged_format is None:
        return []
    if site.candidate.kind != "adapter":
        because = "the version is a whole model, so there is nothing to merge."
        return [site.reason("R-TARGET", "merged", because, "leave `merged` out.")]
    reasons = started.check_base_folder(site, "it is one of the two parts of a merged model")
    if merged_format == "gguf" and not has_converter(started.get_settings(site)):
        because = "a merged model as GGUF is written by the converter of llama.cpp, which is not installed."
        instead = f"call `trainyard backends install {BACKEND}`."
        reasons.append(site.reason("R-PACKAGE-MISSING", "merged", because, instead))
    return reasons


def make_models(sites: Sequence[TargetDeployment], folders: list[Path]) -> None:
    """Make the merged model of every target that wants one and has none yet; its folder is added to `folders`.

    Raises what `merge_files` raises, such as `E-MERGE` for a sum that says something else.
    """
    for site in sites:
        merged_format = site.target.merged
        if merged_format is None or ((folder := model_folder(site)) / MERGED_FILE).is_file():
            continue
        adapter, base = site.registry.path(site.new), Path(site.candidate.base_path)
        settings = started.get_settings(site)
        merge_files(adapter, base, folder, settings, read_facts(site.new), format=merged_format, dtype="auto")
        folders.append(folder)


def read_facts(version: AdapterVersion) -> JsonObject:
    """Return what the folder of a merged model says about the version in it."""
    origin = {key: version.facts.get(key) for key in ("base_model", "base_sha256")}
    return {"version": version.name, "sha256": version.sha256, **origin}


def remove_models(settings: Settings, version: str) -> None:
    """Remove the merged models of a version that is deleted."""
    shutil.rmtree(settings.models / MERGED / version, ignore_errors=True)


def model_folder(site: TargetDeployment) -> Path:
    return started.get_settings(site).models / MERGED / site.new.name / str(site.target.merged)


def find_gguf(site: TargetDeployment) -> Path:
    return model_folder(site) / GGUF_MODEL


def describe_merged(site: TargetDeployment) -> dict[str, object]:
    """Return what the facts of a deployment say about a target's merged model; empty for one that gets the adapter."""
    if site.target.merged is None:
        return {}
    record = json.loads((model_folder(site) / MERGED_FILE).read_text(encoding="utf-8"))
    keys = ("format", "dtype", "divergence", "saved_divergence")
    return {MERGED: {"path": str(model_folder(site)), **{key: record[key] for key in keys}}}
