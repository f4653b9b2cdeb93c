"""`/models`: bases that are served, fine-tuned models, and the adapter versions of the tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import httpx

from trainyard.app.adapters.trained import find_served
from trainyard.app.chat import load_adapter, model_client
from trainyard.app.context import Context
from trainyard.errors import TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.serve import embedded
from trainyard.serve.base_sources import NamedAdapter
from trainyard.spec.states import JobState
from trainyard.stores.openai_records import FineTuningRecord
from trainyard.surfaces.openai.calls import WireCall
from trainyard.surfaces.openai.errors import WireError, translate_error
from trainyard.surfaces.openai.job_plans import CHECKPOINT, MODEL_NAME
from trainyard.surfaces.openai.jobs import end_of, find_job

OWNER = "trainyard"
UNLOAD_PATH = "/v1/unload_lora_adapter"


@dataclass(frozen=True)
class ServedModel:
    """Where a model answers, and its name there."""

    url: str
    name: str


def unknown_model(name: str) -> WireError:
    text = f"The model `{name[:200]}` does not exist or you do not have access to it."
    return WireError(404, text, param="model", code="model_not_found")


def find_server(call: WireCall) -> str:
    """Return the address of the model server. Raises `WireError` 503 where none runs."""
    url = embedded.find_running(call.settings)
    if url is None:
        raise WireError(503, "No model server is running here. `trainyard up` starts one.", code="E-NO-SERVER")
    return url


def list_bases(url: str) -> list[JsonObject]:
    """Return the entries of the bases that a server has."""
    try:
        with model_client(url) as client:
            cards: list[JsonObject] = client.get("/v1/models").json()["data"]
    except httpx.HTTPError as error:
        raise WireError(503, "The model server does not answer. `trainyard up` starts it.") from error
    return [card for card in cards if card.get("parent") is None]


def list_models(call: WireCall) -> JsonObject:
    call.require_scope("models")
    return {"object": "list", "data": read_models(call)}


def read_models(call: WireCall) -> list[JsonObject]:
    """Return what a caller may ask for here."""
    url = embedded.find_running(call.settings)
    bases = [describe_model(card["id"], card["created"]) for card in (list_bases(url) if url is not None else [])]
    tuned = [entry for record in call.jobs.list() if (entry := describe_tuned(call, record)) is not None]
    rows = call.run_operation("adapters list", tenant=call.settings.tenant).rows
    versions = [describe_version(row) for row in rows if row["kind"] == "adapter"]
    return [*bases, *tuned, *versions]


def describe_model(name: object, created: float, owner: str = OWNER) -> JsonObject:
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def describe_version(row: JsonMapping) -> JsonObject:
    name = str(row["name"])
    return describe_model(name, datetime.fromisoformat(str(row["created"])).timestamp(), name.partition("/")[0])


def describe_tuned(call: WireCall, record: FineTuningRecord) -> JsonObject | None:
    """Return the entry of a job's model; None before it is there, and after it was deleted."""
    job = None if record.is_deleted else find_job(call, record)
    if job is None or job.state is not JobState.COMPLETED:
        return None
    return describe_model(record.model, end_of(job), call.settings.tenant)


def find_tuned(call: WireCall, name: str) -> FineTuningRecord:
    """Return the record whose model has a name. Raises `WireError` 404."""
    matched = MODEL_NAME.fullmatch(name)
    record = call.jobs.read(f"ftjob-{matched['id']}") if matched is not None else None
    if record is None or record.model != name or record.is_deleted:
        raise unknown_model(name)
    return record


def show_model(call: WireCall) -> JsonObject:
    call.require_scope("models")
    name = call.path["model"]
    if name.startswith("ft:"):
        entry = describe_tuned(call, find_tuned(call, name))
    else:
        entry = next((entry for entry in read_models(call) if entry["id"] == name), None)
    if entry is None:
        raise unknown_model(name)
    return entry


def delete_model(call: WireCall) -> JsonObject:
    """Delete the model of a fine-tuning job: it is listed and answers no more. Its job and its files stay.

    An adapter version is removed by `trainyard adapters delete-version`. Raises `WireError` 403 for any other model.
    """
    call.require_scope("adapters delete-version")
    name = call.path["model"]
    if not name.startswith("ft:"):
        show_model(call)
        raise WireError(403, f"The model `{name}` is not a fine-tuned model of yours.", param="model")
    record = find_tuned(call, name)
    if describe_tuned(call, record) is None:
        raise unknown_model(name)
    call.jobs.update(record, is_deleted=True)
    if (url := embedded.find_running(call.settings)) is not None:
        with model_client(url) as client:
            client.post(UNLOAD_PATH, json={"lora_name": name})
    return {"id": name, "object": "model", "deleted": True}


def resolve_model(call: WireCall, name: str) -> ServedModel:
    """Return where a model answers, loaded if it was not. Raises `WireError` 404 for one that the caller has not."""
    url = find_server(call)
    if CHECKPOINT.fullmatch(name):
        text = f"The checkpoint `{name}` is not served: only the model of the last step is."
        raise WireError(400, text, param="model", code="unsupported_value")
    if name in {str(card["id"]) for card in list_bases(url)}:
        return ServedModel(url, name)
    try:
        adapter = find_adapter(call, name, call.context)
        base = load_adapter(url, adapter)
    except TrainyardError as error:
        if error.code in ("E-ADAPTER-NOT-FOUND", "E-NAME", "E-JOB-NOT-FOUND"):
            raise unknown_model(name) from error
        if "already been loaded" in error.why:
            return ServedModel(url, adapter.name)
        raise translate_error(error, "model") from error
    except httpx.HTTPError as error:
        raise WireError(503, "The model server does not answer. `trainyard up` starts it.") from error
    if base is None:
        text = f"The base of `{name}` is not served here. Add it to the setting serve_models, and call `trainyard up`."
        raise WireError(400, text, param="model", code="E-MODEL-NOT-FOUND")
    return ServedModel(url, adapter.name)


def find_adapter(call: WireCall, name: str, context: Context) -> NamedAdapter:
    """Return the adapter of a fine-tuned model under its name, or a version of the registry."""
    if not name.startswith("ft:"):
        return find_served(name, context)
    record = find_tuned(call, name)
    return NamedAdapter(name, find_served(record.job or record.name, context).folder, alias=None)
