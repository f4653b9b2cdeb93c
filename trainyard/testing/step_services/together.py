"""Together's post-training API: model resources, sessions on them, and operations that are polled.

An operation with a known `Idempotency-Key` is the first one; with another body it is refused. As the service says, a
target of weight 0 is answered by log-probability 0, and a body over 0.5 MiB is uploaded first.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.backends.remote_steps.service import ServiceRow, StepSettings
from trainyard.testing.step_services.compute import ComputedAdapter, Computer
from trainyard.testing.step_services.fireworks import loss_of
from trainyard.testing.step_services.wire import (
    CONFLICT,
    GONE,
    NUMBER,
    REFUSED,
    Json,
    Route,
    WireCall,
    WireDouble,
    WireRefusal,
    require_fields,
)
from trainyard.train.contracts import Sampling, StopReason

TIME = "2026-01-01T00:00:00Z"
ROOT = "/v1/rl"
RESOURCE_STATUS, SESSION_STATUS = "MODEL_RESOURCES_STATUS_", "TRAINING_SESSION_STATUS_"
OPERATION_STATUS, OPERATION_ERROR = "TRAINING_OPERATION_STATUS_", "TRAINING_OPERATION_ERROR_CODE_"
TENSOR = {"data": [NUMBER], "dtype": str, "shape?": [int]}
INPUT = {"chunks": [{"encoded_text": {"tokens": [int]}}]}
SAMPLE = {"model_input": INPUT, "loss_fn_inputs": {"target_tokens": TENSOR, "weights?": TENSOR}}
LORA = {"rank?": int, "alpha?": int, "dropout?": NUMBER, "seed?": (str, int), "train_unembed?": bool}
RESOURCE_FIELDS = {
    "base_model": str, "lora_enabled?": bool, "inactive_timeout?": int,
    "compute_config?": {"num_generator_replicas?": int, "gpu_type?": str},
}  # fmt: skip
SESSION_FIELDS = {
    "model_resources_id": str, "display_name?": str, "lora_config?": LORA, "resume_from_checkpoint_id?": str,
    "load_optimizer?": bool,
}  # fmt: skip
OPERATIONS = {
    "forward-backward": {
        "loss": {"type": str}, "samples": [SAMPLE], "forward_only?": bool, "return_loss_fn_outputs?": bool,
        "payload_id?": str,
    },
    "custom-forward-backward": {
        "samples": [SAMPLE], "gradients": [{"data": [NUMBER], "dtype?": str}], "payload_id?": str,
    },
    "optim-step": {
        "adam_params": dict.fromkeys(
            ("learning_rate?", "beta1?", "beta2?", "eps?", "weight_decay?", "grad_clip_norm?"), NUMBER
        )
    },
    "weights-sync": {"weight_sync_type": str},
    "sample": {
        "model_inputs": [INPUT], "num_samples?": int, "prompt_logprobs?": bool, "payload_id?": str,
        "sampling_params?": {"max_tokens?": int, "seed?": (str, int), "stop?": [str], "temperature?": NUMBER,
                             "top_k?": int, "top_p?": NUMBER},
    },
    "training-checkpoint": {},
    "inference-checkpoint": {},
}  # fmt: skip
"""Operation -> the fields of its body."""


@dataclass
class SessionDouble:
    """One session of the double."""

    record: dict[str, Json]
    adapter: ComputedAdapter
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """`Idempotency-Key` -> the body sent with it, and the id of its operation."""
    operations: dict[str, Json] = field(default_factory=dict)
    published: int = -1
    """Steps of the weights that are sampled from."""


class TogetherStepsDouble(WireDouble):
    """The part of Together that a training uses."""

    def __init__(self, computer: Computer, folder: Path, key: str = "tg-key") -> None:
        super().__init__(key)
        self.computer, self.folder = computer, folder
        self.resources: dict[str, dict[str, Json]] = {}
        self.sessions: dict[str, SessionDouble] = {}
        self.checkpoints: dict[str, str | list[Path]] = {}
        """Checkpoint -> path of its state at the computing service, or its files."""
        self.lora: dict[str, Json] = {}
        self.numbers = itertools.count(1)

    @property
    def running(self) -> list[str]:
        """The resources that are paid for."""
        return [name for name, record in self.resources.items() if record["status"] == f"{RESOURCE_STATUS}READY"]

    def error_body(self, status: int, message: str) -> Json:
        return {"error": {"message": message, "type": "invalid_request_error", "code": str(status), "param": None}}

    def routes(self) -> tuple[Route, ...]:
        resource, session = f"{ROOT}/model-resources", f"{ROOT}/training-sessions"
        operations = f"{session}/([^/]+)/operations"
        return (
            Route("create_resource", "POST", resource, self.create_resource, RESOURCE_FIELDS),
            Route("list_resources", "GET", resource, self.list_resources),
            Route("resource", "GET", f"{resource}/([^/]+)", lambda call: self.find_resource(call.parts[0])),
            Route("stop_resource", "POST", f"{resource}/([^/]+)/stop", self.stop_resource, {}),
            Route("create_session", "POST", session, self.create_session, SESSION_FIELDS),
            Route("list_sessions", "GET", session, self.list_sessions),
            Route("session", "GET", f"{session}/([^/]+)", lambda call: self.find_session(call.parts[0]).record),
            Route("stop_session", "POST", f"{session}/([^/]+)/stop", self.stop_session, {}),
            Route("upload", "POST", f"{session}/([^/]+)/payloads/upload-url", self.upload),
            *(
                Route(name, "POST", f"{operations}/({name})", self.run_operation, fields)
                for name, fields in OPERATIONS.items()
            ),
            Route("operation", "GET", f"{operations}/[^/]+/([^/]+)", self.show_operation),
            Route("download", "GET", f"{ROOT}/checkpoints/([^/]+)/download", self.download),
        )

    def next_id(self, kind: str) -> str:
        return f"{kind}-{next(self.numbers)}"

    # Resources

    def create_resource(self, call: WireCall) -> Json:
        body = call.body
        if body["base_model"] != self.computer.base:
            raise WireRefusal(REFUSED, f"The model {body['base_model']} is not supported.")
        name = self.next_id("resource")
        compute = {"num_generator_replicas": 1, **body.get("compute_config", {})}
        self.resources[name] = {
            "id": name, "base_model": body["base_model"], "compute_config": compute, "created_at": TIME,
            "created_by": "me", "inactive_timeout": body.get("inactive_timeout", 3600),
            "optimizer_config": {"adam": {}}, "lora_enabled": body.get("lora_enabled", True),
            "status": f"{RESOURCE_STATUS}READY", "status_details": {}, "updated_at": TIME,
        }  # fmt: skip
        return self.resources[name]

    def list_resources(self, call: WireCall) -> Json:
        names = sorted(self.resources, key=lambda name: int(name.rpartition("-")[2]))
        return list_page(call, names, lambda name: self.resources[name])

    def find_resource(self, name: str) -> dict[str, Json]:
        if name not in self.resources:
            raise WireRefusal(GONE, f"There is no model resource {name}.")
        return self.resources[name]

    def stop_resource(self, call: WireCall) -> Json:
        (name,) = call.parts
        record, running = self.find_resource(name), self.sessions_of(name)
        if running and call.query.get("force") != "true":
            raise WireRefusal(REFUSED, f"The model resource {name} has active sessions.")
        for session in running:
            session.record["status"] = f"{SESSION_STATUS}STOPPED"
        record["status"] = f"{RESOURCE_STATUS}STOPPED"
        return record

    def sessions_of(self, resource: str) -> list[SessionDouble]:
        """Return the running sessions of a resource."""
        return [
            session
            for session in self.sessions.values()
            if session.record["model_resources_id"] == resource and session.record["status"].endswith("_RUNNING")
        ]

    # Sessions

    def create_session(self, call: WireCall) -> Json:
        body = call.body
        resource = self.find_resource(body["model_resources_id"])
        if not resource["status"].endswith("_READY"):
            raise WireRefusal(REFUSED, f"The model resource {resource['id']} is not ready.")
        lora, state = body.get("lora_config", {}), body.get("resume_from_checkpoint_id")
        if state is not None and not isinstance(self.checkpoints.get(state), str):
            raise WireRefusal(GONE, f"There is no training checkpoint {state}.")
        if lora.get("train_unembed", True) and state is None:
            raise WireRefusal(REFUSED, "An adapter on the output head is not computed here.")
        if state is None:
            self.lora = lora
        adapter = self.computer.open(
            resource["base_model"], self.lora["rank"], self.lora.get("alpha"), int(self.lora.get("seed", 0))
        )
        if state is not None:
            adapter.service.load(str(self.checkpoints[state]))
        name = self.next_id("session")
        record = {
            "id": name, "base_model": resource["base_model"], "created_at": TIME, "created_by": "me", "metadata": {},
            "inference_checkpoints": [], "training_checkpoints": [], "model_resources_id": resource["id"], "step": 0,
            "policy_state": {"applied_weights_version": 0, "pending_publish": False, "target_weights_version": 0,
                             "trainer_step": 0},
            "status": f"{SESSION_STATUS}RUNNING", "updated_at": TIME, "display_name": body.get("display_name"),
        }  # fmt: skip
        self.sessions[name] = SessionDouble(record, adapter)
        return record

    def list_sessions(self, call: WireCall) -> Json:
        names = [
            name
            for name, session in self.sessions.items()
            if call.query.get("model_resources_id") in (None, session.record["model_resources_id"])
        ]
        return list_page(call, names, lambda name: self.sessions[name].record)

    def find_session(self, name: str) -> SessionDouble:
        if name not in self.sessions:
            raise WireRefusal(GONE, f"There is no session {name}.")
        return self.sessions[name]

    def stop_session(self, call: WireCall) -> Json:
        session = self.find_session(call.parts[0])
        session.record["status"] = f"{SESSION_STATUS}STOPPED"
        return session.record

    def upload(self, call: WireCall) -> Json:
        raise WireRefusal(REFUSED, f"The double takes no uploads; session {call.parts[0]}.")

    # Operations

    def run_operation(self, call: WireCall) -> Json:
        """Carry an operation out, once for each key; the answer is pending, and the next look completes it."""
        name, kind = call.parts
        session, key = self.find_session(name), call.headers.get("idempotency-key", "")
        if not key:
            raise WireRefusal(REFUSED, "The header Idempotency-Key is missing.")
        content = json.dumps([kind, call.body], sort_keys=True)
        if key in session.keys:
            before, operation = session.keys[key]
            if before != content:
                raise WireRefusal(CONFLICT, f"The key {key} came before with another body.")
            return {"id": operation, "status": f"{OPERATION_STATUS}PENDING"}
        operation = self.next_id("operation")
        session.keys[key] = (content, operation)
        session.operations[operation] = self.compute(session, operation, kind, call.body)
        return {"id": operation, "status": f"{OPERATION_STATUS}PENDING"}

    def compute(self, session: SessionDouble, operation: str, kind: str, body: Json) -> Json:
        """Return the completed operation."""
        if not session.record["status"].endswith("_RUNNING"):
            return failed(operation, "SESSION_NOT_ACTIVE", "The session is not active.")
        try:
            output = getattr(self, f"run_{kind.replace('-', '_')}")(session, body)
        except WireRefusal as error:
            return failed(operation, "INVALID_INPUT", str(error))
        return {"id": operation, "status": f"{OPERATION_STATUS}COMPLETED", "output": output}

    def show_operation(self, call: WireCall) -> Json:
        name, operation = call.parts
        completed = self.find_session(name).operations.get(operation)
        if completed is None:
            raise WireRefusal(GONE, f"There is no operation {operation}.")
        return completed

    def run_forward_backward(self, session: SessionDouble, body: Json) -> Json:
        if body["loss"]["type"] != "LOSS_TYPE_CROSS_ENTROPY":
            raise WireRefusal(REFUSED, f"The loss {body['loss']['type']} is not computed here.")
        rows = read_samples(body["samples"])
        weights = [
            [float(value) for value in sample["loss_fn_inputs"]["weights"]["data"]] for sample in body["samples"]
        ]
        logprobs = session.adapter.score(rows, None if body.get("forward_only") else weights)
        masked = [
            [value if weight else 0.0 for value, weight in zip(*row, strict=True)]
            for row in zip(logprobs, weights, strict=True)
        ]
        outputs = [{"tensors": {"logprobs": {"data": values, "dtype": "float32"}}} for values in masked]
        return {
            "loss": loss_of(logprobs, weights), "metrics": {},
            **({"loss_fn_outputs": outputs} if body.get("return_loss_fn_outputs") else {}),
        }  # fmt: skip

    def run_custom_forward_backward(self, session: SessionDouble, body: Json) -> Json:
        """Add the gradients: that of -weight x log-probability is -weight."""
        rows = read_samples(body["samples"])
        weights = [[-float(value) for value in gradient["data"]] for gradient in body["gradients"]]
        if [len(values) for values in weights] != [len(row.targets) for row in rows]:
            raise WireRefusal(REFUSED, "The gradients and the targets differ in number.")
        session.adapter.score(rows, weights)
        return {}

    def run_optim_step(self, session: SessionDouble, body: Json) -> Json:
        params = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 1.0}
        params |= body["adam_params"]
        session.adapter.step(
            StepSettings(
                params["learning_rate"], (params["beta1"], params["beta2"]), params["eps"], params["weight_decay"],
                params["grad_clip_norm"],
            )
        )  # fmt: skip
        return {"step": session.adapter.steps}

    def run_weights_sync(self, session: SessionDouble, body: Json) -> Json:
        del body
        session.published = session.adapter.steps
        return {"weights_version": session.published}

    def run_sample(self, session: SessionDouble, body: Json) -> Json:
        if session.published != session.adapter.steps:
            raise WireRefusal(REFUSED, "The weights were not published.")
        params = body.get("sampling_params", {})
        sampling = Sampling(
            max_new_tokens=params["max_tokens"], temperature=params.get("temperature", 1.0),
            top_p=params.get("top_p", 1.0), top_k=params.get("top_k"), seed=int(params.get("seed", 0)),
            stop_texts=tuple(params.get("stop", ())),
        )  # fmt: skip
        results = []
        for prompt in body["model_inputs"]:
            samples = session.adapter.sample(read_tokens(prompt), sampling, body.get("num_samples", 1))
            sequences = [
                {
                    "tokens": sample.ids, "logprobs": sample.logprobs, "prompt_cache_hit_tokens": 0,
                    "stop_reason": f"STOP_REASON_{'STOP' if sample.stop_reason is StopReason.END else 'LENGTH'}",
                }
                for sample in samples
            ]  # fmt: skip
            results.append({"sequences": sequences, "policy_segments": [{"start_token": 0, "version": 0}]})
        return {"results": results}

    def run_training_checkpoint(self, session: SessionDouble, body: Json) -> Json:
        del body
        name = self.next_id("state")
        self.checkpoints[name] = session.adapter.service.save(name)
        return {"checkpoint": {"id": name, "created_at": TIME, "step": session.adapter.steps}}

    def run_inference_checkpoint(self, session: SessionDouble, body: Json) -> Json:
        del body
        name = self.next_id("weights")
        self.checkpoints[name] = self.computer.export(session.adapter, name, self.folder / name)
        return {"checkpoint": {"id": name, "created_at": TIME, "step": session.adapter.steps}}

    def download(self, call: WireCall) -> Json:
        require_fields(dict(call.query), {"variant": str}, "query")
        files = self.checkpoints.get(call.parts[0])
        if not isinstance(files, list) or call.query["variant"] != "CHECKPOINT_VARIANT_ADAPTER":
            raise WireRefusal(GONE, f"There is no adapter of {call.parts[0]}.")
        return {
            "data": [{"filename": path.name, "size": path.stat().st_size, "url": self.link_to(path)} for path in files]
        }


def list_page(call: WireCall, names: list[str], find: object) -> Json:
    """Return one page of a list, from the cursor of a request on."""
    start = names.index(call.query["after"]) + 1 if "after" in call.query else 0
    limit = int(call.query.get("limit", 100))
    page, rest = names[start : start + limit], names[start + limit :]
    return {
        "data": [find(name) for name in page],  # type: ignore[operator]
        "meta": {"has_more": bool(rest), "limit": limit, "next_cursor": page[-1] if rest else ""},
    }


def failed(operation: str, code: str, message: str) -> Json:
    """Return an operation that has failed."""
    error = {"code": f"{OPERATION_ERROR}{code}", "message": message}
    return {"id": operation, "status": f"{OPERATION_STATUS}FAILED", "error": error}


def read_tokens(prompt: Json) -> list[int]:
    return [int(token) for chunk in prompt["chunks"] for token in chunk["encoded_text"]["tokens"]]


def read_samples(samples: Json) -> list[ServiceRow]:
    """Return the rows of an operation. Raises `WireRefusal` where the numbers of its values differ."""
    rows = []
    for sample in samples:
        tokens, inputs = read_tokens(sample["model_input"]), sample["loss_fn_inputs"]
        if any(len(tensor["data"]) != len(tokens) for tensor in inputs.values()):
            raise WireRefusal(REFUSED, "The tensors of a sample have other lengths than its tokens.")
        rows.append(ServiceRow(tokens, [int(token) for token in inputs["target_tokens"]["data"]]))
    return rows
