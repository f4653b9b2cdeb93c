"""A service that starts again: no request is run twice, and clients continue where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.answering import answering
from tests.unit.surfaces.tinker.wire import ROWS, WireClient, proto_step
from trainyard.backends.native.sessions.operations import OperationQueue
from trainyard.errors import Conflict

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Restart = Callable[[], WireClient]
ADAM = {"learning_rate": 1e-2}


@pytest.fixture
def restart(wire_home: Path, tiny_model: Path) -> Iterator[Restart]:
    """Start the service, again where it runs, and return the client of the same session on it."""
    with ExitStack() as running:
        sessions: list[WireClient] = []

        def start() -> WireClient:
            for client in sessions:
                client.http.close()
            running.close()
            client = WireClient(running.enter_context(answering()), tiny_model)
            if sessions:
                client.session, client.models = sessions[-1].session, sessions[-1].models
            sessions.append(client)
            return client

        yield start
        for client in sessions:
            client.http.close()


def test_a_step_that_is_sent_again_is_taken_once(restart: Restart) -> None:
    client = restart()
    control, model = client.create_model(seed=4), client.create_model(seed=4)
    client.train(control, 1)
    body = proto_step(model, 1, ROWS)
    loss = client.wait(client.step(body).json())["metrics"]
    client.wait(client.post("optim_step", model_id=model, seq_id=2, adam_params=ADAM))
    saved = client.wait(client.post("save_weights", model_id=model, seq_id=3))

    client = restart()
    assert client.wait(client.step(body).json())["metrics"] == loss
    again = client.wait(client.post("optim_step", model_id=model, seq_id=2, adam_params=ADAM))
    assert again["metrics"]["learning_rate:mean"] == 1e-2
    assert client.wait(client.post("save_weights", model_id=model, seq_id=3)) == saved
    assert len(client.http.get(f"/training_runs/{model}/checkpoints").json()["checkpoints"]) == 1
    assert client.train(model, 4) == client.train(control, 3)


def test_a_number_that_comes_with_another_request_fails(restart: Restart) -> None:
    client = restart()
    model = client.create_model()
    client.train(model, 1)
    client = restart()
    failed = client.wait(client.step(proto_step(model, 1, ROWS[:1])).json())
    assert "came with another request before" in failed["error"]
    optimized = client.wait(client.post("optim_step", model_id=model, seq_id=2, adam_params={"learning_rate": 0.5}))
    assert "came with another request before" in optimized["error"]
    assert client.train(model, 3) > 0


def test_a_model_that_is_created_again_is_the_same_one(restart: Restart) -> None:
    client = restart()
    model = client.create_model(seed=8)
    losses = [client.train(model, seq) for seq in (1, 3)]
    client = restart()
    client.models -= 1
    assert client.create_model(seed=8) == model
    assert client.train(model, 5) < losses[1] < losses[0]
    client.models -= 1
    with pytest.raises(AssertionError, match="created with another request"):
        client.create_model(seed=9)


def test_a_request_whose_number_before_it_never_comes_fails(restart: Restart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.surfaces.tinker.queues.GAP_S", 0.3)
    monkeypatch.setattr("trainyard.surfaces.tinker.routes.PATIENCE_S", 1.0)
    client = restart()
    model = client.create_model()
    waiting = client.step(proto_step(model, 2, ROWS)).json()
    while (answer := client.http.post("/retrieve_future", json=waiting | {"model_id": None})).status_code == 408:
        continue
    assert "has not come" in answer.json()["error"]
    client.wait(client.step(proto_step(model, 1, ROWS)).json())
    assert client.wait(client.step(proto_step(model, 2, ROWS)).json())["metrics"]["loss:sum"] > 0


def test_a_key_without_a_reply_enters_nothing() -> None:
    queue = OperationQueue()
    with pytest.raises(Conflict, match="not run a second time"):
        queue.enter("step", {}, b"", None, "tinker model 2 step", only_repeat=True)
    operation = queue.enter("step", {}, b"", None, "tinker model 2 step")
    assert queue.enter("step", {}, b"", None, "tinker model 2 step", only_repeat=True) is operation
    assert operation.seq == 1
