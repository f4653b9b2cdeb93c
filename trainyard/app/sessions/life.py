"""Sessions: checked, created, listed, shown, closed and resumed.

Every reason against a new session is reported at once, before Prefect starts its process. The state of a session is in
its folder (`backends/sessions/records.py`); an open one is asked itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError

from trainyard.app.context import Caller, Context, make_run_key
from trainyard.app.plan.locate import locate_model
from trainyard.app.plan.machine import read_machine_facts
from trainyard.app.plan.parse import deep_merge
from trainyard.app.plan.refusals import check_inputs, check_space
from trainyard.app.plan.tiers import list_limit_refusals
from trainyard.app.responses import Response
from trainyard.app.runs import connect_runs
from trainyard.app.sessions.calls import ask_session, ask_status, require_session
from trainyard.backends.results import CHECKPOINT_FOLDER
from trainyard.backends.sessions.records import (
    SessionRecord,
    SessionState,
    SessionStatus,
    folder_of_session,
    is_running,
    list_records,
    new_session_id,
    read_record,
    read_status,
    write_record,
    write_status,
)
from trainyard.errors import Conflict, Denied, InvalidInput, NotFound, Reason, Refused, TrainyardError, Unavailable
from trainyard.operations import sessions as requests
from trainyard.settings import Settings
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode
from trainyard.spec.compat.table import run_reasons, session_reasons
from trainyard.spec.graph import check
from trainyard.spec.job import SessionSpec, resolve_session, trainer_of_session
from trainyard.spec.load.files import load_value
from trainyard.spec.load.parse import build_reasons, validate
from trainyard.spec.nodes import TrainerNode
from trainyard.spec.states import JobState
from trainyard.spec.training import TrainerConfig
from trainyard.stores.live.job_ids import TENANT_TAG, TRACE_TAG
from trainyard.train.checkpoint.checkpoints import newest_valid

TRAINER = "trainer"
WITHOUT_ROWS = "R-PORT"
"""A chain's trainer needs a node that gives it rows; a session gets them with its calls."""
DATA_KEYS = ("dataset", "data", "path")


def accept_session(
    settings_given: Mapping[str, object], settings: Settings, caller: Caller, trace: str = ""
) -> SessionRecord:
    """Return the record of a new session. Raises `Refused` with every reason, `Denied` (`E-SCOPE`) for another
    tenant.
    """
    spec = keep_own_tenant(read_spec(settings_given), settings_given, caller)
    config = trainer_of_session(spec)
    resolved = resolve_session(locate_base(config, settings), settings.default_base_model)
    reasons = list_reasons(spec, config, resolved, settings)
    if reasons:
        raise Refused(reasons, what=f"The session was refused for {len(reasons)} reason{'s'[: len(reasons) > 1]}.")
    return SessionRecord(
        id=new_session_id(), name=spec.name, tenant=spec.tenant, created=time.time(), config=resolved,
        idle_s=spec.idle_s, autosave_s=spec.autosave_s, budget_s=spec.budget_s, trace=trace,
    )  # fmt: skip


def read_spec(fields: Mapping[str, object]) -> SessionSpec:
    """Raises `Refused` for keys and values that no session has."""
    if named := [key for key in DATA_KEYS if key in fields]:
        because = "A session has no data set: its rows come with each call of forward."
        raise Refused([Reason("R-SOURCE", None, named[0], because, f"Remove {named[0]}, or start a job with it.")])
    try:
        return validate(SessionSpec, dict(fields))
    except ValidationError as error:
        raise Refused(build_reasons(error, SessionSpec)) from error


def keep_own_tenant(spec: SessionSpec, fields: Mapping[str, object], caller: Caller) -> SessionSpec:
    """Return the session as the caller's tenant's. Raises `Denied` (`E-SCOPE`) where it names another one."""
    if not caller.tenant:
        return spec
    if "tenant" in fields and spec.tenant != caller.tenant:
        raise Denied(
            f"The token of {caller.name} is for the tenant {caller.tenant}, and this is for {spec.tenant}.",
            do="Leave the tenant out, or use a token that is for it.", code="E-SCOPE",
        )  # fmt: skip
    return spec.model_copy(update={"tenant": caller.tenant})


