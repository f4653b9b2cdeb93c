"""Together's post-training sessions, by `together.post_training` (together 3.1.1).

    model resource   GPUs with a base, paid by the hour: created by us, and stopped when the training ends
    session          an adapter on it                     operation   a verb, polled, with an `Idempotency-Key`

The key makes a repeated operation the first one, so that the SDK may repeat it; resources and sessions have none, and
are created by one request each. The gradient of our loss goes to `custom_forward_backward`. A checkpoint has no verb
for its deletion.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import together
from together import Together
from together.post_training import ModelResourcesClient, SessionClient, download_checkpoint

from .step_service import (
    CORRUPT,
    DENIED,
    REFUSED,
    UNAVAILABLE,
    Memory,
    ServiceError,
    first_line,
    read_environment,
)

RESOURCE, SESSION = "model resource", "session"
LOSS = {"type": "LOSS_TYPE_CROSS_ENTROPY"}
GONE = ("_STOPPED", "_STOPPING", "_ERROR", "_EXPIRED")
"""Ends of statuses that nothing comes back from."""
INACTIVE_S = 1800
"""Seconds without an operation after which the service itself stops an abandoned resource."""
INTERVAL_S, READY_S = 10.0, 3600.0
SLOW_S = 7200.0
ADAPTER = "CHECKPOINT_VARIANT_ADAPTER"
Rows = list[dict[str, list[int]]]


class TogetherSteps:
    """One adapter in a session of Together."""

    def __init__(self, memory: Memory) -> None:
        address, key = read_environment()
        self.options: dict[str, Any] = {"api_key": key, "base_url": address or None}
        self.api = Together(**self.options)
        self.once = self.api.with_options(max_retries=0)
        self.memory = memory
        self.lora: dict[str, Any] = {}
        self.model, self.job, self.resource = "", "", ""
        self.session: SessionClient | None = None
        self.base: SessionClient | None = None
        self.synced = False

    def open(self, model: str, job: str, adapter: dict[str, Any], path: str | None) -> None:
        """Open an adapter, new or from a checkpoint. The service gives every layer an adapter."""
        self.model, self.job = model, job
        settings = {name: adapter[name] for name in ("rank", "alpha", "dropout", "seed")}
        self.lora = {name: value for name, value in settings.items() if value is not None} | {"train_unembed": False}
        self.resource = self.find_resource() or self.memory.create_once(
            RESOURCE, self.list_resources, self.request_resource
        )
        resources = self.api.post_training.model_resources
        wait_for("_READY", lambda: resources.retrieve(self.resource).status, RESOURCE)
        self.session = self.start_session("policy", path)

    # Resources and sessions

    def find_resource(self) -> str | None:
        """Return the resource of an earlier process, where it still runs."""
        resource_id = self.memory.values.get(RESOURCE, {}).get("id")
        if not resource_id:
            return None
        try:
            resource = self.api.post_training.model_resources.retrieve(resource_id)
        except together.NotFoundError:
            resource = None
        if resource is None or resource.status.endswith(GONE) or resource.base_model != self.model:
            self.memory.write(RESOURCE)
            return None
        return str(resource_id)

    def request_resource(self) -> str:
        try:
            resource = self.once.post_training.model_resources.create(
                base_model=self.model, lora_enabled=True, inactive_timeout=INACTIVE_S,
                compute_config={"num_generator_replicas": 1},
            )  # fmt: skip
        except Exception as error:
            raise classify(error) from error
        return str(resource.id)

    def list_resources(self) -> list[str]:
        """Return the ids of this account's resources with the base that are not gone."""
        ids, after = list[str](), together.omit
        while True:
            page = self.api.post_training.model_resources.list(created_by="me", limit=100, after=after)
            rows = page.data or []
            ids += [row.id for row in rows if row.base_model == self.model and not row.status.endswith(GONE)]
            cursor = page.meta.next_cursor if page.meta is not None else None
            if not cursor or not rows:
                return ids
            after = cursor

    def start_session(self, role: str, path: str | None) -> SessionClient:
        """Start a session on the resource; one of this job whose reply was lost is taken up."""
        name = f"trainyard-{self.job}-{role}"
        self.stop_sessions(name)
        self.memory.write(SESSION)
        session_id = self.memory.create_once(
            SESSION, lambda: self.list_sessions(name), lambda: self.request_session(name, path)
        )
        wait_for("_RUNNING", lambda: self.api.post_training.sessions.retrieve(session_id).status, "session")
        return SessionClient.attach(session_id=session_id, **self.options)

    def request_session(self, name: str, path: str | None) -> str:
        resumed: dict[str, Any] = {"lora_config": self.lora} if path is None else {"resume_from_checkpoint_id": path}
        try:
            session = self.once.post_training.sessions.create(
                model_resources_id=self.resource, display_name=name, **resumed
            )
        except Exception as error:
            raise classify(error) from error
        return str(session.id)

    def list_sessions(self, name: str) -> list[str]:
        """Return the ids of the resource's sessions with a name that are not gone."""
        page = self.api.post_training.sessions.list(model_resources_id=self.resource, limit=100)
        return [row.id for row in page.data or () if row.display_name == name and not row.status.endswith(GONE)]

    def stop_sessions(self, name: str) -> None:
        """Stop the sessions of an earlier process of this job."""
        for session in self.list_sessions(name):
            self.api.post_training.sessions.stop(session)

    @property
    def policy(self) -> SessionClient:
        assert self.session is not None, "open comes first"
        return self.session

    # Steps

    def forward(self, rows: Rows) -> list[list[float]]:
        return self.score(self.policy, rows)

    def score(self, session: SessionClient, rows: Rows) -> list[list[float]]:
        """Return the log-probabilities; a target of weight 0 would be answered by 0."""
        samples = [make_sample(row, weights=as_floats([1.0] * len(row["targets"]))) for row in rows]
        output = session.trainer.forward(samples=samples, loss=LOSS, timeout=SLOW_S)
        if not output.loss_fn_outputs:
            raise ServiceError(CORRUPT, "A forward pass comes without log-probabilities.")
        return [[float(value) for value in record.tensors["logprobs"].data] for record in output.loss_fn_outputs]

    def backward(self, rows: Rows, weights: list[list[float]], score: bool) -> list[list[float]]:
        """Add the gradient of the sum of -weight x log-probability: -weight for each target."""
        logprobs = self.forward(rows) if score else []
        samples = [make_sample(row) for row in rows]
        gradients = [{"data": [-value for value in values], "dtype": "D_TYPE_FLOAT32"} for values in weights]
        self.policy.trainer.custom_forward_backward(samples=samples, gradients=gradients, timeout=SLOW_S)
        return logprobs

    def step(self, **settings: float) -> float | None:
        self.synced = False
        self.policy.trainer.optim_step(adam_params=settings, timeout=SLOW_S)
        return None

    # Samples and scores

    def generate(self, prompts: list[list[int]], sampling: dict[str, Any]) -> list[dict[str, Any]]:
        """Sample each prompt by an operation with a seed of its own."""
        if not self.synced:
            self.policy.trainer.weights_sync(timeout=SLOW_S)
            self.synced = True
        seed, options = sampling.pop("seed"), {name: value for name, value in sampling.items() if value is not None}
        answers = []
        for number, prompt in enumerate(prompts):
            result = self.policy.generator.sample(
                {"chunks": [{"encoded_text": {"tokens": prompt}}]}, 1, {**options, "seed": (seed + number) % 2**31},
                timeout=SLOW_S,
            )  # fmt: skip
            for sequence in result.sequences:
                logprobs = [float(value) for value in sequence.logprobs or ()]
                if len(logprobs) != len(sequence.tokens):
                    raise ServiceError(CORRUPT, "A sample comes without the log-probabilities of its tokens.")
                tokens, ended = [int(token) for token in sequence.tokens], sequence.stop_reason == "STOP_REASON_STOP"
                answers.append({"tokens": tokens, "logprobs": logprobs, "ended": ended})
        return answers

    def base_logprobs(self, rows: Rows) -> list[list[float]]:
        """Score by a second session on the same resource that is never trained: its adapter changes nothing."""
        if self.base is None:
            self.base = self.start_session("base", None)
        return self.score(self.base, rows)

    # States

    def save(self, name: str) -> str:
        del name  # the service names it
        return self.policy.create_training_checkpoint(timeout=SLOW_S).id

    def load(self, path: str) -> None:
        """Continue from a checkpoint in a session of its own; the one before is stopped."""
        self.synced = False
        self.session = self.start_session("policy", path)

    def remove(self, path: str) -> None:
        """Keep a checkpoint: the service has no verb for its deletion."""

    def export(self, name: str, folder: str) -> None:
        del name
        checkpoint = self.policy.create_inference_checkpoint(timeout=SLOW_S)
        download_checkpoint(self.api, checkpoint.id, variant=ADAPTER, output_dir=Path(folder))

    def close(self, status: str) -> None:
        """Stop the resource with its sessions: it is paid by the hour. Checkpoints outlive it."""
        del status
        if self.resource:
            client = ModelResourcesClient.attach(model_resources_id=self.resource, **self.options)
            client.stop(force=True)
            self.memory.write(RESOURCE)
            self.memory.write(SESSION)
            self.resource = ""


