"""The ledger's fields of a training: who trained what, where, how long, on which data, at what price."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from trainyard.backends.job import TrainingJob
from trainyard.backends.machine import processor_name
from trainyard.backends.oom import read_shape
from trainyard.backends.spending import name_spending
from trainyard.compute.gpus import read_gpus
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.settings import Settings
from trainyard.spec.axes.methods import Method
from trainyard.spec.chain import digest
from trainyard.spec.money import PriceUnit, add_costs
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.spending import SpendingStore

FLOPS_OF_FULL, FLOPS_OF_ADAPTER = 6, 4
"""Per parameter and token: forward 2, gradients of the activations 2, of the weights 2, which an adapter has not
(Kaplan et al., Scaling Laws for Neural Language Models, 2020, 2.1)."""
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:trainyard:training:v1"
TREE_DIGEST = "trainyardTree"
"""Algorithm of a digest over the names and SHA-256 of a folder's files, in a digest set of in-toto."""
NO_PRICE = {"source": "not set: TRAINYARD_PRICE_PER_HOUR"}


def format_time(seconds: float) -> str:
    """Return a time in UTC as the ledger has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe_training(
    job: TrainingJob,
    record: JsonMapping,
    settings: Settings,
    *,
    started: float,
    seconds: float,
    theme: str = "",
    sender: str = "",
) -> JsonObject:
    """Return the nine fields of a training, and what else an auditor needs; `record` is its `training.json`."""
    device, price = describe_device(job), describe_price(job, settings)
    trained_tokens = int((record.get("tokens") or {}).get("trained") or 0)
    versions = {"trainyard": version("trainyard"), **(record.get("versions") or {})}
    return {
        "predicate_type": PREDICATE_TYPE,
        "predicate": build_predicate(job, versions, started=started, seconds=seconds),
        "date_time": format_time(started),
        "gpu_used": device,
        "gpu_provider": job.config.backend.value if job.config.backend.facts.remote else settings.gpu_provider,
        "gpu_price_per_hour": price,
        "model_trained": describe_model(job),
        "model_parameters": describe_settings(job),
        "theme_of_training": theme or "unspecified",
        "time_training_s": round(seconds, 3),
        "sender_address": sender or sender_address(settings),
        "data": [{"port": port.value, "sha256": sha256} for port, sha256 in job.data_sha256.items()],
        "versions": versions,
        "seeds": {"training": job.config.hyperparameters.seed},
        "tokens": record.get("tokens") or {},
        "rows": record.get("rows") or {},
        "steps": record.get("steps"),
        "precision": record.get("precision"),
        "final_loss": record.get("final_loss"),
        "flops": estimate_flops(job, trained_tokens),
        "energy_j": record.get("energy_j"),
        "cost": describe_cost(job, settings),
        "earlier_weights": list(job.parents),
    }


def build_predicate(job: TrainingJob, versions: Mapping[str, str], *, started: float, seconds: float) -> JsonObject:
    """Return the SLSA provenance of a training: its settings, what it was made of, by what and when.

    With the outputs of its entry as subject it is an in-toto statement (`app/artifacts/statements.py`).
    """
    model, settings = describe_model(job), describe_settings(job)
    made_of = [("base", job.base_sha256), *((port.value, sha256) for port, sha256 in job.data_sha256.items())]
    made_of += [("earlier_weights", sha256) for sha256 in job.parents]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "config_sha256": settings["config_sha256"],
                **{name: model[name] for name in ("stage", "method", "backend")},
            },
            "internalParameters": {"seed": job.config.hyperparameters.seed, "devices": len(job.devices)},
            "resolvedDependencies": [
                {"name": name, "digest": {TREE_DIGEST: sha256}} for name, sha256 in made_of if sha256
            ],
        },
        "runDetails": {
            "builder": {"id": f"urn:trainyard:backend:{job.config.backend.value}", "version": dict(versions)},
            "metadata": {
                "invocationId": job.digest,
                "startedOn": format_time(started),
                "finishedOn": format_time(started + seconds),
            },
        },
    }


def describe_device(job: TrainingJob) -> JsonObject:
    """Return the GPUs of a training by NVML's names, or the processor."""
    if job.config.backend.facts.remote:
        return {"kind": "service", "name": job.service.model if job.service else ""}
    gpus = [gpu for gpu in read_gpus().gpus if gpu.index in job.devices]
    if gpus:
        return {"kind": "gpu", "name": gpus[0].name, "uuids": [gpu.uuid for gpu in gpus], "count": len(gpus)}
    return {"kind": "cpu", "name": processor_name(), "threads": job.threads}


