"""What requests about models do: create, train, save, load, unload. Each runs on the thread of its model."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainyard.backends.sessions.records import SAVED_FOLDER, folder_of_session
from trainyard.errors import Conflict, InvalidInput
from trainyard.json_types import JsonObject
from trainyard.surfaces.tinker import requests
from trainyard.surfaces.tinker.bodies import StepRequest, step_body
from trainyard.surfaces.tinker.engines import Engines
from trainyard.surfaces.tinker.futures import Answer, Future
from trainyard.surfaces.tinker.records import (
    EXTERNAL,
    SAMPLER,
    TRAINING,
    CheckpointRecord,
    ClientSession,
    ModelRecord,
    SamplerRecord,
    TinkerStore,
    path_of,
    require_checkpoint_name,
    require_open,
)
from trainyard.surfaces.tinker.replies import step_answer

STATE_KINDS = {TRAINING: "full", SAMPLER: "weights", EXTERNAL: "result"}
"""Kind of a checkpoint -> kind of a saved state."""
EPHEMERAL = "ephemeral-"
LOST = "its step session was killed and continued before some of its steps"


class ModelTrainer:
    """Carries out the requests about the models of all clients."""

    def __init__(self, store: TinkerStore, engines: Engines) -> None:
        self.store, self.engines = store, engines

    # Models

    def create(self, session: ClientSession, model: ModelRecord, future: Future) -> Answer:
        """Open the adapter of a new model, once."""
        if not (model.progress.ready or model.progress.last_op):
            self.open_adapter(session, model, future)
            self.note_ready(session, model)
        return Answer({"model_id": model.id, "type": "create_model"})

    def note_ready(self, session: ClientSession, model: ModelRecord) -> None:
        model.progress.ready = True
        self.store.write(session)

    def open_adapter(self, session: ClientSession, model: ModelRecord, future: Future) -> None:
        """Draw a new adapter in a step session for its shape, and note which one that is."""
        model.engine = self.engines.find_or_create(session.tenant, model)
        model.progress.process = self.engines.ensure_open(session.tenant, model.engine, future.pause).pid
        future.resume()
        reply = self.engines.call(
            session.tenant, model.engine, "open_slot", {"name": model.id, "seed": model.seed}, key=f"open {model.id}"
        )
        model.progress.last_op = int(reply["op_seq"])
        self.store.write(session)

    def call(
        self,
        session: ClientSession,
        model: ModelRecord,
        future: Future,
        verb: str,
        arguments: JsonObject,
        *,
        body: bytes = b"",
    ) -> Mapping[str, Any]:
        """Carry out a verb on the adapter of a model; returns its result. A request calls a verb at most once.

        The number of the request is the key of the operation: after a restart of this service the same request gets the
        first reply. Raises `Conflict` (`E-SESSION-STATE`) where the step session has lost steps of this model, and
        `Conflict` (`E-STEP`) where the reply of an earlier request is not kept.
        """
        require_open(model)
        incarnation = self.engines.ensure_open(session.tenant, model.engine, future.pause)
        future.resume()
        if incarnation.pid != model.progress.process and (incarnation.resumed_after or 0) < model.progress.last_op:
            model.closed = LOST
            self.store.write(session)
            require_open(model)
        model.progress.process = incarnation.pid
        key = f"{model.id} {future.seq} {verb}" if future.seq is not None else ""
        reply = self.engines.call(
            session.tenant, model.engine, verb, {"slot": model.id, **arguments}, body=body, key=key,
            only_repeat=future.only_repeat,
        )  # fmt: skip
        model.progress.last_op, model.last_request = max(model.progress.last_op, int(reply["op_seq"])), time.time()
        result: Mapping[str, Any] = reply["result"]
        return result

    def unload(self, session: ClientSession, model: ModelRecord, _: Future) -> Answer:
        """Forget the adapter of a model; its checkpoints stay."""
        if not model.closed:
            model.closed = "it was unloaded"
            self.engines.forget(session.tenant, model.engine, model.id)
            self.store.write(session)
        return Answer({"model_id": model.id, "type": "unload_model"})

    # Steps

    def run_step(self, session: ClientSession, model: ModelRecord, step: StepRequest, future: Future) -> Answer:
        """Score rows, and unless `forward_only` add the gradients of their loss."""
        if step.error is not None:
            raise step.error
        arguments = {"token_loss": step.loss, "settings": step.settings, "backward": not step.forward_only}
        result = self.call(session, model, future, "forward", arguments, body=step_body(step))
        return step_answer(step, result)

    def optimize(
        self, session: ClientSession, model: ModelRecord, request: requests.OptimStep, future: Future
    ) -> Answer:
        """Move the weights by the gradients of all chunks since the last step."""
        if request.optimizer_params is not None:
            kind = str(request.optimizer_params.get("type", ""))[:40]
            raise InvalidInput(f"The optimizer {kind!r} is not known.", do="Use adamw.", code="E-REQUEST-REFUSED")
        params = request.adam_params or requests.AdamParams()
        options = {"betas": [params.beta1, params.beta2], "eps": params.eps, "weight_decay": params.weight_decay}
        arguments = {
            "learning_rate": params.learning_rate, "max_grad_norm": params.grad_clip_norm, "options": options,
        }  # fmt: skip
        result = self.call(session, model, future, "step", arguments)
        self.call(session, model, future, "zero_grad", {})
        metrics = {"grad_norm:mean": result["grad_norm"], "learning_rate:mean": result["learning_rate"]}
        return Answer({"metrics": {name: value for name, value in metrics.items() if value is not None}})

    # Checkpoints

    def save(self, session: ClientSession, model: ModelRecord, request: requests.SaveWeights, future: Future) -> Answer:
        """Save weights and optimizer under a name."""
        name = request.path or f"{len(model.checkpoints):06d}"
        checkpoint = self.write_checkpoint(session, model, (TRAINING, name), request, future)
        return Answer({"path": path_of(model, checkpoint), "type": "save_weights"})

    def save_for_sampler(
        self, session: ClientSession, model: ModelRecord, request: requests.SaveForSampler, future: Future
    ) -> Answer:
        """Save weights to sample from: under a name, or for one sampler without one."""
        name = request.path or f"{EPHEMERAL}{secrets.token_hex(6)}"
        checkpoint = self.write_checkpoint(session, model, (SAMPLER, name), request, future)
        if request.path is not None:
            return Answer({"path": path_of(model, checkpoint), "type": "save_weights_for_sampler"})
        sampler = SamplerRecord(
            id=f"{session.id}:sample:{request.sampling_session_seq_id}", base=model.base,
            model_path=path_of(model, checkpoint), saved=checkpoint.saved, engine=model.engine,
            follows=model.id if request.kind == "inflight" else "",
        )  # fmt: skip
        session.samplers[sampler.id] = sampler
        if sampler.follows:
            self.move_on(session, model, sampler)
        self.store.write(session)
        return Answer({"sampling_session_id": sampler.id, "type": "save_weights_for_sampler"})

    def move_on(self, session: ClientSession, model: ModelRecord, newest: SamplerRecord) -> None:
        """Let every sampler that follows a model take the newest weights, and remove those that none has any more."""
        for sampler in session.samplers.values():
            if sampler is newest or sampler.follows != model.id:
                continue
            path, sampler.model_path, sampler.saved = sampler.model_path, newest.model_path, newest.saved
            for checkpoint in [other for other in model.checkpoints if path_of(model, other) == path]:
                if path != newest.model_path:
                    model.checkpoints.remove(checkpoint)
                    self.remove_files(model, checkpoint)

    def save_external(
        self, session: ClientSession, model: ModelRecord, request: requests.SaveExternal, future: Future
    ) -> Answer:
        """Save the adapter as PEFT reads it, to download."""
        if request.age_encryption_recipients:
            raise InvalidInput(
                "Exported files are not encrypted here.", do="Leave age_encryption_recipients out.",
                code="E-REQUEST-REFUSED",
            )  # fmt: skip
        checkpoint = self.write_checkpoint(session, model, (EXTERNAL, request.path), request, future)
        return Answer({"path": path_of(model, checkpoint), "type": "save_weights_external"})

    def export(self, tenant: str, path: str) -> Path:
        """Return the folder of a checkpoint as a PEFT adapter, written when it is requested first.

        Raises `NotFound` (`E-NOT-FOUND`), and the errors of the step session.
        """
        model, checkpoint = self.store.checkpoint(tenant, path)
        folder = folder_of_session(self.engines.settings, model.engine) / SAVED_FOLDER
        if checkpoint.kind == EXTERNAL:
            return folder / checkpoint.saved
        name = f"{checkpoint.saved}-peft"
        if not (folder / name).is_dir():
            self.engines.ensure_open(tenant, model.engine)
            arguments = {"name": name, "kind": "result", "weights": checkpoint.saved}
            self.engines.call(tenant, model.engine, "save", arguments)
        return folder / name

    def remove_files(self, model: ModelRecord, checkpoint: CheckpointRecord) -> None:
        """Remove the files of a checkpoint, and of its export."""
        folder = folder_of_session(self.engines.settings, model.engine) / SAVED_FOLDER
        for name in (checkpoint.saved, f"{checkpoint.saved}-peft"):
            shutil.rmtree(folder / name, ignore_errors=True)

    def write_checkpoint(
        self,
        session: ClientSession,
        model: ModelRecord,
        slot: tuple[str, str],
        request: requests.SaveWeights | requests.SaveForSampler | requests.SaveExternal,
        future: Future,
    ) -> CheckpointRecord:
        """Save a state of a model. Raises `Conflict` (`E-FILE-EXISTS`) for a name that is taken."""
        kind, name = slot[0], require_checkpoint_name(slot[1])
        saved = name_saved(model, future)
        repeat = next((other for other in model.checkpoints if other.saved == saved), None)
        if repeat is not None:
            return repeat  # of the same request, before this service started
        earlier = next((other for other in model.checkpoints if (other.kind, other.name) == slot), None)
        if earlier is not None and not getattr(request, "overwrite", False):
            raise Conflict(
                f"The model has a checkpoint {earlier.id} already.", do="Choose another name, or overwrite it.",
                code="E-FILE-EXISTS",
            )  # fmt: skip
        self.call(session, model, future, "save", {"name": saved, "kind": STATE_KINDS[kind]})
        folder = folder_of_session(self.engines.settings, model.engine) / SAVED_FOLDER / saved
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        now = time.time()
        checkpoint = CheckpointRecord(
            kind=kind, name=name, saved=saved, created=now, bytes=size, user_metadata=request.user_metadata,
            expires=now + request.ttl_seconds if request.ttl_seconds else None,
        )  # fmt: skip
        model.checkpoints = [other for other in model.checkpoints if other is not earlier] + [checkpoint]
        self.store.write(session)
        if earlier is not None:
            self.remove_files(model, earlier)
        return checkpoint

    def load(self, session: ClientSession, model: ModelRecord, request: requests.LoadWeights, future: Future) -> Answer:
        """Take a saved state over, with its optimizer or the weights alone."""
        source, checkpoint = self.store.checkpoint(session.tenant, request.path)
        if checkpoint.kind == EXTERNAL:
            raise InvalidInput(
                "External weights are for other programs.", do="Load a checkpoint of save_state.", code="E-STEP"
            )
        if source.signature != model.signature:
            raise InvalidInput(
                f"The checkpoint is of {source.signature}, and the model of {model.signature}.",
                do="Create a model of the same base and rank.", code="E-CHECKPOINT-MISMATCH",
            )  # fmt: skip
        if request.optimizer and checkpoint.kind != TRAINING:
            raise InvalidInput(
                "Weights of a sampler have no optimizer state.", do="Load a checkpoint of save_state.", code="E-STEP"
            )
        self.call(session, model, future, "load", {"name": checkpoint.saved, "optimizer": request.optimizer})
        return Answer({"path": request.path, "model_id": model.id, "type": "load_weights"})

    def create_from(
        self, session: ClientSession, model: ModelRecord, request: requests.LoadWeights, future: Future
    ) -> Answer:
        """Open a new model and load a checkpoint into it, once."""
        if model.progress.ready or model.progress.next_seq > 1:
            return Answer({"path": request.path, "model_id": model.id, "type": "load_weights"})
        self.open_adapter(session, model, future)
        answer = self.load(session, model, request, future)
        self.note_ready(session, model)
        return answer


def name_saved(model: ModelRecord, future: Future) -> str:
    """Return the name of a saved state in the step session: the same for the same numbered request."""
    if future.seq is None:
        return f"tinker-{secrets.token_hex(12)}"
    return f"tinker-{hashlib.sha256(f'{model.id} {future.seq}'.encode()).hexdigest()[:24]}"


Operation = Callable[..., Answer]
"""(session, model, …, future) -> answer"""
