"""A provider for programs that have its key: submit, status, cancel, download, without a manager.

    provider = FineTuneProviderFactory.create("together", key)
    job_id = provider.submit(CloudFineTuneConfig(model="meta-llama/Llama-3-8b", training_file="data/train.jsonl"))

The files are sent as they are, in the provider's format. The run key is made of the config and the files, so the same
submission from a program that was killed finds its job; another `name` is another job.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from trainyard.backends import states
from trainyard.backends.cloud.contract import (
    CloudRequest,
    Provider,
    ProviderAddress,
    ProviderState,
    UploadedRows,
)
from trainyard.backends.cloud.submission import PollPace, Submission
from trainyard.compute.child import EVENTS_FILE, Events
from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.settings import Settings, settings
from trainyard.spec.axes.providers import PROVIDERS, RETIRED
from trainyard.spec.axes.stages import Stage
from trainyard.spec.chain import digest
from trainyard.spec.programs import CloudFineTuneConfig
from trainyard.spec.states import JobState

STATES = {
    ProviderState.WAITING: JobState.PENDING,
    ProviderState.RUNNING: JobState.RUNNING,
    ProviderState.UNKNOWN: JobState.RUNNING,
    ProviderState.DONE: JobState.COMPLETED,
    ProviderState.FAILED: JobState.FAILED,
    ProviderState.CANCELED: JobState.CANCELED,
}
FOLDER = "providers"


@dataclass(frozen=True)
class FineTuneProvider:
    """A provider by its name, opened with a key."""

    name: str
    client: Provider
    machine: Settings

    def submit(self, config: CloudFineTuneConfig, *, name: str = "") -> str:
        """Upload the files and create the job, once; return the provider's id of it. Raises `ProviderError`."""
        files = [find_file(path) for path in (config.training_file, config.validation_file) if path is not None]
        for file in files:
            PROVIDERS[self.name].require_file_size(file.stat().st_size)
        shas = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        key = digest({"provider": self.name, "config": config.model_dump(mode="json"), "files": shas, "name": name})
        folder = self.machine.home / FOLDER / key[:32]
        folder.mkdir(parents=True, exist_ok=True)
        events, hyper = Events(folder / EVENTS_FILE), config.hyperparams
        pace = PollPace(poll_s=self.machine.provider_poll_s, settle_s=self.machine.provider_settle_s)
        submission = Submission(self.client, key[:32], folder, events.emit, pace)
        uploaded = [submission.upload(part, file) for part, file in zip(("rows", "validation"), files, strict=False)]
        request = CloudRequest(
            submission.run_key, config.model, Stage.DPO if config.alignment is not None else Stage.SFT,
            epochs=None if hyper.epochs is None else int(hyper.epochs), batch_size=hyper.batch_size,
            learning_rate=hyper.learning_rate, suffix=config.suffix or "",
        )  # fmt: skip
        return submission.submit(request, UploadedRows(uploaded[0], *uploaded[1:])).id

    def status(self, job_id: str) -> states.JobStatus:
        """Return the state of a job, and the provider's message where it failed."""
        job = self.client.read(job_id)
        return states.JobStatus(state=STATES[job.state], reason=job.message or job.word)

    def cancel(self, job_id: str) -> None:
        """Ask the provider to end a job."""
        self.client.cancel(job_id)

    def download(self, job_id: str, folder: str | Path) -> Path:
        """Download the weights of a finished job into a folder. Raises `Conflict` (`E-JOB-STATE`), `R-PROVIDER`."""
        job, target = self.client.read(job_id), Path(folder)
        if job.state is not ProviderState.DONE:
            raise Conflict(f"The job {job_id} is {job.word}.", do="Wait for its end.", code="E-JOB-STATE")
        target.mkdir(parents=True, exist_ok=True)
        self.client.download(job, target)
        return target


class FineTuneProviderFactory:
    """Opens providers by name."""

    @staticmethod
    def create(name: str, key: str, *, base_url: str = "", **variables: str) -> FineTuneProvider:
        """Return a provider. `variables` are its account, project, bucket or role, else those of the environment.

        Raises `InvalidInput` for a provider that trains no more (`R-PROVIDER`) or that there is not (`E-PARAMETER`).
        """
        require_provider(name)
        facts = PROVIDERS[name]
        named = {variable: os.environ.get(variable, "") for variable in (*facts.variables, *facts.optional)}
        address = ProviderAddress(base_url or os.environ.get(facts.address, ""), key, named)
        address = replace(address, variables={**named, **variables})
        missing = [variable for variable in facts.variables if not address.variable(variable)]
        if missing:
            raise InvalidInput(
                f"{facts.title} needs {', '.join(missing)}.", do="Set them, or give them by name to `create`.",
                code="E-PARAMETER",
            )  # fmt: skip
        module = importlib.import_module(f"trainyard.backends.cloud.{name}")
        return FineTuneProvider(name, cast(Provider, module.open_provider(address)), settings())


def require_provider(name: str) -> None:
    """Raise `InvalidInput`: `R-PROVIDER` for a provider that trains no more, `E-PARAMETER` for one that is unknown."""
    if name in RETIRED:
        why, instead = RETIRED[name]
        raise InvalidInput(f"The provider {name} trains no more: {why}.", do=f"Use {instead}.", code="R-PROVIDER")
    if name not in PROVIDERS:
        raise InvalidInput(
            f"There is no provider {name!r}.", why=f"There are {', '.join(PROVIDERS)}.", do="Correct the name.",
            code="E-PARAMETER",
        )  # fmt: skip


def find_file(path: str | Path) -> Path:
    """Return a file of rows. Raises `NotFound` (`E-DATA-NOT-FOUND`)."""
    file = Path(path)
    if not file.is_file():
        raise NotFound(f"There is no file {str(path)!r}.", do="Correct the path.", code="E-DATA-NOT-FOUND")
    return file
