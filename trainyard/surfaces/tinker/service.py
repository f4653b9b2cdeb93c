"""The state of the wire in a service: sessions, queues, futures; what its routes call. Safe for threads."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from trainyard.app.context import Caller
from trainyard.errors import Conflict, Denied, InvalidInput
from trainyard.operations.table import Scope
from trainyard.settings import Settings
from trainyard.surfaces.tinker import requests
from trainyard.surfaces.tinker.bodies import StepRequest
from trainyard.surfaces.tinker.downloads import Downloads, list_files
from trainyard.surfaces.tinker.engines import Engines
from trainyard.surfaces.tinker.futures import Answer, Future, Futures
from trainyard.surfaces.tinker.queues import Item, NumberedQueue, WorkQueue
from trainyard.surfaces.tinker.records import (
    KINDS,
    CheckpointRecord,
    ClientSession,
    ModelRecord,
    SamplerRecord,
    TinkerStore,
    has_expired,
    path_of,
    require_open,
)
from trainyard.surfaces.tinker.sampling import Sampler
from trainyard.surfaces.tinker.training import EPHEMERAL, LOST, ModelTrainer, Operation

DEFAULT_TENANT = "default"
STALE_S = 300.0
"""Seconds without a heartbeat after which a client is gone; the SDK sends one every 10 s."""
SCOPES = tuple(Scope)
UNSUPPORTED = {
    "stable_reinforce": "The definition of stable_reinforce is not public, and it needs data that only Tinker records.",
    "custom": "Losses that a client uploads are not run here: the SDK runs them itself and sends their gradients.",
}


class TinkerService:
    """Services and settings that the routes of the wire use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store, self.engines, self.futures = TinkerStore(settings), Engines(settings), Futures()
        self.trainer, self.sampler = ModelTrainer(self.store, self.engines), Sampler(self.store, self.engines)
        self.downloads = Downloads(settings.services / "tinker")
        self.lock = threading.RLock()
        self.models: dict[str, NumberedQueue] = {}
        self.samplers: dict[str, WorkQueue] = {}
        self.sampled: dict[tuple[str, int], tuple[str, Future]] = {}
        self.created: dict[str, Future] = {}
        self.started = time.monotonic()
        self.heartbeats: dict[str, float] = {}
        """Session -> when its client was heard of last, on the monotonic clock: the wall clock may be set."""

    # Sessions

    def create_session(self, tenant: str, body: requests.CreateSession) -> dict[str, Any]:
        """Open a client's session, and clean up those whose clients are gone."""
        self.drop_stale(tenant)
        session = self.store.open(tenant, user_metadata=body.user_metadata, display_name=body.display_name)
        self.heartbeats[session.id] = time.monotonic()
        return {"type": "create_session", "session_id": session.id}

    def heartbeat(self, tenant: str, body: requests.SessionBody) -> dict[str, Any]:
        session = self.live_session(tenant, body.session_id)
        session.last_seen = time.time()
        self.heartbeats[session.id] = time.monotonic()
        engines = {model.engine for model in session.models.values() if model.engine and not model.closed}
        engines |= {sampler.engine for sampler in session.samplers.values() if sampler.engine}
        for engine in sorted(engines):
            self.engines.touch(tenant, engine)
        return {"type": "session_heartbeat"}

    def live_session(self, tenant: str, session_id: str) -> ClientSession:
        """Return a session that is not finished. Raises `Conflict` (`E-SESSION-STATE`) for one that is."""
        session = self.store.find(tenant, session_id)
        if session.finished:
            raise Conflict(f"The session has finished: {session.finished}.", do="Open another.", code="E-SESSION-STATE")
        return session

    def finish_session(self, tenant: str, session_id: str, reason: str) -> None:
        """End a session: its adapters are dropped, its checkpoints stay. The first reason counts."""
        session = self.store.find(tenant, session_id)
        if session.finished:
            return
        session.finished = reason
        self.heartbeats.pop(session_id, None)
        error = Conflict(f"The session has finished: {reason}.", code="E-SESSION-STATE")
        for model in session.models.values():
            if (queue := self.models.pop(model.id, None)) is not None:
                queue.abandon(error)
            self.drop_ephemeral(model)
            if not model.closed:
                model.closed = f"its session has finished ({reason})"
                if model.engine:
                    threading.Thread(
                        target=self.engines.forget, args=(tenant, model.engine, model.id), daemon=True
                    ).start()
        self.store.write(session)

    def drop_ephemeral(self, model: ModelRecord) -> None:
        """Remove the weights that were saved for one sampler without a name."""
        for checkpoint in [other for other in model.checkpoints if other.name.startswith(EPHEMERAL)]:
            model.checkpoints.remove(checkpoint)
            self.trainer.remove_files(model, checkpoint)

    def drop_stale(self, tenant: str) -> None:
        """Finish the sessions whose clients have not been heard of for a while."""
        now = time.monotonic()
        for session in self.store.list(tenant):
            if not session.finished and now - self.heartbeats.get(session.id, self.started) > STALE_S:
                self.finish_session(tenant, session.id, "no heartbeat")

    # Models

    def create_model(self, tenant: str, body: requests.CreateModel) -> Future:
        """Create a model; the same number of a session is the same model."""
        session = self.live_session(tenant, body.session_id)
        require_adamw(body.optimizer_config)
        lora = body.lora_config or requests.LoraConfig()
        self.engines.find_base(tenant, body.base_model)  # refused here, not when it is trained
        model = self.new_model(session, body.model_seq_id, body.base_model, lora, body.user_metadata)
        return self.start_model(session, model, body.model_dump_json(), self.trainer.create)

    def new_model(
        self, session: ClientSession, number: int, base: str, lora: requests.LoraConfig, metadata: requests.Metadata
    ) -> ModelRecord:
        """Return a record of a model; it is stored once it is accepted."""
        if not (lora.train_attn or lora.train_mlp or lora.train_unembed):
            raise InvalidInput(
                "No layer would be trained.", do="Set train_attn, train_mlp or train_unembed.",
                code="E-REQUEST-REFUSED",
            )  # fmt: skip
        now = time.time()
        seed = lora.seed if lora.seed is not None else secrets.randbits(31)
        return ModelRecord(
            id=f"{session.id}:train:{number}", base=base, rank=lora.rank, seed=seed % 2**63, created=now,
            train_attn=lora.train_attn, train_mlp=lora.train_mlp, train_unembed=lora.train_unembed, last_request=now,
            user_metadata=metadata,
        )  # fmt: skip

    def start_model(
        self, session: ClientSession, model: ModelRecord, body: str, operation: Operation, *arguments: Any
    ) -> Future:
        """Enter the first request of a model. Raises `InvalidInput` for a number that is taken by another one.

        A request that a service before this one has received finds its model, and creates no other.
        """
        digest = hashlib.sha256(body.encode()).hexdigest()
        with self.lock:
            model = session.models.get(model.id, model)
            if model.progress.request not in ("", digest):
                raise InvalidInput(
                    f"The model {model.id} was created with another request.", do="Use another number.",
                    code="E-PARAMETER",
                )  # fmt: skip
            if model.id in self.created:
                return self.created[model.id]
            require_open(model)
            future = self.futures.add(session.tenant, model.id)
            model.progress.request = digest
            session.models[model.id] = model
            self.store.write(session)
            self.created[model.id] = future
            self.queue_of(model).queue.put(Item(future, partial(operation, session, model, *arguments)))
            return future

    def queue_of(self, model: ModelRecord) -> NumberedQueue:
        with self.lock:
            if model.id not in self.models:
                self.models[model.id] = NumberedQueue(model.id, model.progress.next_seq, self.futures)
            return self.models[model.id]

    def submit(self, tenant: str, model_id: str, seq: int | None, digest: str, name: str, *arguments: Any) -> Future:
        """Enter a numbered request about a model: a method of the trainer with its arguments."""
        session, model = self.store.model(tenant, model_id)
        require_open(model)
        operation: Operation = getattr(self.trainer, name)

        def work(future: Future) -> Answer:
            try:
                return operation(session, model, *arguments, future)
            finally:
                if future.seq is not None and future.seq >= model.progress.next_seq:
                    model.progress.next_seq = future.seq + 1
                self.store.write(session)  # a service after this one knows which requests were run

        return self.queue_of(model).submit(seq, f"{name} {digest}", tenant, model.id, work)

    def find_future(self, tenant: str, request_id: str) -> Future | None:
        """Return a future; one that has waited too long for a number before it has failed."""
        future = self.futures.find(tenant, request_id)
        if future is not None and future.answer is None and future.model_id in self.models:
            self.models[future.model_id].fail_after_gap()
        return future

    def unload(self, tenant: str, model_id: str) -> Future:
        """Forget the adapter of a model, after the requests that it has."""
        session, model = self.store.model(tenant, model_id)
        future = self.futures.add(tenant, model_id)
        self.queue_of(model).queue.put(Item(future, partial(self.trainer.unload, session, model)))
        return future

    def submit_step(self, tenant: str, step: StepRequest) -> Future:
        if step.loss in UNSUPPORTED:
            step.error = InvalidInput(UNSUPPORTED[step.loss], do="Use another loss.", code="E-REQUEST-REFUSED")
        return self.submit(tenant, step.model_id, step.seq_id, f"{step.forward_only} {step.digest}", "run_step", step)

    def load(self, tenant: str, body: requests.LoadWeights) -> Future:
        """Load a checkpoint into a model, or into a new one of a session."""
        if body.weights_access_token is not None:
            raise InvalidInput(
                "A checkpoint of another account cannot be read.", do="Leave weights_access_token out.",
                code="E-REQUEST-REFUSED",
            )  # fmt: skip
        require_adamw(body.optimizer_config)
        digest = body.model_dump_json()
        if body.model_id is not None:
            return self.submit(tenant, body.model_id, body.seq_id, digest, "load", body)
        if body.session_id is None or body.model_seq_id is None:
            raise InvalidInput(
                "The request names no model.", do="Give model_id, or session_id and model_seq_id.", code="E-PARAMETER"
            )
        session = self.live_session(tenant, body.session_id)
        source, _ = self.store.checkpoint(tenant, body.path)
        if body.base_model not in (None, source.base):
            raise InvalidInput(
                f"The checkpoint is of {source.base}.", do="Leave base_model out.", code="E-CHECKPOINT-MISMATCH"
            )
        if body.lora_config is not None and body.lora_config.rank != source.rank:
            raise InvalidInput(
                f"The checkpoint is of rank {source.rank}.", do="Leave lora_config out.", code="E-CHECKPOINT-MISMATCH"
            )
        lora = requests.LoraConfig(
            rank=source.rank, seed=source.seed % 2**31, train_attn=source.train_attn, train_mlp=source.train_mlp,
            train_unembed=source.train_unembed,
        )  # fmt: skip
        model = self.new_model(session, body.model_seq_id, source.base, lora, body.user_metadata)
        return self.start_model(session, model, digest, self.trainer.create_from, body)

    # Samplers

    def create_sampler(self, tenant: str, body: requests.CreateSampler) -> dict[str, Any]:
        """Open a sampling session on a checkpoint or on a base."""
        session = self.live_session(tenant, body.session_id)
        sampler = self.sampler_for(tenant, f"{session.id}:sample:{body.sampling_session_seq_id}", body)
        session.samplers[sampler.id] = sampler
        self.store.write(session)
        return {"type": "create_sampling_session", "sampling_session_id": sampler.id}

    def sampler_for(self, tenant: str, name: str, body: requests.CreateSampler | requests.Sample) -> SamplerRecord:
        """Return a sampler for a path or a base. Raises `NotFound` and `InvalidInput` for anything else."""
        if body.model_path is not None:
            model, checkpoint = self.store.checkpoint(tenant, body.model_path)
            return SamplerRecord(
                id=name, base=model.base, model_path=body.model_path, saved=checkpoint.saved, engine=model.engine
            )
        if body.base_model is None:
            raise InvalidInput("The sampler names no model.", do="Give model_path or base_model.", code="E-PARAMETER")
        self.engines.find_base(tenant, body.base_model)
        engine = next(
            (
                model.engine
                for session in self.store.list(tenant)
                for model in session.models.values()
                if model.base == body.base_model and model.engine and not model.closed
            ),
            "",
        )
        return SamplerRecord(id=name, base=body.base_model, engine=engine)

    def sample(self, tenant: str, body: requests.Sample, digest: str) -> Future:
        """Enter a sample request and return its future: a new one, or the first of the same number."""
        if body.record_stability_info:
            raise InvalidInput(UNSUPPORTED["stable_reinforce"], do="Leave it out.", code="E-REQUEST-REFUSED")
        if body.sampling_session_id is not None:
            sampler = self.store.sampler(tenant, body.sampling_session_id)
        else:
            sampler = self.sampler_for(tenant, f"once-{secrets.token_hex(6)}", body)
        key = (sampler.id, body.seq_id if body.seq_id is not None else -1)
        with self.lock:
            if key[1] >= 0 and key in self.sampled:
                first_digest, future = self.sampled[key]
                if first_digest != digest:
                    raise InvalidInput(
                        f"The number {key[1]} came with another request before.", do="Use the next number.",
                        code="E-PARAMETER",
                    )  # fmt: skip
                return future
            future = self.futures.add(tenant)
            if key[1] >= 0:
                self.sampled[key] = (digest, future)
                while len(self.sampled) > MAX_SAMPLED:
                    self.sampled.pop(next(iter(self.sampled)))
            queue = self.samplers.setdefault(f"{tenant} {sampler.engine or sampler.base}", WorkQueue("samples"))
        queue.put(Item(future, partial(self.sampler.run, tenant, sampler, body)))
        return future

    # Records

    def checkpoint_row(self, model: ModelRecord, checkpoint: CheckpointRecord) -> dict[str, Any]:
        """Return a checkpoint as the SDK lists it."""
        return {
            "checkpoint_id": checkpoint.id, "checkpoint_type": KINDS[checkpoint.kind], "public": False,
            "time": moment(checkpoint.created), "tinker_path": path_of(model, checkpoint),
            "size_bytes": checkpoint.bytes or None, "user_metadata": checkpoint.user_metadata,
            "expires_at": moment(checkpoint.expires) if checkpoint.expires else None,
        }  # fmt: skip

    def run_row(self, tenant: str, model: ModelRecord) -> dict[str, Any]:
        """Return a model as the SDK lists it."""
        newest: dict[str, Any] = dict.fromkeys(KINDS)
        for checkpoint in model.checkpoints:
            newest[checkpoint.kind] = self.checkpoint_row(model, checkpoint)
        return {
            "training_run_id": model.id, "base_model": model.base, "model_owner": tenant, "is_lora": True,
            "corrupted": model.closed == LOST, "lora_rank": model.rank, "last_request_time": moment(model.last_request),
            "last_checkpoint": newest["weights"], "last_sampler_checkpoint": newest["sampler_weights"],
            "user_metadata": model.user_metadata,
        }  # fmt: skip

    def delete_checkpoint(self, tenant: str, model_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint; samplers on it fail from then on."""
        session, model = self.store.model(tenant, model_id)
        _, checkpoint = self.store.checkpoint(tenant, f"tinker://{model_id}/{checkpoint_id}")
        model.checkpoints.remove(checkpoint)
        self.store.write(session)
        self.trainer.remove_files(model, checkpoint)

    def set_lifetime(self, tenant: str, path: str, body: requests.Lifetime) -> None:
        """Let a checkpoint expire, or not."""
        model, checkpoint = self.store.checkpoint(tenant, path)
        checkpoint.expires = time.time() + body.ttl_seconds if body.ttl_seconds else None
        self.store.write(self.store.model(tenant, model.id)[0])

    def file_links(self, tenant: str, path: str) -> tuple[dict[str, str], float]:
        """Return the code of a link for each file of a checkpoint's export, and when they expire."""
        folder = self.trainer.export(tenant, path)
        links = {str(file.relative_to(folder)): self.downloads.add(file) for file in list_files(folder)}
        return {name: code for name, (code, _) in links.items()}, min(expires for _, expires in links.values())

    def archive_link(self, tenant: str, path: str) -> tuple[str, float]:
        """Return the code of a link to the archive of a checkpoint's export, and when it expires."""
        return self.downloads.add(self.downloads.pack(self.trainer.export(tenant, path)), temporary=True)

    def list_models(self, tenant: str) -> list[ModelRecord]:
        return [model for session in self.store.list(tenant) for model in session.models.values()]


MAX_SAMPLED = 8192


def require_adamw(config: requests.OptimizerConfig | None) -> None:
    """Raise `InvalidInput` (`E-REQUEST-REFUSED`) for another optimizer."""
    if config is not None and config.type != "adamw":
        raise InvalidInput(
            f"The optimizer {config.type[:40]!r} is not known.", do="Use adamw.", code="E-REQUEST-REFUSED"
        )


def sequence_ids(future: Future, body: requests.Sample) -> list[str]:
    """Return the ids of the sequences of a sample."""
    return [f"{future.id}-{number}" for number in range(body.num_samples)]


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def live_checkpoints(model: ModelRecord) -> list[CheckpointRecord]:
    return [checkpoint for checkpoint in model.checkpoints if not has_expired(checkpoint)]


def tenant_of(caller: Caller, scope: Scope) -> str:
    """Return the tenant of a caller that may do so much. Raises `Denied` (`E-SCOPE`)."""
    if SCOPES.index(caller.scope) < SCOPES.index(scope):
        raise Denied(
            f"The token of {caller.name} allows {caller.scope.value}, and this needs {scope.value}.",
            do="Use a token with a larger scope.", code="E-SCOPE",
        )  # fmt: skip
    return caller.tenant or DEFAULT_TENANT
