"""Fireworks' serverless training sessions: Tinker's JSON wire of SDK 0.23, with its own sampling and its control plane.

Requests of a model come in the order of their `seq_id`; one that comes again is answered by its first result. As the
service may, a cross-entropy step can answer without log-probabilities (`omit_logprobs`).
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import ClassVar

from trainyard.backends.remote_steps.service import ServiceRow, StepSettings
from trainyard.testing.step_services.compute import ALPHA, ComputedAdapter, Computer
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
)
from trainyard.train.contracts import Sampling, StopReason

ACCOUNT = "acme"
TRAINING, CONTROL = "/training/v1/serverless/api/v1", f"/v1/accounts/{ACCOUNT}"
TENSOR = {
    "data": [NUMBER], "dtype": str, "shape?": [int], "sparse_crow_indices?": [int], "sparse_col_indices?": [int],
}  # fmt: skip
CHUNK = {"tokens": [int], "type": str}
DATUM = {
    "model_input": {"chunks": [CHUNK], "routing_matrices?": list, "sampling_mask_references?": list,
                    "top_sampling_references?": list},
    "loss_fn_inputs": {"target_tokens": TENSOR, "weights": TENSOR},
}  # fmt: skip
PASS = {"data": [DATUM], "loss_fn": str, "loss_fn_config?": dict}
ADAM = {
    "learning_rate": NUMBER, "beta1": NUMBER, "beta2": NUMBER, "eps": NUMBER, "weight_decay": NUMBER,
    "grad_clip_norm": NUMBER, "emit_grad_norm_metrics?": (str, bool),
}  # fmt: skip
LORA = {
    "rank": int, "alpha?": int, "init_method?": str, "seed?": int, "train_unembed": bool, "train_mlp": bool,
    "train_attn": bool,
}  # fmt: skip
SESSION = {"tags": [str], "user_metadata?": dict, "sdk_version": str, "project_id?": str, "type": str}
MODEL = {
    "session_id": str, "model_seq_id": int, "base_model": str, "user_metadata?": dict, "lora_config?": LORA,
    "projection_head_dim?": int, "base_only?": bool, "type": str,
}  # fmt: skip
TURN = {"model_id": str, "seq_id": int}
SAVE = {**TURN, "path": str, "ttl_seconds?": int, "type": str}
COMPLETION = {
    "model": str, "prompt": [int], "n": int, "max_tokens": int, "temperature": NUMBER, "stream": bool,
    "perf_metrics_in_response": bool, "raw_output": bool, "logprobs": bool, "top_p": NUMBER, "top_k": int, "seed": int,
    "stop?": [str],
}  # fmt: skip


class FireworksStepsDouble(WireDouble):
    """The part of Fireworks that a training uses."""

    keys: ClassVar = {"x-api-key": "", "authorization": "Bearer "}

    def __init__(self, computer: Computer, folder: Path, key: str = "fw-key") -> None:
        super().__init__(key)
        self.computer, self.folder = computer, folder
        self.omit_logprobs, self.rank = False, 1
        self.sessions: dict[str, bool] = {}
        """Session -> whether it is open."""
        self.adapters: dict[str, ComputedAdapter] = {}
        self.bases: set[str] = set()
        self.results: dict[str, Json] = {}
        self.saved: dict[str, str] = {}
        """Path of a state -> its path at the computing service."""
        self.snapshots: dict[str, tuple[str, ComputedAdapter, int, list[Path]]] = {}
        """Path of a sampler's weights -> session, adapter, its step, its files."""
        self.models: dict[str, list[Path]] = {}

    @property
    def open_sessions(self) -> list[str]:
        return [name for name, is_open in self.sessions.items() if is_open]

    def routes(self) -> tuple[Route, ...]:
        session, checkpoint = r"(ts-[0-9a-f]+)", r"([a-z0-9-]+)"
        return (
            Route("client_config", "POST", f"{TRAINING}/client/config", lambda _: {}, {"sdk_version": str}),
            Route("create_session", "POST", f"{TRAINING}/create_session", self.create_session, SESSION),
            Route("heartbeat", "POST", f"{TRAINING}/session_heartbeat", self.heartbeat,
                  {"session_id": str, "type": str}),
            Route("create_model", "POST", f"{TRAINING}/create_model", self.create_model, MODEL),
            Route("forward", "POST", f"{TRAINING}/forward", self.forward, {"forward_input": PASS, **TURN}),
            Route("forward_backward", "POST", f"{TRAINING}/forward_backward", self.forward_backward,
                  {"forward_backward_input": PASS, **TURN}),
            Route("optim_step", "POST", f"{TRAINING}/optim_step", self.optim_step,
                  {"adam_params": ADAM, **TURN, "type": str}),
            Route("save_weights", "POST", f"{TRAINING}/save_weights", self.save_weights, {**SAVE, "overwrite": bool}),
            Route("load_weights", "POST", f"{TRAINING}/load_weights", self.load_weights,
                  {**TURN, "path": str, "optimizer": bool, "weights_access_token?": str, "type": str}),
            Route("save_sampler", "POST", f"{TRAINING}/save_weights_for_sampler", self.save_sampler,
                  {**SAVE, "sampling_session_seq_id?": int, "checkpoint_type": str}),
            Route("retrieve", "POST", f"{TRAINING}/retrieve_future", self.retrieve,
                  {"request_id": str, "allow_metadata_only": bool}),
            Route("complete", "POST", "/training/v1/serverless/inference/v1/completions", self.complete, COMPLETION),
            Route("accounts", "GET", "/v1/accounts", lambda _: {"accounts": [{"name": f"accounts/{ACCOUNT}"}]}),
            Route("delete_session", "DELETE", f"{CONTROL}/trainingSessions/{session}", self.delete_session),
            Route("checkpoints", "GET", f"{CONTROL}/trainingSessions/{session}/checkpoints", self.list_checkpoints),
            Route("promote", "POST", f"{CONTROL}/trainingSessions/{session}/checkpoints/{checkpoint}:promote",
                  self.promote, {"output_model": str, "base_model": str}),
            Route("model", "GET", f"{CONTROL}/models/{checkpoint}", self.show_model),
            Route("download", "GET", f"{CONTROL}/models/{checkpoint}:getDownloadEndpoint", self.download),
            Route("delete_model", "DELETE", f"{CONTROL}/models/{checkpoint}", self.delete_model),
        )  # fmt: skip

    # Sessions and models

    def create_session(self, _: WireCall) -> Json:
        name = f"ts-{uuid.uuid4().hex}"
        self.sessions[name] = True
        return {"type": "create_session", "session_id": name}

    def heartbeat(self, call: WireCall) -> Json:
        self.require_open(call.body["session_id"])
        return {"type": "session_heartbeat"}

    def require_open(self, session: str) -> None:
        if not self.sessions.get(session):
            raise WireRefusal(GONE, f"The session {session} is not open.")

    def create_model(self, call: WireCall) -> Json:
        """Open an adapter, or the base for forward passes; a model of a session is created once."""
        body = call.body
        self.require_open(body["session_id"])
        key = f"{body['session_id']}:{body['model_seq_id']}"
        if key in self.results:
            return {"request_id": key}
        if body.get("base_only"):
            name = f"base-{uuid.uuid4().hex}"
            self.bases.add(name)
            self.adapters[name] = self.computer.open(body["base_model"], self.rank, ALPHA, 0)
        else:
            name, lora = f"run-{uuid.uuid4().hex}:train:0", body["lora_config"]
            self.adapters[name] = self.computer.open(
                body["base_model"], lora["rank"], lora.get("alpha"), lora.get("seed")
            )
            self.rank = lora["rank"]
        self.adapters[name].operations["session"] = body["session_id"]
        self.results[key] = {"type": "create_model", "model_id": name, "comms": "v1"}
        return {"request_id": key}

    def take_turn(self, call: WireCall, kind: str) -> tuple[ComputedAdapter, str, bool]:
        """Return the adapter of a request, its key, and whether it is new."""
        model, number = call.body["model_id"], call.body["seq_id"]
        if model not in self.adapters:
            raise WireRefusal(GONE, f"There is no model {model}.")
        adapter = self.adapters[model]
        self.require_open(adapter.operations["session"])
        key, content = f"{model}:{number}", json.dumps([kind, call.body], sort_keys=True)
        earlier = adapter.operations.get(key)
        if earlier is not None and earlier != content:
            raise WireRefusal(CONFLICT, f"Request {number} of {model} came before with another body.")
        if earlier is None and number <= adapter.operations.get("last", 0):
            raise WireRefusal(CONFLICT, f"Request {number} of {model} comes after {adapter.operations['last']}.")
        adapter.operations |= {key: content, "last": max(number, adapter.operations.get("last", 0))}
        return adapter, key, earlier is None

    def retrieve(self, call: WireCall) -> Json:
        request = call.body["request_id"]
        if request not in self.results:
            raise WireRefusal(GONE, f"There is no request {request}.")
        return self.results[request]

    # Steps

    def forward(self, call: WireCall) -> Json:
        adapter, key, is_new = self.take_turn(call, "forward")
        if is_new:
            rows, _ = read_data(call.body["forward_input"])
            self.results[key] = make_output(adapter.score(rows, None))
        return {"request_id": key}

    def forward_backward(self, call: WireCall) -> Json:
        adapter, key, is_new = self.take_turn(call, "forward_backward")
        if call.body["model_id"] in self.bases:
            raise WireRefusal(REFUSED, "A base is not trained.")
        if is_new:
            rows, weights = read_data(call.body["forward_backward_input"])
            logprobs = adapter.score(rows, weights)
            self.results[key] = make_output([] if self.omit_logprobs else logprobs)
            self.results[key]["metrics"] = {"loss:sum": loss_of(logprobs, weights)}
        return {"request_id": key}

    def optim_step(self, call: WireCall) -> Json:
        adapter, key, is_new = self.take_turn(call, "optim_step")
        if is_new:
            params = call.body["adam_params"]
            norm = adapter.step(
                StepSettings(
                    params["learning_rate"], (params["beta1"], params["beta2"]), params["eps"], params["weight_decay"],
                    params["grad_clip_norm"],
                )
            )  # fmt: skip
            self.results[key] = {"metrics": {} if norm is None else {"grad_norm": norm}}
        return {"request_id": key}

    # States and weights

    def name_path(self, call: WireCall) -> str:
        run = call.body["model_id"].partition(":")[0]
        return f"{ACCOUNT}/{run}/{call.body['path']}"

    def save_weights(self, call: WireCall) -> Json:
        adapter, key, is_new = self.take_turn(call, "save_weights")
        path = self.name_path(call)
        if is_new:
            if path in self.saved or call.body["overwrite"] or call.body.get("ttl_seconds"):
                raise WireRefusal(REFUSED, f"The state {path} is not overwritten, and has no time to live.")
            self.saved[path] = adapter.service.save(call.body["path"])
            self.results[key] = {"type": "save_weights", "path": path}
        return {"request_id": key}

    def load_weights(self, call: WireCall) -> Json:
        adapter, key, is_new = self.take_turn(call, "load_weights")
        path = call.body["path"]
        if path not in self.saved or not call.body["optimizer"]:
            raise WireRefusal(GONE, f"There is no state {path} with an optimizer.")
        if is_new:
            adapter.service.load(self.saved[path])
            self.results[key] = {"type": "load_weights", "path": path}
        return {"request_id": key}

    def save_sampler(self, call: WireCall) -> Json:
        adapter, key, is_new = self.take_turn(call, "save_sampler")
        path = self.name_path(call)
        if is_new:
            files = self.computer.export(adapter, call.body["path"], self.folder / call.body["path"])
            self.snapshots[path] = (adapter.operations["session"], adapter, adapter.steps, files)
            self.results[key] = {"type": "save_weights_for_sampler", "path": path}
        return {"request_id": key}

    def complete(self, call: WireCall) -> Json:
        """Sample from the weights of a snapshot that are still the adapter's."""
        body = call.body
        path = body["model"].partition("/checkpoints/")[2]
        snapshot = next((saved for name, saved in self.snapshots.items() if name.endswith(path)), None)
        if snapshot is None or snapshot[2] != snapshot[1].steps or body["n"] != 1:
            raise WireRefusal(REFUSED, f"There are no weights {body['model']} to sample from.")
        sampling = Sampling(
            max_new_tokens=body["max_tokens"], temperature=body["temperature"], top_p=body["top_p"],
            top_k=body["top_k"] or None, seed=body["seed"], stop_texts=tuple(body.get("stop") or ()),
        )  # fmt: skip
        (sample,) = snapshot[1].sample(body["prompt"], sampling)
        logprobs = [{"logprob": value, "sampling_logprob": value} for value in sample.logprobs]
        choice = {
            "index": 0, "text": sample.text, "logprobs": {"content": logprobs},
            "finish_reason": "stop" if sample.stop_reason is StopReason.END else "length",
            "raw_output": {"completion_token_ids": sample.ids},
        }  # fmt: skip
        return f"data: {json.dumps({'id': 'cmpl-1', 'choices': [choice]})}\n\ndata: [DONE]\n\n"

    # The control plane

    def delete_session(self, call: WireCall) -> Json:
        (name,) = call.parts
        if name not in self.sessions:
            raise WireRefusal(GONE, f"There is no session {name}.")
        self.sessions[name] = False
        return {}

    def list_checkpoints(self, call: WireCall) -> Json:
        (session,) = call.parts
        names = [path.rpartition("/")[2] for path, saved in self.snapshots.items() if saved[0] == session]
        root = f"accounts/{ACCOUNT}/trainingSessions/{session}/checkpoints"
        return {"checkpoints": [{"name": f"{root}/{name}", "promotable": True} for name in names]}

    def promote(self, call: WireCall) -> Json:
        _, name = call.parts
        files = [saved[3] for path, saved in self.snapshots.items() if path.endswith(f"/{name}")]
        model = call.body["output_model"].rpartition("/")[2]
        if not files or model in self.models or call.body["base_model"] != self.computer.base:
            raise WireRefusal(REFUSED, f"The checkpoint {name} cannot be promoted to {model}.")
        self.models[model] = files[0]
        return {"model": self.describe(model)}

    def describe(self, model: str) -> Json:
        return {"name": f"accounts/{ACCOUNT}/models/{model}", "state": "READY", "kind": "HF_PEFT_ADDON"}

    def show_model(self, call: WireCall) -> Json:
        if call.parts[0] not in self.models:
            raise WireRefusal(GONE, f"There is no model {call.parts[0]}.")
        return self.describe(call.parts[0])

    def download(self, call: WireCall) -> Json:
        files = self.models[call.parts[0]]
        return {"filenameToSignedUrls": {path.name: self.link_to(path) for path in files}}

    def delete_model(self, call: WireCall) -> Json:
        del self.models[call.parts[0]]
        return {}


