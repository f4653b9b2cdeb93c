"""Requests of every kind over the Tinker wire, valid and not: none may fail the service.

JSON comes from schemathesis, with the bodies that the routes read; protobuf from hypothesis, as whole messages and as
bytes of one that are damaged. A real step session with the tiny model runs accepted requests.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.answering import answering, authenticate
from tests.unit.surfaces.tinker.wire import ROWS, WireClient, add_tensor, open_step_session, proto_step
from trainyard.settings import load_settings, settings
from trainyard.surfaces.tinker import requests
from trainyard.surfaces.tinker.messages import FLOAT32, INT64, make_message
from trainyard.surfaces.tinker.routes import API, TinkerWire

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1200)]

EXAMPLES = os.environ.get("EXAMPLES", "25")
GENERATED = re.compile(r"(\d+) generated")
BODIES: dict[str, Any] = {
    "/create_session": requests.CreateSession, "/session_heartbeat": requests.SessionBody,
    "/sessions/{session}/finish": requests.FinishSession, "/create_model": requests.CreateModel,
    "/unload_model": requests.ModelBody, "/get_info": requests.ModelBody,
    "/forward_backward": requests.ForwardBackwardBody, "/forward": requests.ForwardBackwardBody,
    "/optim_step": requests.OptimStep, "/save_weights": requests.SaveWeights,
    "/save_weights_for_sampler": requests.SaveForSampler, "/save_weights_external": requests.SaveExternal,
    "/load_weights": requests.LoadWeights, "/create_sampling_session": requests.CreateSampler,
    "/asample": requests.Sample, "/cancel_future": requests.Retrieve, "/weights_info": requests.WeightsInfo,
    "/training_runs/{run}/checkpoints/{kind}/{name}/ttl": requests.Lifetime,
}  # fmt: skip
FREE = frozenset({"/client/config", "/client/dynamic_config", "/telemetry"})
"""Routes that read no field of their body."""
WAITING = "/retrieve_future"
"""Waits for 20 s where a future is pending; tried below, by itself."""
LEAST_REQUESTS = 300


@pytest.fixture
def service(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINYARD_API_REQUESTS_PER_S", "100000")
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    settings.cache_clear()
    with open_step_session(load_settings(home=tmp_path / "home", threads=1), tiny_model), answering() as url:
        yield url
    settings.cache_clear()


@pytest.fixture
def client(service: str, tiny_model: Path) -> Iterator[WireClient]:
    client = WireClient(service, tiny_model)
    yield client
    client.http.close()


def write_document(ids: dict[str, str]) -> dict[str, Any]:
    """Return an OpenAPI document of the wire. Fields and parameters of the names in `ids` have that value, or any."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for method, path, _, _ in TinkerWire(settings(), authenticate).table():
        if path == WAITING:
            continue
        parameters: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": sometimes(ids.get(name), {"type": "string"})}
            for name in re.findall(r"\{(\w+)\}", path)
        ]
        if method == "GET":
            parameters += [{"name": name, "in": "query", "schema": {"type": "integer"}} for name in ("limit", "offset")]
        operation: dict[str, Any] = {"parameters": parameters, "responses": {"200": {"description": "An answer."}}}
        if method in ("POST", "PUT"):
            schema = {"type": "object"} if path in FREE else read_schema(BODIES[path], schemas, ids)
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths.setdefault(path, {})[method.lower()] = operation
    info = {"title": "wire", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def read_schema(model: Any, schemas: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    """Return the schema of a body; those of its parts are added to `schemas`."""
    schema: dict[str, Any] = model.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = schema.pop("$defs", {})
    for part in (schema, *parts.values()):
        for name, field in part.get("properties", {}).items():
            part["properties"][name] = sometimes(ids.get(name), field)
    sampling = parts.get("SamplingParams", {}).get("properties", {})
    if sampling:  # accepted requests are run
        sampling["max_tokens"] = {"type": "integer", "minimum": -1, "maximum": 4}
        schema["properties"]["num_samples"] = {"type": "integer", "minimum": -1, "maximum": 2}
    schemas.update(parts)
    return schema


def sometimes(value: str | None, schema: dict[str, Any]) -> dict[str, Any]:
    return schema if value is None else {"anyOf": [{"const": value}, {"const": value}, schema]}


def require_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    assert [record for record in caplog.records if record.exc_info] == []


def test_no_json_request_fails_the_service(
    client: WireClient, service: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    model = client.create_model()
    path = client.wait(client.post("save_weights_for_sampler", model_id=model, path="first", seq_id=1))["path"]
    sampler = client.post(
        "create_sampling_session", session_id=client.session, sampling_session_seq_id=0, model_path=path
    )["sampling_session_id"]
    ids = {
        "session_id": client.session, "session": client.session, "model_id": model, "run": model,
        "base_model": client.model, "model_path": path, "tinker_path": path, "sampling_session_id": sampler,
        "sampler": sampler, "kind": "sampler_weights", "name": "first",
    }  # fmt: skip
    (tmp_path / "wire.json").write_text(json.dumps(write_document(ids)))
    argv = [
        sys.executable, "-m", "schemathesis.cli", "run", "wire.json", "--url", f"{service}{API}",
        "--header", "Authorization: Bearer owner", "--phases", "examples,coverage,fuzzing",
        "--checks", "not_a_server_error", "--max-examples", EXAMPLES, "--continue-on-failure",
        "--request-timeout", "60", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1000)
    assert done.returncode == 0, done.stdout[done.stdout.find("= FAILURES =") :][:8000]
    match = GENERATED.search(done.stdout)
    assert match is not None
    assert int(match[1]) > LEAST_REQUESTS
    require_no_bug(caplog)


TENSORS = st.tuples(
    st.sampled_from((0, FLOAT32, INT64, 3, 4, 9)),
    st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 40), max_size=3),
    st.binary(max_size=40) | st.integers(0, 6).map(lambda count: np.arange(count, dtype="<i8").tobytes()),
)
INPUTS = st.dictionaries(st.sampled_from(("target_tokens", "weights", "advantages", "logprobs", "x")), TENSORS)
MESSAGES = st.tuples(
    st.integers(-1, 2**31 - 1),
    st.sampled_from(("cross_entropy", "ppo", "gspo", "custom", "stable_reinforce", "")) | st.text(max_size=9),
    st.lists(st.tuples(st.binary(max_size=24), INPUTS), max_size=3),
)


def build_message(model: str, fields: tuple[int, str, list[tuple[bytes, dict[str, Any]]]]) -> bytes:
    seq, loss, rows = fields
    message = make_message("ForwardBackwardRequest", model_id=model, seq_id=seq, loss_fn=loss)
    for tokens, inputs in rows:
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = tokens
        for name, (dtype, shape, data) in inputs.items():
            add_tensor(datum, name, np.zeros(0), dtype)
            datum.loss_fn_inputs[-1].value.dense = data
            del datum.loss_fn_inputs[-1].value.shape[:]
            datum.loss_fn_inputs[-1].value.shape.extend(shape)
    return bytes(message.SerializeToString())


def fuzz(count: int) -> Any:
    quiet = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
    return hypothesis_settings(max_examples=count, deadline=None, suppress_health_check=quiet, derandomize=True)


def test_no_protobuf_message_fails_the_service(client: WireClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    model = client.create_model()

    @fuzz(200)
    @given(MESSAGES)
    def send(fields: tuple[int, str, list[tuple[bytes, dict[str, Any]]]]) -> None:
        assert client.step(build_message(model, fields)).status_code < 500

    @fuzz(300)
    @given(st.data())
    def send_damaged(data: st.DataObject) -> None:
        body = bytearray(proto_step(model, data.draw(st.integers(1, 9)), ROWS[:1]))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        cut = bytes(body[: data.draw(st.integers(0, len(body)))])
        assert client.step(cut).status_code < 500
        packed = pa.compress(cut, codec="zstd", asbytes=True)
        spoiled = packed[: data.draw(st.integers(0, len(packed)))]
        assert client.step(spoiled, **{"content-encoding": "zstd"}).status_code < 500

    send()
    send_damaged()
    fresh = client.create_model()
    assert client.train(fresh, 1) > 0  # the session is as it was
    require_no_bug(caplog)


def test_no_polling_fails_the_service(client: WireClient) -> None:
    @fuzz(100)
    @given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
    def poll(value: object) -> None:
        bodies = (value, {"request_id": value}, {"request_id": str(value), "model_id": value})
        answers: list[httpx.Response] = [client.http.post("/retrieve_future", json=body) for body in bodies]
        assert all(answer.status_code < 500 for answer in answers)

    poll()
