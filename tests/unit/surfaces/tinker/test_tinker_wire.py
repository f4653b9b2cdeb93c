"""The Tinker wire on a real service and a real step session: steps, order, futures, state, tenants, bad input."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.surfaces.tinker.wire import (
    PROTOBUF,
    ROWS,
    TARGETS,
    WireClient,
    json_step,
    proto_step,
    read_output,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


# Steps


def test_two_interleaved_clients_come_to_the_bits_of_one_alone(
    client: WireClient, service: str, tiny_model: Path
) -> None:
    """Losses and weights, with clients that take turns, and with clients that call at once."""
    alone = client.create_model(seed=5)
    losses = [client.train(alone, seq) for seq in (1, 3, 5)]
    first, second = client.create_model(seed=5), client.create_model(seed=6)
    interleaved = [(client.train(first, seq), client.train(second, seq)) for seq in (1, 3, 5)]
    assert [pair[0] for pair in interleaved] == losses
    assert [pair[1] for pair in interleaved] != losses
    assert losses[2] < losses[0]

    other = WireClient(service, tiny_model)
    models = client.create_model(seed=5), other.create_model(seed=7)
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(lambda pair: [pair[0].train(pair[1], seq) for seq in (1, 3, 5)], pair)
            for pair in ((client, models[0]), (other, models[1]))
        ]
        assert runs[0].result() == losses
        assert runs[1].result() != losses
    other.http.close()
    weights = [client.export(model, 7) for model in (alone, first, models[0], second)]
    assert weights[0] == weights[1] == weights[2] != weights[3]


def test_json_protobuf_and_zstd_say_the_same(client: WireClient) -> None:
    model = client.create_model()
    body = proto_step(model, 1, ROWS)
    plain = client.wait(client.step(body).json(), PROTOBUF)
    packed = pa.compress(proto_step(model, 2, ROWS), codec="zstd", asbytes=True)
    compressed = client.wait(client.step(packed, **{"content-encoding": "zstd"}).json(), PROTOBUF)
    as_json = client.wait(client.post("forward_backward", **json_step(model, 3, ROWS)))
    loss, rows = read_output(plain)
    assert (loss, rows) == read_output(compressed)
    assert [output["logprobs"]["data"] for output in as_json["loss_fn_outputs"]] == rows
    assert loss == pytest.approx(-math.fsum(map(math.fsum, rows)), rel=1e-6)
    assert [len(row) for row in rows] == [len(row) - 1 for row in ROWS]


def test_chunks_add_up_in_the_order_of_their_numbers(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.surfaces.tinker.routes.PATIENCE_S", 1.0)
    whole, chunked = client.create_model(seed=2), client.create_model(seed=2)
    client.train(whole, 1)
    late = client.step(proto_step(chunked, 2, ROWS[1:])).json()
    assert client.http.post("/retrieve_future", json={"request_id": late["request_id"]}).status_code == 408
    client.step(proto_step(chunked, 1, ROWS[:1]))
    client.wait(client.post("optim_step", model_id=chunked, seq_id=3, adam_params={"learning_rate": 1e-2}))
    after = [client.wait(client.step(proto_step(model, seq, ROWS)).json()) for model, seq in ((whole, 3), (chunked, 4))]
    assert after[0]["metrics"]["loss:sum"] == pytest.approx(after[1]["metrics"]["loss:sum"], rel=1e-5)


def test_a_number_counts_once(client: WireClient) -> None:
    model = client.create_model()
    body = proto_step(model, 1, ROWS)
    first, again = client.step(body).json(), client.step(body).json()
    assert first == again
    client.wait(first)
    other = client.step(proto_step(model, 1, ROWS[:1]))
    assert other.status_code == 400
    assert "came with another request" in other.json()["detail"]


def test_negative_and_zero_weights_are_taken_as_they_are(client: WireClient) -> None:
    model = client.create_model()
    weights = [[(-1.5, 0.0, 2.0)[index % 3] for index in range(len(row) - 1)] for row in ROWS]
    loss, rows = read_output(client.wait(client.step(proto_step(model, 1, ROWS, weights=weights)).json(), PROTOBUF))
    expected = -math.fsum(w * x for ws, xs in zip(weights, rows, strict=True) for w, x in zip(ws, xs, strict=True))
    assert loss == pytest.approx(expected, abs=1e-4)


def test_a_forward_leaves_no_gradient(client: WireClient) -> None:
    model = client.create_model()
    client.wait(client.step(proto_step(model, 1, ROWS, forward_only=True)).json())
    failed = client.wait(client.post("optim_step", model_id=model, seq_id=2))
    assert failed["category"] == "user"
    assert "no gradient" in failed["error"]


# State and samples


def test_a_state_with_its_optimizer_continues_to_the_same_bits(client: WireClient) -> None:
    model = client.create_model()
    client.train(model, 1)
    path = client.wait(client.post("save_weights", model_id=model, path="one", seq_id=3))["path"]
    onward = [client.train(model, seq) for seq in (4, 6)]
    client.models += 1
    load = client.post(
        "load_weights", session_id=client.session, model_seq_id=client.models - 1, path=path, optimizer=True
    )
    second = client.wait(load)["model_id"]
    assert [client.train(second, seq) for seq in (1, 3)] == onward
    info = client.post("weights_info", tinker_path=path)
    assert (info["base_model"], info["lora_rank"], info["is_lora"]) == (client.model, 8, True)
    assert info["train_unembed"]


def test_samples_are_of_the_saved_weights(client: WireClient) -> None:
    model = client.create_model()
    saved = client.wait(client.post("save_weights_for_sampler", model_id=model, path="first", seq_id=1))["path"]
    sampler = client.post(
        "create_sampling_session", session_id=client.session, sampling_session_seq_id=0, model_path=saved
    )["sampling_session_id"]

    def sample(seq: int) -> object:
        params = {"max_tokens": 6, "temperature": 0.0}
        prompt = {"chunks": [{"type": "encoded_text", "tokens": ROWS[0]}]}
        body = {"prompt": prompt, "sampling_params": params, "prompt_logprobs": True}
        return client.wait(client.post("asample", sampling_session_id=sampler, seq_id=seq, num_samples=2, **body))

    before = sample(0)
    for seq in (2, 4, 6):
        client.train(model, seq, rate=0.1)
    assert sample(1) == before
    assert len(before["sequences"]) == 2  # type: ignore[index]
    assert client.http.delete(f"/training_runs/{model}/checkpoints/sampler_weights/first").status_code == 204
    assert "no checkpoint" in sample(2)["error"]  # type: ignore[index]


def test_samplers_that_follow_a_model_take_its_newest_weights(client: WireClient) -> None:
    """A sampler of kind inflight moves on with the next save of that kind; a snapshot stays."""
    model = client.create_model()

    def save(seq: int, number: int, kind: str) -> str:
        body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": number, "kind": kind}
        return str(client.wait(client.post("save_weights_for_sampler", **body))["sampling_session_id"])

    def score(sampler: str) -> object:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": ROWS[0]}]}
        body = {"prompt": prompt, "sampling_params": {"max_tokens": 1}, "prompt_logprobs": True}
        return client.wait(client.post("asample", sampling_session_id=sampler, **body))["prompt_logprobs"]

    first, fixed = save(1, 1, "inflight"), save(2, 2, "snapshot")
    before = score(first)
    assert score(fixed) == before
    client.train(model, 3, rate=0.1)
    newest = save(5, 3, "inflight")
    assert score(first) == score(newest) != before
    assert score(fixed) == before
    client.train(model, 6)
    assert len(client.http.get(f"/training_runs/{model}/checkpoints").json()["checkpoints"]) == 2


def test_an_optimizer_or_a_rank_that_a_load_would_not_get_is_refused(client: WireClient) -> None:
    model = client.create_model()
    path = client.wait(client.post("save_weights", model_id=model, path="one", seq_id=1))["path"]
    body = {"session_id": client.session, "model_seq_id": 80, "path": path}
    for more, words in (
        ({"optimizer_config": {"type": "dimuon"}}, "dimuon"), ({"lora_config": {"rank": 4}}, "of rank 8"),
    ):  # fmt: skip
        answer = client.http.post("/load_weights", json=body | more)
        assert answer.status_code == 400
        assert words in answer.json()["detail"]


def test_a_checkpoint_leaves_as_an_adapter(client: WireClient) -> None:
    model = client.create_model()
    client.train(model, 1)
    client.wait(client.post("save_weights", model_id=model, path="final", seq_id=3))
    links = client.http.get(f"/training_runs/{model}/checkpoints/weights/final/external_weights_urls").json()["urls"]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= links.keys()
    with_token = client.http.get(links["adapter_config.json"])
    assert with_token.json()["r"] == 8
    assert set(with_token.json()["target_modules"]) == set(TARGETS)
    archive = client.http.get(f"/training_runs/{model}/checkpoints/weights/final/archive")
    assert archive.status_code == 302
    assert len(client.http.get(archive.headers["location"]).content) > 1000


# Tenants and bad input


def test_another_tenant_sees_nothing(client: WireClient, service: str, tiny_model: Path) -> None:
    model = client.create_model()
    future = client.step(proto_step(model, 1, ROWS)).json()
    client.wait(future)
    stranger = WireClient(service, tiny_model, "acme")
    answers = [
        stranger.http.post("/retrieve_future", json={"request_id": future["request_id"]}),
        stranger.step(proto_step(model, 2, ROWS)),
        stranger.http.post("/get_info", json={"model_id": model}),
    ]
    stranger.http.close()
    assert [answer.status_code for answer in answers] == [410, 404, 404]
    reader = client.http.post("/create_session", json={}, headers={"authorization": "Bearer reader"})
    assert reader.status_code == 403


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xff\xff\xff", {}, 400),
        (b"not zstd", {"content-encoding": "zstd"}, 400),
        (pa.compress(b"\0" * (65 << 20), codec="zstd", asbytes=True), {"content-encoding": "zstd"}, 413),
        (b"x", {"content-encoding": "br"}, 400),
    ],
)
def test_broken_and_oversized_bodies_are_refused(
    client: WireClient, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert client.step(body, **headers).status_code == status


@pytest.mark.parametrize(
    ("rows", "inputs", "words"),
    [
        ([[5, 6, 99_999]], {}, "outside of"),
        ([[5, 6, 7]], {"weights": [[1.0, math.nan]]}, "NaN"),
        ([[5, 6, 7]], {"weights": [[1.0]]}, "another shape"),
        ([[5, 6, 7]], {"advantages": [[1.0, 1.0]]}, "advantages"),
        ([[5]], {}, "0 tokens"),
        ([], {}, "no data"),
        ([list(range(5, 400)) * 20], {}, "sees"),
    ],
)
def test_wrong_rows_fail_and_the_model_goes_on(
    client: WireClient, rows: list[list[int]], inputs: dict[str, list[list[float]]], words: str
) -> None:
    model = client.create_model()
    failed = client.wait(client.step(proto_step(model, 1, rows, **inputs)).json())
    assert failed["category"] == "user"
    assert words in failed["error"]
    assert client.train(model, 2) > 0


def test_a_finished_session_takes_nothing_more(client: WireClient) -> None:
    model = client.create_model()
    waiting = client.step(proto_step(model, 5, ROWS)).json()
    assert (
        client.http.post(f"/sessions/{client.session}/finish", json={"reason": {"type": "success"}}).status_code == 204
    )
    assert client.http.post("/session_heartbeat", json={"session_id": client.session}).status_code == 410
    assert "finished" in client.wait(waiting)["error"]
    assert client.step(proto_step(model, 1, ROWS)).status_code == 410
