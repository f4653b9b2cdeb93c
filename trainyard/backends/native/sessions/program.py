"""The child of a step session (imports torch): loads the model, answers calls, saves, and ends.

Its main thread carries out one operation after another; threads of connections only enter them. It ends with a
checkpoint: when it is closed (exit 0), when nobody has called for `idle_s`, or when it is asked to stop (exit 75).
Killed, it loses what came after its last checkpoint and nothing else: it continues there to the same bits.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

import orjson
import torch

from trainyard.backends import frame
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.assembly import (
    JOB,
    PLAN,
    RunPlan,
    choose_head,
    gather_policy,
    load_tokenizer,
    make_policy,
    open_session,
    save_trained,
    set_determinism,
)
from trainyard.backends.native.sessions.operations import OperationQueue, SessionOperation
from trainyard.backends.native.sessions.server import SessionServer
from trainyard.backends.native.sessions.verbs import LOOKING, SLOT_VERBS, VERBS, SessionSide, run_verb
from trainyard.backends.results import CHECKPOINT_FOLDER
from trainyard.backends.sessions.frames import error_header
from trainyard.backends.sessions.running import SessionJob
from trainyard.backends.trl.loading import pick_device
from trainyard.compute.child import SPEC_FILE, Events, Stopped, crash_error, faultpoint, log_traceback
from trainyard.errors import Corrupt, TrainyardError
from trainyard.inherited import key_variable
from trainyard.json_types import JsonObject
from trainyard.stores.secret_files import read_secret_file
from trainyard.train.checkpoint.checkpoints import require_space
from trainyard.train.checkpoint.state import Snapshot, require_same
from trainyard.train.checkpoint.streams import Sealer
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint
from trainyard.train.methods.contract import Policy
from trainyard.train.parallel.team import Team
from trainyard.train.session.session import Session

POLL_S = 0.2
"""How soon a request to stop is seen while nobody calls."""
WRITING_SHARE = 20
"""A checkpoint that takes a second is followed by the next one after 20 at the earliest."""
OVERFLOWING = ("state/gradients/", "state/peers/gradients/")
"""Tensors that may be infinite while a scaler looks for its factor."""
IDLE, CLOSED = "idle", "closed"


def serve(folder: Path, events: Events, team: Team | None = None) -> None:
    """Open the session of `folder/spec.json` and answer its calls until it ends, alone or as rank 0 of a team."""
    session_job = SessionJob.model_validate_json((folder / SPEC_FILE).read_bytes())
    job = session_job.job
    device = pick_device(job.config.device)
    set_determinism(job)
    if team is not None:
        team.broadcast_command(JOB, job.model_dump(mode="json"))
    with frame.lock_devices(job, folder, events, device), frame.memory_errors_in_words():
        worker = SessionWorker(session_job, folder, events, device, team)
        with worker.writer:
            worker.run()


class SessionWorker:
    """An open session: the engine, its operations, and its checkpoints."""

    def __init__(
        self, session_job: SessionJob, folder: Path, events: Events, device: str, team: Team | None = None
    ) -> None:
        self.session_job, self.folder, self.events, self.team = session_job, folder, events, team
        policy, session = open_engine(session_job.job, folder, events, device, team)
        require_space(folder, frame.ADAM_COPIES * frame.trainable_bytes(policy.model))
        self.session, self.sealer = session, open_sealer(session_job.key)
        session.sealer = self.sealer
        self.side = SessionSide(session, lambda target: export(session_job.job, policy, session, device, target))
        checkpoint = find_newest(folder / CHECKPOINT_FOLDER, None)
        for sentence in checkpoint.quarantined:
            events.emit("warning", code="E-CHECKPOINT-CORRUPT", text=sentence)
        self.operations = OperationQueue(None if checkpoint.path is None else self.resume(checkpoint.path))
        self.writer = CheckpointWriter(
            folder / CHECKPOINT_FOLDER, keep=session_job.job.config.engine.keep_checkpoints, keep_best=0, at=faultpoint,
            report=self.note_written, may_overflow=OVERFLOWING if session.scaler.is_enabled() else (),
        )  # fmt: skip
        self.writer.sealer = self.sealer
        self.saved, self.changed = self.operations.done, False
        self.saved_at, self.writing_s = time.monotonic(), 0.0
        self.server = SessionServer(folder, self.operations, frozenset({*VERBS, *SLOT_VERBS}), self.status)

    def resume(self, path: Path) -> JsonObject:
        """Take over a checkpoint and return what it says of the operations. Raises `Corrupt`."""
        tensors, values = load_checkpoint(path, verify=False, sealer=self.sealer)
        if "operations" not in values:
            raise Corrupt(
                f"{path.name} is not a checkpoint of a session.", do="Create another session.",
                code="E-CHECKPOINT-MISMATCH",
            )  # fmt: skip
        snapshot = Snapshot.from_flat(tensors, values)
        for difference in require_same(snapshot, self.session.identity()):
            self.events.emit("warning", text=f"Since the checkpoint was made: {difference}. The bits may differ.")
        self.session.restore(snapshot)
        self.session.count_forwards_from(int(values["forwards"]))
        if "slots" in values:  # not in those of earlier versions
            self.side.slots.restore(values["slots"], tensors)
        operations: dict[str, object] = values["operations"]
        self.events.emit("restart", step=self.session.global_step, op_seq=operations["done"])
        return operations

    # Life

    def run(self) -> None:
        """Answer until the session is closed; raises `Stopped` where it ends otherwise."""
        address = self.server.start()
        self.events.emit("open", socket=address, **self.status())
        try:
            reason = self.answer_calls()
        finally:
            self.server.stop()
        self.save()
        self.writer.wait()
        self.events.emit("ended", reason=reason, **self.status())
        if reason != CLOSED:
            raise Stopped(reason, step=self.session.global_step, op_seq=self.operations.done)

    def answer_calls(self) -> str:
        """Carry out operations; returns why the session ends."""
        while not self.events.stop_requested():
            operation = self.operations.take(POLL_S)
            if operation is not None:
                self.run_operation(operation)
            elif self.operations.closing:
                return CLOSED
            elif self.operations.idle_s() >= self.session_job.idle_s:
                self.operations.close()
                return IDLE
            if self.is_due():
                self.save()
        self.operations.close()
        return "asked to stop"

    def run_operation(self, operation: SessionOperation) -> None:
        try:
            answer: dict[str, object] = {
                "reply": run_verb(self.side, operation.verb, operation.arguments, operation.body)
            }
        except TrainyardError as error:
            answer = error_header(error)
        except torch.OutOfMemoryError as error:
            self.require_together()
            self.session.zero_grad()
            answer = error_header(out_of_memory_error(error))
        except Exception as error:  # of a call, which must not end the session; the traceback is in its log
            log_traceback()
            self.require_together()
            answer = error_header(crash_error(error))
        self.changed = self.changed or operation.verb not in LOOKING
        self.operations.finish(operation, answer, len(orjson.dumps(answer)))
        faultpoint(f"session.{operation.verb}")

    def require_together(self) -> None:
        """Raise the error at hand where the other processes may wait for this one for ever: the session ends."""
        if self.team is not None and self.team.broken:
            raise  # noqa: PLE0704  called where an error is handled

    def status(self) -> JsonObject:
        """Return what callers see of an open session; read by threads of connections."""
        return {
            "global_step": self.session.global_step,
            "op_seq": self.operations.done,
            "next_op_seq": self.operations.next_seq,
            "saved_op_seq": self.saved,
            "resumed_after": self.operations.resumed_after,
            "idle_s": round(self.operations.idle_s(), 1),
        }

    # Checkpoints

    def is_due(self) -> bool:
        """Whether to save now. While a graph is pending it waits: a checkpoint cannot contain one."""
        every = max(self.session_job.autosave_s, WRITING_SHARE * self.writing_s)
        late = time.monotonic() - self.saved_at >= every
        return self.changed and late and not self.session.has_graph

    def save(self) -> None:
        """Save the state with the operations that are done, in the background; nothing without a new operation."""
        self.saved_at = time.monotonic()
        if self.operations.done == self.saved:
            return
        tensors, values = self.session.snapshot().flat()
        operations = self.operations.saved()
        values = {**values, "operations": operations, "forwards": self.session.num_forwards}
        if self.side.slots.in_use:
            values["slots"] = self.side.slots.save(tensors)
        self.writer.save(operations["done"], tensors, values)
        self.saved, self.changed = operations["done"], False

    def note_written(self, fields: JsonObject) -> None:
        self.writing_s = float(fields.get("seconds", 0.0))
        event = {**fields, "op_seq": fields["step"], "saved_op_seq": fields["step"]} if "step" in fields else fields
        self.events.emit("warning" if "code" in fields else "checkpoint", **event)


def open_engine(
    job: TrainingJob, folder: Path, events: Events, device: str, team: Team | None = None
) -> tuple[Policy, Session]:
    """Return the policy and its session, as a training has them before its first step."""
    tokenizer = load_tokenizer(job, events)
    policy = make_policy(job, device, events, tokenizer)
    precision = frame.decide_precision(job, device, folder)
    hyper = job.config.hyperparameters
    head = choose_head(job, policy, hyper.batch_size * hyper.max_length)
    decided = RunPlan(hyper.max_steps or 1, precision.precision, head, ends=False)
    if team is not None:
        team.broadcast_command(PLAN, asdict(decided))
    session = open_session(job, policy, tokenizer, decided, location=(device, folder), team=team)
    events.emit("begin", precision=precision.precision.value, precision_why=precision.why, head=head.value)
    return policy, session


def open_sealer(key: str) -> Sealer | None:
    """Return the key that the setting `checkpoint_key` names; None without one. The variable is not kept."""
    if not key:
        return None
    name = key_variable(key)
    secret = os.environ.pop(name, "") if name else read_secret_file(Path(key), "The key of the checkpoints")
    from trainyard.train.checkpoint.cipher import CheckpointCipher  # cryptography, only for encrypted checkpoints

    return CheckpointCipher(secret)


def export(job: TrainingJob, policy: Policy, session: Session, device: str, target: Path) -> None:
    """Write the adapter or the model, with the tokenizer, as a training leaves it."""
    session.show_served()
    try:
        served = gather_policy(policy, session, job)
        frame.require_finite_weights(served.model)
        save_trained(served, job, device, target)
    finally:
        session.show_trained()
    adapter = job.config.method.facts.adapter
    session.engine.tokenizer.save_pretrained(target / "tokenizer" if adapter else target)


def out_of_memory_error(error: Exception) -> TrainyardError:
    return TrainyardError(
        f"The device has no memory for this call: {str(error)[:200]}",
        why="Gradients and the pending graph were dropped; weights and optimizer are as they were.",
        do="Send fewer rows or shorter ones, zero_grad is done already.",
        code="E-DEVICE-MEMORY",
    )
