"""Sessions as operations: accepted or refused, found by their tenant alone, called through every field."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save

from tests.session_surface import make_surface
from tests.unit.backends.session_host import ROWS, HostedSession, host_session, make_record
from trainyard.app.context import OWNER, Caller
from trainyard.app.sessions.calls import build_prompt, build_row, not_open_error
from trainyard.app.sessions.life import accept_session
from trainyard.backends.sessions.records import (
    SessionState,
    SessionStatus,
    folder_of_session,
    lock_of_session,
    new_session_id,
    read_record,
    read_status,
    sessions_folder,
    write_record,
    write_status,
)
from trainyard.compute.lease import device_lock
from trainyard.errors import Conflict, Denied, InvalidInput, NotFound, Refused, Unavailable
from trainyard.operations.sessions import (
    ForwardInput,
    GenerateInput,
    completions_text,
    reply_text,
    session_text,
    sessions_text,
)
from trainyard.operations.table import OPERATIONS, Scope, find_route
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.schedules import Schedule
from trainyard.surfaces.cli.main import app

VERBS = ("forward", "backward", "step", "zero-grad", "generate", "logprobs", "save", "load")
THEIRS = Caller("ci", Scope.RUN, "acme", remote=True)


@pytest.fixture
def here(tmp_path: Path, tiny_model: Path) -> Settings:
    return load_settings(home=tmp_path / "home", threads=1, default_base_model=str(tiny_model), min_free_mb=0)


@pytest.fixture(scope="module")
def open_session(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[HostedSession]:
    settings = load_settings(home=tmp_path_factory.mktemp("open"), threads=1)
    with host_session(settings, make_record(tiny_model)) as session:
        yield session


# Accepted or refused


def test_the_eight_verbs_are_routes_of_a_session() -> None:
    for verb in VERBS:
        path = f"/api/v1/sessions/{{session}}/{verb.replace('-', '_')}"
        assert find_route(f"sessions {verb}") == ("POST", path)
        assert OPERATIONS[f"sessions {verb}"].scope is Scope.RUN
    assert all(row.tenants for name, row in OPERATIONS.items() if name.startswith("sessions "))


def test_without_steps_the_rate_is_constant(here: Settings) -> None:
    record = accept_session({}, here, OWNER)
    hyper = record.config.hyperparameters
    assert (hyper.schedule, record.idle_s, record.config.base_model) == (
        Schedule.CONSTANT, 120, here.default_base_model,
    )  # fmt: skip
    record = accept_session({"hyperparameters": {"max_steps": 10}, "idle_s": 30}, here, OWNER)
    assert (record.config.hyperparameters.schedule, record.idle_s) == (Schedule.LINEAR, 30)


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ({"launch": {"strategy": "zero3", "processes": 2}}, ["R-BACKEND-SETTING", "R-LAUNCH"]),
        ({"dataset": {"path": "rows.jsonl"}}, ["R-SOURCE"]),
        ({"backend": "trl"}, ["R-BACKEND-SETTING"]),
        ({"stage": {"type": "grpo", "rewards": [{"type": "exact_match"}]}}, ["R-BATCH"]),
        ({"hyperparamters": {}}, ["E-SPEC-KEY"]),
        ({"idle_s": 0}, ["E-SPEC-VALUE"]),
        ({"idle_s": 10**6}, ["E-SPEC-VALUE"]),
        ({"eval": {}, "launch": {"on_oom": "fail"}}, ["R-EVALUATION", "R-SETTING-UNUSED"]),
        ({"method": "auto"}, ["R-DEVICE"]),
    ],
)  # fmt: skip
def test_what_no_session_can_do_is_refused_at_creation(here: Settings, body: dict[str, Any], codes: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        make_surface(here).sessions.create(parameters=body)
    assert sorted({reason.code for reason in refused.value.reasons}) == sorted(codes)
    assert all(reason.node is None and not reason.field.startswith("config") for reason in refused.value.reasons)
    assert not sessions_folder(here).exists()


def test_a_model_that_is_not_here_is_refused(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Refused, match="E-MODEL-NOT-FOUND"):
        accept_session({"base_model": "nobody/no-such-model"}, here, OWNER)


def test_without_a_server_nothing_is_written(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unavailable, match="E-NO-SERVER"):
        make_surface(here).sessions.create()
    assert not sessions_folder(here).exists()


def test_a_session_of_a_file(here: Settings, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("eval: {}\n")
    with pytest.raises(Refused, match="R-EVALUATION"):
        make_surface(here).sessions.create(file=tmp_path / "s.yaml")
    (tmp_path / "c.yaml").write_text("nodes: []\n")
    with pytest.raises(InvalidInput, match="E-SPEC-FILE"):
        make_surface(here).sessions.create(file=tmp_path / "c.yaml")
    with pytest.raises(NotFound, match="E-PARAMETER"):
        make_surface(here).sessions.create(file=tmp_path / "none.yaml")


# Whose it is


def test_a_session_belongs_to_the_tenant_of_its_caller(here: Settings) -> None:
    assert accept_session({}, here, THEIRS).tenant == "acme"
    assert accept_session({"tenant": "acme"}, here, THEIRS).tenant == "acme"
    with pytest.raises(Denied, match="E-SCOPE"):
        accept_session({"tenant": "default"}, here, THEIRS)


def test_another_tenants_session_is_not_there(open_session: HostedSession) -> None:
    settings, session = open_session.settings, open_session.record.id
    absent = new_session_id()
    for name, row in OPERATIONS.items():
        if not name.startswith("sessions ") or "{session}" not in find_route(name)[1]:
            continue
        values = {"forward_id": "x", "prompts": ["x"], "rows": ["x"], "op_seq": 1, "name": "forward-1-logits"}
        operation = getattr(make_surface(settings, THEIRS).sessions, name.split()[1].replace("-", "_"))
        fields = {key: value for key, value in values.items() if key in operation.__signature__.parameters}
        messages = []
        for session_id in (session, absent):
            with pytest.raises(NotFound) as missing:
                operation(session=session_id, **fields)
            messages.append(str(missing.value).replace(session_id, "ID"))
        assert messages[0] == messages[1], row
    assert make_surface(settings, THEIRS).sessions.list().sessions == ()


@pytest.mark.parametrize("name", ["session-../../../etc", "../session-0123456789ab", "session-0123456789AB", ""])
def test_only_ids_are_names_of_sessions(here: Settings, name: str) -> None:
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        folder_of_session(here, name)
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        make_surface(here).sessions.show(session=name)


# What it is doing


def test_the_state_of_a_session_without_a_process(here: Settings, tiny_model: Path) -> None:
    record = make_record(tiny_model)
    folder = write_record(here, record)
    assert read_record(here, record.id) == record
    assert read_status(here, record.id).state is SessionState.PENDING
    write_status(folder, SessionState.PENDING, "waiting for a worker", "run", started=False)
    assert read_status(here, record.id).state is SessionState.PENDING
    write_status(folder, SessionState.OPEN, run="run")
    assert read_status(here, record.id).state is SessionState.LOST
    with device_lock(lock_of_session(here, record.id)):
        assert read_status(here, record.id).state is SessionState.OPEN
    write_status(folder, SessionState.ENDED, "idle", "run", last={"op_seq": 7, "global_step": 2, "unknown": 1})
    (row,) = make_surface(here).sessions.list().sessions
    assert (row.state, row.detail, row.op_seq, row.global_step) == (SessionState.ENDED, "idle", 7, 2)
    assert "sessions resume" in session_text(row)
    assert record.id in sessions_text(make_surface(here).sessions.list())
    assert make_surface(here).sessions.close(session=record.id) == row, "what has ended is closed"
    with pytest.raises(Conflict, match=r"E-SESSION-STATE: .* is ended \(idle\) and takes no calls"):
        make_surface(here).sessions.step(session=record.id)


def test_a_session_that_waits_says_what_for() -> None:
    error = not_open_error("session-x", SessionStatus(detail="waiting for the device"))
    assert "pending (waiting for the device)" in error.what
    assert error.do == "Wait until it is open."


def test_a_session_whose_process_is_gone_does_not_answer(here: Settings, tiny_model: Path) -> None:
    record = make_record(tiny_model)
    folder = write_record(here, record)
    (folder / "socket.json").write_text(json.dumps({"path": str(folder / "gone"), "pid": 1}))
    started = time.monotonic()
    with pytest.raises(Conflict, match="E-SESSION-STATE: The session does not answer"):
        make_surface(here).sessions.zero_grad(session=record.id)
    assert time.monotonic() - started < 60


# Calls


def test_a_loop_through_the_operations(open_session: HostedSession) -> None:
    sessions, session = make_surface(open_session.settings).sessions, open_session.record.id
    result = sessions.forward(session=session, rows=ROWS, outputs=["logits"])
    assert result.state == "done"
    assert result.loss > 0
    blob = sessions.output(session=session, name=result.outputs[0].name)
    assert blob.sha256 == result.outputs[0].sha256
    assert [*load_file(blob.path)] == ["logits"]
    done = sessions.backward(session=session, forward_id=result.forward_id)
    moved = sessions.step(session=session, learning_rate=1e-4)
    assert (done.accumulated, moved.global_step, moved.grad_norm) == (1, 1, done.grad_norm)
    assert moved.learning_rate == 1e-4
    assert sessions.zero_grad(session=session).verb == "zero_grad"
    generated = sessions.generate(session=session, prompts=["Hi", [5, 6], {"text": "Hi"}], max_new_tokens=3)
    assert [completion.prompt for completion in generated.completions] == [0, 1, 2]
    assert "[1] " in completions_text(generated)
    scored = sessions.logprobs(session=session, rows=["Hi there", [5, 6, 7]])
    assert scored.ids[1] == (5, 6, 7)
    assert scored.logprobs[1][0] is None
    saved = sessions.save(session=session, name="first")
    assert sessions.load(session=session, name="first").sha256 == saved.sha256
    state = sessions.show(session=session)
    assert (state.state, state.global_step, state.op_seq) == (SessionState.OPEN, 1, 8)
    assert "loss: " in reply_text(result)


def test_a_call_that_is_not_waited_for_is_a_future(open_session: HostedSession) -> None:
    sessions, session = make_surface(open_session.settings).sessions, open_session.record.id
    future = sessions.forward(session=session, rows=ROWS, wait=False)
    assert (future.loss, future.state in ("pending", "running", "done")) == (None, True)
    done = sessions.result(session=session, op_seq=future.op_seq, wait=True)
    assert done.result["units"] > 0
    again = sessions.forward(session=session, rows=ROWS, op_seq=future.op_seq)
    assert again.loss == done.result["loss"]
    failed = sessions.load(session=session, name="absent", wait=False)
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        sessions.result(session=session, op_seq=failed.op_seq, wait=True)


def test_tensors_come_as_safetensors(open_session: HostedSession) -> None:
    sessions, session = make_surface(open_session.settings).sessions, open_session.record.id
    ids = torch.tensor([[5, 6, 7]])
    body = save({"input_ids": ids, "labels": ids.clone()})
    assert sessions.forward(session=session, tensors=base64.b64encode(body)).units == 2
    with pytest.raises(InvalidInput, match="E-STEP: The batch cannot be read as safetensors"):
        sessions.forward(session=session, tensors=base64.b64encode(b"\x80\x04pickle"))


def test_an_output_that_is_not_kept_is_not_found(open_session: HostedSession) -> None:
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        make_surface(open_session.settings).sessions.output(session=open_session.record.id, name="forward-999-logits")


# Fields


def test_rows_and_prompts_of_a_shell() -> None:
    assert build_row('{"text": "a"}') == build_row("a") == {"text": "a"}
    assert build_prompt("a", bare="text") == {"text": "a"}
    assert build_prompt("a", bare="question") == {"messages": [{"role": "user", "content": "a"}]}
    assert build_prompt([1, 2], bare="text") == {"tokens": [1, 2]}
    assert build_prompt('{"tokens": [1]}', bare="question") == {"tokens": [1]}
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        build_prompt({"tokens": [1], "text": "a"}, bare="text")
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        build_row("{no")


def test_the_fields_of_a_call_are_checked_before_it_is_made() -> None:
    name = "session-0123456789ab"
    for wrong in ({"normalizer": 0}, {"op_seq": 0}, {"outputs": ["weights"]}, {"rows": [1]}, {"unknown": 1}):
        with pytest.raises(ValueError, match="validation error"):
            ForwardInput(session=name, **wrong)
    for wrong in ({"prompts": []}, {"prompts": ["a"], "top_p": 0}, {"prompts": ["a"], "samples": 65}):
        with pytest.raises(ValueError, match="validation error"):
            GenerateInput(session=name, **wrong)


@pytest.mark.parametrize("verb", [name for name in OPERATIONS if name.startswith("sessions ")])
def test_every_operation_of_a_session_has_its_help(verb: str) -> None:
    done = CliRunner().invoke(app, [*verb.split(), "--help"])
    assert done.exit_code == 0, done.output
