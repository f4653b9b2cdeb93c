"""A session's real process: its numbers, its end, what is left after a kill, and what it does not take."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from tests.unit.backends import session_in_process
from tests.unit.backends.session_host import ROWS, HostedSession, host_session, make_record
from trainyard.backends.sessions.frames import LENGTHS, MAGIC, ask, receive_frame
from trainyard.backends.sessions.records import SessionState, read_status, write_record
from trainyard.compute.supervise import DesiredState, Outcome, Status
from trainyard.errors import Conflict, InvalidInput, LimitExceeded, NotFound, Refused, TrainyardError
from trainyard.settings import Settings, load_settings
from trainyard.stores.secret_files import read_secret_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
STEPS = 3
KEY = "The key of the checkpoints"


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", threads=1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Any:
    """One session for the tests that only look at its replies."""
    settings = load_settings(home=tmp_path_factory.mktemp("shared"), threads=1)
    with host_session(settings, make_record(tiny_model)) as session:
        yield session


@dataclass(frozen=True)
class Left:
    """A session of a preference stage in a home with a long name, after its caller has left it."""

    session: HostedSession
    outcome: Outcome
    socket: Path
    socket_mode: int
    socket_folder_mode: int
    forward: dict[str, Any]
    refused: TrainyardError


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Left:
    """One session for the tests that look at what is there after its end."""
    settings = load_settings(home=tmp_path_factory.mktemp("left") / ("long-" * 20) / "home", threads=1)
    row = {"prompt": "What is 2?", "chosen": "It is two.", "rejected": "It is nine."}
    with host_session(settings, make_record(tiny_model, stage="dpo", idle_s=1)) as session:
        path = Path(session.socket_path())
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (path, path.parent)]
        forward = session.call("forward", rows=[row], outputs=["logits"])
        with pytest.raises(TrainyardError) as refused:
            session.call("forward", rows=ROWS)
        session.train_step([row])
        session.call("save", name="all")
        return Left(session, session.wait(120), path, *modes, forward, refused.value)


def numbers(session: HostedSession, steps: int = STEPS) -> dict[str, Any]:
    """What `session_in_process` computes, through the socket."""
    done = [session.train_step() for _ in range(steps)]
    (completion,) = session.call(
        "generate", prompts=[{"tokens": [5, 6, 7]}], sampling={"max_new_tokens": 8, "seed": 3}
    )["completions"]
    return {
        "losses": [step["loss"] for step in done],
        "grad_norms": [step["grad_norm"] for step in done],
        "ids": completion["ids"],
        "logprobs": completion["logprobs"],
        "scored": session.call("logprobs", rows=[{"tokens": [5, 6, 7, 8]}])["logprobs"],
        "weights": session.call("save", name="last", kind="weights")["sha256"],
    }


def numbers_in_process(settings: Settings, session_id: str, out: Path, steps: int = STEPS) -> dict[str, Any]:
    """What the same verbs return here, without a socket and a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        session_in_process.main(str(settings.home), session_id, str(steps), str(out))
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.mark.slow
def test_a_session_computes_the_bits_of_the_same_verbs_in_one_process(
    here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    record = make_record(tiny_model)
    with host_session(here, record) as session:
        through_the_socket = numbers(session)
        assert session.close().status is Status.DONE
    assert through_the_socket == numbers_in_process(here, record.id, tmp_path / "in.json")
    assert read_status(here, record.id).state is SessionState.ENDED
    assert read_status(here, record.id).detail == "closed"


def test_a_killed_session_continues_from_its_checkpoint_to_the_same_bits(
    here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    record = make_record(tiny_model, autosave_s=1)
    with host_session(here, record) as session:
        before = [session.train_step()]
        wait_until_saved(session, 4)
        session.call("forward", rows=ROWS)  # lost, with whatever it drew
        os.kill(session.pid, signal.SIGKILL)
        outcome = session.wait()
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, -signal.SIGKILL)
    assert read_status(here, record.id).state is SessionState.LOST
    with host_session(here, record) as session:
        assert {k: v for k, v in session.status().items() if k in ("global_step", "op_seq", "resumed_after")} == {
            "global_step": 1, "op_seq": 4, "resumed_after": 4,
        }  # fmt: skip
        with pytest.raises(Conflict, match="E-STEP: The next operation of this session is 5, not 7") as gap:
            session.call("step", op_seq=7)
        assert "It was resumed after operation 4." in gap.value.why
        after = numbers(session, STEPS - 1)
        assert session.close().status is Status.DONE
    assert read_status(here, record.id).state is SessionState.ENDED
    assert read_status(here, record.id).detail == "closed"
    whole = numbers_in_process(here, record.id, tmp_path / "in.json")
    assert [*(step["loss"] for step in before), *after["losses"]] == whole["losses"]
    assert after["weights"] == whole["weights"]
    assert after["ids"] == whole["ids"]


def wait_until_saved(session: HostedSession, op_seq: int) -> None:
    deadline = time.monotonic() + 120
    folder = session.folder / "checkpoints" / f"step-{op_seq:010d}"
    while not folder.is_dir():
        assert time.monotonic() < deadline, session.status()
        time.sleep(0.05)


@pytest.mark.slow
def test_an_operation_that_comes_twice_is_carried_out_once_also_after_a_resume(
    here: Settings, tiny_model: Path
) -> None:
    record = make_record(tiny_model)
    with host_session(here, record) as session:
        forward = session.call("forward", op_seq=1, rows=ROWS)
        session.call("backward", op_seq=2, forward_id=forward["forward_id"])
        moved = session.call("step", op_seq=3)
        assert session.call("step", op_seq=3) == moved
        with pytest.raises(Conflict, match="E-CONFLICT: Operation 3 was another step call"):
            session.call("step", op_seq=3, learning_rate=0.5)
        with pytest.raises(Conflict, match="E-STEP"):
            session.call("backward", op_seq=4, forward_id=forward["forward_id"])
        session.close()
    with host_session(here, record) as session:
        assert session.call("step", op_seq=3) == moved
        assert session.status()["global_step"] == 1
        with pytest.raises(Conflict, match="E-STEP: The gradients belong to a step that is done"):
            session.call("backward", op_seq=4, forward_id=forward["forward_id"])
        assert session.call("zero_grad", op_seq=5) == {}
        assert session.call("forward", op_seq=6, rows=ROWS)["forward_id"] == "forward-2"


def test_futures_are_carried_out_in_their_order(shared: HostedSession) -> None:
    first = shared.status()["next_op_seq"]
    calls = [("forward", {"rows": ROWS}), ("zero_grad", {}), ("generate", {"prompts": [{"tokens": [1]}]})]
    for at, (verb, arguments) in enumerate(calls):
        header = {"call": "verb", "verb": verb, "given": arguments, "op_seq": first + at, "wait_s": 0}
        assert ask(shared.socket_path(), header)["state"] in ("pending", "running", "done")
    results = [ask(shared.socket_path(), {"call": "result", "op_seq": first + at, "wait_s": 30}) for at in range(3)]
    assert [result["verb"] for result in results] == ["forward", "zero_grad", "generate"]
    assert {result["state"] for result in results} == {"done"}
    with pytest.raises(Conflict, match="E-STEP: The reply of operation 900000 is not known"):
        ask(shared.socket_path(), {"call": "result", "op_seq": 900_000})


@pytest.mark.slow
def test_two_sessions_at_once_compute_what_each_computes_alone(
    here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    records = [make_record(tiny_model, hyperparameters={"seed": seed}) for seed in (1, 2)]
    with host_session(here, records[0], (0,)) as first, host_session(here, records[1], (1,)) as second:
        results: dict[str, dict[str, Any]] = {}
        threads = [Thread(target=lambda s=s: results.update({s.record.id: numbers(s)})) for s in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    alone = {record.id: numbers_in_process(here, record.id, tmp_path / f"{record.id}.json") for record in records}
    assert results == alone
    assert results[records[0].id]["weights"] != results[records[1].id]["weights"]


def test_a_session_that_nobody_calls_saves_and_ends(left: Left) -> None:
    assert (left.outcome.status, left.outcome.reason) == (Status.STOPPED, "idle")
    status = read_status(left.session.settings, left.session.record.id)
    assert (status.state, status.detail) == (SessionState.ENDED, "idle")
    assert (status.last["op_seq"], status.last["saved_op_seq"], status.last["global_step"]) == (7, 7, 1)
    assert not (left.session.folder / "socket.json").exists()


@pytest.mark.slow
def test_a_session_that_is_asked_to_stop_saves_first(here: Settings, tiny_model: Path) -> None:
    record = make_record(tiny_model)
    with host_session(here, record) as session:
        session.train_step()
        session.desired_state = DesiredState.CANCEL
        outcome = session.wait()
    assert (outcome.status, outcome.reason) == (Status.STOPPED, "cancel")
    with host_session(here, record) as session:
        assert session.status()["global_step"] == 1


# What it keeps


@pytest.mark.slow
def test_a_heartbeat_keeps_a_session_that_nobody_calls(tmp_path: Path, tiny_model: Path) -> None:
    with host_session(load_settings(home=tmp_path / "home", threads=1), make_record(tiny_model, idle_s=4)) as session:
        for _ in range(10):
            time.sleep(0.6)
            assert ask(session.socket_path(), {"call": "heartbeat"}, timeout_s=10)["op_seq"] == 0
        assert session.wait(120).status is Status.STOPPED


def test_everything_that_a_session_writes_is_its_users_alone(left: Left) -> None:
    assert (left.socket_mode, left.socket_folder_mode) == (0o600, 0o700)
    folder = left.session.folder
    assert (folder / "saved" / "all" / "state.safetensors").is_file()
    assert [*folder.glob("checkpoints/*/state.*")]
    written = [path for path in folder.rglob("*") if "spec" not in path.name]
    open_to_others = [path for path in written if path.stat().st_mode & 0o077]
    assert [path for path in open_to_others if "checkpoints" in path.parts or "saved" in path.parts] == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_outputs_are_kept_as_safetensors(shared: HostedSession) -> None:
    batch = {"input_ids": [[5, 6, 7], [8, 9]]}
    forward = shared.call("forward", batch=batch, outputs=["logits", "hidden_states"])
    assert (forward["forward_id"], forward["loss"]) == ("", None)
    assert [output["shape"][:3] for output in forward["outputs"]] == [
        [2, 3, forward["outputs"][0]["shape"][2]],
        [3, 2, 3],
    ]
    name = forward["outputs"][0]["name"]
    (tensor,) = load_file(shared.folder / "outputs" / f"{name}.safetensors").values()
    assert list(tensor.shape) == forward["outputs"][0]["shape"]


def test_lists_tensors_and_rows_are_the_same_batch(shared: HostedSession) -> None:
    ids, labels = [[5, 6, 7], [8, 9]], [[-100, 6, 7], [-100, 9]]
    padded = torch.tensor([[5, 6, 7], [8, 9, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    body = save({"input_ids": padded, "attention_mask": mask, "labels": torch.tensor([[-100, 6, 7], [-100, 9, -100]])})
    shared.call("save", name="before")
    by_lists = shared.call("forward", batch={"input_ids": ids, "labels": labels})
    shared.call("load", name="before")
    by_tensors = shared.call("forward", body=body)
    assert (by_lists["loss"], by_lists["units"]) == (by_tensors["loss"], by_tensors["units"])
    assert by_lists["units"] == 3
    assert shared.call("forward", rows=ROWS)["units"] > 3


def test_pairs_are_a_batch_of_a_preference_stage(left: Left) -> None:
    assert left.forward["units"] == 1
    assert left.forward["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert isinstance(left.refused, InvalidInput)
    assert "E-DATA-FORMAT: Stage dpo does not learn from sft rows" in str(left.refused)


def test_a_scale_below_zero_pushes_an_answer_away(shared: HostedSession) -> None:
    """REINFORCE: the gradient of -advantage x log p, one completion at a time."""
    batch = {"input_ids": [[5, 6, 7]], "labels": [[-100, 6, 7]]}
    before = shared.call("logprobs", rows=[{"tokens": [5, 6, 7]}])["logprobs"][0][1:]
    shared.call("zero_grad")
    shared.call("backward", forward_id=shared.call("forward", batch=batch)["forward_id"], scale=-1.0)
    shared.call("step")
    after = shared.call("logprobs", rows=[{"tokens": [5, 6, 7]}])["logprobs"][0][1:]
    assert sum(after) < sum(before)
    shared.call("zero_grad")


def test_a_result_is_an_adapter_that_peft_reads(shared: HostedSession) -> None:
    saved = shared.call("save", name="mine", kind="result")
    config = json.loads((Path(saved["path"]) / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert (Path(saved["path"]) / "tokenizer" / "tokenizer.json").is_file()
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        shared.call("save", name="mine", kind="result")


def test_prompts_are_messages_texts_and_tokens(shared: HostedSession) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    completions = shared.call(
        "generate", prompts=[{"messages": messages}, {"text": "Hi"}, {"tokens": [5]}], samples=2,
        sampling={"max_new_tokens": 2, "temperature": 0.0},
    )["completions"]  # fmt: skip
    assert [completion["prompt"] for completion in completions] == [0, 0, 1, 1, 2, 2]
    assert completions[0]["ids"] == completions[1]["ids"]
    assert len(completions[0]["prompt_ids"]) > len(completions[2]["prompt_ids"]) > 0
    assert completions[4]["prompt_ids"] == [5]
    assert all(len(completion["logprobs"]) == len(completion["ids"]) for completion in completions)


# A key


SECRET = "0123456789abcdef" * 4


@pytest.mark.slow
def test_checkpoints_with_a_key_contain_nothing_readable_and_need_it(
    here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    sealed = load_settings(home=here.home, threads=1, checkpoint_key=str(key))
    record = make_record(tiny_model)
    with host_session(sealed, record) as session:
        session_numbers = numbers(session)
        session.call("save", name="all")
        session.close()
    files = [*session.folder.glob("checkpoints/*/state.*"), *session.folder.glob("saved/*/state.*")]
    assert len(files) == 6
    assert {path.read_bytes()[:4] for path in files} == {b"TYE1"}
    write_record(here, record)
    plain = HostedSession(here, record).open()
    outcome = plain.wait()
    assert outcome.error is not None
    assert outcome.error["code"] == "E-CHECKPOINT-MISMATCH"
    with host_session(sealed, record) as session:
        assert session.status()["global_step"] == STEPS
        session.call("load", name="all")
        again = session.call("save", name="again", kind="weights")
    weights = {path.name for path in session.folder.glob("saved/*")}
    assert weights == {"last", "all", "again"}
    assert session_numbers["losses"] == numbers_in_process(here, record.id, tmp_path / "in.json")["losses"]
    assert again["sha256"]


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o644)
    with pytest.raises(InvalidInput, match="E-PARAMETER: Others may read the key"):
        read_secret_file(key, KEY)
    key.chmod(0o600)
    assert read_secret_file(key, KEY) == SECRET
    with pytest.raises(InvalidInput, match="E-PARAMETER: The key of the checkpoints cannot be read"):
        read_secret_file(tmp_path / "none", KEY)


@pytest.mark.slow
def test_a_session_with_a_key_that_others_may_read_does_not_open(
    here: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o644)
    record = make_record(tiny_model)
    sealed = load_settings(home=here.home, threads=1, checkpoint_key=str(key))
    write_record(sealed, record)
    outcome = HostedSession(sealed, record).open().wait()
    assert outcome.error is not None
    assert "Others may read the key" in outcome.error["what"]


def test_a_variable_with_the_key_that_is_not_set_is_refused(here: Settings, tiny_model: Path) -> None:
    record = make_record(tiny_model)
    sealed = load_settings(home=here.home, threads=1, checkpoint_key="env:TRAINYARD_TEST_ABSENT_KEY")
    write_record(sealed, record)
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: checkpoint_key of trainyard\.toml names the variable"):
        HostedSession(sealed, record).open().wait()


# What it does not take


BAD_CALLS: dict[str, tuple[str, dict[str, Any], type[TrainyardError], str]] = {
    "token": ("forward", {"batch": {"input_ids": [[10**6]]}}, InvalidInput, "E-STEP.*outside of 0"),
    "shape": ("forward", {"batch": {"input_ids": [[1, 2]], "labels": [[1]]}}, InvalidInput, "E-STEP.*of the shape"),
    "words": ("forward", {"batch": {"input_ids": [["a"]]}}, InvalidInput, "E-STEP.*not a list of numbers"),
    "flat": ("forward", {"batch": {"input_ids": [1, 2]}}, InvalidInput, "E-STEP.*rows of tokens"),
    "none": ("forward", {}, InvalidInput, "E-STEP.*takes one of rows, batch and tensors, and got none"),
    "two": ("forward", {"rows": ROWS, "batch": {"input_ids": [[1]]}}, InvalidInput, "E-STEP.*got rows and batch"),
    "form": ("forward", {"rows": [{"x": 1}]}, InvalidInput, "E-DATA-FORMAT"),
    "unlearned": ("forward", {"batch": {"input_ids": [[1]], "labels": [[-100]]}}, InvalidInput, "E-DATA-EMPTY"),
    "many": ("forward", {"batch": {"input_ids": [[1]] * 4097}}, LimitExceeded, "E-LIMIT"),
    "long": ("generate", {"prompts": [{"tokens": [1] * 10**5}]}, LimitExceeded, "E-LIMIT"),
    "graph": ("backward", {"forward_id": "forward-0"}, Conflict, "E-STEP.*not there any more"),
    "gradient": ("step", {}, Conflict, "E-STEP: There is no gradient"),
    "sampling": ("generate", {"prompts": [{"tokens": [1]}], "sampling": {"top_p": 0}}, InvalidInput, "E-SAMPLING"),
    "empty": ("generate", {"prompts": [{"tokens": []}]}, InvalidInput, "E-SAMPLING"),
    "roles": ("generate", {"prompts": [{"messages": [{"content": 1}]}]}, InvalidInput, "E-STEP"),
    "path": ("save", {"name": "../x"}, InvalidInput, "E-NAME"),
    "absent": ("load", {"name": "nothing"}, NotFound, "E-NOT-FOUND"),
    "verb": ("destroy", {}, InvalidInput, "E-REQUEST-REFUSED"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_and_the_session_stays_open(shared: HostedSession, case: str) -> None:
    verb, arguments, kind, pattern = BAD_CALLS[case]
    shared.call("zero_grad")
    with pytest.raises(kind, match=pattern):
        shared.call(verb, **arguments)
    assert shared.call("forward", rows=ROWS)["units"] > 0


def test_a_call_that_is_a_surprise_is_an_error_of_that_call_alone(shared: HostedSession) -> None:
    with pytest.raises(TrainyardError, match="E-CRASH"):
        shared.call("backward")
    assert shared.call("zero_grad") == {}


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "E-REQUEST-REFUSED"),
        (LENGTHS.pack(MAGIC, 1 << 31, 0), "E-LIMIT"),
        (LENGTHS.pack(MAGIC, 2, 1 << 60) + b"{}", "E-LIMIT"),
        (LENGTHS.pack(MAGIC, 4, 0) + b"{no}", "E-REQUEST-REFUSED"),
        (LENGTHS.pack(MAGIC, 2, 0) + b"[]", "E-REQUEST-REFUSED"),
        (LENGTHS.pack(MAGIC, 2, 0) + b"{}", "E-REQUEST-REFUSED"),
        (LENGTHS.pack(MAGIC, 100, 0) + b"{", "E-REQUEST-REFUSED"),
    ],
)
def test_a_bad_frame_ends_its_connection_and_not_the_session(shared: HostedSession, sent: bytes, code: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(shared.socket_path())
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = receive_frame(connection)
    assert answer is not None
    assert answer.header["error"]["code"] == code
    assert shared.call("zero_grad") == {}


def test_a_caller_that_leaves_in_the_middle_leaves_nothing_behind(shared: HostedSession) -> None:
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(shared.socket_path())
            connection.sendall(LENGTHS.pack(MAGIC, 1000, 0)[:10])
    assert shared.call("zero_grad") == {}


def test_a_strategy_that_the_engine_does_not_have_is_refused(here: Settings, tiny_model: Path) -> None:
    record = make_record(tiny_model, launch={"strategy": "zero3", "processes": 2})
    write_record(here, record)
    with pytest.raises(Refused, match="R-BACKEND-SETTING"):
        HostedSession(here, record).open().wait()


def test_a_home_with_a_long_name_has_a_socket_elsewhere(left: Left) -> None:
    assert left.session.folder not in left.socket.parents
    assert len(os.fsencode(left.socket)) <= 100
    assert not left.socket.parent.exists()