def locate_base(config: TrainerConfig, settings: Settings) -> TrainerConfig:
    """Return the config with the whole path of its base: a worker has another working folder than its caller."""
    if config.base_model is None:
        return config
    return config.model_copy(update={"base_model": locate_model(config.base_model, settings)})


def list_reasons(spec: SessionSpec, config: TrainerConfig, resolved: TrainerConfig, settings: Settings) -> list[Reason]:
    """Return the reasons of the rows of a trainer, of a session, and of this machine."""
    chain = ChainSpec(name=spec.name, tenant=spec.tenant, nodes=(TrainerNode(type=TRAINER, config=config),))
    reasons = [reason for reason in check(chain) if reason.code != WITHOUT_ROWS]
    reasons += session_reasons(build_chain(spec, config))
    if not reasons:
        whole = build_chain(spec, resolved)
        reasons = run_reasons(whole, read_machine_facts(whole, settings))
        reasons += [] if reasons else check_inputs(whole, settings)
        reasons += check_space(settings)
        reasons += list_limit_refusals(whole, settings)
    return [replace(reason, node=None, field=reason.field.removeprefix("config.")) for reason in reasons]


def build_chain(spec: SessionSpec, config: TrainerConfig) -> ResolvedChain:
    """Return a trainer alone, as the rows look at it."""
    node = ResolvedNode(id=TRAINER, type=TRAINER, config=config)
    return ResolvedChain(name=spec.name, tenant=spec.tenant, nodes=(node,), order=(TRAINER,), digest="")


DEPLOYMENT, SESSION_TAG = "session/worker", "session"
OPEN_WAIT_S, OPEN_POLL_S = 600.0, 0.2
CLOSE_WAIT_S = 25.0
"""How long a close waits for the last checkpoint; a large one is still written afterwards."""
NOT_STARTED = "waiting for a worker"


class SessionCounters(Response):
    """Progress of a session."""

    global_step: int | None = None
    op_seq: int | None = None
    """The last operation that was carried out; of a session that is not open, the last one that was saved."""
    next_op_seq: int | None = None
    """Number of the next operation."""
    saved_op_seq: int | None = None
    """The last operation that is in a checkpoint: later ones are lost if its process is killed now."""
    resumed_after: int | None = None
    """The operation after which its process continued; None at a first start."""


class SessionInfo(SessionCounters):
    """A session."""

    id: str
    name: str
    tenant: str
    state: SessionState
    detail: str
    """What it waits for, or why it ended: closed, idle, cancel, preempt, budget, or an error."""
    stage: Stage
    method: Method
    base_model: str
    processes: int
    """Processes that share it."""
    created: float
    run: str
    """Its newest flow run."""
    idle_s: int
    """Seconds after its last call at which it ends."""


class SessionList(Response):
    sessions: tuple[SessionInfo, ...]


def create_session(request: requests.CreateSessionInput, context: Context) -> SessionInfo:
    """Check the settings, and let a worker open the session. The same idempotency key is the same session.

    Raises `Refused` with every reason, `Conflict` (`E-CONFLICT`) for a key that belongs to another session.
    """
    accepted = accept_session(build_body(request), context.settings, context.caller, context.trace)
    record = accepted.model_copy(update={"id": new_session_id(make_run_key(context))})
    connect_runs(context.settings)  # without a server nothing is written
    earlier = find_earlier(record, context)
    if earlier is None:
        folder = write_record(context.settings, record)
        try:
            start(record, context, key=make_run_key(context))
        except TrainyardError:
            shutil.rmtree(folder)
            raise
    elif not read_status(context.settings, earlier.id).run:  # its service was killed before it was started
        start(earlier, context, key=make_run_key(context))
    record = earlier or record
    return wait_until_open(record, context) if request.wait else describe_session(record, context.settings)


