"""A client of the Tinker wire for tests: bodies as the SDK sends them, and a service with one open step session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.unit.backends.session_host import HostedSession, host_session, make_record
from trainyard.settings import Settings
from trainyard.surfaces.tinker.messages import FLOAT32, INT64, make_message, message_classes

RANK = 8
ROWS = [[5 + start + step for step in range(length)] for start, length in ((0, 9), (3, 14), (40, 6))]
"""Rows of different lengths."""
PROTOBUF = "application/x-protobuf"


TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def open_step_session(settings: Settings, model: Path) -> AbstractContextManager[HostedSession]:
    """A step session for adapters of rank 8 on the tiny model, as the wire looks for it."""
    method = {"type": "lora", "rank": RANK, "alpha": 32.0, "dropout": 0.0, "target_modules": TARGETS}
    return host_session(settings, make_record(model, name=f"tinker-r{RANK}-amu", method=method))


class WireClient:
    """One `ServiceClient` by hand."""

    def __init__(self, url: str, model: Path, token: str = "owner") -> None:
        self.http = httpx.Client(
            base_url=f"{url}/tinker/api/v1", headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False
        )
        self.model = str(model)
        self.session = self.post("create_session", tags=[], user_metadata={}, sdk_version="0.38.0")["session_id"]
        self.models = 0

    def post(self, path: str, /, **body: Any) -> Any:
        answer = self.http.post(f"/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, future: dict[str, Any], accept: str = "application/json") -> Any:
        """The answer of a future: JSON, or the bytes of protobuf."""
        while True:
            answer = self.http.post(
                "/retrieve_future", json={"request_id": future["request_id"]}, headers={"accept": accept}
            )
            if answer.status_code != 408:
                break
        assert answer.status_code == 200, answer.text
        return answer.content if answer.headers["content-type"] == PROTOBUF else answer.json()

    def create_model(self, seed: int = 1) -> str:
        number, self.models = self.models, self.models + 1
        config = {"rank": RANK, "seed": seed, "train_mlp": True, "train_attn": True, "train_unembed": True}
        future = self.post(
            "create_model", session_id=self.session, model_seq_id=number, base_model=self.model, lora_config=config
        )
        return str(self.wait(future)["model_id"])

    def export(self, model: str, seq: int) -> bytes:
        """The weights of a model as other programs read them."""
        self.wait(self.post("save_weights", model_id=model, path=f"export-{seq}", seq_id=seq))
        path = f"/training_runs/{model}/checkpoints/weights/export-{seq}/external_weights_urls"
        return self.http.get(self.http.get(path).json()["urls"]["adapter_model.safetensors"]).content

    def step(self, body: bytes, **headers: str) -> httpx.Response:
        return self.http.post("/forward_backward", content=body, headers={"content-type": PROTOBUF, **headers})

    def train(self, model: str, seq: int, rows: Sequence[Sequence[int]] = tuple(ROWS), rate: float = 1e-2) -> float:
        """One step with its optimizer step: the loss."""
        first = self.step(proto_step(model, seq, rows)).json()
        second = self.post("optim_step", model_id=model, seq_id=seq + 1, adam_params={"learning_rate": rate})
        loss = self.wait(first)["metrics"]["loss:sum"]
        self.wait(second)
        return float(loss)


def proto_step(
    model: str, seq: int, rows: Sequence[Sequence[int]], *, loss: str = "cross_entropy", forward_only: bool = False,
    **inputs: Sequence[Sequence[float]],
) -> bytes:  # fmt: skip
    """A forward_backward as protobuf; weights are 1 unless inputs are given."""
    message = make_message(
        "ForwardBackwardRequest", model_id=model, seq_id=seq, loss_fn=loss, forward_only=forward_only
    )
    given = inputs or {"weights": [[1.0] * (len(row) - 1) for row in rows]}
    for index, row in enumerate(rows):
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.array(row[:-1], dtype="<i4").tobytes()
        targets = np.array(row[1:], dtype="<i8")
        add_tensor(datum, "target_tokens", targets, INT64)
        for name, values in given.items():
            add_tensor(datum, name, np.array(values[index], dtype="<f4"), FLOAT32)
    return bytes(message.SerializeToString())


def add_tensor(datum: Any, name: str, values: np.ndarray, dtype: int) -> None:
    tensor = make_message("Tensor", dense=values.tobytes(), dtype=dtype, shape=list(values.shape))
    datum.loss_fn_inputs.append(make_message("InputEntry", key=name, value=tensor))


def json_step(model: str, seq: int, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The same as JSON."""
    data = [
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": list(row[:-1])}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": list(row[1:]), "dtype": "int64", "shape": [len(row) - 1]},
                "weights": {"data": [1.0] * (len(row) - 1), "dtype": "float32", "shape": [len(row) - 1]},
            },
        }
        for row in rows
    ]
    return {"model_id": model, "seq_id": seq, "forward_backward_input": {"data": data, "loss_fn": "cross_entropy"}}


def read_output(data: bytes) -> tuple[float, list[list[float]]]:
    """Loss and log-probabilities of a step in protobuf."""
    message = message_classes()["ForwardBackwardOutput"]()
    message.ParseFromString(data)
    (record,) = message.loss_fn_outputs
    (entry,) = record.fields
    flat = np.frombuffer(entry.value.data, dtype="<f4")
    ends = np.frombuffer(entry.value.offsets, dtype="<i8") // 4
    rows = [flat[first:last].tolist() for first, last in pairwise(ends)]
    return next(metric.value for metric in message.metrics if metric.key == "loss:sum"), rows
