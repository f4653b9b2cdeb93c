"""Training of a night: the snapshot's rows, a supervised child, the gate, and the live pointer."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from trainyard.backends.base import probe, run_training
from trainyard.backends.job import TrainingJob, prepare_job
from trainyard.backends.ledger_entry import describe_training, read_training_record
from trainyard.backends.oom import train_within_memory
from trainyard.backends.recipe import describe_reproduction
from trainyard.callbacks import ignore
from trainyard.compute.gpus import device_numbers, training_threads
from trainyard.compute.supervise import DesiredState
from trainyard.data.corpora import write_training_set
from trainyard.evals.job import job_from_inputs
from trainyard.evals.runner import REPORT_FILE, REPORT_FOLDER, evaluate
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.night.deps import NightVerdict, Trained, TrainingRequest
from trainyard.serve.deploy import deploy
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.night import BUCKET_PORTS, NightConfig, night_trainer
from trainyard.spec.nodes import DeployerConfig, EvaluatorConfig, Target
from trainyard.spec.training import resolve_trainer
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion, files_digest
from trainyard.stores.artifacts import Produced, Reference
from trainyard.stores.ledger.log import run_key
from trainyard.stores.ledger.recording import TRAINED, record_step
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import describe_files, write_json_durably

DONE_FILE = "trained.json"


class LocalTrainer:
    """`world.Trainer` with the product's own backends, evaluations and deployments.

    `run` trains one job; `unfit` says what of the config this machine cannot carry out, empty for nothing (`str()`).
    """

    def __init__(
        self,
        config: NightConfig,
        settings: Settings,
        run: Callable[..., Produced] = run_training,
        unfit: Callable[[], str] = str,
    ) -> None:
        self.config, self.settings, self.unfit, self.run = config, settings, unfit, run
        self.registry = AdapterRegistry(settings.adapters)

    def missing(self) -> str:
        probe_result = probe(self.config.phase2.training.backend, self.settings)
        return (
            self.unfit()
            if probe_result.available
            else f"no trainer is installed: {probe_result.why} {probe_result.fix}".strip()
        )

    def train(self, order: TrainingRequest) -> Trained:
        """Train in a child; a finished training of the same request is reused."""
        done = order.work / DONE_FILE
        if not done.is_file():
            order.work.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(order.work / "adapter", ignore_errors=True)
            job, started = self.job(order), time.time()
            produced = train_within_memory(
                job,
                order.work,
                desired_state=keep_running(order),
                on_event=ignore,
                settings=self.settings,
                train=self.bind_budget(order.budget_s),
            )
            problem = self.record(order, job, started, produced.facts)
            facts = {**produced.facts, **({"ledger": problem} if problem else {})}
            write_json_durably(done, add_version("trained", facts))
        return Trained(order.work / "adapter", read_versioned("trained", done.read_bytes(), done))

    def record(self, order: TrainingRequest, job: TrainingJob, started: float, facts: JsonMapping) -> str:
        """Record the training in the ledger; return why it could not be, empty when it is there."""
        folder = order.work / job.output.value
        record = {**read_training_record(folder), "energy_j": facts.get("energy_j")}
        return record_step(
            self.settings.home,
            TRAINED,
            run_key("night", order.marker.tenant, order.marker.name, job.digest),
            run=order.marker.name,
            tenant=order.marker.tenant,
            node="nightly",
            outputs={job.output.value: {"sha256": files_digest(describe_files(folder))}},
            **describe_training(
                job, record, self.settings, started=started, seconds=time.time() - started, theme=order.marker.role
            ),
            **describe_reproduction(job, record, folder, self.settings, inputs=dict(list_inputs(job))),
        )

    def bind_budget(self, budget_s: float) -> Callable[..., Produced]:
        """Return `run` with the remaining budget of the order, or the config's where that is shorter."""
        limit_s = self.config.phase2.training.budget_s
        ends = time.monotonic() + min(budget_s, limit_s or budget_s)

        def train(job: TrainingJob, folder: Path, **options: Any) -> Produced:
            return self.run(job, folder, budget_s=max(1.0, ends - time.monotonic()), **options)

        return train

    def job(self, order: TrainingRequest) -> TrainingJob:
        """Return the child's job: the snapshot's rows on disk, the base resolved; the stage is the bucket's method."""
        marker, port = order.marker, BUCKET_PORTS[order.marker.method]
        rows = order.work / "rows"
        share = self.config.phase2.holdout
        length = self.config.phase2.training.hyperparameters.max_length
        write_training_set(list(order.tuples), marker.method, rows, share, length)
        trainer = resolve_trainer(night_trainer(self.config, marker.method), self.settings.default_base_model)
        return prepare_job(
            trainer,
            marker.base_model,
            self.settings,
            data={port: str(rows)},
            data_sha256={port: hashlib.sha256(f"{marker.corpus_sha256}:{share}:{length}".encode()).hexdigest()},
            devices=device_numbers()[:1],
            run=marker.name,
            tenant=marker.tenant,
            node="nightly",
        )

    def judge(self, order: TrainingRequest, trained: Trained) -> NightVerdict:
        """Candidate against the live adapter, on tuples that no training sees."""
        marker, port = order.marker, BUCKET_PORTS[order.marker.method]
        inputs: Mapping[Port, list[Reference]] = {
            Port.ADAPTER: [reference(trained.folder, Port.ADAPTER)],
            port: [reference(order.work / "rows", port)],
        }
        # The corpus has its own least number of tuples, below which a night trains nothing.
        config = EvaluatorConfig(baseline="live", samples=0, least_rows=0)
        live = self.live(marker.tenant, marker.role)
        job = job_from_inputs(config, inputs, threads=training_threads(self.settings.threads), live=live)
        shutil.rmtree(order.work / "judge", ignore_errors=True)
        evaluate(job, order.work / "judge", desired_state=keep_running(order), settings=self.settings)
        report: JsonObject = orjson.loads((order.work / "judge" / REPORT_FOLDER / REPORT_FILE).read_bytes())
        gate = report["gate"]
        facts = {**gate, "baseline": report["baseline"]}
        return NightVerdict(bool(gate["better"]), tuple(gate["reasons"]), facts)

    def live(self, tenant: str, role: str) -> Path | None:
        number = self.registry.live(tenant, role).version
        return self.registry.path(self.registry.show(f"{tenant}/{role}/v{number}")) if number else None

    def deploy(self, version: AdapterVersion) -> None:
        """Load, ask and switch every target of the config and the live pointer, or none, as a deployer does.

        After the checks of every deployment: gate, base, template, files.
        """
        folder = self.work_folder(version)
        report = folder / "judge" / REPORT_FOLDER
        judged = (report / REPORT_FILE).is_file()
        phase2 = self.config.phase2
        config = DeployerConfig(
            tenant=version.tenant,
            role=version.role,
            unevaluated=not judged,
            targets=phase2.targets or (Target(),),
            canary=phase2.canary,
        )
        folder.mkdir(parents=True, exist_ok=True)
        deploy(
            config,
            adapter=reference(self.registry.path(version), Port.ADAPTER),
            report=reference(report, Port.REPORT) if judged else None,
            folder=folder,
            settings=self.settings,
            tenant=version.tenant,
            run_key=version.run_key,
        )

    def work_folder(self, version: AdapterVersion) -> Path:
        return tenant_root(self.settings, version.tenant) / "training" / version.run_key


def list_inputs(job: TrainingJob) -> Iterator[tuple[str, tuple[str, Path]]]:
    """Yield role -> (digest, folder) of the rows of a night's training."""
    for port, folder in job.data.items():
        path = Path(folder)
        yield f"data/{port.value}", (files_digest(describe_files(path)), path)


def tenant_root(settings: Settings, tenant: str) -> Path:
    """Where a tenant's nights, corpora, markers and trainings lie."""
    return settings.home / "tenants" / tenant


def keep_running(order: TrainingRequest) -> Any:
    """Return a child's `desired_state`: always RUN, after the claim was renewed if that was due."""

    def get_desired_state() -> DesiredState:
        order.renew_if_due()
        return DesiredState.RUN

    return get_desired_state


def reference(folder: Path, kind: Port) -> Reference:
    """Return a folder of the night as an input of an evaluation or a deployment."""
    files = describe_files(folder)
    return Reference(
        uri=f"file://{folder}",
        sha256=files_digest(files),
        kind=kind,
        bytes=sum(int(entry["bytes"]) for entry in files.values()),
    )
