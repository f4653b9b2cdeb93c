"""Clients that leave, wait in vain, or have a clock of their own; what is left of them, and what the audit log says."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.unit.surfaces.tinker.wire import PROTOBUF, ROWS, WireClient, add_tensor, json_step, proto_step
from trainyard.surfaces.bodies import MAX_TINKER_BYTES
from trainyard.surfaces.tinker.messages import FLOAT32, INT64, make_message

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def audit_lines(home: Path) -> list[dict[str, object]]:
    files = sorted((home / "audit").glob("audit-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def send_raw(client: WireClient, path: str, body: bytes, length: int) -> None:
    """Send a request that says how long it is, and leave without the answer."""
    url = urlsplit(str(client.http.base_url))
    assert url.hostname is not None
    head = (
        f"POST {url.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-type: {PROTOBUF}\r\n"
        f"authorization: {client.http.headers['authorization']}\r\ncontent-length: {length}\r\n\r\n"
    )
    with socket.create_connection((url.hostname, url.port or 80), timeout=10) as connection:
        connection.sendall(head.encode() + body)


# Clients that leave


def test_a_client_that_leaves_after_its_step_has_taken_it(client: WireClient) -> None:
    model, control = client.create_model(seed=3), client.create_model(seed=3)
    body = proto_step(model, 1, ROWS)
    send_raw(client, "/forward_backward", body, len(body))
    first = client.wait(client.step(body).json())  # the same number: whichever came first
    client.wait(client.post("optim_step", model_id=model, seq_id=2, adam_params={"learning_rate": 1e-2}))
    assert first["metrics"]["loss:sum"] == client.train(control, 1)
    assert client.train(model, 3) == client.train(control, 3)


def test_a_client_that_leaves_within_its_step_has_taken_none(client: WireClient) -> None:
    model = client.create_model()
    body = proto_step(model, 1, ROWS)
    send_raw(client, "/forward_backward", body[: len(body) // 2], len(body))
    other = proto_step(model, 1, ROWS[:1])
    assert client.wait(client.step(other).json())["metrics"]["loss:sum"] > 0


def test_waiters_that_leave_take_nothing_with_them(client: WireClient, service: str) -> None:
    """Twenty requests for a future that does not end, all abandoned: no thread is left, and the future is."""
    model = client.create_model()
    waiting = client.step(proto_step(model, 2, ROWS)).json()
    threads = threading.active_count()
    for _ in range(20):
        with (
            httpx.Client(headers=client.http.headers, timeout=0.1, trust_env=False) as left,
            pytest.raises(httpx.ReadTimeout),
        ):
            left.post(f"{service}/tinker/api/v1/retrieve_future", json={"request_id": waiting["request_id"]})
    client.wait(client.step(proto_step(model, 1, ROWS)).json())
    assert client.wait(waiting)["metrics"]["loss:sum"] > 0
    deadline = time.monotonic() + 20
    while threading.active_count() > threads + 1:
        assert time.monotonic() < deadline, [thread.name for thread in threading.enumerate()]
        time.sleep(0.05)


# Stale sessions and clocks


def test_a_client_that_is_not_heard_of_is_finished(
    client: WireClient, service: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = client.create_model()
    client.wait(client.post("save_weights", model_id=model, path="named", seq_id=1))
    monkeypatch.setattr("trainyard.surfaces.tinker.service.STALE_S", 0.2)
    time.sleep(0.3)
    second = WireClient(service, tiny_model)
    assert client.http.post("/session_heartbeat", json={"session_id": client.session}).status_code == 410
    assert client.step(proto_step(model, 2, ROWS)).status_code == 410
    info = second.post("weights_info", tinker_path=f"tinker://{model}/weights/named")
    second.http.close()
    assert info["lora_rank"] == 8


def test_a_clock_that_is_set_forward_finishes_no_client(
    client: WireClient, service: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = client.create_model()
    wall = time.time
    for hours in (30, -30):
        monkeypatch.setattr(time, "time", lambda: wall() + hours * 3600)  # noqa: B023  used before the next turn
        WireClient(service, tiny_model).http.close()
        client.post("session_heartbeat", session_id=client.session)
    monkeypatch.setattr(time, "time", wall)
    assert client.train(model, 1) > 0


# Ragged and oversized data


def test_rows_with_several_targets_are_scored_each_in_its_shape(client: WireClient) -> None:
    """A row with one target for each token, and one with two, in one request."""
    model = client.create_model()
    message = make_message("ForwardBackwardRequest", model_id=model, seq_id=1, loss_fn="cross_entropy")
    shapes = ((ROWS[0], None), (ROWS[1], 2), (ROWS[2], None))
    for row, width in shapes:
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.array(row[:-1], dtype="<i4").tobytes()
        targets = np.array(row[1:], dtype="<i8")
        if width:
            targets = np.stack([targets] * width, axis=1)
        add_tensor(datum, "target_tokens", targets, INT64)
        add_tensor(datum, "weights", np.ones(targets.shape, dtype="<f4"), FLOAT32)
    answer = client.wait(client.step(message.SerializeToString()).json())
    outputs = [output["logprobs"] for output in answer["loss_fn_outputs"]]
    assert [output["shape"] for output in outputs] == [
        [len(row) - 1, *([width] if width else [])] for row, width in shapes
    ]
    pairs = np.array(outputs[1]["data"]).reshape(outputs[1]["shape"])
    assert np.allclose(pairs[:, 0], pairs[:, 1])
    assert answer["metrics"]["loss:sum"] == pytest.approx(-sum(sum(output["data"]) for output in outputs), rel=1e-6)


def test_a_body_of_more_bytes_than_the_limit_is_refused(client: WireClient) -> None:
    answer = client.step(b"\0" * (MAX_TINKER_BYTES + 1))
    assert answer.status_code == 413
    packed = pa.compress(proto_step("no-model", 1, ROWS), codec="zstd", asbytes=True)
    assert client.step(packed[:-4], **{"content-encoding": "zstd"}).status_code == 400


@pytest.mark.parametrize("token", [2**70, 1e300, 1.5, -(2**63) - 1])
def test_a_token_that_is_no_whole_number_of_64_bits_is_refused(client: WireClient, token: float) -> None:
    model = client.create_model()
    body = json_step(model, 1, ROWS[:1])
    body["forward_backward_input"]["data"][0]["loss_fn_inputs"]["target_tokens"]["data"][0] = token
    failed = client.wait(client.post("forward_backward", **body))
    assert "target" in failed["error"]
    assert failed["category"] == "user"


def test_layers_that_are_switched_off_are_not_trained(client: WireClient) -> None:
    """No layer at all is refused; the others have a step session of their own shape."""
    config = {"rank": 8, "train_mlp": False, "train_attn": False, "train_unembed": False}
    body = {"session_id": client.session, "model_seq_id": 90, "base_model": client.model, "lora_config": config}
    answer = client.http.post("/create_model", json=body)
    assert answer.status_code == 400
    assert "No layer" in answer.json()["detail"]


# The audit log


def test_requests_that_change_something_are_in_the_audit_log(client: WireClient, wire_home: Path) -> None:
    before = len(audit_lines(wire_home))
    model = client.create_model()
    client.train(model, 1)
    failed = client.wait(client.post("optim_step", model_id=model, seq_id=3))
    assert "no gradient" in failed["error"]
    client.post("session_heartbeat", session_id=client.session)
    client.post("get_info", model_id=model)
    client.http.post("/create_session", json={}, headers={"authorization": "Bearer reader"})
    lines = audit_lines(wire_home)[before:]
    ended = [(line["operation"], line["outcome"], line["code"]) for line in lines if line["phase"] == "ended"]
    assert sorted(ended) == sorted(
        [
            ("tinker create_model", "done", ""),
            ("tinker forward_backward", "done", ""),
            ("tinker optim_step", "done", ""),
            ("tinker optim_step", "failed", "E-STEP"),
            ("tinker create_session", "denied", "E-SCOPE"),
        ]
    )
    step = next(line for line in lines if line["operation"] == "tinker forward_backward")
    assert (step["surface"], step["caller"]) == ("tinker", "owner")
    assert step["fields"]["rows"] == len(ROWS)  # type: ignore[index]
