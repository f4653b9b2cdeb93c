"""The front door for programs: one manager for trainings on this machine and at cloud providers, without a server.

    manager = TrainingManager()
    job_id = manager.submit_local(LocalTrainingConfig(checkpoint_dir="checkpoints/"), "rows.jsonl", name="guide")
    manager.status("guide").progress.step

Its jobs are those that `trainyard jobs list`, REST and the dashboard show, by the name that they were given. A job
lives in the process that submitted it; when that process ends, the same job continues where it is submitted next.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from trainyard.app.plan.refusals import list_refusals
from trainyard.app.plan.resolve import resolve_chain
from trainyard.backends import manager as jobs
from trainyard.backends import states
from trainyard.backends.cloud.direct import find_file, require_provider
from trainyard.backends.job import TrainingJob, prepare_job
from trainyard.callbacks import ignore
from trainyard.data.sources import read_source
from trainyard.errors import Conflict, NotFound, Refused
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.settings import Settings, settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain, digest
from trainyard.spec.compat.other_tools import word_reasons
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.spec.load.parse import build_reasons
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.programs import CloudFineTuneConfig, LocalTrainingConfig
from trainyard.spec.states import JobState
from trainyard.spec.training import TrainerConfig
from trainyard.stores.adapters import files_digest
from trainyard.stores.jobs import JobRecord
from trainyard.stores.metrics import TrainingMetrics, TrainingProgress
from trainyard.stores.whole import describe_files, write_folder

DATASETS = "datasets"
SERVED_FILE = "served_model.json"


@dataclass(frozen=True)
class PreferenceDataset:
    """A file of pairs of answers."""

    path: Path

    @classmethod
    def from_file(cls, path: str | Path) -> PreferenceDataset:
        """Return the data set of a file. Raises `NotFound` (`E-DATA-NOT-FOUND`)."""
        return cls(find_file(path))


@dataclass(frozen=True)
class InstructDataset:
    """A file of questions with answers, or of chats."""

    path: Path

    @classmethod
    def from_file(cls, path: str | Path) -> InstructDataset:
        """Return the data set of a file. Raises `NotFound` (`E-DATA-NOT-FOUND`)."""
        return cls(find_file(path))


Dataset = PreferenceDataset | InstructDataset | str | Path


@dataclass(frozen=True)
class TrainedModelArtifact:
    """Where the result of a training is."""

    path: Path
    adapter_config: JsonObject | None = None
    """Of an adapter; None for a whole model, and for one that a provider serves."""
    served_model: str = ""
    """A provider's name for the model that it serves."""


