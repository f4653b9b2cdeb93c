"""The step sessions behind the wire: one for the adapters of one shape on one base, of one tenant.

It is opened when it is needed first, resumed after it has ended, and ends itself when no client has called it or sent a
heartbeat for a while. While another run has the device, requests wait with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainyard.app.context import Caller, Context, get_settings
from trainyard.app.plan.locate import locate_model
from trainyard.app.reach import require_reachable
from trainyard.app.sessions.calls import ask_session
from trainyard.app.sessions.life import describe_session
from trainyard.backends.sessions.records import (
    SOCKET_FILE,
    SessionState,
    folder_of_session,
    list_records,
    read_record,
    read_status,
    read_unchanged,
)
from trainyard.callbacks import ignore
from trainyard.errors import Conflict, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.operations.sessions import CreateSessionInput, ResumeSessionInput
from trainyard.operations.table import Scope
from trainyard.settings import Settings
from trainyard.stores.models import ModelSource, resolve_model
from trainyard.surfaces.invocation import execute_operation
from trainyard.surfaces.tinker.layers import name_targets
from trainyard.surfaces.tinker.records import ModelRecord

IDLE_S = 180
"""Of a step session: the SDK sends a heartbeat every 10 s, and gives up after 2 minutes without one."""
WAIT_S = 30.0
POLL_S = 0.2
OPEN_WAIT_S = 3600.0
NAME = "tinker"
ALPHA = 32.0
"""Tinker's scale of an adapter, whatever its rank."""
OnPause = Callable[[str], None]


@dataclass(frozen=True)
class Incarnation:
    """A process of a step session, and where it began."""

    pid: int
    resumed_after: int | None
    """The operation after which it continued; None at a first start."""