def find_earlier(record: SessionRecord, context: Context) -> SessionRecord | None:
    """Return the session that the key of this call has created before; None where there is none.

    Raises `Conflict` (`E-CONFLICT`) if that one has other settings.
    """
    try:
        earlier = read_record(context.settings, record.id)
    except NotFound:
        return None
    if earlier != record.model_copy(update={"created": earlier.created, "trace": earlier.trace}):
        raise Conflict(
            "The idempotency key belongs to a session that was created with other settings.",
            do="Use a new key for a new session.", code="E-CONFLICT",
        )  # fmt: skip
    return earlier


def list_sessions(request: requests.SessionsInput, context: Context) -> SessionList:
    """Return the newest sessions of the caller's tenant."""
    records = [*list_records(context.settings, context.caller.tenant)][: request.limit]
    return SessionList(sessions=tuple(describe_session(record, context.settings) for record in records))


def show_session(request: requests.SessionInput, context: Context) -> SessionInfo:
    record = read_record(context.settings, request.session, context.caller.tenant)
    return describe_session(record, context.settings, ask_server=True)


def touch_session(request: requests.SessionInput, context: Context) -> SessionInfo:
    """Begin the idle time of an open session again. Raises `Conflict` (`E-SESSION-STATE`) for one that is not open."""
    record = read_record(context.settings, request.session, context.caller.tenant)
    ask_session(context, request.session, {"call": "heartbeat"})
    return describe_session(record, context.settings)


def close_session(request: requests.SessionInput, context: Context) -> SessionInfo:
    """End a session with a checkpoint; one that is not open yet is cancelled. Twice is once."""
    settings = context.settings
    record = read_record(settings, request.session, context.caller.tenant)
    state = read_status(settings, record.id).state
    if state is SessionState.OPEN:
        try_close(request.session, context)
    elif state is SessionState.PENDING:
        cancel_pending(record, settings)
    deadline = time.monotonic() + CLOSE_WAIT_S
    while is_running(settings, record.id) and time.monotonic() < deadline:
        time.sleep(OPEN_POLL_S)
    return describe_session(record, settings)


def resume_session(request: requests.ResumeSessionInput, context: Context) -> SessionInfo:
    """Continue a session that has ended, failed or was killed, from its newest valid checkpoint.

    Raises `Conflict` (`E-SESSION-STATE`) while its process is running.
    """
    settings = context.settings
    record = read_record(settings, request.session, context.caller.tenant)
    status = read_status(settings, record.id)
    if status.state in (SessionState.OPEN, SessionState.PENDING) or is_running(settings, record.id):
        raise Conflict(
            f"The session {record.id} is {status.state.value}.", why=status.detail,
            do="Only one that has ended can be resumed; close it first.", code="E-SESSION-STATE",
        )  # fmt: skip
    connect_runs(settings)
    checkpoint = newest_valid(folder_of_session(settings, record.id) / CHECKPOINT_FOLDER)
    context.say(
        f"continues after operation {checkpoint.step}" if checkpoint.path else "has no checkpoint: it begins again"
    )
    start(record, context, checkpoint.step, key=make_run_key(context, "resume"))
    return wait_until_open(record, context) if request.wait else describe_session(record, settings)


# Its process


def start(record: SessionRecord, context: Context, saved: int | None = None, key: str = "") -> None:
    """Create the flow run of a session, and note that no worker has taken it, and its operation to continue after.

    A second call with the same `key` creates no other run.
    """
    runs = connect_runs(context.settings)
    tags: tuple[str, ...] = (SESSION_TAG, record.id, f"{TENANT_TAG}{record.tenant}")
    tags += (f"{TRACE_TAG}{context.trace}",) if context.trace else ()
    parameters = {"session_id": record.id}
    run = runs.start_run(DEPLOYMENT, parameters, tags=tags, called=record.id, key=key)
    folder = folder_of_session(context.settings, record.id)
    if not is_running(context.settings, record.id):
        last = {} if saved is None else {"op_seq": saved, "saved_op_seq": saved, "next_op_seq": saved + 1}
        write_status(folder, SessionState.PENDING, NOT_STARTED, run.run_id, started=False, last=last)


