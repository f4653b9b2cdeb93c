"""Trial run of an adapter: it is loaded and run once on its base before anything says that it is there.

A training does this itself and leaves `adapter_run` in its `training.json`. What comes from elsewhere (a pull, a
restored home, a version of an earlier release) is run in a child of its own: at the pull, or at the latest before it is
deployed, promoted or served. A version keeps the outcome in its facts:

    adapter_run            true, or false
    adapter_run_because    why it was not run; not there for one that was
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.errors import Corrupt, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve.children import child_threads, run_child
from trainyard.settings import Settings
from trainyard.spec.axes.stages import Stage
from trainyard.stores.adapters import RUN, RUN_BECAUSE, AdapterRegistry, AdapterVersion
from trainyard.stores.models import resolve_model, weight_files
from trainyard.stores.tensors import find_nonfinite

PROGRAM = "trainyard.serve.trial_program:main"
TRIAL_FILE = "trial.json"


@dataclass(frozen=True)
class TrialRun:
    """Result of running an adapter once on its base."""

    reason: str = ""
    """Why it was not; empty: it was."""

    @property
    def facts(self) -> JsonObject:
        """Return the facts of a version about it."""
        return {RUN: not self.reason, **({RUN_BECAUSE: self.reason} if self.reason else {})}


def try_adapter_folder(folder: Path, settings: Settings, base: Path | None = None) -> TrialRun:
    """Run the adapter of a folder once on its base, where that base is on this machine (`base`, or by its name).

    Raises `TrainyardError` (`E-ADAPTER-INVALID`, `E-CRASH`) for an adapter that cannot be run on it.
    """
    base_folder, reason = (base, "") if base is not None else find_base_folder(folder, settings)
    if base_folder is not None and not has_weights(
        base_folder
    ):  # a folder with the config alone is enough for a conversion
        base_folder, reason = None, "the folder of its base has no weights"
    if base_folder is None:
        require_finite(folder)
        return TrialRun(reason)
    spec = {
        "adapter": str(folder),
        "base": str(base_folder),
        "head": find_head(folder),
        "threads": child_threads(settings),
    }
    with TemporaryDirectory(prefix="trainyard-trial-") as work:
        record = run_child(PROGRAM, Path(work) / "child", spec, TRIAL_FILE, "The adapter could not be run on its base.")
    return TrialRun(str(record["reason"]))


def try_version(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> AdapterVersion:
    """Run a version that was never run here, and keep the outcome in its facts; returns the version with them.

    A whole model is left as it is. Raises as `try_adapter_folder`.
    """
    if version.kind != "adapter" or version.facts.get(RUN) is True:
        return version
    trial = try_adapter_folder(registry.path(version), settings)
    return registry.record_run(version, trial.facts)


def find_base_folder(folder: Path, settings: Settings) -> tuple[Path | None, str]:
    """Return the folder of an adapter's base with the files of its training, or None and why there is none here."""
    training, config = read_object(folder / "training.json"), read_object(folder / "adapter_config.json")
    digest = str(training.get("base_sha256") or "")
    names = (training.get("base_path"), training.get("base_model"), config.get("base_model_name_or_path"))
    other = ""
    for name in dict.fromkeys(str(name) for name in names if name):
        try:
            source = resolve_model(name, settings)
        except TrainyardError:
            continue
        if source.path is not None and digest in ("", source.sha256):
            return source.path, ""
        other = other or (name if source.path is not None else "")
    if other:
        return None, f"the base {Path(other).name} of this machine has other files than that of its training"
    named = next((str(name) for name in names[1:] if name), "")
    return None, f"its base {Path(named).name} is not on this machine" if named else "it does not name its base"


def has_weights(base: Path) -> bool:
    try:
        return bool(weight_files(base))
    except TrainyardError:
        return False


def require_finite(folder: Path) -> None:
    """Raise `TrainyardError` (`E-ADAPTER-INVALID`) for weights that cannot be read, or are not finite."""
    why = "It contains NaN or infinity."
    try:
        name = find_nonfinite(folder / "adapter_model.safetensors")
    except (ValueError, OSError) as error:
        name, why = "adapter_model.safetensors", str(error)
    if name is not None:
        raise TrainyardError(
            f"The weights of the adapter are not usable: {name}.",
            why=why,
            do="Train it again with a lower learning_rate, or take another version of it.",
            code="E-ADAPTER-INVALID",
        )


def read_trial(folder: Path) -> TrialRun | None:
    """Return what the training of an adapter has recorded about running it; None if nothing."""
    record = read_object(folder / "training.json").get("adapter_run")
    return None if not record else TrialRun("" if record == "yes" else str(record))


def find_head(folder: Path) -> str:
    """Return what the model puts out with this adapter: text, or one score a row."""
    training, config = read_object(folder / "training.json"), read_object(folder / "adapter_config.json")
    if training.get("stage") in {stage.value for stage in Stage}:
        return Stage(training["stage"]).facts.head
    return "reward" if config.get("task_type") == "SEQ_CLS" else "causal"


def read_object(path: Path) -> dict[str, object]:
    """Return the JSON object of a file; empty where there is no file. Raises `Corrupt` (`E-CORRUPT`)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Corrupt(f"{path.name} of the adapter is not a JSON object.", do="Train it again.", code="E-CORRUPT")
    return value
