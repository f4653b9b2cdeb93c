"""A double of Fireworks AI: data sets, jobs whose id the client chooses, downloads (routes of `fireworks-ai` 1.2)."""

from __future__ import annotations

import re
from typing import Any, is_typeddict

from trainyard.json_types import JsonObject
from trainyard.testing.providers.double import TOKENS, Call, JobDouble, ProviderDouble, Refusal, Reply
from trainyard.testing.providers.openai import FORM_FILE

ACCOUNT = "acme"
RESOURCE_ID = re.compile(r"[a-z][a-z0-9-]{0,62}")
JOBS = {"supervisedFineTuningJobs": "supervisedFineTuningJobId", "dpoJobs": "dpoJobId"}
BASE = rf"/v1/accounts/{ACCOUNT}"


class FireworksDouble(ProviderDouble):
    """Fireworks AI on a free port, with one account."""

    routes = (
        ("POST", rf"{BASE}/datasets", "create_dataset"),
        ("POST", rf"{BASE}/datasets/([\w-]+):upload", "take_file"),
        ("POST", rf"{BASE}/supervisedFineTuningJobs", "create_job"),
        ("POST", rf"{BASE}/dpoJobs", "create_job_of_pairs"),
        ("GET", rf"{BASE}/(?:supervisedFineTuningJobs|dpoJobs)/([\w-]+)", "show"),
        ("POST", rf"{BASE}/(?:supervisedFineTuningJobs|dpoJobs)/([\w-]+):cancel", "cancel"),
        ("GET", rf"{BASE}/models/([\w-]+):getDownloadEndpoint", "list_downloads"),
        ("GET", r"/store/(.+)", "send_file"),
    )
    walk = ("JOB_STATE_CREATING", "JOB_STATE_VALIDATING", "JOB_STATE_RUNNING", "JOB_STATE_COMPLETED")
    failed, canceled = "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"

    def check_key(self, call: Call) -> None:
        if not call.path.startswith("/store/"):  # a signed address
            super().check_key(call)

    def create_dataset(self, call: Call) -> Reply:
        from fireworks.types.dataset_create_params import DatasetCreateParams  # an optional package

        body = validate_body(DatasetCreateParams, call.json)
        name = check_name(body["datasetId"])
        if name in self.files:
            raise Refusal(409, f"The dataset {name} exists.")
        self.files[name] = b""
        return Reply(200, {"name": f"accounts/{ACCOUNT}/datasets/{name}", "state": "UPLOADING"})

    def take_file(self, call: Call, name: str) -> Reply:
        match = FORM_FILE.search(call.content)
        if match is None or name not in self.files:
            raise Refusal(400, "The form has no file, or there is no such dataset.")
        boundary = call.headers["content-type"].partition("boundary=")[2].encode()
        content = call.content[match.end() :].partition(b"\r\n--" + boundary)[0]
        self.check_rows(content)
        self.files[name] = content
        return Reply(200, {"id": name, "bytes": len(content)})

    def create_job(self, call: Call) -> Reply:
        from fireworks.types.supervised_fine_tuning_job_create_params import (  # an optional package
            SupervisedFineTuningJobCreateParams,
        )

        return self.store_job(call, "supervisedFineTuningJobId", SupervisedFineTuningJobCreateParams)

    def create_job_of_pairs(self, call: Call) -> Reply:
        from fireworks.types.dpo_job_create_params import DpoJobCreateParams  # an optional package

        return self.store_job(call, "dpoJobId", DpoJobCreateParams)

    def store_job(self, call: Call, id_name: str, kind: Any) -> Reply:
        """Store a job under the id that the client chose. Raises `Refusal` (409) for one that is taken."""
        body = validate_body(kind, {**call.json, **call.query})
        name = check_name(str(body.get(id_name, "")))
        self.require_model(str({**body, **body.get("trainingConfig", {})}.get("baseModel")))
        if name in self.jobs:
            raise Refusal(409, f"The job {name} exists.")
        if str(body["dataset"]).rpartition("/")[2] not in self.files:
            raise Refusal(400, f"There is no dataset {body['dataset']}.")
        job = self.add_job(name, body)
        return Reply(200, describe(job))

    def show(self, call: Call, job_id: str) -> Reply:
        job = self.read_job(job_id)
        kind = "dpoJobs" if "trainingConfig" in job.body else "supervisedFineTuningJobs"
        if f"/{kind}/" not in call.path:
            raise Refusal(404, f"There is no job {job_id}.")
        return Reply(200, describe(job))

    def cancel(self, call: Call, job_id: str) -> Reply:
        self.cancel_job(job_id)
        return Reply(200, {})

    def list_downloads(self, call: Call, model: str) -> Reply:
        return Reply(200, {"filenameToSignedUrls": {name: f"{self.url}/store/{name}" for name in self.weights}})

    def send_file(self, call: Call, name: str) -> Reply:
        return Reply(200, self.weights[name], {"Content-Type": "application/octet-stream"})


def check_name(name: str) -> str:
    if not RESOURCE_ID.fullmatch(name):
        raise Refusal(400, f"{name!r} is not an id: lower-case letters, digits and hyphens, at most 63.")
    return name


def validate_body(kind: Any, body: JsonObject) -> JsonObject:
    """Return a body, valid by the client's own type of it with the names of the wire. Raises `Refusal` (400)."""
    from fireworks._utils import PropertyInfo  # the names on the wire are in its annotations
    from pydantic import TypeAdapter, ValidationError  # next to the client's types

    names = read_wire_names(kind, PropertyInfo)
    unknown = body.keys() - names.keys()
    if unknown:
        raise Refusal(400, f"There is no field {', '.join(sorted(unknown))}.")
    for name, value in body.items():
        if isinstance(value, dict) and is_typeddict(names[name]):
            validate_body(names[name], value)
            continue
        try:
            TypeAdapter(names[name]).validate_python(value)
        except ValidationError as error:
            raise Refusal(400, f"{name}: {error}") from error
    return body


def read_wire_names(kind: Any, info: Any) -> dict[str, Any]:
    """Return name on the wire -> type, of the fields of a client's type."""
    from typing import get_args, get_type_hints

    names: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        while not any(isinstance(part, info) for part in getattr(hint, "__metadata__", ())) and (
            getattr(hint, "__origin__", None) is not None and "Required" in str(getattr(hint, "__origin__", ""))
        ):
            hint = get_args(hint)[0]
        alias = next((part.alias for part in getattr(hint, "__metadata__", ()) if isinstance(part, info)), None)
        names[alias or name] = get_args(hint)[0] if alias else hint
    return names


def describe(job: JobDouble) -> JsonObject:
    """Return a job as Fireworks shows it."""
    pairs, done = "trainingConfig" in job.body, job.word == "JOB_STATE_COMPLETED"
    kind = "dpoJobs" if pairs else "supervisedFineTuningJobs"
    settings = job.body["trainingConfig"] if pairs else job.body
    values: JsonObject = {
        "name": f"accounts/{ACCOUNT}/{kind}/{job.id}", "dataset": job.body["dataset"], "state": job.word,
        "displayName": job.body.get("displayName"), "status": {"code": "OK", "message": ""},
    }  # fmt: skip
    if pairs:
        return {**values, "trainingConfig": settings}
    values |= {"baseModel": settings.get("baseModel"), "outputModel": settings.get("outputModel")}
    values |= {"jobProgress": {"percent": 100 if done else 10, "epoch": 1, "inputTokens": TOKENS}}
    return {**values, "estimatedCost": {"currencyCode": "USD", "units": "1", "nanos": 250_000_000}}
