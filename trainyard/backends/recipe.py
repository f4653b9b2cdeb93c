"""The recipe of a training: all that is needed to carry it out again, elsewhere, to the same weights.

    recipes/<sha256>.json      canonical JSON; the file's SHA-256 is in the training's entry of the ledger

A recipe has the resolved job with its seed, thread count and automatic choices, the digests of rows, base and earlier
weights, the versions, the processor, and how the training ended. It contains no row and no secret. The order of the
rows is not stored: it follows from the seed and the rows.

An adapter is compared by `weights_sha256`, because the digest of its files contains times and paths: `training.json`
says how many seconds it took, and PEFT writes the modules of `adapter_config.json` in the order of a Python set.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainyard.backends.job import PLACES, TrainingJob
from trainyard.backends.machine import code_digest, processor_name
from trainyard.backends.oom import halve_batch
from trainyard.backends.results import TRAINING_FILE
from trainyard.errors import Corrupt, NotFound, TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.settings import Settings
from trainyard.spec.chain import canonical_json, digest
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.ledger.recording import to_finite
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import MANIFEST, file_sha256, list_files, write_whole

RECIPES = "recipes"
CODE = ("train", "backends", "data/renderers")
"""Folders whose code makes a training's result."""
ADAPTER_CONFIG = "adapter_config.json"
NOT_WEIGHTS = frozenset({TRAINING_FILE, MANIFEST, "README.md"})
"""Files next to weights that say how and when they were made."""
LOCATED = frozenset({"base_model_name_or_path", "revision", "inference_mode"})
"""Keys of PEFT's config that say where the base lies, or what the adapter is loaded for."""
CHOSEN = (
    "device", "precision", "precision_why", "threads", "cpu_capability", "batching", "batching_why", "attention",
    "attention_why", "head", "kernels", "shared_prompt", "renderer", "chat_template_sha256",
)  # fmt: skip
"""Fields of `training.json` that say what was chosen automatically."""
ENDS = ("steps", "first_loss", "final_loss", "loss_at_start", "loss_at_end", "tokens", "rows")
"""Fields of `training.json` by which two carried-out trainings are compared when their weights differ."""


class RecipeInput(BaseModel):
    """Something that a training read: rows of a port, the base, earlier weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str
    """`data/sft`, `base`, `adapter`, `model`, `reward`, `teacher`."""
    sha256: str
    name: str = ""
    """By which it is resolved, of a base."""
    place: str = ""
    """Where it was, below the home; empty where it was outside."""


class Recipe(BaseModel):
    """A training as it was carried out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: JsonObject
    """The job without what says where things lie, with its threads and choices."""
    inputs: tuple[RecipeInput, ...]
    chain: JsonObject | None = None
    """The resolved chain that the training was a node of."""
    node: str = ""
    choices: JsonObject
    machine: dict[str, str]
    versions: dict[str, str]
    code_sha256: str
    ends: JsonObject
    weights_sha256: str

    def input(self, role: str) -> RecipeInput | None:
        return next((item for item in self.inputs if item.role == role), None)


def weights_sha256(folder: Path) -> str:
    """Return the digest of what an adapter or a model is: its files without times, paths and the order of sets."""
    digests: dict[str, str] = {}
    for path in list_files(DISK, folder) if folder.is_dir() else ():
        name = path.relative_to(folder).as_posix()
        if name in NOT_WEIGHTS:
            continue
        if name == ADAPTER_CONFIG:
            config = json.loads(path.read_text(encoding="utf-8"))
            digests[name] = digest({key: sort_texts(value) for key, value in config.items() if key not in LOCATED})
        else:
            digests[name] = file_sha256(path)
    return digest(digests)


def sort_texts(value: object) -> object:
    """Return a list of texts sorted: PEFT writes sets as lists."""
    return sorted(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


def describe_machine() -> dict[str, str]:
    """Return what another machine may compute other last bits with."""
    return {"processor": processor_name(), "architecture": platform.machine(), "python": platform.python_version()}


def describe_reproduction(
    job: TrainingJob,
    record: JsonMapping,
    result: Path,
    settings: Settings,
    *,
    inputs: Mapping[str, tuple[str, Path | None]],
    chain: JsonMapping | None = None,
) -> JsonObject:
    """Keep the recipe of a training, and return the ledger's fields about it; `inputs` are role -> (digest, folder).

    A training that is done is not undone because its recipe could not be written: its entry says so.
    """
    if record.get("out_of_memory"):
        job = halve_batch(job) or job
    job = job.model_copy(update={"template_day": record.get("template_day", "")})
    base = RecipeInput(role="base", sha256=job.base_sha256, name=job.config.base_model or job.base)
    recipe = Recipe(
        job=strip_job(job),
        inputs=(base, *(locate(role, sha256, path, settings) for role, (sha256, path) in inputs.items())),
        chain=dict(chain) if chain else None,
        node=job.node,
        choices={name: record[name] for name in CHOSEN if record.get(name) not in (None, "")},
        machine=describe_machine(),
        versions={str(name): str(value) for name, value in (record.get("versions") or {}).items()},
        code_sha256=code_digest(CODE),
        ends={name: record[name] for name in ENDS if name in record},
        weights_sha256=weights_sha256(result),
    )
    try:
        kept = {"recipe_sha256": keep_recipe(recipe, settings.home)}
    except TrainyardError as error:
        kept = {"recipe_missing": error.code}
    return {
        **kept,
        "weights_sha256": recipe.weights_sha256,
        "choices": recipe.choices,
        "machine": recipe.machine,
        "code_sha256": recipe.code_sha256,
    }


def strip_job(job: TrainingJob) -> JsonObject:
    kept = {"threads", "choices", "node", "template_day"}
    return job.model_dump(mode="json", exclude=PLACES - kept)


def locate(role: str, sha256: str, path: Path | None, settings: Settings) -> RecipeInput:
    inside = path is not None and path.is_relative_to(settings.home)
    return RecipeInput(role=role, sha256=sha256, place=str(path.relative_to(settings.home)) if path and inside else "")


def recipe_file(home: Path, sha256: str) -> Path:
    return home / RECIPES / f"{sha256}.json"


def keep_recipe(recipe: Recipe, home: Path) -> str:
    """Write a recipe under its digest, and return that."""
    data = canonical_json(to_finite(add_version("recipe", recipe.model_dump(mode="json"))))
    sha256 = hashlib.sha256(data).hexdigest()
    path = recipe_file(home, sha256)
    if not path.is_file():
        with translate_os_errors("The recipe of the training was not written"):
            make_folders(DISK, path.parent)
            write_whole(DISK, path, data)
    return sha256


def read_recipe(path: Path, sha256: str) -> Recipe:
    """Return a recipe, after a check of its digest. Raises `NotFound` (`E-NOT-FOUND`), `Corrupt` (`E-CORRUPT`)."""
    if not path.is_file():
        raise NotFound(
            f"The recipe {sha256} of this training is not here.",
            why="It is kept in the home that trained, and in a bundle that was exported with --data.",
            do="Ask its owner for `trainyard ledger export FOLDER --entry N --data`, and give --bundle FOLDER.",
            code="E-NOT-FOUND",
        )
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Corrupt(
            f"The recipe {path.name} has other bytes than the ledger says.",
            why="It was changed after the training.",
            do="Take it from a backup or from another bundle.",
            code="E-CORRUPT",
        )
    return Recipe.model_validate(read_versioned("recipe", data, path))