def wait_for(end: str, status: Callable[[], str], kind: str) -> None:
    """Wait until a status ends with a word; raise `ServiceError` for one that nothing comes back from."""
    until, pause = time.monotonic() + READY_S, 0.1
    while not (current := status()).endswith(end):
        if current.endswith(GONE) or time.monotonic() > until:
            raise ServiceError(UNAVAILABLE, f"The {kind} is {current}.")
        time.sleep(pause)
        pause = min(2 * pause, INTERVAL_S)


def make_sample(row: dict[str, list[int]], **inputs: Any) -> dict[str, Any]:
    """Return a row of the wire."""
    targets = {"data": row["targets"], "dtype": "int64"}
    return {
        "model_input": {"chunks": [{"encoded_text": {"tokens": row["tokens"]}}]},
        "loss_fn_inputs": {"target_tokens": targets, **inputs},
    }


def as_floats(values: list[float]) -> dict[str, Any]:
    return {"data": values, "dtype": "float32"}


def classify(error: Exception) -> ServiceError:
    """Return the kind of an error of the SDK."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, together.AuthenticationError | together.PermissionDeniedError):
        return ServiceError(DENIED, first_line(error))
    refused = together.BadRequestError | together.NotFoundError | together.UnprocessableEntityError
    if isinstance(error, refused | ValueError) or type(error).__name__ == "OperationFailedError":
        return ServiceError(REFUSED, first_line(error))
    if isinstance(error, together.APIError | httpx.HTTPError | TimeoutError | OSError | RuntimeError):
        return ServiceError(UNAVAILABLE, first_line(error))
    raise error


SERVICE = TogetherSteps