class Engines:
    """The step sessions of all tenants. Safe for threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lock = threading.Lock()
        self.locks: dict[str, threading.Lock] = {}

    def context(self, tenant: str) -> Context:
        """Return what a call of a step session runs with: the tenant, and no more than a client may do."""
        caller = Caller(NAME, scope=Scope.RUN, tenant=tenant, remote=True)
        return Context(self.settings, say=ignore, caller=caller, surface=NAME)

    def find_or_create(self, tenant: str, model: ModelRecord) -> str:
        """Return the step session for the adapters of a model's shape; a new one is created, not yet opened."""
        name = session_name(model)
        with self.lock:
            for record in list_records(self.settings, tenant):
                if record.name == name and (record.config.base_model or "") in (
                    self.located(tenant, model.base),
                    model.base,
                ):
                    return record.id
            body = session_body(name, model, self.targets_of(tenant, model))
            info = execute_operation("sessions create", CreateSessionInput(parameters=body), self.context(tenant))
            return str(info.id)

    def targets_of(self, tenant: str, model: ModelRecord) -> str | tuple[str, ...]:
        """Return the layers that get an adapter."""
        folder = self.find_base(tenant, model.base).path
        return name_targets(folder, attn=model.train_attn, mlp=model.train_mlp, unembed=model.train_unembed)

    def find_base(self, tenant: str, name: str) -> ModelSource:
        """Return the base that a client of a tenant means. Raises `Refused` (`R-PATH-ROOT`), and as `resolve_model`."""
        require_reachable([("base_model", name)], self.settings, tenant)
        return resolve_model(name, get_settings(self.context(tenant)))

    def located(self, tenant: str, base: str) -> str:
        return locate_model(base, get_settings(self.context(tenant)))

    def ensure_open(self, tenant: str, engine: str, on_pause: OnPause = ignore) -> Incarnation:
        """Wait until a step session takes calls, and return which of its processes that is.

        Raises `Conflict` (`E-SESSION-STATE`) for one that does not open, `Unavailable` if that takes too long.
        """
        context, deadline = self.context(tenant), time.monotonic() + OPEN_WAIT_S
        resumed = False
        while time.monotonic() < deadline:
            try:
                reply = ask_session(context, engine, {"call": "status"})
                address = read_unchanged(f"{folder_of_session(self.settings, engine)}/{SOCKET_FILE}") or {}
                return Incarnation(int(str(address.get("pid") or 0)), reply.get("resumed_after"))
            except Conflict:
                status = read_status(self.settings, engine)
            if status.state is SessionState.PENDING:
                record = read_record(self.settings, engine, tenant)
                info = describe_session(record, self.settings, ask_server=True)
                on_pause(info.detail)
                if info.state is not SessionState.PENDING and resumed:
                    raise not_opened(engine, info.detail)
            elif status.state is not SessionState.OPEN:
                if resumed and status.state is SessionState.FAILED:
                    raise not_opened(engine, status.detail)
                resumed = self.resume(tenant, engine) or resumed
            time.sleep(POLL_S)
        raise Unavailable(f"The step session {engine} did not open.", do="Look at the worker.", code="E-SESSION-STATE")

    def resume(self, tenant: str, engine: str) -> bool:
        """Start the process of a step session again; another thread may have done so."""
        with self.lock:
            if read_status(self.settings, engine).state in (SessionState.OPEN, SessionState.PENDING):
                return False
            try:
                execute_operation("sessions resume", ResumeSessionInput(session=engine), self.context(tenant))
            except Conflict:
                return False  # its last process has not ended yet
            return True

    def call(
        self,
        tenant: str,
        engine: str,
        verb: str,
        arguments: JsonObject,
        *,
        body: bytes = b"",
        key: str = "",
        only_repeat: bool = False,
    ) -> Any:
        """Carry out a verb and return {op_seq, result}. The same key is the same operation. Raises its error.

        With `only_repeat` nothing new is run: a key whose reply is not kept raises `Conflict` (`E-STEP`).
        """
        context = self.context(tenant)
        header: dict[str, Any] = {"call": "verb", "verb": verb, "given": arguments, "op_seq": None, "wait_s": WAIT_S}
        if key:
            header |= {"key": f"{NAME} {key}", "only_repeat": only_repeat}
        reply = ask_session(context, engine, header, body)
        while reply["state"] != "done":
            reply = ask_session(context, engine, {"call": "result", "op_seq": reply["op_seq"], "wait_s": WAIT_S})
        return reply

    def touch(self, tenant: str, engine: str) -> None:
        """Begin the idle time of an open step session again; nothing for one that is not open."""
        try:
            ask_session(self.context(tenant), engine, {"call": "heartbeat"})
        except (Conflict, NotFound):
            return

    def forget(self, tenant: str, engine: str, model_id: str) -> None:
        """Drop the adapter of a model; one of a session that is not open is dropped with its next opening."""
        try:
            self.call(tenant, engine, "drop_slot", {"name": model_id})
        except TrainyardError:
            return


def session_name(model: ModelRecord) -> str:
    """Return the name of the step session for adapters of this shape; names have no spaces."""
    parts = (("a", model.train_attn), ("m", model.train_mlp), ("u", model.train_unembed))
    return f"{NAME}-r{model.rank}-{''.join(word for word, on in parts if on)}"


def session_body(name: str, model: ModelRecord, targets: str | tuple[str, ...]) -> JsonObject:
    """Return the settings of a step session for adapters of a model's shape."""
    return {
        "name": name,
        "base_model": model.base,
        "stage": "sft",
        "method": {
            "type": "lora", "rank": model.rank, "alpha": ALPHA, "dropout": 0.0,
            "target_modules": targets,
        },
        "hyperparameters": {"optimizer": "adamw", "weight_decay": 0.0},
        "idle_s": IDLE_S,
    }  # fmt: skip


def not_opened(engine: str, detail: str) -> Conflict:
    return Conflict(
        f"The step session {engine} does not open.", why=detail, do="Read child.log in its folder.",
        code="E-SESSION-STATE",
    )  # fmt: skip