class TrainingManager:
    """The jobs of a home, by id or name: those of this process can be steered, all of them are shown."""

    def __init__(self, settings_: Settings | None = None, options: jobs.Options | None = None) -> None:
        self.settings = settings_ or settings()
        self.manager = jobs.TrainingManager(self.settings, options)

    def submit_local(
        self, config: LocalTrainingConfig | JsonMapping | TrainingJob, dataset: Dataset = "", *, name: str = ""
    ) -> str:
        """Start a training on this machine as soon as its device is free, and return its id at once.

        `config` may be the body of a job, too. Raises `Refused` with all reasons, and `InvalidInput`.
        """
        if isinstance(config, TrainingJob):
            return self.manager.submit_local(config, name=name)
        path = dataset if isinstance(dataset, str | Path) else dataset.path
        body = config.body(str(path)) if isinstance(config, LocalTrainingConfig) else dict(config)
        facts = {"requested": {"device": body["device"]}} if "device" in body else {}
        return self.manager.submit_local(prepare(body, self.settings), name=name, facts=facts)

    def submit_cloud(self, provider: str, config: CloudFineTuneConfig, *, name: str = "") -> str:
        """Start a training at a cloud provider, and return its id at once. Raises as `submit_local`."""
        require_provider(provider)
        return self.manager.submit_local(prepare(config.body(provider), self.settings), name=name)

    def status(self, job: str) -> states.JobStatus:
        """Return the state of a job, its progress and its metrics. Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
        return self.manager.status(self.find(job).id)

    def progress(self, job: str) -> TrainingProgress:
        """Return step, epoch, totals, loss and learning rate of a job."""
        return self.manager.progress(self.find(job).id)

    def metrics(self, job: str) -> TrainingMetrics:
        """Return training loss, evaluation loss and working time of a job."""
        return self.manager.metrics(self.find(job).id)

    def list_jobs(self, status: JobState | str | None = None) -> list[JobRecord]:
        """Return the jobs, the newest first; of one state if it is given."""
        return self.manager.list_jobs(JobState(status) if status is not None else None)

    def cancel(self, job: str) -> None:
        """End a job for good, at a provider, too. Raises `Conflict` (`E-JOB-STATE`) if it is over."""
        self.manager.cancel(self.find(job).id)

    def pause(self, job: str) -> None:
        """Let a job save and end for now."""
        self.manager.pause(self.find(job).id)

    def resume(self, job: str) -> None:
        """Continue a job that is paused, failed or left pending."""
        self.manager.resume(self.find(job).id)

    def wait(self, job: str, timeout_s: float | None = None) -> states.JobStatus:
        """Wait for the end of a job, at most `timeout_s` seconds, and return its status."""
        return self.manager.wait(self.find(job).id, timeout_s)

    def download(self, job: str, folder: str | Path) -> TrainedModelArtifact:
        """Copy the result of a job into a new folder. Raises `Conflict` (`E-JOB-STATE`) while there is none."""
        record, target = self.find(job), Path(folder)
        if not record.result or not Path(record.result).is_dir():
            raise Conflict(
                f"The job {job} is {record.state}; it has no result.", do="Wait for its end.", code="E-JOB-STATE"
            )
        shutil.copytree(record.result, target)
        return describe_result(target)

    def find(self, job: str) -> JobRecord:
        """Return the record of a job by its id or name, the newest of several with that name."""
        records = self.manager.list_jobs()
        record = next((record for record in records if job in (record.id, record.name)), None)
        if record is None:
            raise NotFound(
                f"There is no job {job!r}.", do="List them with `list_jobs` or `trainyard jobs list`.",
                code="E-JOB-NOT-FOUND",
            )  # fmt: skip
        return record


def prepare(body: JsonMapping, machine: Settings) -> TrainingJob:
    """Return the training of a job's body, checked as `trainyard check` does, its rows read. Raises `Refused`."""
    chain = resolve_body(body, machine)
    if reasons := list_refusals(chain, machine):
        raise Refused(reasons)
    source, trainer = (chain.node(name) for name in chain.order)
    config, read = trainer.config, source.config
    assert isinstance(config, TrainerConfig), "the second node of a job"
    assert isinstance(read, DataSourceConfig), "the first node of a job"
    rows = read_rows(read, machine)
    shas = {port: files_digest(describe_files(folder)) for port, folder in rows.items()}
    data = {port: str(folder) for port, folder in rows.items()}
    base = config.base_model or machine.default_base_model
    return prepare_job(config, base, machine, data=data, data_sha256=shas, tenant=chain.tenant)


def resolve_body(body: JsonMapping, machine: Settings) -> ResolvedChain:
    """Return the resolved chain of a job's body. Raises `Refused` and `InvalidInput` (`E-SPEC-…`)."""
    if reasons := word_reasons(body, None):
        raise Refused(reasons)
    values = {"tenant": machine.tenant, **body}
    try:
        job = JobSpec.model_validate(values)
    except ValidationError as error:
        raise Refused(build_reasons(error, JobSpec)) from error
    return resolve_chain(chain_of_job(job), machine)


def read_rows(config: DataSourceConfig, machine: Settings) -> dict[Port, Path]:
    """Read the rows of a job once into the home; the same file and settings are found there again."""
    facts = Path(machine.working_folder / str(config.path)).resolve()
    state = facts.stat() if facts.exists() else None
    key = digest({
        "config": config.model_dump(mode="json"), "path": str(facts),
        "size": state.st_size if state else 0, "changed": str(state.st_mtime_ns) if state else "",
    })  # fmt: skip
    folder = machine.home / "jobs" / DATASETS / key[:32]

    def fill(target: Path) -> None:
        read_source(config, target, settings=machine, report=ignore)

    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, fill)
    return {port: folder / port.value for port in Port if (folder / port.value).is_dir()}


def describe_result(folder: Path) -> TrainedModelArtifact:
    """Return what a folder with a result contains."""
    config, served = folder / "adapter_config.json", folder / SERVED_FILE
    return TrainedModelArtifact(
        folder,
        orjson.loads(config.read_bytes()) if config.is_file() else None,
        str(orjson.loads(served.read_bytes())["model"]) if served.is_file() else "",
    )
