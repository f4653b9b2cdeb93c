"""A double of Hugging Face Jobs: jobs, their logs, the list of prices, and repositories around them.

Bodies are compared with those that `huggingface_hub` writes, whose `JobInfo` reads the answers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.json_types import JsonObject
from trainyard.testing.providers.double import (
    COST_USD,
    KEY,
    Call,
    DoubleHandler,
    JobDouble,
    ProviderDouble,
    Refusal,
    Reply,
)
from trainyard.testing.providers.faults import Faults
from trainyard.testing.providers.hf_repositories import RepositoryHandler, RepositoryServer

NAMESPACE = "acme"
FLAVORS = {"cpu-basic": 167, "a10g-small": 16_667, "l4x1": 13_333}
"""Hardware -> millionths of a dollar a minute."""
SECONDS = round(COST_USD / (FLAVORS["a10g-small"] * 1e-6) * 60)


class HfHandler(RepositoryHandler, DoubleHandler):
    """Answers for jobs and for repositories."""

    server: HfJobsDouble

    def answer_any(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith(("/api/jobs", "/api/whoami")):
            self.handle_call()
        else:
            self.answer_repositories(KEY)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer_any


class HfJobsDouble(ProviderDouble, RepositoryServer):
    """The Hub on a free port, for `HfApi(endpoint=url, token=KEY)`."""

    routes = (
        ("GET", r"/api/whoami-v2", "show_account"),
        ("GET", r"/api/jobs/hardware", "list_hardware"),
        ("POST", rf"/api/jobs/{NAMESPACE}", "create_job"),
        ("GET", rf"/api/jobs/{NAMESPACE}", "list_all"),
        ("GET", rf"/api/jobs/{NAMESPACE}/([\w-]+)", "show"),
        ("GET", rf"/api/jobs/{NAMESPACE}/([\w-]+)/logs", "send_log"),
        ("POST", rf"/api/jobs/{NAMESPACE}/([\w-]+)/cancel", "cancel"),
    )
    walk = ("SCHEDULING", "RUNNING", "RUNNING", "COMPLETED")
    failed, canceled = "ERROR", "CANCELED"

    def __init__(self, faults: Faults | None = None, weights: dict[str, bytes] | None = None) -> None:
        super().__init__(faults, weights)
        self.RequestHandlerClass = HfHandler
        self.temporary = tempfile.TemporaryDirectory()
        self.root, self.repositories = Path(self.temporary.name), {}
        for name in self.models:
            self.publish(name)

    def server_close(self) -> None:
        super().server_close()
        self.temporary.cleanup()

    def show_account(self, call: Call) -> Reply:
        return Reply(200, {"name": NAMESPACE, "type": "user"})

    def list_hardware(self, call: Call) -> Reply:
        return Reply(200, [
            {"name": name, "prettyName": name, "cpu": "4 vCPU", "ram": "16 GB", "accelerator": None,
             "ephemeralStorage": "20 GB", "unitCostMicroUSD": price, "unitCostUSD": price * 1e-6, "unitLabel": "minute"}
            for name, price in FLAVORS.items()
        ])  # fmt: skip

    def create_job(self, call: Call) -> Reply:
        body = validate_body(call.json)
        if body.get("flavor") not in FLAVORS:
            raise Refusal(400, f"There is no hardware {body.get('flavor')}.")
        if not 1 <= body.get("timeoutSeconds", 0) <= 86_400 * 7:
            raise Refusal(400, "A job has a time limit.")
        spec = json.loads(body["environment"]["TRAINYARD_SPEC"])
        if spec["rows"] not in self.repositories:
            raise Refusal(400, f"There is no repository {spec['rows']}.")
        body = {**body, "secrets": sorted(body.get("secrets", {}))}
        return Reply(200, describe(self.add_job(f"job{len(self.jobs):04d}", body)))

    def list_all(self, call: Call) -> Reply:
        return Reply(200, [describe(job) for job in self.list_visible()])

    def show(self, call: Call, job_id: str) -> Reply:
        job = self.read_job(job_id)
        if job.word == self.walk[-1]:
            self.publish(json.loads(job.body["environment"]["TRAINYARD_SPEC"])["result"])
        return Reply(200, describe(job))

    def publish(self, name: str) -> None:
        """Put the weights into the repository that the job's program would have pushed to."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in self.weights.items():
            (folder / file).write_bytes(content)
        self.repositories[name] = folder

    def send_log(self, call: Call, job_id: str) -> Reply:
        if job_id not in self.jobs:
            raise Refusal(404, f"There is no job {job_id}.")
        lines = ["===== Job started =====", *(
            "TRAINYARD " + json.dumps({"step": step, "total_steps": self.jobs[job_id].events, "loss": 2.0 / step})
            for step in range(1, self.jobs[job_id].events + 1)
        )]  # fmt: skip
        events = "".join(
            f"data: {json.dumps({'data': line, 'timestamp': '2026-11-28T12:00:00Z'})}\n\n" for line in lines
        )
        return Reply(200, events.encode(), {"Content-Type": "text/event-stream"})

    def cancel(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.cancel_job(job_id)))


def validate_body(body: JsonObject) -> JsonObject:
    """Return the body of a job that the official client writes, too, from the same values. Raises `Refusal` (400)."""
    from huggingface_hub._jobs_api import JobHardware, _create_job_spec  # what `HfApi.run_uv_job` posts

    spec = _create_job_spec(
        image=body.get("dockerImage", ""), command=body.get("command", []), env=body.get("environment"),
        secrets=body.get("secrets"), flavor=body.get("flavor"), timeout=body.get("timeoutSeconds"),
        labels=body.get("labels"), attempts=body.get("attempts"),
    )  # fmt: skip
    if differing := [name for name in body.keys() | spec.keys() if body.get(name) != spec.get(name)]:
        raise Refusal(400, f"The client writes {', '.join(sorted(differing))} in another way, or not at all.")
    if body["flavor"] not in {hardware.value for hardware in JobHardware}:
        raise Refusal(400, f"There is no hardware {body['flavor']}.")
    return body


def describe(job: JobDouble) -> JsonObject:
    """Return a job as the Hub shows it."""
    body, over = job.body, len(job.words) == 1
    values: dict[str, Any] = {
        "id": job.id, "createdAt": "2026-11-28T12:00:00.000Z", "dockerImage": body.get("dockerImage"),
        "owner": {"id": "1", "name": NAMESPACE, "type": "user"}, "command": body["command"],
        "arguments": body["arguments"], "environment": body["environment"], "flavor": body["flavor"],
        "labels": body.get("labels"), "status": {"stage": job.word, "message": None},
        "durations": {"schedulingSecs": 1, "runningSecs": SECONDS if over else 10, "totalSecs": SECONDS},
    }  # fmt: skip
    return values