def read_data(request: Json) -> tuple[list[ServiceRow], list[list[float]]]:
    """Return the rows and the weights of a pass."""
    if request["loss_fn"] != "cross_entropy" or request.get("loss_fn_config"):
        raise WireRefusal(REFUSED, f"The loss {request['loss_fn']} is not computed here.")
    rows, weights = [], []
    for datum in request["data"]:
        tokens = [token for chunk in datum["model_input"]["chunks"] for token in chunk["tokens"]]
        inputs = datum["loss_fn_inputs"]
        targets, values = inputs["target_tokens"]["data"], inputs["weights"]["data"]
        if not len(tokens) == len(targets) == len(values):
            raise WireRefusal(REFUSED, "The tokens, targets and weights of a row differ in number.")
        rows.append(ServiceRow(tokens, [int(token) for token in targets]))
        weights.append([float(value) for value in values])
    return rows, weights


def make_output(logprobs: list[list[float]]) -> Json:
    """Return the result of a pass."""
    outputs = [{"logprobs": {"data": values, "dtype": "float32", "shape": [len(values)]}} for values in logprobs]
    return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": {}}


def loss_of(logprobs: list[list[float]], weights: list[list[float]]) -> float:
    """Return the weighted cross-entropy."""
    pairs = ((value, weight) for row in zip(logprobs, weights, strict=True) for value, weight in zip(*row, strict=True))
    return -sum(value * weight for value, weight in pairs)
