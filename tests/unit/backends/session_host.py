"""A session's process without a Prefect server: started on a thread, called through its socket.

python -m tests.unit.backends.session_host HOME SESSION     a parent of its own, which a test may kill
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from trainyard.backends.sessions.frames import ask
from trainyard.backends.sessions.records import (
    SessionRecord,
    find_socket,
    folder_of_session,
    lock_of_session,
    new_session_id,
    read_record,
    remove_socket,
    write_record,
)
from trainyard.backends.sessions.running import run_session
from trainyard.compute.lease import device_lock
from trainyard.compute.supervise import DesiredState, Outcome
from trainyard.settings import Settings, load_settings
from trainyard.spec.job import SessionSpec, resolve_session, trainer_of_session

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"What is twice {n}?"},
            {"role": "assistant", "content": f"It is {2 * n}."},
        ]
    }
    for n in range(4)
]
OPEN_S = 240.0


def make_record(model: Path, **options: Any) -> SessionRecord:
    """A session with dropout, so that its numbers depend on its generators."""
    hyper = {"precision": "fp32", "learning_rate": 1e-2, **options.pop("hyperparameters", {})}
    body = {"base_model": str(model), "hyperparameters": hyper, "method": {"type": "lora", "dropout": 0.1}, **options}
    spec = SessionSpec.model_validate(body)
    config = resolve_session(trainer_of_session(spec), "starter")
    return SessionRecord(
        id=new_session_id(), name=spec.name, tenant=spec.tenant, created=time.time(), config=config,
        idle_s=spec.idle_s, autosave_s=spec.autosave_s, budget_s=spec.budget_s,
    )  # fmt: skip


def wait_until_open(folder: Path, alive: Callable[[], bool]) -> None:
    """Wait until a session takes calls, or the process or thread that runs it has ended."""
    deadline = time.monotonic() + OPEN_S
    while find_socket(folder) is None and alive():
        assert time.monotonic() < deadline, "it did not open"
        time.sleep(0.05)


class HostedSession:
    """A session while it is open, and how it ended."""

    def __init__(self, settings: Settings, record: SessionRecord, devices: tuple[int, ...] = (0,)) -> None:
        self.settings, self.record, self.devices = settings, record, devices
        self.desired_state, self.events = DesiredState.RUN, list[Mapping[str, Any]]()
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.folder = folder_of_session(settings, record.id)
        self.thread = Thread(target=self.run)

    def run(self) -> None:
        try:
            with device_lock(lock_of_session(self.settings, self.record.id)):
                self.outcome = run_session(
                    self.record, self.settings, devices=self.devices, desired_state=lambda: self.desired_state,
                    on_event=self.events.append, poll_s=0.05,
                )  # fmt: skip
        except BaseException as error:
            self.error = error

    @property
    def pid(self) -> int:
        return int([event for event in self.events if event["event"] == "started"][-1]["pid"])

    def socket_path(self) -> str:
        socket = find_socket(self.folder)
        assert socket is not None, self.outcome
        return socket

    def open(self) -> HostedSession:
        remove_socket(self.folder)  # of a process that was killed: it would pass for that of this one
        self.thread.start()
        wait_until_open(self.folder, self.thread.is_alive)
        return self

    def call(self, verb: str, *, op_seq: int | None = None, body: bytes = b"", **options: Any) -> dict[str, Any]:
        """The result of a verb."""
        header = {"call": "verb", "verb": verb, "given": options, "op_seq": op_seq, "wait_s": 200}
        result: dict[str, Any] = ask(self.socket_path(), header, body, timeout_s=240)["result"]
        return result

    def status(self) -> dict[str, Any]:
        return ask(self.socket_path(), {"call": "status"}, timeout_s=10)

    def train_step(self, rows: Any = ROWS) -> dict[str, Any]:
        forward = self.call("forward", rows=rows)
        self.call("backward", forward_id=forward["forward_id"])
        moved = self.call("step")
        self.call("zero_grad")
        return {"loss": forward["loss"], "grad_norm": moved["grad_norm"]}

    def wait(self, seconds: float = 60) -> Outcome:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "it has not ended"
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome

    def close(self) -> Outcome:
        ask(self.socket_path(), {"call": "close"}, timeout_s=10)
        return self.wait()


@contextmanager
def host_session(settings: Settings, record: SessionRecord, devices: tuple[int, ...] = (0,)) -> Iterator[HostedSession]:
    """An open session; in the end its process is gone."""
    write_record(settings, record)
    session = HostedSession(settings, record, devices).open()
    try:
        yield session
    finally:
        session.desired_state = DesiredState.CANCEL
        session.thread.join(60)
        assert not session.thread.is_alive()


class ParentedSession(HostedSession):
    """A session whose parent is a process of its own."""

    parent: subprocess.Popen[bytes]

    def open(self) -> ParentedSession:
        argv = [sys.executable, "-m", "tests.unit.backends.session_host", str(self.settings.home), self.record.id]
        self.parent = subprocess.Popen(argv)
        wait_until_open(self.folder, lambda: self.parent.poll() is None)
        return self


if __name__ == "__main__":
    home, session_id = sys.argv[1:3]
    settings_here = load_settings(home=Path(home), threads=1)
    HostedSession(settings_here, read_record(settings_here, session_id)).run()