def wait_until_open(record: SessionRecord, context: Context) -> SessionInfo:
    """Wait until a session takes calls. Raises `Unavailable` (`E-SESSION-STATE`) if it ends instead, or takes long."""
    deadline = time.monotonic() + OPEN_WAIT_S
    while time.monotonic() < deadline:
        info = describe_session(record, context.settings, ask_server=True)
        if info.state is SessionState.OPEN:
            return info
        if info.state is not SessionState.PENDING:
            raise Conflict(
                f"The session {record.id} did not open: it is {info.state.value}.", why=info.detail,
                do="Read child.log in its folder.", code="E-SESSION-STATE",
            )  # fmt: skip
        time.sleep(OPEN_POLL_S)
    raise Unavailable(
        f"The session {record.id} is not open after {OPEN_WAIT_S:.0f} s.",
        why=read_status(context.settings, record.id).detail,
        do="A training may have the device; look at it by `trainyard sessions show`, and wait.",
        code="E-SESSION-STATE",
    )


def try_close(session: str, context: Context) -> None:
    """Ask an open session to end; one that ends this moment needs no asking."""
    try:
        ask_session(context, session, {"call": "close"})
    except Conflict:
        require_session(context, session)


def cancel_pending(record: SessionRecord, settings: Settings) -> None:
    """Cancel the flow run of a session that is not open yet."""
    status = read_status(settings, record.id)
    try:
        connect_runs(settings).cancel_run(status.run)
    except Conflict:
        return  # it has ended meanwhile
    if not is_running(settings, record.id):
        folder = folder_of_session(settings, record.id)
        write_status(folder, SessionState.ENDED, "canceled before it was opened", status.run)


def build_body(request: requests.CreateSessionInput) -> dict[str, object]:
    """Return the body of a session: a file's, with the parameters laid over it."""
    if request.file is None:
        return request.parameters
    if not request.file.is_file():
        raise NotFound(f"The file {str(request.file)!r} does not exist.", do="Correct the path.", code="E-PARAMETER")
    value = load_value(request.file)
    if not isinstance(value, dict) or "nodes" in value:
        raise InvalidInput(
            f"{request.file} does not contain a session.", why="A session is the settings of a trainer.",
            do="Write its settings without nodes and without a data set.", code="E-SPEC-FILE",
        )  # fmt: skip
    return deep_merge(value, request.parameters)


# Responses


def describe_session(record: SessionRecord, settings: Settings, *, ask_server: bool = False) -> SessionInfo:
    """Return what a session is doing now. With `ask_server`, also whether the run of one that waits has ended."""
    folder, status = folder_of_session(settings, record.id), read_status(settings, record.id)
    report = ask_status(folder) if status.state is SessionState.OPEN else None
    if ask_server and status.state is SessionState.PENDING and not is_running(settings, record.id):
        status = check_at_server(status, settings)
    counters_now = report or status.last
    counters = {name: counters_now.get(name) for name in SessionCounters.model_fields}
    config = record.config
    return SessionInfo(
        id=record.id, name=record.name, tenant=record.tenant, state=status.state, detail=status.detail,
        stage=config.stage.type, method=config.method.type, base_model=config.base_model or "",
        processes=config.launch.processes,
        created=record.created, run=status.run, idle_s=record.idle_s, **counters,
    )  # fmt: skip


def check_at_server(status: SessionStatus, settings: Settings) -> SessionStatus:
    """Return the status of a session that no process has: ended, if its flow run has ended before it began."""
    try:
        state = connect_runs(settings).state_of_run(status.run)
    except TrainyardError:  # the server is away: its files are what is known
        return status
    if state not in (JobState.FAILED, JobState.CANCELED):
        return status
    return status.model_copy(update={"state": SessionState.ENDED, "detail": f"its run is {state.value}"})