def describe_price(job: TrainingJob, settings: Settings) -> JsonObject:
    """Return the price of a device for an hour, its currency and where it is from."""
    if job.config.backend.facts.remote:
        return {"source": f"billed by {job.config.backend.value}"}
    listed = settings.prices.get(job.config.backend.value)
    if listed is not None and listed.per != PriceUnit.HOUR:
        return {"source": f"per {listed.per.replace('_', ' ')}: {listed.source}"}
    price = settings.price_per_hour if listed is None else listed.usd
    if price is None:
        return dict(NO_PRICE)
    return {"amount": str(price), "currency": "USD", "source": "price_per_hour" if listed is None else listed.source}


def describe_cost(job: TrainingJob, settings: Settings) -> JsonObject | None:
    """Return what all starts of a training have cost, as its run's spending has it; None where no price is known."""
    run, node = name_spending(job)
    cost = add_costs(entry for entry in SpendingStore(settings.spending).list_run(run) if entry.node == node)
    return None if cost is None else {"amount": str(cost.usd), "currency": cost.currency, "source": cost.source}


def describe_model(job: TrainingJob) -> JsonObject:
    """Return the base's name and digest, how it was trained, and its parameters."""
    shape = read_shape(job.base)
    return {
        "name": Path(job.config.base_model or job.base).name if Path(job.base).is_absolute() else job.base,
        "sha256": job.base_sha256,
        "parameters": shape.parameters if shape else None,
        "stage": job.config.stage.type.value,
        "method": job.config.method.type.value,
        "backend": job.config.backend.value,
    }


def describe_settings(job: TrainingJob) -> JsonObject:
    """Return the numbers of a training; texts such as a judge's prompt are in the digest of the config alone."""
    numbers = {
        name: value
        for name, value in job.config.hyperparameters.model_dump(mode="json", exclude_defaults=False).items()
        if isinstance(value, int | float | bool)
    }
    rank = getattr(job.config.method, "rank", None)
    return {
        **numbers,
        "optimizer": job.config.hyperparameters.optimizer.value,
        "schedule": job.config.hyperparameters.schedule.value,
        **({"rank": rank} if rank is not None else {}),
        "config_sha256": digest(job.config),
        "job": job.digest,
    }


def estimate_flops(job: TrainingJob, tokens: int) -> int | None:
    """Return the floating-point operations of the trained tokens; None where the sizes of the base are not known."""
    shape = read_shape(job.base)
    if shape is None or not tokens:
        return None
    factor = FLOPS_OF_FULL if job.config.method.type in (Method.FULL, Method.FREEZE) else FLOPS_OF_ADAPTER
    return factor * shape.parameters * tokens


def sender_address(settings: Settings) -> str:
    """Return the fingerprint of this home's key: the address of callers without a token."""
    key = Ledger.at_home(settings.home).sound_private_key()
    return f"ed25519:{key.public.fingerprint}" if key else "owner"


def read_training_record(folder: Path) -> JsonObject:
    """Return `training.json` of a result; {} without one."""
    path = folder / "training.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def list_licences(sources: Sequence[Mapping[str, object]]) -> list[JsonObject]:
    """Return each data set's digest with its licence, `unknown` where nothing says it."""
    return [{"sha256": source.get("sha256"), "licence": source.get("license") or "unknown"} for source in sources]
